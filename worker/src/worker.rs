//! The state of a worker and its startup: it sweeps the remains of a killed predecessor, and makes CRIU's kernel probe
//! once.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rekindle_criu::Prestart;
use rekindle_identity::{Role, TlsError, Transport};
use rekindle_init::causes::chain;
use rekindle_snapshotter::{ChunkCache, RegionIndex, RegionReader};
use rekindle_wire::InstanceId;
use rekindle_wire::internal::Presence;
use tokio::sync::Notify;

use crate::config::{Restorer, WorkerConfig};
use crate::deploy::layers::Layers;
use crate::deploy::renewal::Refusals;
use crate::host::cgroup::Cgroups;
use crate::host::confined::Confinement;
use crate::host::load::Load;
use crate::host::netlink_memory;
use crate::host::network::Network;
use crate::host::sandbox::Zygote;
use crate::host::sandbox::pool::SandboxPool;
use crate::host::start_limiter::StartLimiter;
use crate::idle::IdleMemory;
use crate::instance::Instance;
use crate::instance::boot_pauses::BootPauses;
use crate::instance::damage::Damage;
use crate::migration::{MigrationSources, MigrationTargets, Tracking, with_tracking};
use crate::reporting::kept::KeptReport;
use crate::reporting::logs::{LogLimits, Logs};
use crate::reporting::metrics::Metrics;
use crate::snapshots::{MemoryFs, Snapshots};

/// Why a worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory cannot be used.
    #[error("use directory {}", .0.display())]
    Directory(PathBuf, #[source] std::io::Error),
    /// Control groups are not available.
    #[error("use control groups")]
    Cgroups(#[source] crate::host::cgroup::DetectError),
    /// The chunk cache cannot be opened.
    #[error("open the chunk cache")]
    Chunks(#[source] rekindle_snapshotter::CacheError),
    /// The file system of templates is not available.
    #[error(transparent)]
    Memory(#[from] crate::snapshots::MemoryFsError),
    /// The logs cannot be opened.
    #[error("open the logs")]
    Logs(#[source] crate::reporting::logs::LogError),
    /// The network of functions cannot be set up.
    #[error("set up the network of functions")]
    Network(#[from] crate::host::network::RouterError),
    /// The client for calls to other workers cannot be created.
    #[error("make the connection to other workers")]
    Client(#[source] reqwest::Error),
    /// The certificate cannot be used.
    #[error("guard the connections to other workers")]
    Tls(#[source] TlsError),
    /// CRIU's bundle is incomplete.
    #[error("{} is missing; run `fn doctor`", .0.display())]
    Criu(PathBuf),
}

/// A worker.
pub struct Worker {
    /// Its settings.
    pub config: WorkerConfig,
    /// Control groups of this host.
    pub cgroups: Cgroups,
    /// Network egress of sandboxes, if there is any.
    pub network: Option<Arc<Network>>,
    /// The process that forks sandboxes, and CRIUs that dump them.
    pub(crate) zygote: Arc<Zygote>,
    /// Pool of sandboxes created ahead.
    pub pool: Arc<SandboxPool>,
    /// Eviction of idle memory.
    pub idle: Arc<IdleMemory>,
    /// Limits how many starts use the processors at once.
    pub start_limiter: Arc<StartLimiter>,
    /// The pauses of versions whose boots fail.
    pub boot_pauses: BootPauses,
    /// The functions' logs.
    pub logs: Logs,
    /// Unpacked layers.
    pub layers: Layers,
    /// Open snapshots.
    pub snapshots: Snapshots,
    /// Its metrics.
    pub metrics: Metrics,
    /// How busy its instances keep the processors.
    pub load: Load,
    /// What the scheduler knows of the snapshots here.
    pub kept: KeptReport,
    /// The store's regions, by content.
    pub index: RegionIndex,
    /// A new value at each start.
    pub incarnation: u64,
    /// Number of reports to the scheduler so far.
    pub reports: AtomicU64,
    /// Snapshots that are damaged, or may be.
    pub damage: Damage,
    /// Snapshots whose images were rejected.
    pub refusals: Refusals,
    /// Instances that serve no requests and are reported to nobody.
    pub unlisted: Mutex<HashSet<InstanceId>>,
    /// Notified when the scheduler should hear of a change at once.
    pub changed: Notify,
    /// Instances that migrate to other hosts.
    pub migration_sources: MigrationSources,
    /// Instances that migrate here.
    pub migration_targets: MigrationTargets,
    /// Transport of calls to other workers.
    pub peers: Transport,
    /// Set when no new instances are accepted.
    pub draining: AtomicBool,
    /// Its presence, as reported to the scheduler.
    pub presence: Mutex<Presence>,
    /// Whether the scheduler has heard that it leaves.
    pub leaving_is_known: AtomicBool,
    /// Whether the scheduler accepted the last report.
    pub scheduler_is_reached: AtomicBool,
    /// Whether a scheduler has heard of it since its start. Before that, nothing may be placed here: what a scheduler
    /// takes to be on this worker ran before the start, and is forgotten when the scheduler hears of the start.
    pub is_known: AtomicBool,
    instances: Mutex<HashMap<InstanceId, Arc<Instance>>>,
    probe: Mutex<Option<Probe>>,
    dump_probe: Mutex<Option<DumpProbe>>,
    /// Held by whoever makes that probe.
    pub(crate) probing: tokio::sync::Mutex<()>,
    /// Held so that CRIU's breakpoints are immediate.
    _breakpoints: Option<OwnedFd>,
}

impl Worker {
    /// Comes up.
    ///
    /// # Errors
    /// Returns an error when the host lacks something; the message says what.
    pub async fn start(mut config: WorkerConfig) -> Result<Arc<Self>, StartError> {
        raise_open_files();
        let peers = crate::reporting::heartbeat::client().map_err(StartError::Client)?;
        let peers = Transport::new(peers, config.member.as_deref(), Role::Worker).map_err(StartError::Tls)?;
        let metrics = Metrics::default();
        config.store = metrics.measured(&config.store);
        for file in ["criu", "lib/ld.so"] {
            let path = config.criu_dir.join(file);
            if !path.exists() {
                return Err(StartError::Criu(path));
            }
        }
        let make = |dir: PathBuf| {
            std::fs::create_dir_all(&dir)
                .map_err(|e| StartError::Directory(dir.clone(), e))
                .map(|()| dir)
        };
        // These directories contain directories of sandboxes' root users, who must not reach anything above them,
        // whatever the umask.
        let close = |dir: PathBuf| {
            let dir = make(dir)?;
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700))
                .map_err(|e| StartError::Directory(dir.clone(), e))
                .map(|()| dir)
        };
        let images = close(config.run_dir.join("images"))?;
        close(config.run_dir.join("restores"))?;
        crate::snapshots::dump_dir::prepare(&config.cache_dir)
            .map_err(|e| StartError::Directory(config.cache_dir.clone(), e))?;
        // Some belong to an id that a user of the host may have.
        let layers = close(config.cache_dir.join("layers"))?;
        if let Err(e) = rekindle_snapshotter::layer::remove_unfinished(&layers) {
            tracing::warn!(error = %e, "cannot remove what unfinished layers left");
        }
        let building = make(config.cache_dir.join("build"))?;
        if let Err(e) = crate::deploy::build::sweep(&building) {
            tracing::warn!(error = %e, "cannot remove what unfinished builds left");
        }
        let mut cgroups =
            Cgroups::detect_below(&config.cgroup_root, &config.cgroup_parent).map_err(StartError::Cgroups)?;
        match cgroups.sweep() {
            Ok(swept) if swept.is_empty() => {}
            Ok(swept) => tracing::info!(?swept, "removed what a killed worker left"),
            Err(e) => tracing::warn!(error = %e, "cannot remove all that a killed worker left"),
        }
        if let Err(e) = cgroups.limit_devices(&config.cgroup_root, &config.cgroup_parent) {
            tracing::warn!(error = %chain(&e), "the devices that a CRIU may open are not filtered");
        }
        if config.disk_read_bytes > 0 {
            let (root, parent) = (&config.cgroup_root, &config.cgroup_parent);
            match cgroups.limit_disk(root, parent, &config.cache_dir, config.disk_read_bytes) {
                Ok(disk) => tracing::info!(
                    disk,
                    bytes_a_second = config.disk_read_bytes,
                    "reads from the disk are bounded"
                ),
                Err(e) => tracing::warn!(error = %chain(&e), "functions may read from the disk as fast as they can"),
            }
        }
        let idle = Arc::new(IdleMemory::open(&config, &cgroups));
        let network = match &config.egress {
            egress if egress.enabled => Some(Arc::new(Network::start(egress.clone(), &config.cgroup_parent).await?)),
            _ => None,
        };
        let chunks =
            ChunkCache::open(&config.cache_dir.join("chunks"), config.chunk_cache_bytes).map_err(StartError::Chunks)?;
        let reader = Arc::new(RegionReader::new(config.store.clone(), chunks));
        let logs = Logs::open(&config.data_dir.join("logs"), LogLimits::default()).map_err(StartError::Logs)?;
        let index = RegionIndex::new();
        // Without it, data that the store has is stored again: more bytes, but no other harm.
        if let Err(e) = index.seed(&config.store).await {
            tracing::warn!(error = %e, "cannot learn what the store has");
        }
        let incarnation = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64);
        let breakpoints = crate::host::breakpoints::ready()
            .inspect_err(|e| tracing::warn!(error = %e, "a start may wait some 10 ms for CRIU's first breakpoint"))
            .ok();
        let start_limiter = Arc::new(StartLimiter::new(config.starts_at_once));
        let stage = make(config.run_dir.join("stage"))?;
        let zygote = Zygote::new(config.init_binary.clone(), stage, config.criu_dir.clone());
        let zygote = Arc::new(zygote);
        let worker = Arc::new(Self {
            metrics,
            load: Load::default(),
            kept: KeptReport::default(),
            damage: Damage::new(config.store.clone(), Arc::clone(&reader)),
            refusals: Refusals::default(),
            unlisted: Mutex::default(),
            layers: Layers::new(
                config.store.clone(),
                &layers,
                Confinement::new(config.init_binary.clone()),
                config.layer_cache_bytes,
            ),
            snapshots: Snapshots::new(
                config.store.clone(),
                reader,
                &images,
                &layers,
                MemoryFs::new()?,
                config.template_bytes,
                Arc::clone(&start_limiter),
            )
            .compiling(config.restorer == Restorer::Auto),
            pool: Arc::new(SandboxPool::new(
                cgroups.clone(),
                Arc::clone(&zygote),
                Prestart {
                    dirs: config.run_dir.join("restores"),
                    log_level: config.criu_log_level,
                },
                network.clone(),
                config.restorer == Restorer::Auto,
                config.empty_sandboxes,
                config.empty_sandboxes_most,
            )),
            zygote,
            idle,
            start_limiter,
            boot_pauses: BootPauses::default(),
            network,
            cgroups,
            logs,
            index,
            incarnation,
            reports: AtomicU64::new(0),
            changed: Notify::new(),
            migration_sources: MigrationSources::default(),
            migration_targets: MigrationTargets::default(),
            peers,
            draining: AtomicBool::new(false),
            presence: Mutex::new(Presence::Serving),
            leaving_is_known: AtomicBool::new(false),
            scheduler_is_reached: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
            instances: Mutex::default(),
            probe: Mutex::new(None),
            dump_probe: Mutex::new(None),
            probing: tokio::sync::Mutex::default(),
            _breakpoints: breakpoints,
            config,
        });
        crate::reporting::metrics::observe(&worker.metrics.registry, &Arc::downgrade(&worker));
        IdleMemory::start(&worker);
        let watched = Arc::downgrade(&worker);
        netlink_memory::watch(move |memory| {
            let instances = watched.upgrade()?.all_instances();
            instances.iter().for_each(|instance| instance.limit_netlink(memory));
            Some(())
        });
        Ok(worker)
    }

    /// Returns an instance by id.
    pub fn instance(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.instances.lock().get(id).cloned()
    }

    /// Returns all instances.
    pub fn all_instances(&self) -> Vec<Arc<Instance>> {
        self.instances.lock().values().cloned().collect()
    }

    /// Adds an instance. Returns `false` if its id is taken.
    pub fn add(&self, instance: &Arc<Instance>) -> bool {
        let mut all = self.instances.lock();
        if all.contains_key(&instance.id) {
            return false;
        }
        all.insert(instance.id.clone(), Arc::clone(instance));
        true
    }

    /// Removes an instance and notifies the scheduler.
    pub fn remove(&self, id: &InstanceId) {
        self.instances.lock().remove(id);
        self.changed.notify_one();
    }

    /// Like `remove`, unless another instance has this id by now: one that has migrated here again.
    pub fn remove_this(&self, instance: &Arc<Instance>) {
        let mut all = self.instances.lock();
        if all.get(&instance.id).is_some_and(|known| Arc::ptr_eq(known, instance)) {
            all.remove(&instance.id);
        }
        drop(all);
        self.changed.notify_one();
    }

    /// Stops everything, for shutdown.
    pub async fn stop_all(&self) {
        self.draining.store(true, Ordering::Relaxed);
        for instance in self.all_instances() {
            instance.stop("the worker is shutting down").await;
        }
        let (pool, network, idle) = (Arc::clone(&self.pool), self.network.clone(), Arc::clone(&self.idle));
        let close = move || {
            pool.close();
            if let Some(network) = network {
                network.stop();
            }
            idle.stop();
        };
        // The task does not panic, so the only possible failure is the shutdown of the runtime.
        let _ = tokio::task::spawn_blocking(close).await;
    }

    /// Returns CRIU's kernel probe, to be put into each sandbox: a descriptor that is read from its start.
    pub fn probe(&self) -> Option<Arc<OwnedFd>> {
        self.probe.lock().as_ref().map(|probe| Arc::clone(&probe.file))
    }

    /// Returns CRIU's version, once it has run.
    pub fn criu_version(&self) -> String {
        let probe = self.probe.lock();
        probe
            .as_ref()
            .map_or_else(|| "unknown".to_owned(), |p| p.version.clone())
    }

    /// Returns how CRIU learns which pages have changed, once a CRIU that dumps has run.
    pub fn tracking(&self) -> Tracking {
        self.dump_probe.lock().as_ref().map_or(Tracking::None, |p| p.tracking)
    }

    /// Returns the kernel probe of CRIUs that dump, once one has run.
    pub(crate) fn dump_probe(&self) -> Option<Arc<[u8]>> {
        self.dump_probe.lock().as_ref().map(|probe| Arc::clone(&probe.bytes))
    }

    /// Keeps the kernel probe of a CRIU that dumps.
    pub(crate) fn keep_dump_probe(&self, bytes: &[u8], version: &str) -> Arc<[u8]> {
        let (bytes, tracking) = with_tracking(bytes, version);
        let bytes: Arc<[u8]> = bytes.into();
        *self.dump_probe.lock() = Some(DumpProbe {
            bytes: Arc::clone(&bytes),
            tracking,
        });
        bytes
    }

    /// Keeps CRIU's kernel probe from a sandbox in which CRIU ran.
    pub fn keep_probe(&self, bytes: &[u8], version: String) {
        use std::io::Write;
        let made = nix::sys::memfd::memfd_create("criu.kdat", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
        let kept = made.map_err(std::io::Error::from).and_then(|fd| {
            let mut file = std::fs::File::from(fd);
            file.write_all(bytes)?;
            Ok(Arc::new(OwnedFd::from(file)))
        });
        match kept {
            Ok(file) => {
                self.pool.prestart_with(Arc::clone(&file));
                *self.probe.lock() = Some(Probe { file, version });
            }
            Err(e) => tracing::warn!(error = %e, "cannot keep criu's kernel probe; restores take longer"),
        }
    }
}

/// CRIU's kernel probe.
struct Probe {
    file: Arc<OwnedFd>,
    version: String,
}

/// The kernel probe of CRIUs that dump, which run outside the sandbox.
struct DumpProbe {
    bytes: Arc<[u8]>,
    tracking: Tracking,
}

/// Raises the host's limit of open files, where systemd has not done so at boot. Control groups charge and limit the
/// memory of open files, so this limit only lets a few functions use up what all others need.
fn raise_open_files() {
    let limit = Path::new("/proc/sys/fs/file-max");
    let is_raised = |now: String| now.trim().parse().is_ok_and(|now: u64| now >= 1 << 40);
    if std::fs::read_to_string(limit).is_ok_and(is_raised) {
        return;
    }
    if let Err(error) = std::fs::write(limit, i64::MAX.to_string()) {
        tracing::warn!(%error, "the host's limit of open files (fs.file-max) stays: functions can use up all of them");
    }
}
