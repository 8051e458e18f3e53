//! The record of a load, from which the page and its plots are made. Written as JSON beside them.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::k6::Threshold;
use super::points::Tally;
use super::pool::Level;
use super::scenario::Scenario;
use super::trace::Trace;
use crate::machine::{self, Machine};
use crate::record::revision;

/// How often the fixed loop runs before and after.
const LOOPS: usize = 10;

/// One run of `make load`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LoadRecord {
    /// Commit of the checkout, with `-dirty` if something in it is not committed; `docs`, where benches draw, does not
    /// count.
    pub(crate) revision: String,
    /// When it began, RFC 3339 in UTC.
    pub(crate) date: String,
    /// The machine.
    pub(crate) machine: Machine,
    /// Share of all cores that others kept busy in the second before.
    pub(crate) busy_before: f64,
    /// Load average of the minute before.
    pub(crate) load_before: f64,
    /// Duration of a fixed piece of work, milliseconds, some times before and some times after: its spread is the
    /// machine's.
    pub(crate) cpu_loop_ms: Vec<f64>,
    /// The platform.
    pub(crate) platform: String,
    /// k6's version.
    pub(crate) k6: String,
    /// Planned duration of each scenario, seconds.
    pub(crate) duration_s: f64,
    /// Settings that differ from the scenarios' own.
    pub(crate) settings: Vec<(String, String)>,
    /// Scenarios in the order in which they ran.
    pub(crate) scenarios: Vec<Ran>,
    /// The trace of one restored invocation as the store has it, or why there is none.
    pub(crate) trace: Result<Trace, String>,
}

/// One scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// The scenario.
    pub(crate) scenario: Scenario,
    /// From k6's start to its end, seconds.
    pub(crate) took_s: f64,
    /// Everything that k6 measured.
    pub(crate) tally: Tally,
    /// The limits.
    pub(crate) thresholds: Vec<Threshold>,
    /// The platform's instances meanwhile.
    pub(crate) levels: Vec<Level>,
    /// k6's log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) log: Vec<String>,
}

impl LoadRecord {
    /// The record of a load that begins now. Blocks for a second.
    pub(crate) fn begin() -> Self {
        Self {
            revision: revision(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: Machine::this(),
            busy_before: machine::busy(Duration::from_secs(1)),
            load_before: machine::load(),
            cpu_loop_ms: (0..LOOPS).map(|_| machine::cpu_loop()).collect(),
            platform: String::new(),
            k6: String::new(),
            duration_s: 0.0,
            settings: Vec::new(),
            scenarios: Vec::new(),
            trace: Err("not reached".to_owned()),
        }
    }

    /// Completes the record when the load has ended.
    pub(crate) fn end(&mut self) {
        self.cpu_loop_ms.extend((0..LOOPS).map(|_| machine::cpu_loop()));
    }

    /// Where to write it: the requested directory, otherwise one among the results.
    pub(crate) fn place(&self, asked: Option<&Path>) -> PathBuf {
        let file = crate::record::place(None, &self.date, &self.revision, "-load");
        asked.map_or_else(|| file.with_extension(""), Path::to_path_buf)
    }

    /// The limits that did not hold, with their scenarios.
    pub(crate) fn crossed(&self) -> impl Iterator<Item = (Scenario, &Threshold)> {
        let all = self.scenarios.iter();
        all.flat_map(|ran| ran.thresholds.iter().filter(|t| !t.met).map(|t| (ran.scenario, t)))
    }
}
