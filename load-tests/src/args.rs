//! The command line of `rekindle-bench`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::checkpoint::CheckpointArgs;
use crate::clones::ClonesArgs;
use crate::cluster::{PlacementArgs, SimulateArgs};
use crate::codec::CodecArgs;
use crate::compare::CompareArgs;
use crate::first::FirstArgs;
use crate::idle::IdleArgs;
use crate::idle::process::ProcessArgs as IdleProcessArgs;
use crate::load::{LoadArgs, TraceArgs};
use crate::many::ManyArgs;
use crate::migration::MigrationArgs;
use crate::pager::PagerArgs;
use crate::pager::process::ProcessArgs;
use crate::policy::PolicyArgs;
use crate::sandboxes::SandboxesArgs;
use crate::sandboxes::floor::FloorArgs;
use crate::sharing::SharingArgs;
use crate::subject::Subject;
use crate::throughput::ThroughputArgs;
use crate::versions::VersionsArgs;
use crate::workload::{Language, Workload};

/// Measures the platform against a plain process start and stock CRIU.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "rekindle-bench",
    version,
    after_help = "\
Examples:
  rekindle-bench                                everything, 40 runs each
  rekindle-bench --runs 100 --only restored,lazy-pages
  rekindle-bench --languages python,node,static --sizes 64,128,256,512 --cold 20
  rekindle-bench --json /tmp/result.json
  rekindle-bench pager --rounds 3               page faults alone

It needs root. It starts a platform of its own and stops it; one that runs already is left alone."
)]
pub(crate) struct Args {
    /// Runs of each subject in each regime.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) runs: u32,
    /// Uncounted runs before these.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) warmup: u32,
    /// Measure only these. The parts of CRIU's own time are measured only if named: criu-logged, criu-unprobed,
    /// criu-on-disk, criu-waiting.
    #[arg(long, value_name = "SUBJECTS", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Subject>,
    /// Measure the function in these languages.
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_values = ["python"])]
    pub(crate) languages: Vec<Language>,
    /// Measure it with these sizes of touched memory, MiB.
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_values = ["64"], value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) sizes: Vec<u32>,
    /// Measure this many restores for each delay on a host that has nothing of the snapshot; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cold: u32,
    /// Extra milliseconds of each request to the object store in these restores.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values = ["0", "10", "30"], value_parser = clap::value_parser!(u64).range(0..=1000))]
    pub(crate) delays: Vec<u64>,
    /// Draw the plots into this directory too, besides the one of the samples.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// Where to write the record; by default load-tests/results/DATE-REVISION-PART.json.
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// The CRIU binary of the peers and of the platform.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "FN_CRIU",
        default_value = "/usr/local/lib/rekindle/criu/criu"
    )]
    pub(crate) criu: PathBuf,
    /// The directory of `fn` and `rekindle-init`; by default this program's own.
    #[arg(long, global = true, value_name = "DIR", env = "REKINDLE_BIN_DIR")]
    pub(crate) bin: Option<PathBuf>,
    /// The cache directory with the root filesystems in `runtimes/`.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "FN_CACHE",
        default_value = "/var/cache/rekindle"
    )]
    pub(crate) cache: PathBuf,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// A part measured alone, or a process that this program starts itself as.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// The process that starts the peers, pid 1 of namespaces of its own.
    #[command(hide = true)]
    PeerHost(PeerHostArgs),
    /// Compare two records of the same part, or two builds in one run.
    Compare(CompareArgs),
    /// Print a record's tables and draw its plots again.
    #[command(alias = "load-report")]
    Report(ReportArgs),
    /// Measure page faults before a first response, and the memory of clones side by side.
    Clones(ClonesArgs),
    /// Measure the pause of instances that move between two workers, as their source and a client see it.
    Migration(MigrationArgs),
    /// Break down the time of a restored, a parked and a warm invocation, with the bounds of each part.
    Phases,
    /// Measure how many warm invocations a second one core handles, compared with the function asked directly.
    Throughput(ThroughputArgs),
    /// Measure the first restore after a deploy, compared with the tenth.
    First(FirstArgs),
    /// Measure what the platform holds after many versions of a function, and after its delete.
    Versions(VersionsArgs),
    /// Measure how long an instance stands still for its checkpoint, compared with CRIU's own dump.
    #[command(alias = "freeze")]
    Checkpoint(CheckpointArgs),
    /// Measure what snapshots share in the store, for each way of sharing their runtime's.
    Sharing(SharingArgs),
    /// Measure many restores at once: latency, and processor time of each.
    Many(ManyArgs),
    /// Measure the cost of sandboxes, compared with the bare floor of this machine.
    Sandboxes(SandboxesArgs),
    /// The bare floor: namespaces, another root, exit.
    #[command(hide = true)]
    SandboxFloor(FloorArgs),
    /// Measure the storage of memory alone: every mode of the codec on five patterns, compared with liblz4.
    Codec(CodecArgs),
    /// Time the scheduler's decisions alone, on a large simulated cluster.
    Placement(PlacementArgs),
    /// Simulate a large cluster in virtual time, with failing workers and the scheduler's own decisions.
    Simulate(SimulateArgs),
    /// Run k6's scenarios and write a report.
    Load(LoadArgs),
    /// Print a trace of the store that `make traces` started.
    Trace(TraceArgs),
    /// Measure page faults alone: workloads on memory that the pager serves, compared with plain memory.
    Pager(PagerArgs),
    /// Measure the cost to a process of evicting its unused memory, compared with kernel zram alone.
    Idle(IdleArgs),
    /// A process with some idle memory.
    #[command(hide = true)]
    IdleProcess(IdleProcessArgs),
    /// Replay a generated trace against the retention policy and fixed keep-alive times, in virtual time.
    Policy(PolicyArgs),
    /// A process whose memory the pager serves.
    #[command(hide = true)]
    PagerProcess(ProcessArgs),
}

/// `rekindle-bench report`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReportArgs {
    /// The record.
    pub(crate) record: PathBuf,
}

/// `rekindle-bench peer-host`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PeerHostArgs {
    /// The CRIU binary.
    #[arg(long)]
    pub(crate) criu: PathBuf,
    /// An empty directory, on which its tmpfs is mounted.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Subjects that it will be asked to measure.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) subjects: Vec<Subject>,
    /// The archive of the root filesystem.
    #[arg(long)]
    pub(crate) archive: PathBuf,
    /// The function's folder.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// The function's language.
    #[arg(long, value_enum)]
    pub(crate) language: Language,
    /// Memory that it touches, MiB.
    #[arg(long)]
    pub(crate) mib: u32,
}

impl Args {
    /// The subjects to measure, in the order of the tables.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let wanted = |s: &Subject| self.only.is_empty() || self.only.contains(s);
        let parts = Subject::PARTS.into_iter().filter(|s| self.only.contains(s));
        Subject::ALL.into_iter().filter(wanted).chain(parts).collect()
    }

    /// Every language with every size.
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        let of = |language: &Language| {
            let language = *language;
            self.sizes.iter().map(move |mib| Workload { language, mib: *mib })
        };
        self.languages.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_subjects_come_in_the_order_of_the_tables() {
        let args = Args::try_parse_from(["rekindle-bench", "--only", "lazy-pages,restored"]).unwrap();
        assert_eq!(args.subjects(), [Subject::Restored, Subject::LazyPages]);
        let args = Args::try_parse_from(["rekindle-bench", "--only", "criu-waiting,criu"]).unwrap();
        assert_eq!(args.subjects(), [Subject::Criu, Subject::CriuWaiting]);
    }

    #[test]
    fn without_a_choice_everything_is_measured() {
        let args = Args::try_parse_from(["rekindle-bench"]).unwrap();
        assert_eq!(args.subjects(), Subject::ALL);
    }

    #[test]
    fn parts_take_the_options_of_all_and_their_earlier_names() {
        let args = Args::try_parse_from(["rekindle-bench", "--runs", "3", "freeze", "--json", "/tmp/x"]).unwrap();
        assert!(matches!(args.command, Some(Command::Checkpoint(_))) && args.json.is_some());
        let args = Args::try_parse_from(["rekindle-bench", "load-report", "record.json"]).unwrap();
        assert!(matches!(args.command, Some(Command::Report(_))));
    }
}
