//! A worker's startup: sweeps the remains of a killed predecessor, and puts the worker together.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use rekindle_criu::Prestart;
use rekindle_identity::{Role, TlsError, Transport};
use rekindle_init::causes::chain;
use rekindle_snapshotter::seal::opening;
use rekindle_snapshotter::{ChunkCache, Keyring, RegionIndex, RegionReader};

use crate::calls::{FunctionCalls, Gateways};
use crate::config::{Restorer, WorkerConfig};
use crate::criu::{Criu, CriuSettings};
use crate::deploy::build::BuildCounts;
use crate::deploy::builder::Builder;
use crate::deploy::prepare::Preparer;
use crate::deploy::rehearsal::Rehearser;
use crate::host::cgroup::Cgroups;
use crate::host::confined::Confinement;
use crate::host::load::Load;
use crate::host::netlink_memory;
use crate::host::network::Network;
use crate::host::open_files;
use crate::host::pressure::PressureFiles;
use crate::host::sandbox::Zygote;
use crate::host::sandbox::maker::SandboxMaker;
use crate::host::sandbox::pool::SandboxPool;
use crate::host::start_limiter::StartLimiter;
use crate::idle::{Evictor, IdleMemory};
use crate::instance::boot::Booter;
use crate::instance::boot_pauses::BootPauses;
use crate::instance::checkpoint::Checkpointer;
use crate::instance::damage::DamageExaminer;
use crate::instance::invoke::Invoker;
use crate::instance::isolate::Isolator;
use crate::instance::restore::SnapshotRestorer;
use crate::instance::runtime_snapshot::RuntimeBooter;
use crate::instance::start::Starter;
use crate::instance::{Callers, Instances, Resetter, Supervisor};
use crate::layers::Layers;
use crate::logs::{LogLimits, Logs};
use crate::metrics::Metrics;
use crate::migration::{MigrationSources, MigrationTargets, Peers, TargetHost};
use crate::reporting::heartbeat::{Reporter, WorkerDescription};
use crate::reporting::levels::Levels;
use crate::reporting::membership::Membership;
use crate::reporting::restorable::RestorableReport;
use crate::reporting::{Observed, heartbeat, observe};
use crate::snapshots::dump_dir::DumpDirs;
use crate::snapshots::{MemoryFs, Refusals, Snapshots};
use crate::worker::Worker;

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
    Logs(#[source] crate::logs::LogError),
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
    /// The program of the sandboxes' first process is not there.
    #[error("{} is missing: it comes with `fn`, and belongs beside it", .0.display())]
    Init(PathBuf),
}

/// Starts a worker, which reports to the scheduler through `scheduler`.
///
/// # Errors
/// Returns an error when the host lacks something; the message says what.
pub(crate) async fn start(mut config: WorkerConfig, scheduler: Transport) -> Result<Arc<Worker>, StartError> {
    open_files::raise();
    let peers = heartbeat::client().map_err(StartError::Client)?;
    let peers = Peers {
        transport: Transport::new(peers, config.member.as_deref(), Role::Worker).map_err(StartError::Tls)?,
        token: config.token.clone(),
    };
    let metrics = Arc::new(Metrics::default());
    config.store = metrics.measured(&config.store);
    for file in ["criu", "lib/ld.so"] {
        let path = config.criu_dir.join(file);
        if !path.exists() {
            return Err(StartError::Criu(path));
        }
    }
    if !config.init_binary.exists() {
        return Err(StartError::Init(config.init_binary));
    }
    let directories = Directories::make(&config)?;
    let cgroups = control_groups(&config)?;
    let idle = Arc::new(IdleMemory::open(config.idle, &config.cgroup_parent, &cgroups));
    let network = match &config.egress {
        egress if egress.enabled => Some(Arc::new(Network::start(egress.clone(), &config.cgroup_parent).await?)),
        _ => None,
    };
    let chunks =
        ChunkCache::open(&config.cache_dir.join("chunks"), config.chunk_cache_bytes).map_err(StartError::Chunks)?;
    let keys = Keyring::default();
    let reader = Arc::new(RegionReader::with_keys(config.store.clone(), chunks, keys.clone()));
    // Everything else sees encrypted snapshots opened.
    config.store = opening(&config.store, &keys);
    let logs = Logs::open(&config.data_dir.join("logs"), LogLimits::default()).map_err(StartError::Logs)?;
    let logs = Arc::new(logs);
    let index = Arc::new(RegionIndex::new());
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
    let zygote = Zygote::new(config.init_binary.clone(), directories.stage, config.criu_dir.clone());
    let zygote = Arc::new(zygote);
    let confinement = Confinement::new(config.init_binary.clone());
    let layers = Layers::new(
        config.store.clone(),
        &directories.layers,
        confinement.clone(),
        config.layer_cache_bytes,
    );
    let layers = Arc::new(match config.lazy_image_bytes {
        Some(_) if !crate::layers::is_possible() => {
            tracing::info!("images are fetched whole before their first restore: this needs /dev/fuse and Linux 6.12");
            layers
        }
        Some(least) => layers.lazily(least, &directories.mounts, Arc::clone(&start_limiter)),
        None => layers,
    });
    let places = Arc::clone(&layers);
    let snapshots = Snapshots::new(
        config.store.clone(),
        Arc::clone(&reader),
        &directories.images,
        Arc::new(move |digest| places.place(digest)),
        MemoryFs::new()?,
        config.template_bytes,
        Arc::clone(&start_limiter),
    );
    let snapshots = snapshots.compiling(config.restorer == Restorer::Auto);
    let snapshots = Arc::new(snapshots.indexed_by(Arc::clone(&index)));
    let maker = SandboxMaker::new(
        cgroups.clone(),
        Arc::clone(&zygote),
        Prestart {
            dirs: config.run_dir.join("restores"),
            log_level: config.criu_log_level,
        },
        network.clone(),
        config.restorer == Restorer::Auto,
    );
    let pool = SandboxPool::new(
        maker,
        Arc::clone(&start_limiter),
        config.empty_sandboxes,
        config.empty_sandboxes_most,
    );
    let pool = Arc::new(pool);
    let criu = CriuSettings {
        log_level: config.criu_log_level,
        restore_limit: config.restore_limit,
        dump_limit: config.dump_limit,
        run_dir: config.run_dir.clone(),
        kept_logs: config.data_dir.join("criu-logs"),
    };
    let criu = Arc::new(Criu::new(criu, Arc::clone(&pool), zygote));
    let dump_dirs = DumpDirs::new(&config.run_dir, &config.cache_dir, config.dump_in_memory_bytes);
    let pressure = PressureFiles {
        proc: config.memory_figures.clone(),
        cgroup_root: config.cgroup_root.clone(),
    };
    let instruction_sets = config.offer.instruction_sets;

    let instances = Arc::new(Instances::default());
    let refusals = Arc::new(Refusals::default());
    let damage = Arc::new(DamageExaminer::new(
        config.store.clone(),
        reader,
        Arc::clone(&index),
        Arc::clone(&instances),
    ));
    let supervisor = Arc::new(Supervisor::new(Arc::clone(&instances), Arc::clone(&damage)));
    let callers = Arc::new(Callers::default());
    let gateways = Gateways::new(
        config.member.as_deref(),
        config.token.clone(),
        config.in_process.clone(),
    );
    let gateways = Arc::new(gateways.map_err(StartError::Tls)?);
    let isolator = Arc::new(Isolator {
        layers: Arc::clone(&layers),
        cgroups: cgroups.clone(),
        pool: Arc::clone(&pool),
        criu: Arc::clone(&criu),
        callers: Arc::clone(&callers),
        has_egress: network.is_some(),
    });
    let booter = Arc::new(Booter {
        isolator: Arc::clone(&isolator),
        start_limiter: Arc::clone(&start_limiter),
        layers: Arc::clone(&layers),
        store: config.store.clone(),
        filter: config.filter,
        pauses: BootPauses::default(),
    });
    let checkpointer = Arc::new(Checkpointer {
        criu: Arc::clone(&criu),
        dump_dirs: dump_dirs.clone(),
        store: config.store.clone(),
        keys: keys.clone(),
        index,
        codec: config.codec,
        instruction_sets,
        metrics: Arc::clone(&metrics),
    });
    let resetter = Resetter::new(&metrics);
    let starter = Arc::new(Starter {
        instances: Arc::clone(&instances),
        logs: Arc::clone(&logs),
        restorer: SnapshotRestorer {
            isolator: Arc::clone(&isolator),
            criu: Arc::clone(&criu),
            start_limiter: Arc::clone(&start_limiter),
            snapshots: Arc::clone(&snapshots),
            refusals: Arc::clone(&refusals),
            instances: Arc::clone(&instances),
            instruction_sets,
            metrics: Arc::clone(&metrics),
        },
        runtime_booter: RuntimeBooter {
            booter: Arc::clone(&booter),
            checkpointer: Arc::clone(&checkpointer),
            isolator: Arc::clone(&isolator),
            criu: Arc::clone(&criu),
            start_limiter: Arc::clone(&start_limiter),
            snapshots: Arc::clone(&snapshots),
            store: config.store.clone(),
            instruction_sets,
            metrics: Arc::clone(&metrics),
        },
        booter,
        snapshots: Arc::clone(&snapshots),
        damage: Arc::clone(&damage),
        resetter: Arc::clone(&resetter),
        supervisor: Arc::clone(&supervisor),
        metrics: Arc::clone(&metrics),
    });
    let invoker = Arc::new(Invoker {
        instances: Arc::clone(&instances),
        starter: Arc::clone(&starter),
        start_limiter: Arc::clone(&start_limiter),
        snapshots: Arc::clone(&snapshots),
        metrics: Arc::clone(&metrics),
    });
    let preparer = Arc::new(Preparer {
        builder: Builder {
            store: config.store.clone(),
            layers: Arc::clone(&layers),
            cgroups: cgroups.clone(),
            confinement,
            work_dir: directories.building,
            network: config.build_network,
            limits: config.build_limits,
            counts: BuildCounts::new(&metrics.registry),
        },
        instances: Arc::clone(&instances),
        starter: Arc::clone(&starter),
        checkpointer,
        rehearser: Rehearser {
            instances: Arc::clone(&instances),
            starter: Arc::clone(&starter),
            snapshots: Arc::clone(&snapshots),
            store: config.store.clone(),
            metrics: Arc::clone(&metrics),
        },
        filter: config.filter,
        cache_dir: config.cache_dir.clone(),
        metrics: Arc::clone(&metrics),
    });
    let migration_sources = Arc::new(MigrationSources::new(
        Arc::clone(&instances),
        Arc::clone(&criu),
        dump_dirs,
        peers.clone(),
        config.advertise.clone(),
        Arc::clone(&metrics),
    ));
    let host = TargetHost {
        criu: Arc::clone(&criu),
        start_limiter: Arc::clone(&start_limiter),
        peers,
        instances: Arc::clone(&instances),
        supervisor,
        isolator,
        snapshots: Arc::clone(&snapshots),
        metrics: Arc::clone(&metrics),
    };
    let migration_targets = Arc::new(MigrationTargets::new(host, Arc::clone(&logs)));
    let observed = Observed {
        instances: Arc::downgrade(&instances),
        pool: Arc::downgrade(&pool),
        start_limiter: Arc::downgrade(&start_limiter),
        resetter: Arc::downgrade(&resetter),
        snapshots: Arc::downgrade(&snapshots),
        layers: Arc::downgrade(&layers),
        idle: Arc::downgrade(&idle),
        logs: Arc::downgrade(&logs),
        metrics: Arc::downgrade(&metrics),
        cache_dir: config.cache_dir.clone(),
        dependencies_limit_bytes: config.build_limits.cache_bytes,
    };
    observe(&metrics.registry, &observed);
    let evictor = Evictor {
        idle: Arc::clone(&idle),
        instances: Arc::downgrade(&instances),
        snapshots: Arc::clone(&snapshots),
        pressure: pressure.clone(),
        metrics: Arc::clone(&metrics),
    };
    evictor.start();
    let watched = Arc::downgrade(&instances);
    netlink_memory::watch(move |memory| {
        let instances = watched.upgrade()?.all();
        instances.iter().for_each(|instance| instance.limit_netlink(memory));
        Some(())
    });
    let membership = Arc::new(Membership::default());
    let reporter = Arc::new(Reporter {
        client: scheduler,
        scheduler_url: config.scheduler_url,
        token: config.token.clone(),
        every: config.heartbeat_every,
        membership: Arc::clone(&membership),
        gateways: Arc::clone(&gateways),
        instances: Arc::clone(&instances),
        snapshots: Arc::clone(&snapshots),
        kept: RestorableReport::default(),
        damage,
        refusals,
        filter: config.filter,
        levels: Levels {
            pool: Arc::clone(&pool),
            snapshots: Arc::clone(&snapshots),
            instances: Arc::clone(&instances),
            load: Load::default(),
            cgroups,
            cpus: config.offer.cpus,
            cache_dir: config.cache_dir,
            metrics: Arc::clone(&metrics),
        },
        about: WorkerDescription {
            worker: config.id,
            incarnation,
            address: config.advertise.clone(),
            memory_capacity_bytes: config.memory_capacity_bytes,
            offer: config.offer,
        },
        pressure,
        reports: AtomicU64::new(0),
    });
    Ok(Arc::new(Worker {
        address: config.advertise,
        token: config.token,
        leave_limit: config.leave_limit,
        in_process: config.in_process,
        instances,
        starter,
        invoker,
        preparer,
        migration_sources,
        migration_targets,
        keys,
        snapshots,
        layers,
        logs,
        metrics,
        reporter,
        membership,
        criu,
        pool,
        network,
        function_calls: Arc::new(FunctionCalls { callers, gateways }),
        idle,
        _breakpoints: breakpoints,
    }))
}

struct Directories {
    images: PathBuf,
    layers: PathBuf,
    /// Layers that are not unpacked yet.
    mounts: PathBuf,
    building: PathBuf,
    /// What sandboxes are made from.
    stage: PathBuf,
}

impl Directories {
    /// Makes them, without what a killed worker left there.
    fn make(config: &WorkerConfig) -> Result<Self, StartError> {
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
        let mounts = close(config.run_dir.join("layers"))?;
        if let Err(e) = crate::layers::sweep(&mounts) {
            tracing::warn!(error = %e, "cannot remove the mounts that a killed worker left");
        }
        let building = make(config.cache_dir.join("build"))?;
        if let Err(e) = crate::deploy::build::sweep(&building) {
            tracing::warn!(error = %e, "cannot remove what unfinished builds left");
        }
        let stage = make(config.run_dir.join("stage"))?;
        Ok(Self {
            images,
            layers,
            mounts,
            building,
            stage,
        })
    }
}

/// Returns the host's control groups, without those of a killed worker.
fn control_groups(config: &WorkerConfig) -> Result<Cgroups, StartError> {
    let (root, parent) = (&config.cgroup_root, &config.cgroup_parent);
    let mut cgroups = Cgroups::detect_below(root, parent).map_err(StartError::Cgroups)?;
    match cgroups.sweep() {
        Ok(swept) if swept.is_empty() => {}
        Ok(swept) => tracing::info!(?swept, "removed what a killed worker left"),
        Err(e) => tracing::warn!(error = %e, "cannot remove all that a killed worker left"),
    }
    if let Err(e) = cgroups.limit_devices(root, parent) {
        tracing::warn!(error = %chain(&e), "the devices that a CRIU may open are not filtered");
    }
    if config.disk_read_bytes > 0 {
        match cgroups.limit_disk(root, parent, &config.cache_dir, config.disk_read_bytes) {
            Ok(disk) => tracing::info!(
                disk,
                bytes_a_second = config.disk_read_bytes,
                "reads from the disk are bounded"
            ),
            Err(e) => tracing::warn!(error = %chain(&e), "functions may read from the disk as fast as they can"),
        }
    }
    Ok(cgroups)
}
