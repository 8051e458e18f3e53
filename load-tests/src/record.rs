//! The record of a measurement: every sample, and what is needed to interpret it. Written as JSON.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use anyhow::{Context as _, Result};
use rekindle_wire::api::SnapshotSummary;
use serde::{Deserialize, Serialize};

use crate::args::{Args, checkout};
use crate::machine::{self, Machine};
use crate::peers::Prepared;
use crate::rounds::Regime;
use crate::stats::{Figures, figures_of_rounds};
use crate::subject::{Sample, Subject};
use crate::workload::Workload;

/// One run of this program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Commit of the checkout, with `-dirty` if something in it is not committed; `docs`, where benches draw, does not
    /// count.
    pub(crate) revision: String,
    /// The platform's program and when it was built; `--bin` may have taken it from elsewhere than that commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// When it began, RFC 3339 in UTC.
    pub(crate) date: String,
    /// The machine.
    pub(crate) machine: Machine,
    /// Share of all cores that others kept busy in the second before.
    pub(crate) busy_before: f64,
    /// Load average of the minute before; includes a build just before.
    pub(crate) load_before: f64,
    /// Load average at the end; includes the measurement itself.
    pub(crate) load_after: f64,
    /// Number of counted rounds.
    pub(crate) rounds: u32,
    /// Number of rounds before them.
    pub(crate) warmup_rounds: u32,
    /// Results, workload by workload.
    pub(crate) workloads: Vec<Worked>,
    /// Restores of a host that had nothing of the snapshot, delay by delay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cold: Vec<Cold>,
}

/// One workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Worked {
    /// The workload.
    pub(crate) workload: Workload,
    /// The peers' programs.
    pub(crate) peers: Prepared,
    /// The platform's snapshot of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<SnapshotSummary>,
    /// Results by regime.
    pub(crate) regimes: Vec<Measured>,
    /// Why nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

/// Cold restores with one delay.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cold {
    /// The workload.
    pub(crate) workload: Workload,
    /// Extra time of each request to the store, milliseconds.
    pub(crate) delay_ms: u64,
    /// Samples in order.
    pub(crate) samples: Vec<Sample>,
    /// Errors of failed runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
}

impl Worked {
    /// An empty record.
    pub(crate) fn of(workload: Workload) -> Self {
        Self {
            workload,
            peers: Prepared::default(),
            snapshot: None,
            regimes: Vec::new(),
            missing: None,
        }
    }

    /// The record of a workload that could not be measured.
    pub(crate) fn missing(workload: Workload, why: String) -> Self {
        let missing = Some(why);
        Self {
            missing,
            ..Self::of(workload)
        }
    }
}

/// One regime.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The regime.
    pub(crate) regime: Regime,
    /// Outcomes in the order of the tables.
    pub(crate) outcomes: Vec<Outcome>,
    /// Duration of a fixed piece of work, once each round.
    pub(crate) cpu_loop_ms: Vec<f64>,
}

/// One subject in one regime.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The subject.
    pub(crate) subject: Subject,
    /// Counted samples, in order.
    pub(crate) samples: Vec<Sample>,
    /// Errors of failed runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
    /// Why it was not measured, or not to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
    #[serde(skip)]
    pub(crate) failures_in_row: u32,
}

impl Outcome {
    /// An empty outcome.
    pub(crate) fn of(subject: Subject, missing: Option<&str>) -> Self {
        let missing = missing.map(str::to_owned);
        Self {
            subject,
            samples: Vec::new(),
            errors: Vec::new(),
            missing,
            failures_in_row: 0,
        }
    }
}

impl Measured {
    /// The figures of a subject; `None` if it was not measured.
    pub(crate) fn figures(&self, subject: Subject) -> Option<Figures> {
        let samples: Vec<f64> = self.samples(subject).map(|s| s.ms).collect();
        figures_of_rounds(&samples, self.regime.runs_in_round(subject))
    }

    /// The samples of a subject, milliseconds; empty if it was not measured.
    pub(crate) fn samples(&self, subject: Subject) -> impl Iterator<Item = &Sample> {
        self.outcomes
            .iter()
            .filter(move |o| o.subject == subject)
            .flat_map(|o| &o.samples)
    }
}

impl Record {
    /// The record of a measurement that begins now.
    pub(crate) fn begin(args: &Args) -> Self {
        Self {
            revision: revision(),
            program: None,
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: Machine::this(),
            busy_before: machine::busy(Duration::from_secs(1)),
            load_before: machine::load(),
            load_after: 0.0,
            rounds: args.runs,
            warmup_rounds: args.warmup,
            workloads: Vec::new(),
            cold: Vec::new(),
        }
    }

    /// Completes the record when the measurement has ended.
    pub(crate) fn end(&mut self) {
        self.load_after = machine::load();
    }

    /// The subjects of which a run failed.
    pub(crate) fn failures(&self) -> impl Iterator<Item = Subject> {
        let mut failed: Vec<Subject> = Vec::new();
        let regimes = self.workloads.iter().flat_map(|w| &w.regimes);
        for outcome in regimes.flat_map(|r| &r.outcomes) {
            if !outcome.errors.is_empty() && !failed.contains(&outcome.subject) {
                failed.push(outcome.subject);
            }
        }
        failed.into_iter()
    }

    /// Reads a record.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{}: no record of `make bench`, or one of an earlier shape",
                path.display()
            )
        })
    }

    /// Writes it. Returns its path.
    pub(crate) fn write(&self, args: &Args) -> Result<PathBuf> {
        let path = place(args.json.as_deref(), &self.date, &self.revision, "");
        write_json(self, &path)?;
        Ok(path)
    }
}

/// Revision, time and place at which figures were taken.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// Commit of the checkout, with `-dirty` if something in it is not committed; `docs`, where benches draw, does not
    /// count.
    pub(crate) revision: String,
    /// When it began, RFC 3339 in UTC.
    pub(crate) date: String,
    /// The machine.
    pub(crate) machine: Machine,
    /// Share of all cores that others kept busy in the second before.
    pub(crate) busy_before: f64,
}

impl Taken {
    /// The values here and now. Watches for a second how busy the machine is.
    pub(crate) fn now() -> Self {
        Self {
            revision: revision(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: Machine::this(),
            busy_before: machine::busy(Duration::from_secs(1)),
        }
    }

    /// Where to write its record: see [`place`].
    pub(crate) fn place(&self, asked: Option<&Path>, kind: &str) -> PathBuf {
        place(asked, &self.date, &self.revision, kind)
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            revision,
            date,
            machine,
            ..
        } = self;
        write!(
            f,
            "{revision} at {date} on {machine}, {:.0} % busy before by others",
            self.busy_before * 100.0
        )
    }
}

/// Where to write a record: to `asked`, otherwise among the results, by its date, its revision and its `kind`.
pub(crate) fn place(asked: Option<&Path>, date: &str, revision: &str, kind: &str) -> PathBuf {
    let by_name = || {
        let stamp = date.replace(['-', ':'], "");
        let results = checkout().join("load-tests/results");
        results.join(format!("{stamp}-{revision}{kind}.json"))
    };
    asked.map_or_else(by_name, Path::to_path_buf)
}

/// Writes a record.
pub(crate) fn write_json(record: &impl Serialize, path: &Path) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    }
    let mut text = serde_json::to_string_pretty(record).context("the record is not JSON")?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Commit of the checkout, with `-dirty` if something in it is not committed; `docs`, where benches draw, does not
/// count.
pub(crate) fn revision() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(checkout()).args(args).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = ["status", "--porcelain", "--untracked-files=no"];
    match git(&[&changed[..], &["--", ".", ":(exclude)docs"]].concat()) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}-dirty"),
    }
}

/// A path as it is shown, relative to the checkout if it is inside.
pub(crate) fn told(path: &Path) -> String {
    path.strip_prefix(checkout()).unwrap_or(path).display().to_string()
}
