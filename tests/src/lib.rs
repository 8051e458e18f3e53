//! rekindle-e2e
