//! `rekindle-bench load` and `trace`.

use std::path::PathBuf;

use super::scenario::Scenario;

/// Runs k6's scenarios against a platform, and writes a report.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  rekindle-bench load                                           every scenario, 30 s each, on a platform of its own
  rekindle-bench load --scenarios spike,deploys --duration 1m
  rekindle-bench load --port 8080                               on the platform that `make up` started
  rekindle-bench load --set RATE=200 --set SPIKE=50             what load-tests/README.md lists
  rekindle-bench load --otlp http://collector:4317              k6's own metrics to a collector that takes metrics")]
pub(crate) struct LoadArgs {
    /// Scenarios, in this order; by default all of them.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) scenarios: Vec<Scenario>,
    /// Duration of each.
    #[arg(long, default_value = "30s", value_parser = rekindle_wire::function_config::parse_duration)]
    pub(crate) duration: std::time::Duration,
    /// Use the platform whose gateway listens at this port of this machine, instead of one of its own.
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// That platform's admin key; by default from its file under /var/lib/rekindle.
    #[arg(long, env = "FN_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// A setting of the scenarios.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, String)>,
    /// Where k6 sends its own metrics by OTLP (gRPC), besides those for the report.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// The k6 binary; by default the one on PATH or the one that scripts/install-k6.sh has built.
    #[arg(long, value_name = "PATH")]
    pub(crate) k6: Option<PathBuf>,
}

/// Prints a trace of the store that `make traces` started.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TraceArgs {
    /// The trace's id, 32 hexadecimal digits; by default the newest.
    pub(crate) id: Option<String>,
}

/// Parses `NAME=VALUE`.
fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("\"{text}\" is not a setting: write for example RATE=200"))?;
    Ok((name.to_owned(), value.to_owned()))
}
