//! Children that die with the test. The kernel's parent-death signal is tied to the thread that started the child, and
//! tests' threads end early. So a dedicated thread starts it and stays.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Limit for an orderly stop.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(45);

/// A child with its thread.
pub(crate) struct Parked {
    pub(crate) child: Child,
    _thread: mpsc::SyncSender<()>,
}

impl Parked {
    /// Starts a child in this network namespace, or where the caller is.
    pub(crate) fn start(namespace: Option<File>, mut command: Command) -> io::Result<Self> {
        let (started, child) = mpsc::sync_channel(1);
        let (stay, end) = mpsc::sync_channel::<()>(1);
        thread::spawn(move || {
            if let Some(namespace) = namespace {
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            }
            started.send(command.spawn()).unwrap();
            // Until the handle is dropped.
            let _gone = end.recv();
        });
        Ok(Self {
            child: child.recv().unwrap()?,
            _thread: stay,
        })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends it a signal and waits for its end; `None` if it had to be killed.
    pub(crate) fn end(mut self, signal: Signal) -> Option<ExitStatus> {
        // It may have ended already.
        let _gone = kill(Pid::from_raw(self.pid()), signal);
        let end = Instant::now() + STOP_LIMIT;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        None
    }
}

/// `fn` with its directories below `own`, logging to `log`. It stops in an orderly way even if this program is killed.
pub(crate) fn command(program: &Path, own: &Path, log: &Path) -> Result<Command> {
    let log = File::options().create(true).append(true).open(log);
    let log = log.context("no log")?;
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM"])
        .arg(program)
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
