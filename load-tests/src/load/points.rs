//! k6's samples, one JSON line each, added to distributions and seconds as they come. Memory is bounded by the number
//! of start kinds, phases and seconds, not by the number of requests.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde::Deserialize;

use super::THROUGHPUT;
use crate::record::{Record, Row};
use crate::stats::Rounded;

/// Maximum number of distinct errors (or functions); further ones are `other`.
const KINDS_MAX: usize = 40;
/// Maximum number of seconds of a load: a day.
const SECONDS_MAX: usize = 86_400;
/// What failures are called among the kinds of start.
const FAILURES: &str = "failures";
/// Prefix of our lines; k6's own metrics, most of the lines, are skipped unread.
const OURS: &str = "{\"metric\":\"fn_";

/// All measurements of a scenario.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tally {
    /// From sending a request to the last byte of its response, by start kind, microseconds.
    latency: BTreeMap<String, Rounded>,
    /// From sending a request to the first byte of its response, by start kind.
    first_byte: BTreeMap<String, Rounded>,
    /// Phases of `Server-Timing`, by start kind and phase.
    phases: BTreeMap<String, BTreeMap<String, Rounded>>,
    /// Failures by code.
    errors: BTreeMap<String, u64>,
    /// Successful responses by function and start kind.
    functions: BTreeMap<String, BTreeMap<String, u64>>,
    /// From a deploy's upload until its version served, milliseconds.
    deploys_ms: Vec<f64>,
    /// From a canary's upload until its version had all invocations, milliseconds.
    canaries_ms: Vec<f64>,
    /// Durations of rollbacks, milliseconds.
    rollbacks_ms: Vec<f64>,
    /// From requesting a migration until the instance served elsewhere, milliseconds.
    moves_ms: Vec<f64>,
    /// Second by second from the start: successful responses by start kind, and failures.
    seconds: Vec<BTreeMap<String, u64>>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    metric: Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<Data<'a>>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow, default)]
    time: Cow<'a, str>,
    #[serde(default)]
    value: f64,
    #[serde(borrow, default)]
    tags: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
}

impl Tally {
    /// Adds one line of k6's JSON output. Lines that are not ours change nothing; one of ours that cannot be parsed is
    /// an error.
    pub(super) fn take(&mut self, line: &str, began: SystemTime) -> Result<(), serde_json::Error> {
        if !line.starts_with(OURS) || !line.contains("\"type\":\"Point\"") {
            return Ok(());
        }
        let Line { metric, kind, data } = serde_json::from_str(line)?;
        let (true, Some(data)) = (kind == "Point", data) else {
            return Ok(());
        };
        let tags = data.tags.unwrap_or_default();
        let tag = |name: &str| tags.get(name).map_or("unknown", |v| v.as_ref()).to_owned();
        // `as` saturates: what is negative or no number counts as none.
        let us = (data.value * 1_000.0).round() as u64;
        match metric.as_ref() {
            "fn_latency" => {
                let start = tag("start");
                self.latency.entry(start.clone()).or_default().count(us);
                self.in_second(&data.time, began, &start);
                let function = known(&self.functions, &tag("fn"));
                *self.functions.entry(function).or_default().entry(start).or_default() += 1;
            }
            "fn_first_byte" => self.first_byte.entry(tag("start")).or_default().count(us),
            "fn_phase" => {
                let phases = self.phases.entry(tag("start")).or_default();
                let phase = known(phases, &tag("phase"));
                phases.entry(phase).or_default().count(us);
            }
            "fn_errors" => {
                let code = known(&self.errors, &tag("code"));
                *self.errors.entry(code).or_default() += 1;
                self.in_second(&data.time, began, FAILURES);
            }
            "fn_deploy" => self.deploys_ms.push(data.value),
            "fn_canary" => self.canaries_ms.push(data.value),
            "fn_rollback" => self.rollbacks_ms.push(data.value),
            "fn_move" => self.moves_ms.push(data.value),
            _ => {}
        }
        Ok(())
    }

    /// Number of successful responses.
    pub(super) fn answers(&self) -> u64 {
        self.latency.values().map(Rounded::len).sum()
    }

    /// Number of failures.
    pub(super) fn failures(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Counts what happened in the second of a sample; none before the beginning, and after a day.
    fn in_second(&mut self, time: &str, began: SystemTime, what: &str) {
        let at = humantime::parse_rfc3339(time)
            .ok()
            .and_then(|at| at.duration_since(began).ok());
        let second = at.and_then(|at| usize::try_from(at.as_secs()).ok());
        if let Some(n) = second.filter(|n| *n < SECONDS_MAX) {
            if self.seconds.len() <= n {
                self.seconds.resize_with(n + 1, BTreeMap::new);
            }
            *self.seconds[n].entry(what.to_owned()).or_default() += 1;
        }
    }

    /// Puts everything into a record.
    pub(super) fn record(&self, record: &mut Record, scenario: &str) {
        for (table, measured) in [("latency", &self.latency), ("first byte", &self.first_byte)] {
            for (start, distribution) in measured {
                let row = Row::of(format!("{scenario}: {table}"), &[("start", start)]);
                record
                    .series(&row, "request sent to answer", "ms")
                    .values
                    .add(distribution.over(1e3));
            }
        }
        for (start, phases) in &self.phases {
            for (phase, distribution) in phases {
                let labels: [(&str, &dyn std::fmt::Display); 2] = [("start", start), ("phase", phase)];
                let row = Row::of(
                    format!("{scenario}: phases of Server-Timing, which may overlap"),
                    &labels,
                );
                record.series(&row, "took", "ms").values.add(distribution.over(1e3));
            }
        }
        for (code, times) in &self.errors {
            let row = Row::of(format!("{scenario}: failures"), &[("failure", code)]);
            record.push(&row, "times", "", *times as f64);
        }
        for (function, starts) in self.functions.iter().filter(|_| self.functions.len() > 1) {
            let row = Row::of(format!("{scenario}: answers by function"), &[("function", function)]);
            for (start, count) in starts {
                record.push(&row, start, "", *count as f64);
            }
        }
        for (what, samples) in [
            ("deploys, from the upload until the version serves", &self.deploys_ms),
            (
                "canaries, from the upload until the version has all invocations",
                &self.canaries_ms,
            ),
            ("rollbacks", &self.rollbacks_ms),
            (
                "migrations, from the order until the instance serves elsewhere",
                &self.moves_ms,
            ),
        ] {
            if !samples.is_empty() {
                let row = Row::of(format!("{scenario}: meanwhile"), &[("what", &what)]);
                record.extend(&row, "took", "ms", samples.iter().copied());
            }
        }
        let kinds: BTreeSet<&String> = self.seconds.iter().flat_map(BTreeMap::keys).collect();
        for kind in kinds {
            let series = record.series(
                &Row::of(format!("{scenario}: {THROUGHPUT}"), &[("start", kind)]),
                "answers",
                "a second",
            );
            for (second, counts) in self.seconds.iter().enumerate() {
                series.at.push(second as f64);
                series.values.push(counts.get(kind).copied().unwrap_or_default() as f64);
            }
        }
    }
}

/// The word itself if it is among the keys or there is room for another.
fn known<V>(keys: &BTreeMap<String, V>, word: &str) -> String {
    match keys.len() < KINDS_MAX || keys.contains_key(word) {
        true => word.to_owned(),
        false => "other".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// As k6 1.8 writes it.
    fn point(metric: &str, second: u32, value: f64, tags: &str) -> String {
        let time = format!("1970-01-01T00:00:{second:02}.121910767Z");
        let tags = format!(r#"{{"group":"","scenario":"steady",{tags}}}"#);
        format!(r#"{{"metric":"{metric}","type":"Point","data":{{"time":"{time}","value":{value},"tags":{tags}}}}}"#)
    }

    fn tally(lines: &[String]) -> Tally {
        let mut tally = Tally::default();
        let began = UNIX_EPOCH + Duration::from_secs(10);
        lines.iter().for_each(|l| tally.take(l, began).unwrap());
        tally
    }

    #[test]
    fn latencies_are_kept_by_start_kind_and_by_second() {
        let tally = tally(&[
            point("fn_latency", 10, 1.5, r#""start":"warm","fn":"a""#),
            point("fn_latency", 12, 20.0, r#""start":"restored","fn":"a""#),
            point("fn_phase", 12, 8.0, r#""start":"restored","phase":"criu""#),
            point("http_req_duration", 12, 99.0, r#""name":"a""#),
        ]);
        assert_eq!((tally.answers(), tally.seconds.len()), (2, 3));
        assert_eq!(tally.seconds[2], BTreeMap::from([("restored".to_owned(), 1)]));
        assert_eq!(tally.phases["restored"]["criu"].len(), 1);
        assert_eq!(tally.functions["a"].len(), 2);
        let mut record = Record::begin("load");
        tally.record(&mut record, "steady");
        let restored = Row::of("steady: latency", &[("start", &"restored")]);
        assert_eq!(record.median(&restored, "request sent to answer"), Some(20.0));
        let throughput = record
            .series_of(&Row::of("steady: throughput", &[("start", &"warm")]), "answers")
            .unwrap();
        assert_eq!(throughput.values.samples, [1.0, 0.0, 0.0]);
    }

    #[test]
    fn errors_are_counted_and_their_kinds_are_bounded() {
        let many: Vec<String> = (0..100)
            .map(|n| point("fn_errors", 11, 1.0, &format!(r#""code":"status {n}","fn":"a""#)))
            .collect();
        let tally = tally(&many);
        assert_eq!((tally.failures(), tally.errors.len()), (100, KINDS_MAX + 1));
        assert_eq!(tally.errors["other"], 60);
    }

    #[test]
    fn a_damaged_line_of_ours_is_an_error_and_another_is_not() {
        let mut tally = Tally::default();
        assert!(
            tally
                .take("{\"metric\":\"fn_latency\",\"type\":\"Point\",\"data\":{", UNIX_EPOCH)
                .is_err()
        );
        assert!(tally.take("no JSON", UNIX_EPOCH).is_ok());
        assert_eq!(tally, Tally::default());
    }
}
