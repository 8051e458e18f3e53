//! A sandbox as the worker holds it: the init inside, the control connection to it, and the network namespace by which
//! requests enter.

mod begin;
mod control;
mod demand;
pub mod dumper;
mod error;
mod furnished;
mod hollow;
mod idle_criu;
mod ids;
mod isolated;
pub mod maker;
mod netns;
pub mod pool;
mod proc;
mod secrets;
mod trees;
mod zygote;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rekindle_init::files::Saved;
use rekindle_init::locks::Lock;
use rekindle_init::protocol::{Clocks, ExitCause, Layers, MakeSandbox, Reply, Request, Setup, Spawn};
use rekindle_pager::{Ancestor, PageRef, StoppedProcess};
use rustix::fs::OFlags;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::host::pagemap;
pub(crate) use begin::{BeginError, BeginRestore, BegunRestore};
pub use control::ControlError;
use control::{Control, socket_pair};
pub use error::SandboxError;
pub(crate) use furnished::SandboxContents;
pub use hollow::{Hollow, HollowError, OrderedHollow, RunningHollow, StartSignal};
pub use idle_criu::IdleCriu;
use ids::IdRange;
pub use ids::IdsError;
pub use isolated::{IsolatedProcess, Output};
pub use netns::NetworkNamespace;
pub use proc::InnerProc;
pub use zygote::Zygote;

/// How long the creation of a sandbox may take. It takes about a millisecond.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// How long init may take for a request. Saving a full `/tmp` takes longest.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of pages checked for writes: 64 MiB.
const LOOKED_AT_MOST: usize = 16_384;

/// The purpose of a CRIU inside.
#[derive(Debug, Clone, Copy)]
pub enum CriuUse<'a> {
    /// To restore into the function's control group.
    Restore {
        /// The group's `cgroup.procs`.
        group_procs: &'a OwnedFd,
    },
    /// To probe the kernel, or to restore if there are no control groups.
    Alone,
}

/// How the function's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionState {
    /// It has not been started, or runs.
    Alive,
    /// It ended.
    Ended(ExitCause),
    /// The whole sandbox is gone.
    SandboxGone,
}

impl FunctionState {
    /// Returns whether the function has ended, and was not killed.
    pub fn is_by_itself(self) -> bool {
        match self {
            Self::Ended(ExitCause::Signal(signal)) => signal != nix::sys::signal::Signal::SIGKILL as i32,
            Self::Ended(ExitCause::Code(_)) => true,
            Self::Alive | Self::SandboxGone => false,
        }
    }
}

/// A sandbox. Its drop kills everything inside.
///
/// Everything inside may be hostile, init included. Nothing that init says is taken for a process id or a path on the
/// host.
pub struct Sandbox {
    control: Control,
    init: Pid,
    network: Arc<NetworkNamespace>,
    /// Its process outside, until it is furnished.
    outside: tokio::sync::Mutex<Option<OutsideProcess>>,
    /// Forks the CRIUs that dump it.
    zygote: Arc<Zygote>,
    reaped: Mutex<bool>,
    /// Tells its secrets from those before.
    secrets_revision: AtomicU64,
    /// Returned once everything that used the ids is gone.
    ids: IdRange,
}

/// A sandbox's process outside. Killed and reaped on drop, even if a caller gives up waiting.
struct OutsideProcess {
    control: Control,
    _process: KillOnDrop,
}

impl Sandbox {
    /// Creates an empty sandbox in the control groups with these `cgroup.procs` files. It must be furnished before its
    /// use.
    ///
    /// # Errors
    /// Returns an error when there is no init or the kernel refuses a part. Nothing is left behind.
    pub async fn create(zygote: &Arc<Zygote>, cgroup_procs: Vec<PathBuf>) -> Result<Arc<Self>, SandboxError> {
        let ids = zygote.ids.take().map_err(SandboxError::Ids)?;
        let (control, outside) = zygote.fork().await?;
        let outside = OutsideProcess {
            control,
            _process: KillOnDrop(outside),
        };
        let making = |e| SandboxError::Control("make the sandbox", e);
        let (ours, theirs) = socket_pair().map_err(|e| making(ControlError::Send(e)))?;
        let control = Control::new(ours).map_err(|e| making(ControlError::Send(e)))?;
        let order = Request::Make(MakeSandbox {
            cgroup_procs,
            first_id: ids.first(),
        });
        let made = outside.control.request(order, &[theirs.as_fd()], SETUP_LIMIT).await;
        drop(theirs);
        let init = match made.map_err(making)? {
            (Reply::Started(init), _) => KillOnDrop(Pid::from_raw(init)),
            _ => {
                return Err(making(ControlError::Refused(
                    "it does not say which process it made".to_owned(),
                )));
            }
        };
        let begun = control.request(Request::Begin, &[], SETUP_LIMIT).await;
        begun.map_err(making)?;
        let network = NetworkNamespace::of(init.0).map_err(SandboxError::Namespace)?;
        Ok(Arc::new(Self {
            control,
            init: init.keep(),
            network: Arc::new(network),
            outside: tokio::sync::Mutex::new(Some(outside)),
            zygote: Arc::clone(zygote),
            reaped: Mutex::new(false),
            secrets_revision: AtomicU64::new(0),
            ids,
        }))
    }

    /// Lays out the files inside. Works once.
    ///
    /// # Errors
    /// Returns an error when a mount is refused.
    pub async fn furnish(&self, layers: Layers, setup: Setup) -> Result<(), SandboxError> {
        let what = "furnish the sandbox";
        let outside = self.outside.lock().await.take();
        let again = || ControlError::Refused("it is furnished already".to_owned());
        let outside = outside.ok_or_else(|| SandboxError::Control(what, again()))?;
        let trees = trees::of(&layers).map_err(SandboxError::Layers)?;
        let trees = trees.each_ref().map(AsFd::as_fd);
        let mounted = outside.control.request(Request::Mount(layers), &trees, SETUP_LIMIT);
        mounted.await.map_err(|e| SandboxError::Control(what, e))?;
        self.ask(what, Request::Furnish(setup), &[]).await.map(drop)
    }

    /// Returns the host's id of `id` inside.
    pub fn host_id(&self, id: u32) -> u32 {
        self.ids.of(id)
    }

    /// Returns its network namespace.
    pub fn network(&self) -> Arc<NetworkNamespace> {
        Arc::clone(&self.network)
    }

    /// Returns which of these pages the processes inside have written, so that they no longer belong to the template.
    /// Returns none for too many pages, or for a process that is gone. Blocks for about 100 us.
    pub fn written(&self, pages: &[PageRef]) -> HashSet<PageRef> {
        if pages.len() > LOOKED_AT_MOST {
            return HashSet::new();
        }
        let mut of_each = BTreeMap::<i32, BTreeSet<u64>>::new();
        for page in pages {
            of_each.entry(page.pid).or_default().insert(page.page);
        }
        let mut written = HashSet::new();
        let Ok(proc) = InnerProc::of(self.init) else {
            return written;
        };
        for (pid, pages) in of_each {
            // Inside, the process has the id that it had at the checkpoint.
            let own = proc
                .open(&format!("{pid}/pagemap"), OFlags::RDONLY)
                .and_then(|pagemap| pagemap::own(&pagemap, pages.into_iter()));
            match own {
                Ok(own) => written.extend(own.into_iter().map(|page| PageRef { pid, page })),
                Err(error) => tracing::debug!(pid, %error, "what a process has written is not known"),
            }
        }
        written
    }

    /// Returns init's process id on the host.
    pub fn init_pid(&self) -> Pid {
        self.init
    }

    /// Starts the function in its control group, with its standard output and error connected to the descriptors.
    ///
    /// # Errors
    /// Returns an error when the program is missing or the kernel refuses.
    pub async fn spawn(
        &self,
        order: Spawn,
        stdout: &OwnedFd,
        stderr: &OwnedFd,
        group_procs: &OwnedFd,
    ) -> Result<(), SandboxError> {
        let fds = [stdout.as_fd(), stderr.as_fd(), group_procs.as_fd()];
        self.ask("start the function", Request::Spawn(order), &fds)
            .await
            .map(drop)
    }

    /// Starts `criu swrk` inside with these descriptors as its 3, 4, ….
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub async fn start_criu(&self, fds: &[&OwnedFd], purpose: CriuUse<'_>) -> Result<(), SandboxError> {
        let group = match purpose {
            CriuUse::Restore { group_procs } => Some(group_procs),
            CriuUse::Alone => None,
        };
        let fds: Vec<_> = fds.iter().copied().chain(group).map(AsFd::as_fd).collect();
        let order = Request::Criu { joins: group.is_some() };
        self.ask("start criu", order, &fds).await.map(drop)
    }

    /// Starts the hollow process in the function's control group. `control` is its end of the socket to it.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    async fn start_hollow(&self, control: &OwnedFd, group_procs: &OwnedFd) -> Result<(), SandboxError> {
        let fds = [control.as_fd(), group_procs.as_fd()];
        self.ask("start the hollow process", Request::Hollow, &fds)
            .await
            .map(drop)
    }

    /// Makes the hollow process, which runs a program with these clocks, the function's first.
    ///
    /// # Errors
    /// Returns an error when it has ended.
    pub async fn begin_program(&self, clocks: Clocks) -> Result<(), SandboxError> {
        self.ask("begin a restore program", Request::BeginProgram(clocks), &[])
            .await
            .map(drop)
    }

    /// Makes symbolic links in `/tmp` and `/dev/shm` followable: the function is about to run.
    ///
    /// # Errors
    /// Returns an error when a mount is refused.
    pub async fn follow_links(&self) -> Result<(), SandboxError> {
        self.ask("have links followed", Request::FollowLinks, &[])
            .await
            .map(drop)
    }

    /// Takes `locks` for processes that CRIU has restored and still holds, while CRIU waits.
    ///
    /// # Errors
    /// Returns an error when one cannot be taken.
    pub async fn take_locks(&self, locks: Vec<Lock>) -> Result<(), SandboxError> {
        self.ask("take locks of files", Request::TakeLocks(locks), &[])
            .await
            .map(drop)
    }

    /// Checks that the function, which is frozen, has no process or IPC object that a checkpoint would miss.
    ///
    /// # Errors
    /// Returns an error that names the first one found.
    pub async fn refuse_strays(&self) -> Result<(), SandboxError> {
        self.ask("checkpoint all that the function has", Request::RefuseStrays, &[])
            .await
            .map(drop)
    }

    /// Makes CRIU in an empty sandbox find the result of an earlier kernel probe, until [`Self::ancestor`].
    ///
    /// # Errors
    /// Returns an error when it cannot be stored.
    pub async fn show_probe(&self, probe: &OwnedFd) -> Result<(), SandboxError> {
        self.ask("show criu its probe", Request::ShowProbe, &[probe.as_fd()])
            .await
            .map(drop)
    }

    /// Returns the ancestor, from which a pager gets the memory of whatever the waiting CRIU restores. Must be called
    /// before anything is asked of that CRIU, which forks only while somebody reads it.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses a part.
    pub async fn ancestor(&self) -> Result<Ancestor, SandboxError> {
        let what = "reach criu's memory";
        let failed = |e| SandboxError::Control(what, e);
        let answered = self.control.request(Request::Ancestor, &[], REQUEST_LIMIT).await;
        let (answer, beside) = answered.map_err(failed)?;
        match (answer, beside.into_iter().next()) {
            (Reply::Ancestor(page), Some(userfault)) => {
                Ancestor::new(userfault, page).map_err(|e| failed(ControlError::Send(e)))
            }
            _ => Err(failed(ControlError::Refused("init did not say where it is".to_owned()))),
        }
    }

    /// Returns a fresh userfaultfd of each of these processes. CRIU has restored them and holds them before their first
    /// instruction.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses one.
    pub async fn userfaults(&self, pids: &[i32]) -> Result<Vec<StoppedProcess>, SandboxError> {
        let failed = |e| SandboxError::Control("reach the memory of what criu has restored", e);
        let request = Request::Userfaults(pids.to_vec());
        let answered = self.control.request(request, &[], REQUEST_LIMIT).await;
        let (_, beside) = answered.map_err(failed)?;
        if beside.len() != pids.len() {
            return Err(failed(ControlError::Refused("init did not give all of it".to_owned())));
        }
        let given = std::iter::zip(pids, beside).map(|(pid, userfault)| StoppedProcess { pid: *pid, userfault });
        Ok(given.collect())
    }

    /// Prepares a restore. Init holds these descriptors, in place of any others, for CRIU to open by
    /// [`held_path`](rekindle_init::protocol::held_path). It also sets the clocks of what is restored.
    ///
    /// # Errors
    /// Returns an error when there are too many descriptors, or the sandbox is not furnished.
    pub async fn hold(&self, fds: &[&OwnedFd], clocks: Option<Clocks>, adopts: bool) -> Result<(), SandboxError> {
        let fds: Vec<_> = fds.iter().map(|f| f.as_fd()).collect();
        self.ask("hold what criu opens", Request::Hold { clocks, adopts }, &fds)
            .await
            .map(drop)
    }

    /// Writes the private files to `archive`.
    ///
    /// # Errors
    /// Returns an error when a file cannot be read or the archive cannot be written.
    pub async fn save_files(&self, archive: &OwnedFd) -> Result<Saved, SandboxError> {
        let archive = [archive.as_fd()];
        match self.control.request(Request::SaveFiles, &archive, REQUEST_LIMIT).await {
            Ok((Reply::Saved(saved), _)) => Ok(saved),
            Ok(_) => Ok(Saved::default()),
            Err(e) => Err(SandboxError::Control("save private files", e)),
        }
    }

    /// Unpacks private files from `archive`. They then belong to the function.
    ///
    /// # Errors
    /// Returns an error when the archive is malformed or does not fit.
    pub async fn load_files(&self, archive: &OwnedFd) -> Result<(), SandboxError> {
        let archive = [archive.as_fd()];
        let asked = self.control.request(Request::LoadFiles, &archive, REQUEST_LIMIT);
        match asked.await {
            Ok((Reply::Loaded(files @ 1..), _)) => {
                tracing::warn!(files, "private files have other inode numbers than at the checkpoint");
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(e) => Err(SandboxError::Control("load private files", e)),
        }
    }

    /// Returns CRIU's kernel probe, after CRIU ran here once.
    ///
    /// # Errors
    /// Returns an error when it does not exist.
    pub async fn read_probe(&self) -> Result<Vec<u8>, SandboxError> {
        self.ask("read criu's probe", Request::ReadProbe, &[]).await
    }

    /// Gives CRIU the result of an earlier kernel probe, which saves it about 15 ms.
    ///
    /// # Errors
    /// Returns an error when it cannot be stored.
    pub async fn write_probe(&self, probe: &OwnedFd) -> Result<(), SandboxError> {
        self.ask("store criu's probe", Request::WriteProbe, &[probe.as_fd()])
            .await
            .map(drop)
    }

    async fn ask(
        &self,
        what: &'static str,
        request: Request,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<Vec<u8>, SandboxError> {
        match self.control.request(request, fds, REQUEST_LIMIT).await {
            Ok((Reply::Bytes(bytes), _)) => Ok(bytes),
            Ok(_) => Ok(Vec::new()),
            Err(e) => Err(SandboxError::Control(what, e)),
        }
    }

    /// Returns the function's state, which changes when its first process ends or the sandbox goes.
    pub fn function_state(&self) -> watch::Receiver<FunctionState> {
        self.control.function_state()
    }

    /// Opens a connection to a TCP port inside.
    ///
    /// # Errors
    /// Returns an error when nothing listens there, or the sandbox is gone.
    pub async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        netns::connect(Arc::clone(&self.network), port).await
    }

    /// Kills everything inside at once: the kernel ends a pid namespace with its pid 1. Never blocks: a process that
    /// waits for its image's mount ends only when that is answered, by the very threads that call this.
    pub fn kill(&self) {
        // Whoever has the lock has killed it already.
        let Some(reaped) = self.reaped.try_lock() else { return };
        // Init is not yet reaped, so the id cannot be another process's.
        if !*reaped {
            let _ = kill(self.init, Signal::SIGKILL);
        }
    }

    /// Kills everything inside and waits until it is gone, which takes some milliseconds. Blocks.
    pub fn end(&self) {
        let mut reaped = self.reaped.lock();
        if !*reaped {
            let _ = kill(self.init, Signal::SIGKILL);
            reap(self.init);
            *reaped = true;
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if !*self.reaped.get_mut() {
            end(self.init);
        }
    }
}

/// A child of the worker that is killed and reaped on drop, unless it is kept. This holds even if a caller gives up
/// waiting.
struct KillOnDrop(Pid);

impl KillOnDrop {
    fn keep(self) -> Pid {
        let pid = self.0;
        std::mem::forget(self);
        pid
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        end(self.0);
    }
}

/// Kills and reaps an init, or the process that created one: a child of the worker that is not yet reaped.
fn end(child: Pid) {
    // An error would mean that it is gone already.
    let _ = kill(child, Signal::SIGKILL);
    // Reaping waits some milliseconds until the namespaces are torn down, so it does not run on this thread.
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || reap(child))),
        Err(_) => reap(child),
    }
}

fn reap(child: Pid) {
    while nix::sys::wait::waitpid(child, None) == Err(nix::Error::EINTR) {}
}
