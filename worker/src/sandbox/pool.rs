//! Empty sandboxes made ahead: namespaces and control groups, which cost the kernel milliseconds (it waits for a grace period
//! when a process changes its control group), but nothing of a function yet. None is used twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Sandbox, SandboxError};
use crate::cgroup::{Cgroup, Cgroups, CreateError, Limits};

/// What an empty sandbox may use. More memory than any function, since v1 refuses to raise a limit above that of memory and
/// swap together.
const EMPTY: Limits = Limits {
    memory_bytes: 1 << 40,
    cpu_cores: 1.0,
    pids: 64,
};
/// How long after a sandbox was taken the next one is made: what it was taken for comes first.
const REFILL_AFTER: Duration = Duration::from_millis(20);
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
}

/// An empty sandbox and its control group, which can be removed only after it.
pub struct Empty {
    /// Its walls.
    pub sandbox: Arc<Sandbox>,
    /// Its limits, still those of an empty one.
    pub cgroup: Cgroup,
}

/// Empty sandboxes of a host.
pub struct SandboxPool {
    cgroups: Cgroups,
    init_binary: PathBuf,
    size: usize,
    ready: Mutex<Vec<Empty>>,
    taken: Notify,
    made: AtomicU64,
    closed: AtomicBool,
}

impl SandboxPool {
    /// An empty pool that keeps `size` sandboxes once [`Self::keep_filled`] runs.
    pub fn new(cgroups: Cgroups, init_binary: PathBuf, size: usize) -> Self {
        Self {
            cgroups,
            init_binary,
            size,
            ready: Mutex::default(),
            taken: Notify::new(),
            made: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Takes one that is ready, or makes one.
    ///
    /// # Errors
    /// When one must be made and cannot.
    pub async fn take(&self) -> Result<Empty, PoolError> {
        let ready = self.ready.lock().pop();
        self.taken.notify_one();
        match ready {
            Some(ready) => Ok(ready),
            None => self.make().await,
        }
    }

    async fn make(&self) -> Result<Empty, PoolError> {
        let name = format!("empty-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let cgroup = self.cgroups.create(&name, EMPTY).map_err(PoolError::Cgroup)?;
        let sandbox = Sandbox::create(&self.init_binary, cgroup.procs_files())
            .await
            .map_err(PoolError::Sandbox)?;
        Ok(Empty { cgroup, sandbox })
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
