//! Runs work on untrusted bytes in a process without privileges ([`rekindle_confined`]), and receives its report.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use rekindle_confined::{ORDER, Order, Report, SUBCOMMAND, Work, image, layer, upload};
use rekindle_init::causes::chain;
use rekindle_init::protocol::FUNCTION_UID;
use uuid::Uuid;

/// The first user id of confined processes on the host, far from those of functions, and the number of these ids.
const FIRST_ID: u32 = 0x7b00_0000;
const IDS: u32 = 1 << 24;
/// Maximum size of a process's report, in bytes.
const REPORT_MAX: u64 = 64 << 10;
/// How long it may take to unpack a layer. Its download has a limit of its own.
const LAYER_LIMIT: Duration = Duration::from_mins(15);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ConfinedError {
    /// The process could not be started, or the kernel failed.
    #[error("start a process without rights")]
    Start(#[source] io::Error),
    /// It ended early, or its report was invalid.
    #[error("the process that unpacks ended without an answer: {0}")]
    NoReport(String),
}

/// Starts confined processes.
#[derive(Debug, Clone)]
pub struct Confinement {
    init_binary: PathBuf,
}

/// Returns a user and group id of the host that nothing else has.
pub(crate) fn fresh_id() -> u32 {
    let random = (Uuid::new_v4().as_u128() >> 96) as u32;
    FIRST_ID + random % IDS
}

impl Confinement {
    /// Creates it with the init program, which also confines processes.
    pub fn new(init_binary: PathBuf) -> Self {
        Self { init_binary }
    }

    /// Builds the command for this order. The thread that starts it has to wait for it.
    pub(crate) fn command(
        &self,
        work: Work,
        host_id: u32,
        network: Option<PathBuf>,
        cgroup_procs: &[PathBuf],
    ) -> io::Result<Command> {
        let order = Order {
            worker: std::process::id().cast_signed(),
            host_id,
            cgroup_procs: cgroup_procs.to_owned(),
            network,
            work,
        };
        let mut command = Command::new(&self.init_binary);
        command
            .arg(SUBCOMMAND)
            .env_clear()
            .env(ORDER, serde_json::to_string(&order)?)
            .current_dir("/");
        Ok(command)
    }

    /// Unpacks an uploaded folder into the empty directory `into`. The directory and its contents then belong to
    /// `host_id`. Blocks.
    pub(crate) fn upload(
        &self,
        archive: File,
        into: &Path,
        host_id: u32,
        limits: upload::Limits,
        time_limit: Duration,
        cgroup_procs: &[PathBuf],
    ) -> Result<Result<(), upload::UnpackError>, ConfinedError> {
        chown(into, Some(host_id), Some(host_id)).map_err(ConfinedError::Start)?;
        let work = Work::Upload {
            into: into.to_owned(),
            limits,
        };
        let mut command = self
            .command(work, host_id, None, cgroup_procs)
            .map_err(ConfinedError::Start)?;
        command.stdin(archive);
        match report(command, None, time_limit)? {
            Report::Upload(unpacked) => Ok(unpacked),
            _ => Err(other_work()),
        }
    }

    /// Unpacks the container image in the directory `layout` into the empty directory `into`. Both belong to `host_id`.
    /// Blocks.
    pub(crate) fn image(
        &self,
        layout: &Path,
        into: &Path,
        host_id: u32,
        limits: upload::Limits,
        time_limit: Duration,
        cgroup_procs: &[PathBuf],
    ) -> Result<Result<(), image::ImageError>, ConfinedError> {
        let work = Work::Image {
            layout: layout.to_owned(),
            into: into.to_owned(),
            limits,
        };
        let command = self.command(work, host_id, None, cgroup_procs);
        match report(command.map_err(ConfinedError::Start)?, None, time_limit)? {
            Report::Image(unpacked) => Ok(unpacked),
            _ => Err(other_work()),
        }
    }

    /// Unpacks a layer into the empty directory `into`, whose contents then belong to root, or those of a container
    /// image to the id that functions have inside. Blocks.
    ///
    /// # Errors
    /// Returns the archive's errors. A failure to run the process is an error of reading.
    pub fn layer(&self, packed: &mut dyn Read, into: &Path, name: &layer::Name) -> Result<(), layer::UnpackError> {
        self.layer_confined(packed, into, name)
            .unwrap_or_else(|e| Err(layer::UnpackError::Read(io::Error::other(chain(&e)).into())))
    }

    fn layer_confined(
        &self,
        packed: &mut dyn Read,
        into: &Path,
        name: &layer::Name,
    ) -> Result<Result<(), layer::UnpackError>, ConfinedError> {
        let id = fresh_id();
        chown(into, Some(id), Some(id)).map_err(ConfinedError::Start)?;
        // Functions pass through it, whatever the worker's umask is.
        fs::set_permissions(into, fs::Permissions::from_mode(0o755)).map_err(ConfinedError::Start)?;
        let work = Work::Layer {
            into: into.to_owned(),
            name: name.clone(),
        };
        let mut command = self.command(work, id, None, &[]).map_err(ConfinedError::Start)?;
        command.stdin(Stdio::piped());
        match report(command, Some(packed), LAYER_LIMIT)? {
            Report::Layer(Ok(())) => {
                // Nothing runs there any more, so nothing changes meanwhile. A function may write to its image's root.
                let is_image = into.join(image::CONFIG).exists();
                give_to(into, if is_image { FUNCTION_UID } else { 0 }).map_err(ConfinedError::Start)?;
                Ok(Ok(()))
            }
            Report::Layer(refused) => Ok(refused),
            _ => Err(other_work()),
        }
    }
}

fn other_work() -> ConfinedError {
    ConfinedError::NoReport("it answered for other work".to_owned())
}

/// Runs the command to its end, with `input` if it has a pipe for that.
fn report(mut command: Command, input: Option<&mut dyn Read>, limit: Duration) -> Result<Report, ConfinedError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(ConfinedError::Start)?;
    let said = thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        let pid = Pid::from_raw(child.id().cast_signed());
        scope.spawn(move || {
            if is_over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // It is not reaped before this thread has ended, so the id is still its own.
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let said = exchange(&mut child, input);
        wait_unreaped(pid);
        drop(over);
        said
    });
    let status = child.wait().map_err(ConfinedError::Start)?;
    let (answer, errors) = said.map_err(ConfinedError::Start)?;
    if !status.success() {
        return Err(ConfinedError::NoReport(format!("{status}: {}", errors.trim())));
    }
    serde_json::from_slice(&answer).map_err(|e| ConfinedError::NoReport(e.to_string()))
}

fn exchange(child: &mut Child, input: Option<&mut dyn Read>) -> io::Result<(Vec<u8>, String)> {
    let mut broken = None;
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        broken = copy(input, &mut pipe).err();
    }
    let (mut answer, mut errors) = (Vec::new(), String::new());
    if let Some(out) = child.stdout.take() {
        out.take(REPORT_MAX).read_to_end(&mut answer)?;
    }
    if let Some(err) = child.stderr.take() {
        let mut bytes = Vec::new();
        err.take(REPORT_MAX).read_to_end(&mut bytes)?;
        errors = String::from_utf8_lossy(&bytes).into_owned();
    }
    // The read error explains more than the process's report on half an archive.
    match broken {
        Some(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e),
        _ => Ok((answer, errors)),
    }
}

/// This is not `io::copy`, which would read and write through calls that need descriptors.
fn copy(from: &mut dyn Read, to: &mut impl io::Write) -> io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(&buffer[..length])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Waits for the end of a child, which stays to be reaped. An error means that there is nothing to wait for.
pub(crate) fn wait_unreaped(pid: Pid) {
    while let Err(nix::errno::Errno::EINTR) = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {}
}

/// Gives a tree to a user and group with its present modes: a change of owner clears some of their bits.
fn give_to(path: &Path, owner: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    lchown(path, Some(owner), Some(owner))?;
    if metadata.is_file() && metadata.permissions().mode() & 0o6000 != 0 {
        fs::set_permissions(path, metadata.permissions())?;
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to(&entry?.path(), owner)?;
        }
    }
    Ok(())
}
