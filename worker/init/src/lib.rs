//! rekindle-init
