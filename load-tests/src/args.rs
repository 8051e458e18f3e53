//! What every part of `rekindle-bench` is told.

use std::path::PathBuf;

use crate::subject::Subject;
use crate::workload::{Language, Workload};

/// Options of all parts.
#[derive(Debug, Clone, clap::Args)]
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
    #[arg(
        long,
        value_name = "MIB",
        value_delimiter = ',',
        default_values = ["64"],
        value_parser = clap::value_parser!(u32).range(1..=2048)
    )]
    pub(crate) sizes: Vec<u32>,
    /// Measure this many restores for each delay on a host that has nothing of the snapshot; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cold: u32,
    /// Extra milliseconds of each request to the object store in these restores.
    #[arg(
        long,
        value_name = "MS",
        value_delimiter = ',',
        default_values = ["0", "10", "30"],
        value_parser = clap::value_parser!(u64).range(0..=1000)
    )]
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
}

impl Args {
    /// The subjects to measure, in the order of the tables.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let wanted = |s: &Subject| self.only.is_empty() || self.only.contains(s);
        let named = Subject::ONLY_NAMED.into_iter().filter(|s| self.only.contains(s));
        Subject::ALL.into_iter().filter(wanted).chain(named).collect()
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
