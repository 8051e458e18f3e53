//! rekindle-telemetry
