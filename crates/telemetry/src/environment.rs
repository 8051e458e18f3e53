//! OpenTelemetry's environment variables that its own exporter does not read.

use crate::InitError;

/// A variable that is not empty.
pub(crate) fn set(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|v| !v.is_empty())
}

/// Whether nothing is exported at all.
pub(crate) fn is_disabled() -> bool {
    set("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"))
}

/// The protocol of an OTLP endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    /// Protobuf in HTTP requests.
    Http,
}

impl Protocol {
    /// The protocol for a signal, `TRACES` or `METRICS`; gRPC by default.
    pub(crate) fn of(signal: &str) -> Result<Self, InitError> {
        let own = set(&format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"));
        match own.or_else(|| set("OTEL_EXPORTER_OTLP_PROTOCOL")) {
            None => Ok(Self::Grpc),
            Some(said) if said == "grpc" => Ok(Self::Grpc),
            Some(said) if said == "http/protobuf" => Ok(Self::Http),
            Some(said) => Err(InitError::Protocol(said)),
        }
    }
}

/// Attributes of this process: `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME` or `service_name`, and the version.
pub(crate) fn resource(service_name: &str) -> Vec<(String, String)> {
    let name = set("OTEL_SERVICE_NAME").unwrap_or_else(|| service_name.to_owned());
    let said = set("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let pairs = said.split(',').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()));
    let fixed = [
        ("service.name", name),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let fixed = fixed.map(|(k, v)| (k.to_owned(), v));
    pairs
        .filter(|(k, _)| !fixed.iter().any(|(f, _)| f == k))
        .chain(fixed.clone())
        .collect()
}
