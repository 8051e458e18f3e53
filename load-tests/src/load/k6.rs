//! k6 itself: its location, and one run of it, whose samples are read from its standard output while it writes them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use rekindle_testkit::binaries::checkout;
use serde::Deserialize;

use super::points::Tally;
use super::scenario::Scenario;

/// k6's exit code if all went well but a threshold was crossed.
const THRESHOLD_CROSSED: i32 = 99;
/// Lines of its errors in ours.
const TOLD_LINES: usize = 12;

/// The binary.
#[derive(Debug, Clone)]
pub(super) struct K6 {
    path: PathBuf,
    version: String,
}

/// A limit that the scenario sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Threshold {
    pub(crate) metric: String,
    /// The limit as k6 writes it.
    pub(crate) limit: String,
    /// Whether it held.
    pub(crate) met: bool,
}

/// Results of a run of a scenario.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    pub(super) thresholds: Vec<Threshold>,
    /// The first lines of k6's log.
    pub(super) log: Vec<String>,
}

/// The parts of the end-of-test summary that are read.
#[derive(Deserialize)]
struct Summary {
    metrics: BTreeMap<String, Metric>,
}

#[derive(Deserialize)]
struct Metric {
    #[serde(default)]
    thresholds: BTreeMap<String, Verdict>,
}

#[derive(Deserialize)]
struct Verdict {
    ok: bool,
}

impl K6 {
    /// The named one, otherwise the one on PATH, otherwise the one that scripts/install-k6.sh has built.
    pub(super) fn find(named: Option<&Path>, cache: &Path) -> Result<Self> {
        let built = cache.join("tools/bin/k6");
        let candidates = match named {
            Some(path) => vec![path.to_owned()],
            None => vec![PathBuf::from("k6"), built],
        };
        for path in candidates {
            if let Ok(output) = Command::new(&path).arg("version").output()
                && output.status.success()
            {
                let version = String::from_utf8_lossy(&output.stdout);
                let version = version.lines().next().unwrap_or_default().trim().to_owned();
                return Ok(Self { path, version });
            }
        }
        bail!("there is no k6: run scripts/install-k6.sh (`make load` does), or name one with --k6")
    }

    /// Its version, as it reports it.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Runs a scenario to its end. Blocks.
    pub(super) fn run(
        &self,
        scenario: Scenario,
        environment: &BTreeMap<String, String>,
        otlp: Option<&str>,
        dir: &Path,
        began: SystemTime,
    ) -> Result<Outcome> {
        let summary = dir.join("summary.json");
        let mut command = Command::new("setpriv");
        // It ends with this program.
        command.args(["--pdeathsig", "TERM"]).arg(&self.path);
        command.args(["run", "--no-usage-report", "--quiet", "--no-color", "--out", "json=-"]);
        if let Some(endpoint) = otlp {
            command.args(["--out", "opentelemetry"]).envs(exporter(endpoint));
        }
        command
            .arg(
                checkout()
                    .join("load-tests/k6")
                    .join(scenario.name())
                    .with_extension("js"),
            )
            .envs(environment)
            .env("SUMMARY", &summary)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("setpriv (util-linux) cannot be started")?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            // Unreadable text is not shown.
            let _read = err.map(|mut e| e.read_to_string(&mut text));
            text
        });
        let mut tally = Tally::default();
        for line in BufReader::new(out.context("k6 has no standard output")?).lines() {
            let line = line.context("k6's samples cannot be read")?;
            tally.take(&line, began).with_context(|| format!("k6 wrote: {line}"))?;
        }
        let status = child.wait().context("k6's end cannot be awaited")?;
        let log = errors.join().unwrap_or_default();
        judge(status, &log)?;
        let text = fs::read_to_string(&summary).with_context(|| format!("{}: no summary of k6", summary.display()))?;
        let summary: Summary = serde_json::from_str(&text).context("k6's summary is not what it was")?;
        Ok(Outcome {
            tally,
            thresholds: thresholds(summary),
            log: log.lines().take(TOLD_LINES).map(str::to_owned).collect(),
        })
    }
}

/// An error unless k6 ended well or with a crossed threshold.
fn judge(status: ExitStatus, log: &str) -> Result<()> {
    if status.success() || status.code() == Some(THRESHOLD_CROSSED) {
        return Ok(());
    }
    let lines: Vec<&str> = log.lines().collect();
    bail!(
        "k6: {status}:\n{}",
        lines[lines.len().saturating_sub(TOLD_LINES)..].join("\n")
    )
}

fn thresholds(summary: Summary) -> Vec<Threshold> {
    let all = summary.metrics.into_iter();
    all.flat_map(|(metric, Metric { thresholds })| {
        thresholds
            .into_iter()
            .map(move |(limit, Verdict { ok: met })| Threshold {
                metric: metric.clone(),
                limit,
                met,
            })
    })
    .collect()
}

/// The endpoint of k6's OTLP output, in its own variables: host and port, without TLS on loopback.
fn exporter(endpoint: &str) -> Vec<(&'static str, String)> {
    let insecure = endpoint.starts_with("http://") || !endpoint.contains("://");
    let address = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    vec![
        (
            "K6_OTEL_GRPC_EXPORTER_ENDPOINT",
            address.trim_end_matches('/').to_owned(),
        ),
        ("K6_OTEL_GRPC_EXPORTER_INSECURE", insecure.to_string()),
        ("K6_OTEL_SERVICE_NAME", "rekindle-load".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_crossed_threshold_is_an_outcome_and_any_other_failure_an_error() {
        assert!(judge(ExitStatus::from_raw(THRESHOLD_CROSSED << 8), "").is_ok());
        let error = judge(ExitStatus::from_raw(107 << 8), "first\nno such file")
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("no such file"), "{error}");
    }

    #[test]
    fn thresholds_are_read_from_the_summary() {
        let text = concat!(
            r#"{"metrics":{"fn_failed":{"type":"rate","values":{},"#,
            r#""thresholds":{"rate<=0.001":{"ok":false}}},"vus":{}}}"#
        );
        let read = thresholds(serde_json::from_str(text).unwrap());
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].metric.as_str(), read[0].met), ("fn_failed", false));
    }

    #[test]
    fn an_otlp_url_becomes_an_address() {
        let told = exporter("http://127.0.0.1:4317/");
        assert_eq!(told[0].1, "127.0.0.1:4317");
        assert_eq!(exporter("https://collector:4317")[1].1, "false");
    }
}
