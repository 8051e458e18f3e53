//! The init program, started once. It forks for each sandbox, and for each CRIU that dumps one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::Pid;
use rekindle_init::protocol::{HostPaths, Reply, Request};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::SandboxError;
use super::control::{Control, ControlError, socket_pair};
use super::ids::{Ids, LOCKS};
use super::netns::namespace_with_small_tables;

/// How long a fork may take. It takes a tenth of a millisecond.
const FORK_LIMIT: Duration = Duration::from_secs(10);
/// Forks inits. It is started when the first is needed, and again if it has died. It ends with this value; what it
/// forked does not.
pub struct Zygote {
    binary: PathBuf,
    common: HostPaths,
    /// The host ids of its sandboxes.
    pub(super) ids: Arc<Ids>,
    running: Mutex<Option<RunningZygote>>,
}

struct RunningZygote {
    control: Control,
    _process: Child,
}

impl Zygote {
    /// Creates it with this program, and with CRIU of the directory `criu`. Sandboxes are laid out in the directory
    /// `stage`, which belongs to this zygote alone.
    pub fn new(binary: PathBuf, stage: PathBuf, criu: PathBuf) -> Self {
        if !Path::new("/dev/userfaultfd").exists() {
            tracing::warn!("/dev/userfaultfd is missing (Linux 6.1): nothing is restored here");
        }
        Self {
            binary,
            common: HostPaths { stage, criu },
            ids: Ids::new(Path::new(LOCKS)),
            running: Mutex::default(),
        }
    }

    /// Forks a process, which is a child of the caller. Returns the control connection to it, and its id.
    pub(super) async fn fork(&self) -> Result<(Control, Pid), SandboxError> {
        let named = |e| SandboxError::Start(self.binary.display().to_string(), e);
        let mut running = self.running.lock().await;
        let mut is_new = false;
        loop {
            // Each attempt has a new pair. If a zygote died between its fork and its reply, nobody talks to that fork,
            // and it ends.
            let (ours, theirs) = socket_pair().map_err(named)?;
            let control = Control::new(ours).map_err(named)?;
            let zygote = match running.take() {
                Some(zygote) => zygote,
                None => {
                    is_new = true;
                    start(&self.binary, &self.common).await?
                }
            };
            match zygote
                .control
                .request(Request::Fork, &[theirs.as_fd()], FORK_LIMIT)
                .await
            {
                Ok((Reply::Started(pid), _)) => {
                    *running = Some(zygote);
                    return Ok((control, Pid::from_raw(pid)));
                }
                Err(ControlError::Closed | ControlError::Send(_)) if !is_new => {
                    tracing::warn!("the process that forks inits is gone: another one is started");
                }
                Ok(_) => return Err(named(io::Error::other("it does not answer as an init"))),
                Err(e) => return Err(SandboxError::Control("fork an init", e)),
            }
        }
    }
}

async fn start(binary: &Path, common: &HostPaths) -> Result<RunningZygote, SandboxError> {
    let named = |e| SandboxError::Start(binary.display().to_string(), e);
    let (ours, theirs) = socket_pair().map_err(named)?;
    let process = spawn(binary, theirs).map_err(named)?;
    let control = Control::new(ours).map_err(named)?;
    let prepared = control.request(Request::Prepare(common.clone()), &[], FORK_LIMIT).await;
    prepared.map_err(|e| SandboxError::Control("prepare a place for sandboxes", e))?;
    Ok(RunningZygote {
        control,
        _process: process,
    })
}

/// Starts the init program with its end of the control socket as its standard input.
fn spawn(binary: &Path, control: OwnedFd) -> io::Result<Child> {
    // Standard input carries the socket. The standard library places it without code between fork and exec, and so can
    // use the cheap vfork. Init is told where to find it.
    let mut command = Command::new(binary);
    command
        .env_clear()
        .stdin(Stdio::from(control))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    match namespace_with_small_tables() {
        Some(nursery) => nursery.within(|| command.spawn())?,
        None => command.spawn(),
    }
}
