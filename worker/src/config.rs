//! What a worker is given.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_identity::Member;
pub use rekindle_init::seccomp::FilterChoice;
use rekindle_relay::InProcessRoles;
use rekindle_snapshotter::{Codec, Store};
use rekindle_wire::WorkerId;
use rekindle_wire::internal::Offer;
use rekindle_wire::processor::InstructionSets;

use crate::deploy::build::{BuildLimits, BuildNetwork};
use crate::host::network::Egress;
use crate::idle::IdleSettings;

/// The environment variable that has CRIU write more to its logs. From 2 on, logs of restores are kept in
/// `criu-logs` of the data directory.
const CRIU_LOG_LEVEL: &str = "FN_CRIU_LOG_LEVEL";

/// The environment variable with another directory than `/proc` to read from how short of memory the host is.
const MEMORY_FIGURES: &str = "FN_MEMORY_FIGURES";

/// Of half of the host's memory there is one empty sandbox for so much, bytes: it takes some megabytes.
const MEMORY_AN_EMPTY_SANDBOX: u64 = 128 << 20;

/// A worker's settings.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Its id.
    pub id: WorkerId,
    /// Where gateways and the scheduler reach it, `host:port`.
    pub advertise: String,
    /// The scheduler's interface, such as `http://127.0.0.1:7801`.
    /// Of several schedulers that share a database, all, with commas between.
    pub scheduler_url: String,
    /// The cluster's secret.
    pub token: String,
    /// Its certificate, where the cluster has an authority.
    pub member: Option<Arc<Member>>,
    /// Snapshots, layers and sources.
    pub store: Store,
    /// Logs of functions; kept over restarts.
    pub data_dir: PathBuf,
    /// Unpacked layers and chunks; may be lost at any time.
    pub cache_dir: PathBuf,
    /// Image directories; a tmpfs of this process alone.
    pub run_dir: PathBuf,
    /// CRIU's bundle: `criu` and `lib/ld.so` with its libraries.
    pub criu_dir: PathBuf,
    /// The sandbox's init program.
    pub init_binary: PathBuf,
    /// The control group hierarchies, usually `/sys/fs/cgroup`.
    pub cgroup_root: PathBuf,
    /// Where the kernel tells how short of memory the host is, usually `/proc`.
    pub memory_figures: PathBuf,
    /// The group above all of its own; another worker on this host has another, since each sweeps its own at start.
    pub cgroup_parent: String,
    /// Memory it may give to instances, bytes.
    pub memory_capacity_bytes: u64,
    /// Memory that templates and images of snapshots may take together, bytes.
    pub template_bytes: u64,
    /// Size limit of the chunk cache, bytes.
    pub chunk_cache_bytes: u64,
    /// Size limit of unpacked layers, bytes; those that are in use may take more.
    pub layer_cache_bytes: u64,
    /// How the memory of checkpoints is cut and compressed. Snapshots of any codec are restored.
    pub codec: Codec,
    /// Instances with more memory than this are dumped to the cache directory's disk instead of the run directory's tmpfs, bytes.
    pub dump_in_memory_bytes: u64,
    /// How much CRIU writes to its logs, 0 to 4.
    pub criu_log_level: i32,
    /// The system call filter that functions get.
    pub filter: FilterChoice,
    /// The way out of sandboxes.
    pub egress: Egress,
    /// What builds of functions reach.
    pub build_network: BuildNetwork,
    /// What one may take.
    pub build_limits: BuildLimits,
    /// Sandboxes kept ready, empty, at least.
    pub empty_sandboxes: usize,
    /// The same at most, when many are taken.
    pub empty_sandboxes_most: usize,
    /// What each instance may read from the disk with the cache directory, bytes a second; 0 for as much as it can.
    pub disk_read_bytes: u64,
    /// What goes of instances' memory that they do not touch.
    pub idle: IdleSettings,
    /// Starts that may keep the processors busy at once; others wait for their turn.
    pub starts_at_once: usize,
    /// How long a restore may take.
    pub restore_limit: Duration,
    /// How long a checkpoint may take.
    pub dump_limit: Duration,
    /// How often it reports to the scheduler.
    pub heartbeat_every: Duration,
    /// What its host offers beside memory.
    pub offer: Offer,
    /// How long it may finish what it serves when it is told to stop; with zero it stops at once.
    pub leave_limit: Duration,
    /// Where it takes invocations from a gateway of its own process.
    pub in_process: InProcessRoles,
}

impl WorkerConfig {
    /// Settings with the usual limits.
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
            codec: Codec::default(),
            dump_in_memory_bytes: half_of_memory() / 4,
            criu_log_level: std::env::var(CRIU_LOG_LEVEL)
                .ok()
                .and_then(|v| v.parse().ok())
                .unwrap_or(1),
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

/// What this host is; its zone and labels are its operator's to say.
fn offer() -> Offer {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    Offer {
        host: name.unwrap_or_default(),
        cpus: u32::try_from(cores()).unwrap_or(u32::MAX),
        instruction_sets: InstructionSets::of_cpuinfo(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        ..Offer::default()
    }
}

/// Half of the host's memory: the rest is for templates, image directories and the platform itself.
fn half_of_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let total_kib = meminfo.and_then(|text| crate::host::pressure::meminfo_kib(&text, "MemTotal:"));
    total_kib.map_or(2 << 30, |kib| kib * 1024 / 2)
}
