//! rekindle-scheduler
