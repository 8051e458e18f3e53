//! What every start needs first: limits, files, a sandbox, and pipes for the function's output.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use rekindle_init::protocol::{self, Machine, Setup};
use rekindle_wire::api::{LogStream, StartKind};
use rekindle_wire::function_config::Network;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{ApiError, SnapshotId};

use super::callers::Callers;
use super::lifecycle::Instance;
use crate::criu::{Criu, probe};
use crate::errors::unavailable;
use crate::host::cgroup::{Cgroups, Limits};
use crate::host::network::resolv_conf;
use crate::host::sandbox::pool::SandboxPool;
use crate::host::sandbox::{IsolatedProcess, Output, SandboxContents};
use crate::layers::{LayerUse, Layers};

/// Maximum number of processes and threads of an instance.
const PIDS_MAX: u64 = 512;
/// Memory for init and CRIU in addition to the function's own, in bytes.
const OVERHEAD: u64 = 16 << 20;

/// Returns the memory limit of a sandbox of this version, in bytes.
pub fn memory_limit(spec: &VersionSpec) -> u64 {
    spec.config.memory.0 + OVERHEAD
}

/// Returns the size limit of the sandbox's `/dev/shm`, in bytes.
pub fn shm_limit(spec: &VersionSpec) -> u64 {
    (spec.config.memory.0 / 4).max(1 << 20)
}

/// Returns the number of processors that the sandbox appears to have: enough for its share, and no more than the host
/// has.
pub fn processors(spec: &VersionSpec) -> u32 {
    static HOST: LazyLock<f64> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64));
    // The cast saturates: no share is too large for the type.
    spec.config.cpu.ceil().min(*HOST).max(1.0) as u32
}

/// Takes sandboxes for instances.
pub struct Isolator {
    /// Unpacked layers of this host.
    pub layers: Arc<Layers>,
    /// Control groups of this host.
    pub cgroups: Cgroups,
    /// Sandboxes created ahead.
    pub pool: Arc<SandboxPool>,
    /// CRIU, whose kernel probe every sandbox gets.
    pub criu: Arc<Criu>,
    /// Who calls other functions.
    pub callers: Arc<Callers>,
    /// Whether sandboxes can have network egress.
    pub has_egress: bool,
}

impl Isolator {
    /// Fetches the instance's files and takes a sandbox for it, as `isolate_with` does.
    ///
    /// # Errors
    /// The same as those of both.
    pub async fn isolate(&self, instance: &Instance, group: &str) -> Result<IsolatedProcess, ApiError> {
        let files = self.fetch(instance).await?;
        self.isolate_with(None, instance, group, files).await
    }

    /// The same for a restore from this snapshot, which may have begun in the sandbox.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn isolate_for(
        &self,
        snapshot: &SnapshotId,
        instance: &Instance,
        group: &str,
    ) -> Result<IsolatedProcess, ApiError> {
        let files = self.fetch(instance).await?;
        self.isolate_with(Some(snapshot), instance, group, files).await
    }

    /// Fetches the instance's files: its root filesystem and its layer, in this order.
    ///
    /// # Errors
    /// Returns an error when one cannot be fetched or unpacked.
    pub(super) async fn fetch(&self, instance: &Instance) -> Result<[LayerUse; 2], ApiError> {
        let spec = &instance.spec;
        let records_files = instance.records_files.load(Ordering::Relaxed);
        let image = spec
            .config
            .image
            .as_ref()
            .and(spec.snapshot.as_ref())
            .filter(|_| is_restored(instance));
        let rootfs = async {
            match image {
                Some(_) if records_files => Box::pin(self.layers.get_recorded(&spec.rootfs)).await,
                Some(snapshot) => Box::pin(self.layers.get_for_restore(&spec.rootfs, snapshot)).await,
                None => self.layers.get(&spec.rootfs).await,
            }
        };
        let (rootfs, app) = tokio::try_join!(rootfs, self.layers.get(&spec.layer))
            .map_err(|e| unavailable("fetch the function's files", &e))?;
        Ok([rootfs, app])
    }

    /// Takes a sandbox with these files for `instance` and gives its control group the name `group`. A restore from
    /// `snapshot` may have begun in it.
    ///
    /// # Errors
    /// Returns what the host refuses, as a fault of the platform.
    pub(super) async fn isolate_with(
        &self,
        snapshot: Option<&SnapshotId>,
        instance: &Instance,
        group: &str,
        [rootfs, app]: [LayerUse; 2],
    ) -> Result<IsolatedProcess, ApiError> {
        let spec = &instance.spec;
        let limits = Limits {
            memory_bytes: memory_limit(spec),
            cpu_cores: spec.config.cpu,
            pids: PIDS_MAX,
        };
        let egress = spec.config.network == Network::Egress;
        let layers = protocol::Layers {
            rootfs: rootfs.path().to_owned(),
            app: app.path().to_owned(),
        };
        let setup = Setup {
            hostname: spec.function.name().to_owned(),
            tmp_bytes: spec.config.tmp.0,
            shm_bytes: shm_limit(spec),
            root_bytes: spec.config.image.as_ref().map(|_| spec.config.memory.0),
            resolv_conf: (egress && self.has_egress).then(resolv_conf),
            machine: Machine {
                memory_bytes: spec.config.memory.0,
                processors: processors(spec),
            },
            secrets: !spec.config.secrets.is_empty(),
        };
        let contents = SandboxContents::new(layers, setup, egress, [rootfs.clone(), app.clone()]);
        let contents = contents.for_restores(snapshot.cloned());
        let ready = snapshot.and_then(|_| self.pool.take_furnished(&contents));
        let is_furnished = ready.is_some();
        let mut empty = match ready {
            Some(empty) => empty,
            None => self.pool.take().await.map_err(|e| unavailable("get a sandbox", &e))?,
        };
        self.cgroups
            .assign(&mut empty.cgroup, group, limits)
            .map_err(|e| unavailable("limit the sandbox", &e))?;
        // Control groups cannot be renamed in version 2. There, only this line tells which instance uses a group.
        let (group, used_before) = (empty.cgroup.name(), empty.used_before);
        tracing::info!(instance = %instance.id, group, used_before, is_furnished, "took a sandbox");
        instance.starts_in(&empty.sandbox)?;
        instance.uses([rootfs, app]);
        if !is_furnished {
            let furnished = self.pool.maker().furnish(&mut empty, &contents).await;
            furnished.map_err(|e| unavailable("prepare the sandbox", &e))?;
        }
        if let Some(link) = &empty.link {
            self.callers.add(link.address(), instance, &empty.sandbox);
        }
        // Layers cannot be evicted while a sandbox waits with them.
        let layers = self.layers.usage();
        let records_files = instance.records_files.load(Ordering::Relaxed);
        let is_expected = snapshot.is_some() && !records_files && layers.bytes * 2 <= layers.limit_bytes;
        let [stdout, stderr] = empty.outputs;
        let outputs = [
            output(instance, LogStream::Stdout, stdout)?,
            output(instance, LogStream::Stderr, stderr)?,
        ];
        let isolated = IsolatedProcess {
            sandbox: empty.sandbox,
            outputs,
            criu: empty.criu,
            hollow: empty.hollow,
            begun: empty.begun,
            expected: is_expected.then_some(contents),
            cgroup: Arc::new(empty.cgroup),
        };
        let sandbox = &isolated.sandbox;
        if self.criu.probe().is_none() {
            probe::give_or_make(&self.criu, instance.id.as_str(), sandbox).await?;
        }
        let secrets = instance.secrets();
        if !secrets.is_empty() {
            let given = instance.phase("secrets", sandbox.set_secrets(&secrets)).await;
            given.map_err(|e| unavailable("give the function its secrets", &e))?;
        }
        Ok(isolated)
    }
}

/// Returns whether the instance starts from its version's snapshot.
fn is_restored(instance: &Instance) -> bool {
    *instance.kind.lock() == StartKind::Restored
}

fn output(
    instance: &Instance,
    stream: LogStream,
    (read_end, write_end): (OwnedFd, OwnedFd),
) -> Result<Output, ApiError> {
    instance
        .sink
        .attach(stream, read_end)
        .map_err(|e| unavailable("read what the function writes", &e))?;
    Ok(Output { stream, write_end })
}
