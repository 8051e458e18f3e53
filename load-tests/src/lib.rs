//! rekindle-bench
