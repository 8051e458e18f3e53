//! k6's samples, one JSON line each, added to distributions and seconds as they come. Memory is bounded by the number
//! of start kinds, phases and seconds, not by the number of requests.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;

/// Maximum number of distinct errors (or functions); further ones are `other`.
const KINDS_MAX: usize = 40;
/// Maximum number of seconds of a load: a day.
const SECONDS_MAX: usize = 86_400;
/// Prefix of our lines; k6's own metrics, most of the lines, are skipped unread.
const OURS: &str = "{\"metric\":\"fn_";

/// Results of one second.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Second {
    /// Successful responses by start kind.
    pub(crate) answers: BTreeMap<String, u64>,
    /// Failures by code.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) errors: BTreeMap<String, u64>,
}

/// All measurements of a scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// From sending a request to the last byte of its response, by start kind.
    pub(crate) latency: BTreeMap<String, Histogram>,
    /// From sending a request to the first byte of its response, by start kind.
    pub(crate) first_byte: BTreeMap<String, Histogram>,
    /// Phases of `Server-Timing`, by start kind and phase.
    pub(crate) phases: BTreeMap<String, BTreeMap<String, Histogram>>,
    /// Failures by code.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Successful responses by function and start kind.
    pub(crate) functions: BTreeMap<String, BTreeMap<String, u64>>,
    /// From a deploy's upload until its version served, milliseconds.
    pub(crate) deploys_ms: Vec<f64>,
    /// From requesting a migration until the instance served elsewhere, milliseconds.
    #[serde(default)]
    pub(crate) moves_ms: Vec<f64>,
    /// Bytes of bodies by direction.
    pub(crate) body_bytes: BTreeMap<String, f64>,
    /// Second by second from the start.
    pub(crate) seconds: Vec<Second>,
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
    pub(crate) fn take(&mut self, line: &str, began: SystemTime) -> Result<(), serde_json::Error> {
        if !line.starts_with(OURS) || !line.contains("\"type\":\"Point\"") {
            return Ok(());
        }
        let Line { metric, kind, data } = serde_json::from_str(line)?;
        let (true, Some(data)) = (kind == "Point", data) else {
            return Ok(());
        };
        let tags = data.tags.unwrap_or_default();
        let tag = |name: &str| tags.get(name).map_or("unknown", |v| v.as_ref());
        match metric.as_ref() {
            "fn_latency" => {
                let start = tag("start");
                self.latency.entry(start.to_owned()).or_default().record(data.value);
                if let Some(second) = self.second(&data.time, began) {
                    *second.answers.entry(start.to_owned()).or_default() += 1;
                }
                let function = known(&self.functions, tag("fn"));
                *self
                    .functions
                    .entry(function)
                    .or_default()
                    .entry(start.to_owned())
                    .or_default() += 1;
            }
            "fn_first_byte" => self
                .first_byte
                .entry(tag("start").to_owned())
                .or_default()
                .record(data.value),
            "fn_phase" => {
                let phases = self.phases.entry(tag("start").to_owned()).or_default();
                let phase = known(phases, tag("phase"));
                phases.entry(phase).or_default().record(data.value);
            }
            "fn_errors" => {
                let code = known(&self.errors, tag("code"));
                *self.errors.entry(code.clone()).or_default() += 1;
                if let Some(second) = self.second(&data.time, began) {
                    *second.errors.entry(code).or_default() += 1;
                }
            }
            "fn_deploy" => self.deploys_ms.push(data.value),
            "fn_move" => self.moves_ms.push(data.value),
            "fn_body_bytes" => *self.body_bytes.entry(tag("direction").to_owned()).or_default() += data.value,
            _ => {}
        }
        Ok(())
    }

    /// Number of successful responses.
    pub(crate) fn answers(&self) -> u64 {
        self.latency.values().map(Histogram::count).sum()
    }

    /// Number of failures.
    pub(crate) fn failures(&self) -> u64 {
        self.errors.values().sum()
    }

    /// The second in which a sample was taken; `None` before the beginning, and after a day.
    fn second(&mut self, time: &str, began: SystemTime) -> Option<&mut Second> {
        let at = humantime::parse_rfc3339(time).ok()?.duration_since(began).ok()?;
        let n = usize::try_from(at.as_secs()).ok().filter(|n| *n < SECONDS_MAX)?;
        if self.seconds.len() <= n {
            self.seconds.resize_with(n + 1, Second::default);
        }
        self.seconds.get_mut(n)
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
        format!(
            r#"{{"metric":"{metric}","type":"Point","data":{{"time":"1970-01-01T00:00:{second:02}.121910767Z","value":{value},"tags":{{"group":"","scenario":"steady",{tags}}}}}}}"#
        )
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
        assert_eq!(tally.seconds[2].answers, BTreeMap::from([("restored".to_owned(), 1)]));
        assert_eq!(tally.phases["restored"]["criu"].count(), 1);
        assert_eq!(tally.functions["a"].len(), 2);
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
