//! Empty sandboxes made ahead: namespaces and control groups, which cost the kernel milliseconds (it waits for a grace period
//! when a process changes its control group), and a CRIU that waits for its order, which costs as much to start; but nothing
//! of a function yet. None is used twice.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::fcntl::OFlag;
use parking_lot::Mutex;
use rekindle_snapshotter::criu::{CriuError, Session};
use tokio::sync::Notify;

use super::{Sandbox, SandboxError};
use crate::cgroup::{Cgroup, Cgroups, CreateError, Limits};
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
/// How long is waited after one could not be made.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    /// A CRIU inside, waiting; it has the write ends of `outputs` at [`OUTPUT_FDS`]. Ends when this is dropped.
    pub criu: Session,
    /// Pipes for what the function writes: standard output, standard error; their read and write ends.
    pub outputs: [(OwnedFd, OwnedFd); 2],
}

/// Empty sandboxes of a host.
pub struct SandboxPool {
    cgroups: Cgroups,
    init_binary: PathBuf,
    criu_dir: PathBuf,
    network: Option<Arc<Network>>,
    size: usize,
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
}

impl SandboxPool {
    /// An empty pool that keeps `size` sandboxes once [`Self::keep_filled`] runs.
    pub fn new(
        cgroups: Cgroups,
        init_binary: PathBuf,
        criu_dir: PathBuf,
        network: Option<Arc<Network>>,
        size: usize,
    ) -> Self {
        Self {
            cgroups,
            init_binary,
            criu_dir,
            network,
            size,
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
        }
    }

    /// Takes one that is ready, or makes one.
    ///
    /// # Errors
    /// When one must be made and cannot.
    pub async fn take(&self) -> Result<Empty, PoolError> {
        let ready = self.ready.lock().pop();
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
        let made = self.make_one().await;
        self.failed.fetch_add(u64::from(made.is_err()), Ordering::Relaxed);
        made
    }

    async fn make_one(&self) -> Result<Empty, PoolError> {
        let name = format!("empty-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let cgroup = self.cgroups.create(&name, EMPTY).map_err(PoolError::Cgroup)?;
        let sandbox = Sandbox::create(&self.init_binary, cgroup.procs_files())
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
            sandbox,
            link,
            criu,
            outputs,
        })
    }

    /// Fills the pool, and again after each that is taken. Runs until dropped.
    pub async fn keep_filled(self: Arc<Self>) {
        loop {
            while self.ready.lock().len() < self.size && !self.closed.load(Ordering::Relaxed) {
                match self.make().await {
                    Ok(empty) => self.ready.lock().push(empty),
                    Err(e) => {
                        tracing::warn!(error = %e, "cannot make a sandbox ahead");
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                }
            }
            self.taken.notified().await;
            tokio::time::sleep(REFILL_AFTER).await;
        }
    }

    /// Ends all that are ready. Blocks for some milliseconds.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut *self.ready.lock());
        for empty in all {
            empty.sandbox.end();
        }
    }
}
