//! Programs that tests start beside the platform, each a process that ends with the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_s3_servers::spawn_for_owner;

use crate::skip;

/// For a program to answer.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(30);

/// A process that ends with its owner.
pub(crate) struct Owned {
    child: Child,
    // The parent-death signal is tied to the thread that started the child, and tests' threads end early.
    _starter: mpsc::SyncSender<()>,
}

impl Owned {
    pub(crate) fn start(program: &Path, args: &[String], env: &[(&str, String)], log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let (child, starter) = spawn_for_owner(command);
        Self {
            child,
            _starter: starter,
        }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    pub(crate) fn end(&mut self, signal: Signal, limit: Duration) -> Option<ExitStatus> {
        let _gone = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // It may have ended.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The program that a variable names. `None`: skipped, and said so.
pub(crate) fn named(variable: &str, script: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        skip(&format!("{variable} names no program; {script} installs it"));
    }
    found
}
