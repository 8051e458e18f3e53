//! How an empty sandbox is created: its control group, its processes that wait, its link to the network.
//!
//! A hollow process waits in each for a restore program. A CRIU costs as much to start as all else: one waits too where
//! there is no hollow process, and as long as CRIU restores some of the host's snapshots.

use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use parking_lot::Mutex;
use rekindle_criu::{CriuError, Prestart, PrestartDir, PrestartError, Session};
use rekindle_init::causes::chain;
use rekindle_init::protocol::FUNCTION_UID;
use tokio::sync::Semaphore;

use super::begin::{BeginError, BegunRestore};
use super::furnished::SandboxContents;
use super::{CriuUse, Hollow, HollowError, IdleCriu, Sandbox, SandboxError, Zygote, hollow};
use crate::host::cgroup::{Cgroup, Cgroups, CreateError, FileError, Limits};
use crate::host::network::{Network, RouterError, SandboxLink};

/// Limits of an empty sandbox. It has more memory than any function, since v1 refuses to raise a limit above that of
/// memory and swap together.
const EMPTY: Limits = Limits {
    memory_bytes: 1 << 40,
    cpu_cores: 1.0,
    pids: 64,
};
/// How long CRIU may take to start. It takes about 4 ms.
const CRIU_LIMIT: Duration = Duration::from_secs(10);
/// How long sandboxes get a CRIU after one has restored a snapshot, where programs restore most.
const CRIU_FOR: Duration = Duration::from_secs(600);
/// Number of failed prestarts in a row after which prestarting pauses.
const PRESTART_FAILURES_MAX: u64 = 5;
/// How long prestarting pauses before another attempt.
const PRESTART_PAUSE: Duration = Duration::from_secs(60);
/// Number of sandboxes created at once, for each core: half of the time they wait for the kernel.
const MAKERS_A_CORE: usize = 2;

/// Why there is no empty sandbox.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// Its control group cannot be created.
    #[error("make the control group")]
    Cgroup(#[source] CreateError),
    /// The function's control group cannot be opened.
    #[error("join the function's control group")]
    Join(#[source] FileError),
    /// The sandbox cannot be created.
    #[error("make the sandbox")]
    Sandbox(#[source] SandboxError),
    /// The sandbox cannot be linked to the network.
    #[error("link the sandbox to the network")]
    Network(#[source] RouterError),
    /// The pipes for the function's output cannot be created.
    #[error("make the output pipes")]
    Pipes(#[source] std::io::Error),
    /// CRIU cannot be started.
    #[error("start criu")]
    Criu(#[source] SandboxError),
    /// CRIU does not reply.
    #[error("hear from criu")]
    Silent(#[source] CriuError),
    /// The hollow process does not start.
    #[error("start the hollow process")]
    Hollow(#[source] HollowError),
    /// The sandbox cannot be furnished.
    #[error("furnish the sandbox")]
    Furnish(#[source] SandboxError),
    /// A restore cannot begin ahead.
    #[error("begin a restore")]
    Begin(#[source] BeginError),
    /// The sandbox cannot be taken off the network.
    #[error("take the sandbox off the network")]
    Detach(#[source] RouterError),
    /// CRIU does not accept an order ahead.
    #[error("prestart criu")]
    Prestart(#[source] PrestartError),
}

/// An empty sandbox and its control group, which can be removed only after it.
pub struct EmptySandbox {
    /// The sandbox.
    pub sandbox: Arc<Sandbox>,
    /// Its link to the network, if the worker has one.
    pub link: Option<SandboxLink>,
    /// Its control group, still with the limits of an empty sandbox.
    pub cgroup: Cgroup,
    /// Whether its control group was another sandbox's before.
    pub used_before: bool,
    /// A CRIU inside, waiting, if it may be needed. It has the write ends of `outputs` at
    /// [`OUTPUT_FDS`](rekindle_criu::descriptors::OUTPUT_FDS), and ends on drop.
    pub criu: Option<IdleCriu>,
    /// A process that restores without CRIU, if there is one.
    pub hollow: Option<Hollow>,
    /// What has been restored ahead by it.
    pub(crate) begun: Option<BegunRestore>,
    /// Pipes for the function's standard output and standard error, as pairs of read and write ends.
    pub outputs: [(OwnedFd, OwnedFd); 2],
}

/// Creates empty sandboxes.
pub struct SandboxMaker {
    cgroups: Cgroups,
    zygote: Arc<Zygote>,
    prestart: Prestart,
    network: Option<Arc<Network>>,
    /// Whether a hollow process waits in each.
    has_hollow: bool,
    /// Permits for those who create a sandbox, which keeps a processor busy.
    makers: Semaphore,
    made: AtomicU64,
    failed: AtomicU64,
    /// Number of failures in a row to prestart CRIU, or to reach its memory.
    prestart_failures: AtomicU64,
    /// Time of the last such failure.
    last_failure: Mutex<Option<Instant>>,
    /// CRIU's kernel probe, once it has run.
    probe: Mutex<Option<Arc<OwnedFd>>>,
    /// When CRIU last restored a snapshot.
    criu_used: Mutex<Option<Instant>>,
}

impl SandboxMaker {
    /// Creates it. With `has_hollow`, a hollow process waits in each sandbox.
    pub fn new(
        cgroups: Cgroups,
        zygote: Arc<Zygote>,
        prestart: Prestart,
        network: Option<Arc<Network>>,
        has_hollow: bool,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cgroups,
            zygote,
            prestart,
            network,
            has_hollow,
            makers: Semaphore::new(MAKERS_A_CORE * cores),
            made: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            prestart_failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            probe: Mutex::default(),
            criu_used: Mutex::default(),
        }
    }

    pub(super) fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// Returns the number of sandboxes that could not be created.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Lays out a sandbox's files, and takes it off the network if it is to have none.
    ///
    /// # Errors
    /// Returns an error when a step is refused. The sandbox is of no use then.
    pub(crate) async fn furnish(&self, empty: &mut EmptySandbox, contents: &SandboxContents) -> Result<(), MakeError> {
        if !contents.egress
            && let (Some(network), Some(link)) = (&self.network, empty.link.take())
        {
            network.detach(link).await.map_err(MakeError::Detach)?;
        }
        let furnished = empty.sandbox.furnish(contents.layers.clone(), contents.setup.clone());
        furnished.await.map_err(MakeError::Furnish)
    }

    /// Begins a restore in a sandbox that has been furnished, if one is expected and worthwhile.
    ///
    /// # Errors
    /// Returns an error when it fails. The sandbox is of no use then.
    pub(crate) async fn begin(&self, empty: &mut EmptySandbox, contents: &SandboxContents) -> Result<(), MakeError> {
        let Some(beginning) = &contents.beginning else {
            return Ok(());
        };
        if !beginning.is_worthwhile().map_err(MakeError::Begin)? {
            return Ok(());
        }
        let Some(hollow) = empty.hollow.take() else {
            return Ok(());
        };
        let ends = empty.outputs.each_ref().map(|(_, write_end)| write_end.try_clone());
        let [stdout, stderr] = ends.map(|end| end.map_err(MakeError::Pipes));
        let begun = beginning.begin(&empty.sandbox, hollow, [stdout?, stderr?]);
        empty.begun = Some(begun.await.map_err(MakeError::Begin)?);
        Ok(())
    }

    pub(crate) async fn make(&self) -> Result<EmptySandbox, MakeError> {
        // The semaphore is never closed.
        let _maker = self.makers.acquire().await.ok();
        let prestarts = self.prestarts();
        let made = match self.make_one(prestarts).await {
            // Whatever failed, a sandbox without a prestarted CRIU may still work.
            Err(e) if prestarts => {
                self.note_prestart_failure(&e);
                self.make_one(false).await
            }
            made => made,
        };
        self.failed.fetch_add(u64::from(made.is_err()), Ordering::Relaxed);
        made
    }

    /// Returns whether to prestart a CRIU: not before its kernel probe is known, nor after recent repeated failures.
    fn prestarts(&self) -> bool {
        let is_left = || {
            let last = *self.last_failure.lock();
            self.prestart_failures.load(Ordering::Relaxed) >= PRESTART_FAILURES_MAX
                && last.is_some_and(|at| at.elapsed() < PRESTART_PAUSE)
        };
        self.probe.lock().is_some() && !is_left()
    }

    fn note_prestart_failure(&self, why: &dyn std::error::Error) {
        *self.last_failure.lock() = Some(Instant::now());
        let times = self.prestart_failures.fetch_add(1, Ordering::Relaxed) + 1;
        if times <= PRESTART_FAILURES_MAX {
            tracing::warn!(
                error = %chain(why),
                times,
                most = PRESTART_FAILURES_MAX,
                "a sandbox's criu was prestarted in vain: restores take some milliseconds more"
            );
        }
    }

    async fn make_one(&self, prestarts: bool) -> Result<EmptySandbox, MakeError> {
        let name = format!("empty-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let (cgroup, used_before) = self.cgroups.ready(&name, EMPTY).map_err(MakeError::Cgroup)?;
        let sandbox = Sandbox::create(&self.zygote, cgroup.procs_files())
            .await
            .map_err(MakeError::Sandbox)?;
        // The pipes belong to the function: CRIU reopens them, and the function may, as /dev/stdout.
        let owner = Some(sandbox.host_id(FUNCTION_UID));
        let pipe = || {
            let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|e| MakeError::Pipes(e.into()))?;
            fchown(&write, owner, owner).map_err(MakeError::Pipes)?;
            Ok::<_, MakeError>((read, write))
        };
        let outputs = [pipe()?, pipe()?];
        let group_procs = cgroup.function_procs().map_err(MakeError::Join)?;
        let hollow = match self.start_hollow(&sandbox, &group_procs).await {
            Ok(hollow) => hollow,
            Err(e) => {
                tracing::warn!(error = %chain(&e), "a sandbox has no hollow process: criu restores into it");
                None
            }
        };
        let criu = async {
            match hollow.is_some() && !self.is_criu_used() {
                true => Ok(None),
                false => {
                    let started = self.start_criu(&sandbox, &name, &outputs, &group_procs, prestarts);
                    started.await.map(Some)
                }
            }
        };
        let linked = async {
            match &self.network {
                Some(network) => {
                    let link = network.attach(sandbox.network()).await;
                    link.map(Some).map_err(MakeError::Network)
                }
                None => Ok(None),
            }
        };
        let (criu, link) = tokio::try_join!(criu, linked)?;
        Ok(EmptySandbox {
            cgroup,
            used_before,
            sandbox,
            link,
            criu,
            hollow,
            begun: None,
            outputs,
        })
    }

    /// Records that CRIU has restored a snapshot: sandboxes get one again for a while.
    pub(crate) fn criu_used(&self) {
        *self.criu_used.lock() = Some(Instant::now());
    }

    fn is_criu_used(&self) -> bool {
        self.criu_used.lock().is_some_and(|at| at.elapsed() < CRIU_FOR)
    }

    /// Starts a CRIU that waits in a sandbox.
    async fn start_criu(
        &self,
        sandbox: &Sandbox,
        name: &str,
        outputs: &[(OwnedFd, OwnedFd); 2],
        group_procs: &OwnedFd,
        prestarts: bool,
    ) -> Result<IdleCriu, MakeError> {
        let probe = self.probe.lock().clone().filter(|_| prestarts);
        let images = match probe {
            Some(probe) => Some(self.images_dir(sandbox, name, &probe).await?),
            None => None,
        };
        let (criu, theirs) = Session::pair().map_err(MakeError::Pipes)?;
        let mut fds = vec![&theirs, &outputs[0].1, &outputs[1].1];
        fds.extend(images.as_ref().map(|images| &images.opened));
        let purpose = CriuUse::Restore { group_procs };
        sandbox.start_criu(&fds, purpose).await.map_err(MakeError::Criu)?;
        drop(theirs);
        let prestart = self.prestart.clone();
        let answered = tokio::task::spawn_blocking(move || {
            // When CRIU replies, it has found all its libraries, and no longer looks for their paths.
            criu.version(CRIU_LIMIT)?;
            let prestarted = images.map(|images| prestart.run(&criu, images));
            Ok((criu, prestarted))
        });
        let (session, prestarted) = answered
            .await
            .map_err(|e| MakeError::Pipes(std::io::Error::other(e)))?
            .map_err(MakeError::Silent)?;
        let prestarted = prestarted.transpose().map_err(MakeError::Prestart)?;
        let ancestor = sandbox.ancestor().await;
        match &ancestor {
            // A CRIU that was not prestarted does not tell whether the next could be.
            _ if prestarted.is_none() => {}
            Ok(_) => self.prestart_failures.store(0, Ordering::Relaxed),
            Err(e) => self.note_prestart_failure(e),
        }
        Ok(IdleCriu {
            session,
            ancestor: ancestor.ok(),
            prestarted,
        })
    }

    /// Starts a process that restores without CRIU, if sandboxes have one.
    async fn start_hollow(&self, sandbox: &Sandbox, group_procs: &OwnedFd) -> Result<Option<Hollow>, MakeError> {
        if !self.has_hollow {
            return Ok(None);
        }
        let (ours, theirs) = hollow::pair().map_err(MakeError::Pipes)?;
        let started = sandbox.start_hollow(&theirs, group_procs).await;
        started.map_err(MakeError::Sandbox)?;
        drop(theirs);
        let met = tokio::task::spawn_blocking(move || Hollow::accept(ours)).await;
        let met = met.map_err(|e| MakeError::Pipes(std::io::Error::other(e)))?;
        met.map(Some).map_err(MakeError::Hollow)
    }

    /// Creates the directory of a CRIU that is to be prestarted.
    async fn images_dir(&self, sandbox: &Sandbox, name: &str, probe: &OwnedFd) -> Result<PrestartDir, MakeError> {
        sandbox.show_probe(probe).await.map_err(MakeError::Criu)?;
        let dir = self.prestart.make_dir(name, sandbox.host_id(0));
        dir.map_err(MakeError::Prestart)
    }

    /// Prestarts CRIU in sandboxes created from now on, with this result of its kernel probe.
    pub fn prestart_with(&self, probe: Arc<OwnedFd>) {
        *self.probe.lock() = Some(probe);
    }
}

/// Ends a sandbox that nobody needs.
pub(crate) async fn end(empty: EmptySandbox) {
    let ended = tokio::task::spawn_blocking(move || {
        empty.sandbox.end();
        drop(empty);
    });
    // The task does not panic, so the only possible failure is the shutdown of the runtime.
    let _ = ended.await;
}
