//! The processes of the proof: the one to checkpoint, and the one that a restore makes. Neither outlives its value
//! here.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::bounded::wait;

/// Limit for starting and for ending.
const LIMIT: Duration = Duration::from_secs(10);

/// The process to checkpoint; killed when dropped.
pub(super) struct Target(Child);

impl Target {
    /// Starts the process; it writes to `ready` once it listens.
    pub(super) fn start(ready: &Path, mib: u64) -> Result<Self> {
        let own = std::env::current_exe().context("the path of this program is not known")?;
        Command::new(own)
            .arg("doctor-target")
            .arg(ready)
            .args(["--mib", &mib.to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
            .context("the process to checkpoint cannot be started")
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX))
    }

    /// Waits until it listens, and returns its port.
    pub(super) fn port(&mut self, ready: &Path) -> Result<u16> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Ok(text) = fs::read_to_string(ready) {
                return text.parse().context("the process to checkpoint told no port");
            }
            if let Some(status) = self.0.try_wait().context("its end cannot be awaited")? {
                bail!("the process to checkpoint ended at once: {status}");
            }
            if Instant::now() > deadline {
                bail!("the process to checkpoint does not start within {LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Reaps the process, which has ended after a dump.
    pub(super) fn reap(&mut self) -> Result<()> {
        match wait(&mut self.0, LIMIT)? {
            Some(_) => Ok(()),
            None => bail!("the process went on running after its checkpoint"),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended already, which is fine.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A restored process, our child by adoption; killed when dropped.
pub(super) struct Restored(pub(super) Pid);

impl Drop for Restored {
    fn drop(&mut self) {
        // Only a child of ours: if the restore failed, the number may belong to another process. (Its command line is
        // no proof: it is on the stack, which a lazy restore may not have brought back yet.)
        let ours = matches!(waitpid(self.0, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive));
        if ours && kill(self.0, Signal::SIGKILL).is_ok() {
            let _reaped = waitpid(self.0, None);
        }
    }
}
