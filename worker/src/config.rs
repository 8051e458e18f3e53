//! Settings of a worker.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_identity::Member;
pub use rekindle_init::seccomp::FilterChoice;
use rekindle_relay::InProcessRoles;
use rekindle_snapshotter::{Codec, Store};
use rekindle_wire::WorkerId;
use rekindle_wire::internal::HostOffer;
use rekindle_wire::processor::InstructionSets;

use crate::deploy::build::{BuildLimits, BuildNetwork};
use crate::host::network::Egress;
use crate::idle::IdleSettings;
pub use crate::restorer::Restorer;

/// Environment variable that makes CRIU write more to its logs. From 2 on, logs of restores are kept in `criu-logs` of
/// the data directory.
const CRIU_LOG_LEVEL: &str = "FN_CRIU_LOG_LEVEL";

/// Environment variable with a directory other than `/proc` from which to read the host's memory pressure. For tests.
const MEMORY_FIGURES: &str = "FN_MEMORY_FIGURES";

/// Of half of the host's memory, each of these bytes allows one empty sandbox, which takes some megabytes.
const MEMORY_AN_EMPTY_SANDBOX: u64 = 128 << 20;

/// A worker's settings.
#[derive(Clone)]
pub struct WorkerConfig {
    /// The worker's id.
    pub id: WorkerId,
    /// Address at which gateways and the scheduler reach it, `host:port`.
    pub advertise: String,
    /// The scheduler's interface, such as `http://127.0.0.1:7801`. If several schedulers share a database, all of them,
    /// separated by commas.
    pub scheduler_url: String,
    /// The cluster's secret.
    pub token: String,
    /// Its certificate, if the cluster has an authority.
    pub member: Option<Arc<Member>>,
    /// Store of snapshots, layers and sources.
    pub store: Store,
    /// Directory of functions' logs; kept over restarts.
    pub data_dir: PathBuf,
    /// Directory of unpacked layers and chunks; may be lost at any time.
    pub cache_dir: PathBuf,
    /// Image directories; a tmpfs of this process alone.
    pub run_dir: PathBuf,
    /// CRIU's bundle: `criu` and `lib/ld.so` with its libraries.
    pub criu_dir: PathBuf,
    /// The sandbox's init program.
    pub init_binary: PathBuf,
    /// The control group hierarchies, usually `/sys/fs/cgroup`.
    pub cgroup_root: PathBuf,
    /// Where the kernel reports the host's memory pressure, usually `/proc`.
    pub memory_figures: PathBuf,
    /// The parent of all its control groups. Another worker on this host needs another one, since each sweeps its own
    /// at start.
    pub cgroup_parent: String,
    /// Memory it may give to instances, in bytes.
    pub memory_capacity_bytes: u64,
    /// Memory that templates and images of snapshots may take together, in bytes.
    pub template_bytes: u64,
    /// Size limit of the chunk cache, in bytes.
    pub chunk_cache_bytes: u64,
    /// Size limit of unpacked layers, in bytes. Layers in use may exceed it.
    pub layer_cache_bytes: u64,
    /// Size from which an image's files are mounted for a restore before they are on this host, in bytes; `None` for
    /// never.
    pub lazy_image_bytes: Option<u64>,
    /// How the memory of checkpoints is divided and compressed. Snapshots of any codec can be restored.
    pub codec: Codec,
    /// Memory above which an instance is dumped to the cache directory's disk instead of the run directory's tmpfs, in
    /// bytes.
    pub dump_in_memory_bytes: u64,
    /// CRIU's log level, 0 to 4.
    pub criu_log_level: i32,
    /// What restores instances.
    pub restorer: Restorer,
    /// The system call filter of functions.
    pub filter: FilterChoice,
    /// Network egress of sandboxes.
    pub egress: Egress,
    /// What builds of functions can reach.
    pub build_network: BuildNetwork,
    /// Resource limits of a build.
    pub build_limits: BuildLimits,
    /// Minimum number of empty sandboxes kept ready.
    pub empty_sandboxes: usize,
    /// Maximum number of empty sandboxes kept ready, when many are taken.
    pub empty_sandboxes_most: usize,
    /// How fast each instance may read from the disk with the cache directory, in bytes a second; 0 for no limit.
    pub disk_read_bytes: u64,
    /// Eviction of instances' memory that they do not touch.
    pub idle: IdleSettings,
    /// Maximum number of starts that keep the processors busy at once; others wait for their turn.
    pub starts_at_once: usize,
    /// How long a restore may take.
    pub restore_limit: Duration,
    /// How long a checkpoint may take.
    pub dump_limit: Duration,
    /// Interval of reports to the scheduler.
    pub heartbeat_every: Duration,
    /// Properties of its host, apart from memory.
    pub offer: HostOffer,
    /// How long it may finish requests in flight when it is asked to stop; with zero it stops at once.
    pub leave_limit: Duration,
    /// Where it receives invocations from a gateway in its own process.
    pub in_process: InProcessRoles,
}

impl WorkerConfig {
    /// Creates settings with the usual limits.
    #[must_use]
    pub fn new(id: WorkerId, listen: SocketAddr, scheduler_url: String, token: String, store: Store) -> Self {
        let library = PathBuf::from("/usr/local/lib/rekindle");
        let init_binary = std::env::current_exe()
            .ok()
            .and_then(|exe| Some(exe.parent()?.join("rekindle-init")))
            .unwrap_or_else(|| library.join("rekindle-init"));
        Self {
            id,
            advertise: listen.to_string(),
            scheduler_url,
            token,
            member: None,
            store,
            data_dir: PathBuf::from("/var/lib/rekindle"),
            cache_dir: PathBuf::from("/var/cache/rekindle"),
            run_dir: PathBuf::from("/run/rekindle/worker"),
            criu_dir: library.join("criu"),
            init_binary,
            cgroup_root: PathBuf::from("/sys/fs/cgroup"),
            memory_figures: std::env::var_os(MEMORY_FIGURES).map_or_else(|| PathBuf::from("/proc"), PathBuf::from),
            cgroup_parent: crate::host::cgroup::PARENT.to_owned(),
            memory_capacity_bytes: half_of_memory(),
            template_bytes: half_of_memory() / 2,
            chunk_cache_bytes: 4 << 30,
            layer_cache_bytes: 8 << 30,
            lazy_image_bytes: Some(32 << 20),
            codec: Codec::default(),
            dump_in_memory_bytes: half_of_memory() / 4,
            criu_log_level: std::env::var(CRIU_LOG_LEVEL)
                .ok()
                .and_then(|v| v.parse().ok())
                .unwrap_or(1),
            restorer: Restorer::default(),
            filter: FilterChoice::default(),
            egress: Egress::default(),
            build_network: BuildNetwork::default(),
            build_limits: BuildLimits::default(),
            empty_sandboxes: 8,
            empty_sandboxes_most: usize::try_from(half_of_memory() / MEMORY_AN_EMPTY_SANDBOX)
                .map_or(64, |n| n.clamp(8, 64)),
            disk_read_bytes: 512 << 20,
            idle: IdleSettings::default(),
            starts_at_once: (2 * cores()).max(4),
            restore_limit: Duration::from_secs(15),
            dump_limit: Duration::from_secs(60),
            heartbeat_every: Duration::from_secs(1),
            offer: offer(),
            leave_limit: Duration::ZERO,
            in_process: InProcessRoles::default(),
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Describes this host. The operator sets its zone and labels.
fn offer() -> HostOffer {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    HostOffer {
        host: name.unwrap_or_default(),
        cpus: u32::try_from(cores()).unwrap_or(u32::MAX),
        instruction_sets: InstructionSets::of_cpuinfo(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        ..HostOffer::default()
    }
}

/// Returns half of the host's memory. The rest is for templates, image directories and the platform itself.
fn half_of_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let total_kib = meminfo.and_then(|text| crate::host::pressure::meminfo_kib(&text, "MemTotal:"));
    total_kib.map_or(2 << 30, |kib| kib * 1024 / 2)
}
