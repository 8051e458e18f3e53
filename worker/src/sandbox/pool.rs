//! Empty sandboxes made ahead: namespaces and control groups, which cost the kernel milliseconds (it waits for a grace period
//! when a process changes its control group), and a CRIU that waits for its order, which costs as much to start; but nothing
//! of a function yet. Of a used one only the control group is used again, once it is clean ([`crate::cgroup`]); all else ends with it
//! (decision 18). How many are kept follows what was taken lately (`demand.rs`).

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use parking_lot::Mutex;
use rekindle_snapshotter::criu::{CriuError, Session};
use tokio::sync::{Notify, Semaphore};

use super::demand::Demand;
use super::{Sandbox, SandboxError, Zygote};
use crate::cgroup::{Cgroup, Cgroups, CreateError, Limits, SpareCounts};
use crate::network::{Network, RouterError, SandboxLink};

/// The descriptors at which CRIU has the write ends of the output pipes.
pub const OUTPUT_FDS: [i32; 2] = [4, 5];

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
    pub criu: Session,
    /// Pipes for what the function writes: standard output, standard error; their read and write ends.
    pub outputs: [(OwnedFd, OwnedFd); 2],
}

/// Empty sandboxes of a host.
pub struct SandboxPool {
    cgroups: Cgroups,
    zygote: Arc<Zygote>,
    criu_dir: PathBuf,
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
        criu_dir: PathBuf,
        network: Option<Arc<Network>>,
        least: usize,
        most: usize,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cgroups,
            zygote,
            criu_dir,
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

    async fn make(&self) -> Result<Empty, PoolError> {
        // The semaphore is never closed.
        let _maker = self.makers.acquire().await.ok();
        let made = self.make_one().await;
        self.failed.fetch_add(u64::from(made.is_err()), Ordering::Relaxed);
        made
    }

    async fn make_one(&self) -> Result<Empty, PoolError> {
        let name = format!("empty-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let (cgroup, used_before) = self.cgroups.ready(&name, EMPTY).map_err(PoolError::Cgroup)?;
        let sandbox = Sandbox::create(&self.zygote, cgroup.procs_files())
            .await
            .map_err(PoolError::Sandbox)?;
        let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|e| PoolError::Pipes(e.into()));
        let outputs = [pipe()?, pipe()?];
        let (criu, theirs) = Session::pair().map_err(PoolError::Pipes)?;
        sandbox
            .start_criu(&self.criu_dir, &[&theirs, &outputs[0].1, &outputs[1].1], None)
            .await
            .map_err(PoolError::Criu)?;
        drop(theirs);
        // Only when it answers has it found all its libraries, whose paths end when the sandbox is furnished.
        let answered = tokio::task::spawn_blocking(move || criu.version(CRIU_LIMIT).map(|_| criu));
        let link = match &self.network {
            Some(network) => Some(network.attach(sandbox.network()).await.map_err(PoolError::Network)?),
            None => None,
        };
        let criu = answered
            .await
            .map_err(|e| PoolError::Pipes(std::io::Error::other(e)))?
            .map_err(PoolError::Silent)?;
        Ok(Empty {
            cgroup,
            used_before,
            sandbox,
            link,
            criu,
            outputs,
        })
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
async fn end(empty: Empty) {
    let ended = tokio::task::spawn_blocking(move || {
        empty.sandbox.end();
        drop(empty);
    });
    // It does not panic; the runtime going down is the only other way to fail.
    let _ = ended.await;
}
