//! `fn up --traces`: where spans go, and where to look at them. Telemetry reads only OpenTelemetry's own variables, so
//! the option only sets those of traces: a trace store takes no metrics.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The collector on this machine, as `make traces` starts it.
pub(crate) const LOCAL: &str = "http://127.0.0.1:4317";
const LOCAL_PORT: u16 = 4317;
const LOCAL_QUERIES: &str = "http://127.0.0.1:16686";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
/// Limit for checking whether a collector listens on this machine.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// Makes this process send its spans to `endpoint`: it executes itself again, under the same pid, with the variables
/// set. To be called before there is anything to lose.
pub(super) fn point(endpoint: Option<&str>) -> Result<()> {
    let Some(endpoint) = endpoint.filter(|e| std::env::var(ENDPOINT).as_deref() != Ok(e)) else {
        return Ok(());
    };
    let own = std::env::current_exe().context("the path of this program is not known")?;
    let error = Command::new(own)
        .args(std::env::args_os().skip(1))
        .env(ENDPOINT, endpoint)
        .env(PROTOCOL, "grpc")
        .exec();
    Err(error).context("the platform cannot begin anew with traces")
}

/// The message for whoever started the platform.
pub(super) fn tell(endpoint: &str) -> String {
    if endpoint != LOCAL {
        return format!("sent to {endpoint}");
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, LOCAL_PORT));
    match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
        Ok(_) => format!(
            "`make trace` prints the newest invocation's; Jaeger answers at {LOCAL_QUERIES}/api/traces (its page is at \
             {LOCAL_QUERIES}, unless `make traces` built it: without one)"
        ),
        Err(_) => format!(
            "nothing listens at {endpoint} yet: `make traces` installs Jaeger and starts it, `make trace` prints the \
             newest invocation's"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_elsewhere_is_only_named() {
        assert_eq!(tell("http://10.0.0.7:4317"), "sent to http://10.0.0.7:4317");
    }
}
