//! The record of a measurement, the same for all parts: who measured what, where and when, and a list of series.
//! Written as JSON, from which tables, plots and comparisons are made.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use rekindle_testkit::binaries::checkout;
use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine};
use crate::stats::Values;

/// Share of all cores above which others were busy before we began.
const QUIET_BUSY: f64 = 0.1;
/// Ratio of p99 to p50 of the fixed loop above which the machine was not steady.
const STEADY_SPREAD: f64 = 1.25;

/// One run of one part of this program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The part: `starts`, `many`, ...
    pub(crate) part: String,
    /// Commit of the checkout, with `-dirty` if something in it is not committed; `docs`, where benches draw, does not
    /// count.
    pub(crate) revision: String,
    /// The platform's program and when it was built; `--bin` may have taken it from elsewhere than that commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// When it began, RFC 3339 in UTC.
    pub(crate) date: String,
    pub(crate) machine: Machine,
    /// Share of all cores that others kept busy in the second before.
    pub(crate) busy_before: f64,
    /// Load average of the minute before; includes a build just before.
    pub(crate) load_before: f64,
    /// Load average at the end; includes the measurement itself.
    pub(crate) load_after: f64,
    /// Duration of a fixed piece of work, once each round, milliseconds.
    pub(crate) cpu_loop_ms: Vec<f64>,
    /// What was asked for, and the programs of others.
    pub(crate) facts: Vec<(String, String)>,
    /// With which rows of a table others are compared: a label and its value.
    pub(crate) baselines: Vec<(String, String)>,
    /// Everything that was measured.
    pub(crate) series: Vec<Series>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) plots: Vec<Plot>,
    /// What follows from it, such as targets that were met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<String>,
    /// Why this program ends with a failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<String>,
    /// Longer texts by their titles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) texts: Vec<(String, String)>,
}

/// The same thing, measured again and again: one cell of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Title of the table.
    pub(crate) table: String,
    /// What distinguishes the table's rows, in the order of its columns.
    pub(crate) labels: Vec<(String, String)>,
    /// What was measured: a column.
    pub(crate) name: String,
    pub(crate) unit: String,
    /// The samples, in order.
    #[serde(flatten)]
    pub(crate) values: Values,
    /// Seconds at which each sample was taken, if they are levels over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) at: Vec<f64>,
    /// Errors of failed runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
    /// Why it was not measured, or not to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

/// A plot of some series.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Name of its file.
    pub(crate) file: String,
    /// Title above it.
    pub(crate) title: String,
    /// Only series with these labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) only: Vec<(String, String)>,
    /// What is drawn.
    pub(crate) kind: PlotKind,
}

/// What a plot shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlotKind {
    /// A row for each combination of labels, with dots for these measures of a table: one measure with its median and
    /// tail, several with their medians.
    Dots { table: String, measures: Vec<String> },
    /// A line for each value of the label `by`: medians of `y` over `x`, which is a label or another measure.
    Lines { x: String, y: String, by: String },
    /// Levels of a table over the seconds at which they were taken, a line for each value of the label `by`.
    Levels { table: String, by: String },
    /// Cumulative shares of a table's samples, a line for each value of the label `by`.
    Shares { table: String, by: String },
}

/// A row of a table: its title, and the labels of this row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    table: String,
    labels: Vec<(String, String)>,
}

impl Row {
    /// The row of this table with these labels.
    pub(crate) fn of(table: impl Display, labels: &[(&str, &dyn Display)]) -> Self {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_string()));
        Self {
            table: table.to_string(),
            labels: labels.collect(),
        }
    }
}

impl Row {
    /// A row of another table with one label more; that table's title is this one's with `part`.
    pub(crate) fn below(&self, part: &str, label: &str, value: &str) -> Self {
        let mut labels = self.labels.clone();
        labels.push((label.to_owned(), value.to_owned()));
        let table = format!("{}: {part}", self.table);
        Self { table, labels }
    }
}

impl Series {
    /// The value of a label; empty without it.
    pub(crate) fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(n, _)| n == name);
        found.map_or("", |(_, value)| value)
    }

    /// The title of its column.
    pub(crate) fn title(&self) -> String {
        match self.unit.is_empty() {
            true => self.name.clone(),
            false => format!("{}, {}", self.name, self.unit),
        }
    }

    /// Whether it is the same measure of the same thing, maybe in another record.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.table == other.table && self.labels == other.labels && self.name == other.name
    }
}

impl Record {
    /// The record of a measurement that begins now. Watches for a second how busy the machine is.
    pub(crate) fn begin(part: &str) -> Self {
        Self {
            part: part.to_owned(),
            revision: revision(),
            program: None,
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: Machine::this(),
            busy_before: machine::busy(Duration::from_secs(1)),
            load_before: machine::load(),
            load_after: 0.0,
            cpu_loop_ms: vec![machine::cpu_loop()],
            facts: Vec::new(),
            baselines: Vec::new(),
            series: Vec::new(),
            plots: Vec::new(),
            findings: Vec::new(),
            failures: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// Completes the record when the measurement has ended.
    pub(crate) fn end(&mut self) {
        self.cpu_loop_ms.push(machine::cpu_loop());
        self.load_after = machine::load();
    }

    /// Runs the fixed loop, which shows how steady the machine is: once each round.
    pub(crate) fn cpu_loop(&mut self) {
        self.cpu_loop_ms.push(machine::cpu_loop());
    }

    /// Notes what was asked for, or another's program.
    pub(crate) fn fact(&mut self, name: &str, value: impl Display) {
        self.facts.push((name.to_owned(), value.to_string()));
    }

    /// Compares the rows of tables with the one that has this label.
    pub(crate) fn baseline(&mut self, label: &str, value: impl Display) {
        self.baselines.push((label.to_owned(), value.to_string()));
    }

    /// The series of a row's measure.
    pub(crate) fn series(&mut self, row: &Row, name: &str, unit: &str) -> &mut Series {
        let known = |s: &Series| s.name == name && s.table == row.table && s.labels == row.labels;
        let at = self.series.iter().position(known).unwrap_or_else(|| {
            self.series.push(Series {
                table: row.table.clone(),
                labels: row.labels.clone(),
                name: name.to_owned(),
                unit: unit.to_owned(),
                values: Values::default(),
                at: Vec::new(),
                errors: Vec::new(),
                missing: None,
            });
            self.series.len() - 1
        });
        &mut self.series[at]
    }

    /// Adds a sample.
    pub(crate) fn push(&mut self, row: &Row, name: &str, unit: &str, sample: f64) {
        self.series(row, name, unit).values.push(sample);
    }

    /// Adds samples.
    pub(crate) fn extend(&mut self, row: &Row, name: &str, unit: &str, samples: impl IntoIterator<Item = f64>) {
        let values = &mut self.series(row, name, unit).values;
        samples.into_iter().for_each(|sample| values.push(sample));
    }

    /// Notes that `block` samples of each round were taken one after the other, in a row and in the rows below it.
    pub(crate) fn in_blocks(&mut self, row: &Row, block: usize) {
        for series in &mut self.series {
            if series.table.starts_with(&row.table) && series.labels.starts_with(&row.labels) {
                series.values.block = block;
            }
        }
    }

    /// The median of a row's measure, if it was measured.
    pub(crate) fn median(&self, row: &Row, name: &str) -> Option<f64> {
        Some(self.series_of(row, name)?.values.figures()?.p50)
    }

    /// The series of a row's measure, if there is one.
    pub(crate) fn series_of(&self, row: &Row, name: &str) -> Option<&Series> {
        let known = |s: &&Series| s.name == name && s.table == row.table && s.labels == row.labels;
        self.series.iter().find(known)
    }

    /// Notes whether a target was met.
    pub(crate) fn bar(&mut self, target: &str, value: impl Display, met: bool) {
        let word = if met { "met" } else { "MISSED" };
        self.findings.push(format!("bar: {target}: {value}: {word}"));
    }

    /// Whether nothing else was running, as far as the record shows.
    pub(crate) fn was_quiet(&self) -> bool {
        let fixed = Values::of(self.cpu_loop_ms.clone()).figures();
        self.busy_before <= QUIET_BUSY && fixed.is_none_or(|f| f.p99 / f.p50 <= STEADY_SPREAD)
    }

    /// Reads a record.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{}: no record of rekindle-bench, or one of an earlier shape",
                path.display()
            )
        })
    }

    /// Where to write it: to `asked`, otherwise among the results, by its date, its revision and its part.
    pub(crate) fn place(&self, asked: Option<&Path>) -> PathBuf {
        let by_name = || {
            let stamp = self.date.replace(['-', ':'], "");
            let name = format!("{stamp}-{}-{}.json", self.revision, self.part);
            checkout().join("load-tests/results").join(name)
        };
        asked.map_or_else(by_name, Path::to_path_buf)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        }
        let mut text = serde_json::to_string_pretty(self).context("the record is not JSON")?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
    }
}

/// Commit of the checkout, with `-dirty` if something in it is not committed.
fn revision() -> String {
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
