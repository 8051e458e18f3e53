//! rekindle-gateway
