//! rekindle-cli
