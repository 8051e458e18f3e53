//! Empty sandboxes created ahead. Their namespaces and control groups cost the kernel milliseconds: it waits for a
//! grace period when a process changes its control group. Nothing of a function is in them yet.
//!
//! A hollow process waits in each for a restore program. A CRIU costs as much to start as all else: one waits too where
//! there is no hollow process, and as long as CRIU restores some of the host's snapshots.
//!
//! For functions that were restored last, some are furnished ahead, too (`furnished.rs`).
//!
//! Of a used sandbox only the control group is used again, once it is clean ([`crate::host::cgroup`]). Everything else
//! ends with it (decision 18). How many are kept follows recent demand (`demand.rs`).

use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use parking_lot::Mutex;
use rekindle_criu::{CriuError, Prestart, PrestartDir, PrestartError, Session};
use rekindle_init::causes::chain;
use rekindle_init::protocol::FUNCTION_UID;
use tokio::sync::{Notify, Semaphore};

use super::demand::Demand;
use super::furnished::{Furnished, Furniture};
use super::{CriuUse, Hollow, HollowError, Sandbox, SandboxError, WaitingCriu, Zygote, hollow};
use crate::host::cgroup::{Cgroup, Cgroups, CreateError, FileError, Limits, SpareCounts};
use crate::host::network::{Network, RouterError, SandboxLink};

/// Limits of an empty sandbox. It has more memory than any function, since v1 refuses to raise a limit above that of
/// memory and swap together.
const EMPTY: Limits = Limits {
    memory_bytes: 1 << 40,
    cpu_cores: 1.0,
    pids: 64,
};
/// How long after a sandbox was taken the next one is created: the start that took it comes first.
const REFILL_AFTER: Duration = Duration::from_millis(20);
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
/// Pause after a failed creation.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Interval between checks whether fewer are wanted.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Why there is no empty sandbox.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
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
    /// The sandbox cannot be taken off the network.
    #[error("take the sandbox off the network")]
    Detach(#[source] RouterError),
    /// CRIU does not accept an order ahead.
    #[error("prestart criu")]
    Prestart(#[source] PrestartError),
}

/// An empty sandbox and its control group, which can be removed only after it.
pub struct Empty {
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
    pub criu: Option<WaitingCriu>,
    /// A process that restores without CRIU, if there is one.
    pub hollow: Option<Hollow>,
    /// Pipes for the function's standard output and standard error, as pairs of read and write ends.
    pub outputs: [(OwnedFd, OwnedFd); 2],
}

/// Empty sandboxes of a host.
pub struct SandboxPool {
    cgroups: Cgroups,
    zygote: Arc<Zygote>,
    prestart: Prestart,
    network: Option<Arc<Network>>,
    /// Whether a hollow process waits in each.
    has_hollow: bool,
    least: usize,
    most: usize,
    demand: Mutex<Demand>,
    began: Instant,
    /// Permits for those who create a sandbox, which keeps a processor busy.
    makers: Semaphore,
    ready: Mutex<Vec<Empty>>,
    furnished: Mutex<Furnished<Empty>>,
    taken: Notify,
    made: AtomicU64,
    from_pool: AtomicU64,
    made_while_waiting: AtomicU64,
    failed: AtomicU64,
    closed: AtomicBool,
    /// Number of failures in a row to prestart CRIU, or to reach its memory.
    prestart_failures: AtomicU64,
    /// Time of the last such failure.
    last_failure: Mutex<Option<Instant>>,
    /// CRIU's kernel probe, once it has run.
    probe: Mutex<Option<Arc<OwnedFd>>>,
    /// When CRIU last restored a snapshot.
    criu_used: Mutex<Option<Instant>>,
}

/// The pool's level, and what it has supplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCounts {
    /// Number of sandboxes that are ready.
    pub ready: usize,
    /// Number of sandboxes taken that were ready.
    pub from_pool: u64,
    /// Number of sandboxes taken that had to be created first.
    pub made_while_waiting: u64,
    /// Number of sandboxes that could not be created.
    pub failed: u64,
    /// Number of sandboxes to keep ready now.
    pub wanted: usize,
    /// Control groups that are used again.
    pub groups: SpareCounts,
}

impl SandboxPool {
    /// Creates an empty pool. Once [`Self::keep_filled`] runs, it keeps from `least` to `most` sandboxes, by demand.
    pub fn new(
        cgroups: Cgroups,
        zygote: Arc<Zygote>,
        prestart: Prestart,
        network: Option<Arc<Network>>,
        has_hollow: bool,
        least: usize,
        most: usize,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cgroups,
            zygote,
            prestart,
            network,
            has_hollow,
            least,
            most,
            demand: Mutex::default(),
            began: Instant::now(),
            makers: Semaphore::new(MAKERS_A_CORE * cores),
            ready: Mutex::default(),
            furnished: Mutex::default(),
            taken: Notify::new(),
            made: AtomicU64::new(0),
            from_pool: AtomicU64::new(0),
            made_while_waiting: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            prestart_failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            probe: Mutex::default(),
            criu_used: Mutex::default(),
        }
    }

    /// Returns how many there are now, and how many were taken.
    pub fn counts(&self) -> PoolCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PoolCounts {
            ready: self.ready.lock().len(),
            from_pool: read(&self.from_pool),
            made_while_waiting: read(&self.made_while_waiting),
            failed: read(&self.failed),
            wanted: self.wanted(),
            groups: self.cgroups.spare_counts(),
        }
    }

    fn wanted(&self) -> usize {
        self.demand.lock().wanted(self.began.elapsed(), self.least, self.most)
    }

    /// Takes a sandbox that was furnished like this ahead.
    pub(crate) fn take_furnished(&self, furniture: &Furniture) -> Option<Empty> {
        let taken = self.furnished.lock().take(furniture)?;
        self.note_taken(true);
        Some(taken)
    }

    /// Furnishes sandboxes like this ahead, for a while: one was restored into.
    pub(crate) fn furnish_more(&self, furniture: Furniture) {
        let surplus = self.furnished.lock().want(furniture, Instant::now());
        for empty in surplus {
            // The restore does not wait for it.
            tokio::spawn(end(empty));
        }
    }

    /// Lays out a sandbox's files, and takes it off the network if it is to have none.
    ///
    /// # Errors
    /// Returns an error when a step is refused. The sandbox is of no use then.
    pub(crate) async fn furnish(&self, empty: &mut Empty, furniture: &Furniture) -> Result<(), PoolError> {
        if !furniture.egress
            && let (Some(network), Some(link)) = (&self.network, empty.link.take())
        {
            network.detach(link).await.map_err(PoolError::Detach)?;
        }
        let furnished = empty.sandbox.furnish(furniture.layers.clone(), furniture.setup.clone());
        furnished.await.map_err(PoolError::Furnish)
    }

    fn note_taken(&self, was_ready: bool) {
        self.demand.lock().taken(self.began.elapsed());
        self.taken.notify_one();
        let from = if was_ready {
            &self.from_pool
        } else {
            &self.made_while_waiting
        };
        from.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a sandbox that is ready, or creates one.
    ///
    /// # Errors
    /// Returns an error when a sandbox must be created and cannot be.
    pub async fn take(&self) -> Result<Empty, PoolError> {
        let ready = self.ready.lock().pop();
        self.note_taken(ready.is_some());
        match ready {
            Some(ready) => Ok(ready),
            None => self.make().await,
        }
    }

    /// Creates a sandbox that does not belong to the pool.
    pub(crate) async fn make(&self) -> Result<Empty, PoolError> {
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

    async fn make_one(&self, prestarts: bool) -> Result<Empty, PoolError> {
        let name = format!("empty-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let (cgroup, used_before) = self.cgroups.ready(&name, EMPTY).map_err(PoolError::Cgroup)?;
        let sandbox = Sandbox::create(&self.zygote, cgroup.procs_files())
            .await
            .map_err(PoolError::Sandbox)?;
        // The pipes belong to the function: CRIU reopens them, and the function may, as /dev/stdout.
        let owner = Some(sandbox.host_id(FUNCTION_UID));
        let pipe = || {
            let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|e| PoolError::Pipes(e.into()))?;
            fchown(&write, owner, owner).map_err(PoolError::Pipes)?;
            Ok::<_, PoolError>((read, write))
        };
        let outputs = [pipe()?, pipe()?];
        let group_procs = cgroup.function_procs().map_err(PoolError::Join)?;
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
                    link.map(Some).map_err(PoolError::Network)
                }
                None => Ok(None),
            }
        };
        let (criu, link) = tokio::try_join!(criu, linked)?;
        Ok(Empty {
            cgroup,
            used_before,
            sandbox,
            link,
            criu,
            hollow,
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
    ) -> Result<WaitingCriu, PoolError> {
        let probe = self.probe.lock().clone().filter(|_| prestarts);
        let images = match probe {
            Some(probe) => Some(self.images_dir(sandbox, name, &probe).await?),
            None => None,
        };
        let (criu, theirs) = Session::pair().map_err(PoolError::Pipes)?;
        let mut fds = vec![&theirs, &outputs[0].1, &outputs[1].1];
        fds.extend(images.as_ref().map(|images| &images.opened));
        let purpose = CriuUse::Restore { group_procs };
        sandbox.start_criu(&fds, purpose).await.map_err(PoolError::Criu)?;
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
            .map_err(|e| PoolError::Pipes(std::io::Error::other(e)))?
            .map_err(PoolError::Silent)?;
        let prestarted = prestarted.transpose().map_err(PoolError::Prestart)?;
        let ancestor = sandbox.ancestor().await;
        match &ancestor {
            // A CRIU that was not prestarted does not tell whether the next could be.
            _ if prestarted.is_none() => {}
            Ok(_) => self.prestart_failures.store(0, Ordering::Relaxed),
            Err(e) => self.note_prestart_failure(e),
        }
        Ok(WaitingCriu {
            session,
            ancestor: ancestor.ok(),
            prestarted,
        })
    }

    /// Starts a process that restores without CRIU, if sandboxes have one.
    async fn start_hollow(&self, sandbox: &Sandbox, group_procs: &OwnedFd) -> Result<Option<Hollow>, PoolError> {
        if !self.has_hollow {
            return Ok(None);
        }
        let (ours, theirs) = hollow::pair().map_err(PoolError::Pipes)?;
        let started = sandbox.start_hollow(&theirs, group_procs).await;
        started.map_err(PoolError::Sandbox)?;
        drop(theirs);
        let met = tokio::task::spawn_blocking(move || Hollow::meet(ours)).await;
        let met = met.map_err(|e| PoolError::Pipes(std::io::Error::other(e)))?;
        met.map(Some).map_err(PoolError::Hollow)
    }

    /// Creates the directory of a CRIU that is to be prestarted.
    async fn images_dir(&self, sandbox: &Sandbox, name: &str, probe: &OwnedFd) -> Result<PrestartDir, PoolError> {
        sandbox.show_probe(probe).await.map_err(PoolError::Criu)?;
        let dir = self.prestart.make_dir(name, sandbox.host_id(0));
        dir.map_err(PoolError::Prestart)
    }

    /// Prestarts CRIU in sandboxes created from now on, with this result of its kernel probe.
    pub fn prestart_with(&self, probe: Arc<OwnedFd>) {
        *self.probe.lock() = Some(probe);
    }

    /// Fills the pool, and refills it after each sandbox taken. Ends surplus sandboxes. Runs until dropped.
    pub async fn keep_filled(self: Arc<Self>) {
        loop {
            self.fill().await;
            self.furnish_ahead().await;
            let surplus = {
                let mut ready = self.ready.lock();
                let wanted = self.wanted();
                (ready.len() > wanted).then(|| ready.pop()).flatten()
            };
            if let Some(surplus) = surplus {
                // One at a time: there is no hurry.
                end(surplus).await;
                continue;
            }
            tokio::select! {
                () = self.taken.notified() => tokio::time::sleep(REFILL_AFTER).await,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn fill(self: &Arc<Self>) {
        loop {
            let lacking = self.wanted().saturating_sub(self.ready.lock().len());
            if lacking == 0 || self.closed.load(Ordering::Relaxed) {
                return;
            }
            // Two run in parallel, so that a start which must create its own finds room among the makers.
            let (one, other) = tokio::join!(self.make_ready(), async {
                if lacking > 1 { self.make_ready().await } else { Ok(()) }
            });
            if let Err(e) = one.and(other) {
                tracing::warn!(error = %e, "cannot make a sandbox ahead");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    /// Furnishes what is lacking, and ends what was not wanted for a while.
    async fn furnish_ahead(&self) {
        loop {
            let Some(furniture) = self.furnished.lock().lacking() else {
                break;
            };
            let surplus = match self.make_furnished(&furniture).await {
                Ok(empty) => self.furnished.lock().add(&furniture, empty).into_iter().collect(),
                Err(e) => {
                    tracing::warn!(error = %chain(&e), "cannot furnish a sandbox ahead");
                    self.furnished.lock().give_up(Some(&furniture), Instant::now())
                }
            };
            for empty in surplus {
                end(empty).await;
            }
            if self.closed.load(Ordering::Relaxed) {
                break;
            }
        }
        let over = match self.closed.load(Ordering::Relaxed) {
            true => self.furnished.lock().clear(),
            false => self.furnished.lock().give_up(None, Instant::now()),
        };
        for empty in over {
            end(empty).await;
        }
    }

    async fn make_furnished(&self, furniture: &Furniture) -> Result<Empty, PoolError> {
        let mut empty = self.make().await?;
        match self.furnish(&mut empty, furniture).await {
            Ok(()) => Ok(empty),
            Err(e) => {
                end(empty).await;
                Err(e)
            }
        }
    }

    async fn make_ready(&self) -> Result<(), PoolError> {
        let empty = self.make().await?;
        if self.closed.load(Ordering::Relaxed) {
            end(empty).await;
        } else {
            self.ready.lock().push(empty);
        }
        Ok(())
    }

    /// Ends all sandboxes that are ready. Blocks for some milliseconds.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut *self.ready.lock());
        let furnished = self.furnished.lock().clear();
        for empty in all.into_iter().chain(furnished) {
            empty.sandbox.end();
        }
        self.cgroups.close();
    }
}

/// Ends a sandbox that nobody needs.
pub(crate) async fn end(empty: Empty) {
    let ended = tokio::task::spawn_blocking(move || {
        empty.sandbox.end();
        drop(empty);
    });
    // The task does not panic, so the only possible failure is the shutdown of the runtime.
    let _ = ended.await;
}
