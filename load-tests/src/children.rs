//! Common parts of platforms started for a measurement: `fn` in directories of its own, its log, its admin key, and its
//! end.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::platform::Programs;

/// Limit for an orderly stop.
const STOP_LIMIT: Duration = Duration::from_secs(45);
/// Number of log lines in an error.
const TOLD_LINES: usize = 20;

/// `fn` with its directories below `own`, logging to `log`. It stops in an orderly way even if this program is killed.
pub(crate) fn command(programs: &Programs, own: &Path, log: &Path) -> Result<Command> {
    let log = File::options().create(true).append(true).open(log);
    let log = log.context("no log")?;
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM"])
        .arg(programs.cli())
        .env("FN_DATA", own.join("data"))
        .env("FN_CACHE", own.join("cache"))
        .env("FN_RUN", own.join("run"))
        // As a platform in use, whatever the caller's environment says.
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .env_remove("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        .env_remove("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("no more file descriptors")?)
        .stderr(log);
    Ok(command)
}

/// Starts the command.
pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().context("setpriv (util-linux) cannot be started")
}

/// Stops them in an orderly way, and kills those that do not stop.
pub(crate) fn stop(children: &mut [Child]) {
    for child in &mut *children {
        if let Ok(pid) = i32::try_from(child.id()) {
            // It may have ended already, which is fine.
            let _ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
    let deadline = Instant::now() + STOP_LIMIT;
    for child in children {
        while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ended = child.kill();
        let _reaped = child.wait();
    }
}

/// The end of a log.
pub(crate) fn log_tail(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(TOLD_LINES)..].join("\n")
}

/// The admin key that a gateway with its directories below `own` has made.
pub(crate) fn admin_key(own: &Path) -> Result<String> {
    let path = own.join("data/admin.key");
    let key = fs::read_to_string(&path).with_context(|| format!("{}: no admin key", path.display()))?;
    Ok(key.trim().to_owned())
}
