//! What every start needs first: limits, files, a sandbox, and pipes for the function's output.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock};

use rekindle_init::causes::chain;
use rekindle_init::protocol::{Layers, Machine, Setup};
use rekindle_wire::api::StartKind;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::manifest::Network;
use rekindle_wire::{ApiError, ErrorCode};

use super::Instance;
use crate::criu::probe;
use crate::host::cgroup::{Cgroup, Limits};
use crate::host::network::resolv_conf;
use crate::host::sandbox::{Furniture, Hollow, Sandbox, WaitingCriu};
use crate::snapshots::PipeNote;
use crate::worker::Worker;

/// Maximum number of processes and threads of an instance.
const PIDS_MAX: u64 = 512;
/// Memory for init and CRIU in addition to the function's own, in bytes.
const OVERHEAD: u64 = 16 << 20;

/// The function's end of an output pipe, and the name of its stream.
pub struct Output {
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// The end that the function writes to.
    pub write_end: OwnedFd,
}

impl Output {
    /// Returns the name by which CRIU knows the pipe.
    ///
    /// # Errors
    /// Returns an error when the descriptor cannot be inspected.
    pub fn note(&self) -> std::io::Result<PipeNote> {
        let file = std::fs::File::from(self.write_end.try_clone()?);
        Ok(PipeNote {
            key: format!("pipe:[{}]", file.metadata()?.ino()),
            stream: self.stream.to_owned(),
        })
    }
}

/// An empty sandbox, ready for a function. Fields drop in order: the sandbox (which kills) before the control group
/// (which must be empty to be removed).
pub struct IsolatedProcess {
    /// The sandbox.
    pub sandbox: Arc<Sandbox>,
    /// The function's standard output and standard error.
    pub outputs: [Output; 2],
    /// A CRIU that waits inside for its order, if there is one. It has the write ends of `outputs` at
    /// [`OUTPUT_FDS`](rekindle_criu::descriptors::OUTPUT_FDS).
    pub criu: Option<WaitingCriu>,
    /// A process that restores without CRIU, if there is one.
    pub hollow: Option<Hollow>,
    /// The control group with its limits.
    pub cgroup: Arc<Cgroup>,
}

/// Returns the memory limit of a sandbox of this version, in bytes.
pub fn memory_limit(spec: &VersionSpec) -> u64 {
    spec.manifest.memory.0 + OVERHEAD
}

/// Returns the size limit of the sandbox's `/dev/shm`, in bytes.
pub fn shm_limit(spec: &VersionSpec) -> u64 {
    (spec.manifest.memory.0 / 4).max(1 << 20)
}

/// Returns the number of processors that the sandbox appears to have: enough for its share, and no more than the host
/// has.
pub fn processors(spec: &VersionSpec) -> u32 {
    static HOST: LazyLock<f64> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64));
    // The cast saturates: no share is too large for the type.
    spec.manifest.cpu.ceil().min(*HOST).max(1.0) as u32
}

/// Takes a sandbox for `instance` and gives its control group the name `group`.
///
/// # Errors
/// Returns what the host refuses, as a fault of the platform.
pub async fn isolate(worker: &Worker, instance: &Instance, group: &str) -> Result<IsolatedProcess, ApiError> {
    let spec = &instance.spec;
    let (rootfs, app) = tokio::try_join!(worker.layers.get(&spec.rootfs), worker.layers.get(&spec.layer))
        .map_err(|e| unavailable("fetch the function's files", &e))?;
    let limits = Limits {
        memory_bytes: memory_limit(spec),
        cpu_cores: spec.manifest.cpu,
        pids: PIDS_MAX,
    };
    let egress = spec.manifest.network == Network::Egress;
    let layers = Layers {
        rootfs: rootfs.path().to_owned(),
        app: app.path().to_owned(),
    };
    let setup = Setup {
        hostname: spec.function.name().to_owned(),
        tmp_bytes: spec.manifest.tmp.0,
        shm_bytes: shm_limit(spec),
        root_bytes: spec.manifest.image.as_ref().map(|_| spec.manifest.memory.0),
        resolv_conf: (egress && worker.network.is_some()).then(resolv_conf),
        machine: Machine {
            memory_bytes: spec.manifest.memory.0,
            processors: processors(spec),
        },
    };
    let furniture = Furniture::new(layers, setup, egress, [rootfs.clone(), app.clone()]);
    let ready = worker.pool.take_furnished(&furniture);
    let is_furnished = ready.is_some();
    let mut empty = match ready {
        Some(empty) => empty,
        None => worker.pool.take().await.map_err(|e| unavailable("get a sandbox", &e))?,
    };
    worker
        .cgroups
        .assign(&mut empty.cgroup, group, limits)
        .map_err(|e| unavailable("limit the sandbox", &e))?;
    // Control groups cannot be renamed in version 2. There, only this line tells which instance uses a group.
    let (group, used_before) = (empty.cgroup.name(), empty.used_before);
    tracing::info!(instance = %instance.id, group, used_before, is_furnished, "took a sandbox");
    instance.starts_in(&empty.sandbox)?;
    instance.uses([rootfs, app]);
    if !is_furnished {
        let furnished = worker.pool.furnish(&mut empty, &furniture).await;
        furnished.map_err(|e| unavailable("prepare the sandbox", &e))?;
    }
    // Layers cannot be evicted while a sandbox waits with them.
    let layers = worker.layers.usage();
    if *instance.kind.lock() == StartKind::Restored && layers.bytes * 2 <= layers.limit_bytes {
        worker.pool.furnish_more(furniture);
    }
    let [stdout, stderr] = empty.outputs;
    let outputs = [output(instance, "stdout", stdout)?, output(instance, "stderr", stderr)?];
    let isolated = IsolatedProcess {
        sandbox: empty.sandbox,
        outputs,
        criu: empty.criu,
        hollow: empty.hollow,
        cgroup: Arc::new(empty.cgroup),
    };
    let sandbox = &isolated.sandbox;
    if worker.probe().is_none() {
        probe::give_or_make(worker, instance.id.as_str(), sandbox).await?;
    }
    Ok(isolated)
}

fn output(
    instance: &Instance,
    stream: &'static str,
    (read_end, write_end): (OwnedFd, OwnedFd),
) -> Result<Output, ApiError> {
    instance
        .sink
        .attach(stream, read_end)
        .map_err(|e| unavailable("read what the function writes", &e))?;
    Ok(Output { stream, write_end })
}

/// Builds an error of the host, with its causes.
pub fn unavailable(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::Internal, format!("cannot {what}: {}", chain(error)))
}
