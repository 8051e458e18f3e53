//! Empty sandboxes made ahead: namespaces and control groups, which cost the kernel milliseconds (it waits for a grace period
//! when a process changes its control group), and a CRIU that waits for its order, which costs as much to start; but nothing
//! of a function yet. Of a used one only the control group is used again, once it is clean ([`crate::host::cgroup`]); all else ends with it
//! (decision 18). How many are kept follows what was taken lately (`demand.rs`).

use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use parking_lot::Mutex;
use rekindle_init::causes::chain;
use rekindle_init::protocol::FUNCTION_UID;
use rekindle_snapshotter::criu::{CriuError, Session};
use tokio::sync::{Notify, Semaphore};

use super::criu::{self, Prestart, PrestartError, WaitingCriu};
use super::demand::Demand;
use super::{CriuUse, Sandbox, SandboxError, Zygote};
use crate::host::cgroup::{Cgroup, Cgroups, CreateError, FileError, Limits, SpareCounts};
use crate::host::network::{Network, RouterError, SandboxLink};

/// The descriptors at which CRIU has the write ends of the output pipes.
pub const OUTPUT_FDS: [i32; 2] = [4, 5];
/// Their streams.
pub const OUTPUT_STREAMS: [&str; 2] = ["stdout", "stderr"];
/// What they are called in images, so that CRIU can be told of them before it is known what is to be restored: their numbers as pipes, higher
/// than a kernel soon counts.
pub const OUTPUT_PIPES: [u32; 2] = [0xffff_fff0, 0xffff_fff1];

/// What an empty sandbox may use. More memory than any function, since v1 refuses to raise a limit above that of memory and
/// swap together.
const EMPTY: Limits = Limits {
    memory_bytes: 1 << 40,
    cpu_cores: 1.0,
    pids: 64,
};
/// How long after a sandbox was taken the next one is made: what it was taken for comes first.
const REFILL_AFTER: Duration = Duration::from_millis(20);
/// How long CRIU may take to start. It takes about 4 ms.
const CRIU_LIMIT: Duration = Duration::from_secs(10);
/// How often in a row a CRIU is prestarted in vain before it is left for a while.
const VAIN_MOST: u64 = 5;
/// How long it is left then, before one more is tried.
const LEFT_FOR: Duration = Duration::from_secs(60);
/// Sandboxes that are made at once, for each core: half of the time they wait for the kernel.
const MAKERS_A_CORE: usize = 2;
/// How long is waited after one could not be made.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often it is looked whether fewer are wanted.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Why there is no empty sandbox.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No control group.
    #[error("make the control group")]
    Cgroup(#[source] CreateError),
    /// The function's part of it cannot be reached.
    #[error("join the function's control group")]
    Join(#[source] FileError),
    /// No sandbox.
    #[error("make the sandbox")]
    Sandbox(#[source] SandboxError),
    /// No way out.
    #[error("link the sandbox to the network")]
    Network(#[source] RouterError),
    /// No pipes for what the function will write.
    #[error("make the output pipes")]
    Pipes(#[source] std::io::Error),
    /// No CRIU.
    #[error("start criu")]
    Criu(#[source] SandboxError),
    /// It does not answer.
    #[error("hear from criu")]
    Silent(#[source] CriuError),
    /// It does not take an order ahead.
    #[error("prestart criu")]
    Prestart(#[source] PrestartError),
}

/// An empty sandbox and its control group, which can be removed only after it.
pub struct Empty {
    /// Its walls.
    pub sandbox: Arc<Sandbox>,
    /// Its link to the network, where the worker has one.
    pub link: Option<SandboxLink>,
    /// Its limits, still those of an empty one.
    pub cgroup: Cgroup,
    /// Whether its control group was another sandbox's before.
    pub used_before: bool,
    /// A CRIU inside, waiting; it has the write ends of `outputs` at [`OUTPUT_FDS`]. Ends when this is dropped.
    pub criu: WaitingCriu,
    /// Pipes for what the function writes: standard output, standard error; their read and write ends.
    pub outputs: [(OwnedFd, OwnedFd); 2],
}

/// Empty sandboxes of a host.
pub struct SandboxPool {
    cgroups: Cgroups,
    zygote: Arc<Zygote>,
    prestart: Prestart,
    network: Option<Arc<Network>>,
    least: usize,
    most: usize,
    demand: Mutex<Demand>,
    began: Instant,
    /// Who makes one has one of these: they keep a processor busy.
    makers: Semaphore,
    ready: Mutex<Vec<Empty>>,
    taken: Notify,
    made: AtomicU64,
    from_pool: AtomicU64,
    made_while_waiting: AtomicU64,
    failed: AtomicU64,
    closed: AtomicBool,
    /// How often in a row CRIU was prestarted, or its memory reached, in vain.
    vain: AtomicU64,
    /// When that was last so.
    last_vain: Mutex<Option<Instant>>,
    /// What CRIU has found of the kernel, once it has looked.
    probe: Mutex<Option<Arc<OwnedFd>>>,
}

/// The pool's level, and what it has given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCounts {
    /// Sandboxes that are ready.
    pub ready: usize,
    /// Taken that were ready.
    pub from_pool: u64,
    /// Taken that had to be made first.
    pub made_while_waiting: u64,
    /// That could not be made.
    pub failed: u64,
    /// How many are kept ready now.
    pub wanted: usize,
    /// Control groups that are used again.
    pub groups: SpareCounts,
}

impl SandboxPool {
    /// An empty pool that keeps from `least` to `most` sandboxes, as they are taken, once [`Self::keep_filled`] runs.
    pub fn new(
        cgroups: Cgroups,
        zygote: Arc<Zygote>,
        prestart: Prestart,
        network: Option<Arc<Network>>,
        least: usize,
        most: usize,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cgroups,
            zygote,
            prestart,
            network,
            least,
            most,
            demand: Mutex::default(),
            began: Instant::now(),
            makers: Semaphore::new(MAKERS_A_CORE * cores),
            ready: Mutex::default(),
            taken: Notify::new(),
            made: AtomicU64::new(0),
            from_pool: AtomicU64::new(0),
            made_while_waiting: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            vain: AtomicU64::new(0),
            last_vain: Mutex::default(),
            probe: Mutex::default(),
        }
    }

    /// How many there are now, and were taken.
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

    /// Takes one that is ready, or makes one.
    ///
    /// # Errors
    /// When one must be made and cannot.
    pub async fn take(&self) -> Result<Empty, PoolError> {
        let ready = self.ready.lock().pop();
        self.demand.lock().taken(self.began.elapsed());
        self.taken.notify_one();
        let from = if ready.is_some() {
            &self.from_pool
        } else {
            &self.made_while_waiting
        };
        from.fetch_add(1, Ordering::Relaxed);
        match ready {
            Some(ready) => Ok(ready),
            None => self.make().await,
        }
    }

    /// Makes one that is not the pool's.
    pub(crate) async fn make(&self) -> Result<Empty, PoolError> {
        // The semaphore is never closed.
        let _maker = self.makers.acquire().await.ok();
        let primes = self.primes();
        let made = match self.make_one(primes).await {
            // Whatever it was: what is plain may still be had.
            Err(e) if primes => {
                self.note_prestart_failure(&e);
                self.make_one(false).await
            }
            made => made,
        };
        self.failed.fetch_add(u64::from(made.is_err()), Ordering::Relaxed);
        made
    }

    /// Whether a CRIU is to be prestarted: not before it is known what it finds of the kernel, nor where it failed again and again a moment ago.
    fn primes(&self) -> bool {
        let is_left = || {
            let last = *self.last_vain.lock();
            self.vain.load(Ordering::Relaxed) >= VAIN_MOST && last.is_some_and(|at| at.elapsed() < LEFT_FOR)
        };
        self.probe.lock().is_some() && !is_left()
    }

    fn note_prestart_failure(&self, why: &dyn std::error::Error) {
        *self.last_vain.lock() = Some(Instant::now());
        let times = self.vain.fetch_add(1, Ordering::Relaxed) + 1;
        if times <= VAIN_MOST {
            tracing::warn!(error = %chain(why), times, most = VAIN_MOST, "a sandbox's criu was prestarted in vain: restores take some milliseconds more");
        }
    }

    async fn make_one(&self, primes: bool) -> Result<Empty, PoolError> {
        let name = format!("empty-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let (cgroup, used_before) = self.cgroups.ready(&name, EMPTY).map_err(PoolError::Cgroup)?;
        let sandbox = Sandbox::create(&self.zygote, cgroup.procs_files())
            .await
            .map_err(PoolError::Sandbox)?;
        // The function's: CRIU opens them anew, and the function may, as /dev/stdout.
        let owner = Some(sandbox.host_id(FUNCTION_UID));
        let pipe = || {
            let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|e| PoolError::Pipes(e.into()))?;
            fchown(&write, owner, owner).map_err(PoolError::Pipes)?;
            Ok::<_, PoolError>((read, write))
        };
        let outputs = [pipe()?, pipe()?];
        let probe = self.probe.lock().clone().filter(|_| primes);
        let place = match probe {
            Some(probe) => Some(self.place(&sandbox, &name, &probe).await?),
            None => None,
        };
        let (criu, theirs) = Session::pair().map_err(PoolError::Pipes)?;
        let mut fds = vec![&theirs, &outputs[0].1, &outputs[1].1];
        fds.extend(place.as_ref().map(|place| &place.opened));
        let group_procs = cgroup.function_procs().map_err(PoolError::Join)?;
        let purpose = CriuUse::Restore {
            group_procs: &group_procs,
        };
        sandbox.start_criu(&fds, purpose).await.map_err(PoolError::Criu)?;
        drop(theirs);
        let prestart = self.prestart.clone();
        let answered = tokio::task::spawn_blocking(move || {
            // Only when it answers has it found all its libraries, whose paths it does not look for any more then.
            criu.version(CRIU_LIMIT)?;
            let prestarted = place.map(|place| prestart.run(&criu, place));
            Ok((criu, prestarted))
        });
        let link = match &self.network {
            Some(network) => Some(network.attach(sandbox.network()).await.map_err(PoolError::Network)?),
            None => None,
        };
        let (session, prestarted) = answered
            .await
            .map_err(|e| PoolError::Pipes(std::io::Error::other(e)))?
            .map_err(PoolError::Silent)?;
        let prestarted = prestarted.transpose().map_err(PoolError::Prestart)?;
        let ancestor = sandbox.ancestor().await;
        match &ancestor {
            // One that was not prestarted does not tell whether the next could be.
            _ if prestarted.is_none() => {}
            Ok(_) => self.vain.store(0, Ordering::Relaxed),
            Err(e) => self.note_prestart_failure(e),
        }
        Ok(Empty {
            cgroup,
            used_before,
            sandbox,
            link,
            criu: WaitingCriu {
                session,
                ancestor: ancestor.ok(),
                prestarted,
            },
            outputs,
        })
    }

    /// Where a CRIU is to be prestarted.
    async fn place(&self, sandbox: &Sandbox, name: &str, probe: &OwnedFd) -> Result<criu::Place, PoolError> {
        sandbox.show_probe(probe).await.map_err(PoolError::Criu)?;
        self.prestart.place(name, sandbox).map_err(PoolError::Prestart)
    }

    /// From now on sandboxes are made with a CRIU that is prestarted by this result of its kernel probe.
    pub fn prime_with(&self, probe: Arc<OwnedFd>) {
        *self.probe.lock() = Some(probe);
    }

    /// Fills the pool, and again after each that is taken; ends those that are too many. Runs until dropped.
    pub async fn keep_filled(self: Arc<Self>) {
        loop {
            self.fill().await;
            let surplus = {
                let mut ready = self.ready.lock();
                let wanted = self.wanted();
                (ready.len() > wanted).then(|| ready.pop()).flatten()
            };
            if let Some(surplus) = surplus {
                // One at a time: nobody hurries.
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
            // Two beside each other, and a start that must make its own finds room among the makers.
            let (one, other) = tokio::join!(self.make_ready(), async {
                if lacking > 1 { self.make_ready().await } else { Ok(()) }
            });
            if let Err(e) = one.and(other) {
                tracing::warn!(error = %e, "cannot make a sandbox ahead");
                tokio::time::sleep(RETRY_AFTER).await;
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

    /// Ends all that are ready. Blocks for some milliseconds.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut *self.ready.lock());
        for empty in all {
            empty.sandbox.end();
        }
        self.cgroups.close();
    }
}

/// Ends one that nobody needs.
pub(crate) async fn end(empty: Empty) {
    let ended = tokio::task::spawn_blocking(move || {
        empty.sandbox.end();
        drop(empty);
    });
    // It does not panic; the runtime going down is the only other way to fail.
    let _ = ended.await;
}
