//! The command line of `rekindle-bench`.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

use crate::codec::CodecArgs;
use crate::load::{LoadArgs, LoadReportArgs, TraceArgs};
use crate::pager::PagerArgs;
use crate::pager::process::ProcessArgs;
use crate::subject::Subject;

/// Measures the platform beside a plain process start and stock CRIU.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "rekindle-bench",
    version,
    after_help = "\
Examples:
  rekindle-bench                                everything, 40 runs each
  rekindle-bench --runs 100 --only restored,lazy-pages
  rekindle-bench --json /tmp/result.json
  rekindle-bench pager --rounds 3               page faults alone

It needs root. It starts a platform of its own and stops it; one that runs already is left alone."
)]
pub(crate) struct Args {
    /// Runs of each subject in each regime.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) runs: u32,
    /// Runs before, which do not count.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) warmup: u32,
    /// Measure only these.
    #[arg(long, value_name = "SUBJECTS", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Subject>,
    /// Where the samples go; by default load-tests/results/DATE-REVISION.json.
    #[arg(long, value_name = "PATH")]
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
    /// The cache directory that has the root filesystems in `runtimes/`.
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

/// A part measured alone, or what this program starts itself as.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// The process that starts the peers, pid 1 of namespaces of its own.
    #[command(hide = true)]
    PeerHost(PeerHostArgs),
    /// Measure how memory is stored alone: every mode of the codec on five patterns, beside liblz4.
    Codec(CodecArgs),
    /// Run k6's scenarios and write a report.
    Load(LoadArgs),
    /// Write the page and the plots of a load once more.
    LoadReport(LoadReportArgs),
    /// Print a trace of the store that `make traces` started.
    Trace(TraceArgs),
    /// Measure page faults alone: workloads on memory that the pager serves, beside plain memory.
    Pager(PagerArgs),
    /// A process whose memory the pager serves.
    #[command(hide = true)]
    PagerProcess(ProcessArgs),
}

/// `rekindle-bench peer-host`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PeerHostArgs {
    /// The CRIU binary.
    #[arg(long)]
    pub(crate) criu: PathBuf,
    /// An empty directory; its tmpfs is mounted there.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// What it will be asked to measure.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) subjects: Vec<Subject>,
}

impl Args {
    /// What is to be measured, in the order of the tables.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let wanted = |s: &Subject| self.only.is_empty() || self.only.contains(s);
        Subject::ALL.into_iter().filter(wanted).collect()
    }

    /// The folder of the function that is measured.
    pub(crate) fn function(&self) -> PathBuf {
        checkout().join("functions/samples/touch-python")
    }
}

/// The project's checkout, in which this was built.
pub(crate) fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_subjects_come_in_the_order_of_the_tables() {
        let args = Args::try_parse_from(["rekindle-bench", "--only", "lazy-pages,restored"]).unwrap();
        assert_eq!(args.subjects(), [Subject::Restored, Subject::LazyPages]);
    }

    #[test]
    fn without_a_choice_everything_is_measured() {
        let args = Args::try_parse_from(["rekindle-bench"]).unwrap();
        assert_eq!(args.subjects(), Subject::ALL);
    }
}
