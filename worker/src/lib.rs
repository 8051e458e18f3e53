//! rekindle-worker
