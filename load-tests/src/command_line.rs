//! The command line of `rekindle-bench`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::args::Args;
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
use crate::peers::host::PeerHostArgs;
use crate::policy::PolicyArgs;
use crate::sandboxes::SandboxesArgs;
use crate::sandboxes::floor::FloorArgs;
use crate::sharing::SharingArgs;
use crate::slow_clients::SlowClientsArgs;
use crate::throughput::ThroughputArgs;
use crate::versions::VersionsArgs;

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
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) args: Args,
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
    Checkpoint(CheckpointArgs),
    /// Measure what snapshots share in the store, for each way of sharing their runtime's.
    Sharing(SharingArgs),
    /// Measure many restores at once: latency, and processor time of each.
    Many(ManyArgs),
    /// Measure what a thousand slow clients cost another client.
    SlowClients(SlowClientsArgs),
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
    pub(crate) record: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Subject;

    #[test]
    fn chosen_subjects_come_in_the_order_of_the_tables() {
        let args = CommandLine::try_parse_from(["rekindle-bench", "--only", "lazy-pages,restored"]).unwrap();
        assert_eq!(args.args.subjects(), [Subject::Restored, Subject::LazyPages]);
        let args = CommandLine::try_parse_from(["rekindle-bench", "--only", "criu-waiting,criu"]).unwrap();
        assert_eq!(args.args.subjects(), [Subject::Criu, Subject::CriuWaiting]);
    }

    #[test]
    fn without_a_choice_everything_is_measured() {
        let args = CommandLine::try_parse_from(["rekindle-bench"]).unwrap();
        assert_eq!(args.args.subjects(), Subject::ALL);
    }

    #[test]
    fn parts_take_the_options_of_all() {
        let args =
            CommandLine::try_parse_from(["rekindle-bench", "--runs", "3", "checkpoint", "--json", "/tmp/x"]).unwrap();
        assert!(matches!(args.command, Some(Command::Checkpoint(_))) && args.args.json.is_some());
    }
}
