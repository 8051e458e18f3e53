//! The init program, started once: it forks for each sandbox.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::Pid;
use rekindle_init::protocol::{Answer, Request};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::SandboxError;
use super::control::{Control, ControlError, socket_pair};
use super::netns::nursery;

/// How long a fork may take. It takes a tenth of a millisecond.
const FORK_LIMIT: Duration = Duration::from_secs(10);

/// What forks inits. It is started when the first is wanted, and again should it have died; it ends with this value, what it forked does not.
pub struct Zygote {
    binary: PathBuf,
    running: Mutex<Option<Running>>,
}

struct Running {
    control: Control,
    _process: Child,
}

impl Zygote {
    /// By this program.
    pub fn new(binary: PathBuf) -> Self {
        Self {
            binary,
            running: Mutex::default(),
        }
    }

    /// Forks an init: how to talk to it, and its process, which is a child of the caller's.
    pub(super) async fn fork(&self) -> Result<(Control, Pid), SandboxError> {
        let named = |e| SandboxError::Start(self.binary.display().to_string(), e);
        let mut running = self.running.lock().await;
        let mut is_new = false;
        loop {
            // Another one each time: should a zygote have died between its fork and its answer, that fork is told by nobody, and ends.
            let (ours, theirs) = socket_pair().map_err(named)?;
            let control = Control::new(ours).map_err(named)?;
            let zygote = match running.take() {
                Some(zygote) => zygote,
                None => {
                    is_new = true;
                    start(&self.binary).map_err(named)?
                }
            };
            match zygote
                .control
                .request(Request::Fork, &[theirs.as_fd()], FORK_LIMIT)
                .await
            {
                Ok((Answer::Started(pid), _)) => {
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

fn start(binary: &Path) -> io::Result<Running> {
    let (ours, theirs) = socket_pair()?;
    let process = spawn(binary, theirs)?;
    Ok(Running {
        control: Control::new(ours)?,
        _process: process,
    })
}

/// Starts the init program with its end of the control socket as its standard input.
fn spawn(binary: &Path, control: OwnedFd) -> io::Result<Child> {
    // Standard input carries the socket: the standard library places that one without code between fork and exec, which
    // lets it use the cheap vfork; init is told where to look.
    let mut command = Command::new(binary);
    command
        .env_clear()
        .stdin(Stdio::from(control))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    match nursery() {
        Some(nursery) => nursery.within(|| command.spawn())?,
        None => command.spawn(),
    }
}
