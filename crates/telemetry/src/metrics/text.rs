//! The text that Prometheus scrapes: its own format (0.0.4), or OpenMetrics 1.0, which also has exemplars.

use std::fmt::Write as _;
use std::time::UNIX_EPOCH;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::description::{Kind, Value, prometheus};
use super::instruments::{Exemplar, HistogramValue};
use super::registry::{Reading, Registry};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Prometheus,
    OpenMetrics,
}

/// The role's metrics as text, and the header that names the format: the one that the client's `Accept` asks for.
pub fn exposition(registry: &Registry, asked: &HeaderMap) -> ((HeaderName, HeaderValue), String) {
    let accepts = asked.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok());
    let (format, kind) = if accepts.into_iter().any(|v| v.contains("application/openmetrics-text")) {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        (Format::OpenMetrics, kind)
    } else {
        (Format::Prometheus, "text/plain; version=0.0.4; charset=utf-8")
    };
    let text = encode(&registry.read(), format);
    ((CONTENT_TYPE, HeaderValue::from_static(kind)), text)
}

fn encode(readings: &[Reading], format: Format) -> String {
    let mut out = String::new();
    for reading in readings {
        let name = reading.desc.prometheus_name();
        let total = if reading.kind == Kind::Counter { "_total" } else { "" };
        let family = match format {
            Format::Prometheus => format!("{name}{total}"),
            Format::OpenMetrics => name.clone(),
        };
        line(&mut out, format_args!("# HELP {family} {}", escaped(reading.desc.help)));
        line(&mut out, format_args!("# TYPE {family} {}", reading.kind.as_str()));
        for (values, value) in &reading.points {
            let labels = labels(reading.desc.labels, values);
            match value {
                Value::Number(n) => line(&mut out, format_args!("{name}{total}{} {n}", braced(&labels, None))),
                Value::Histogram(h) => histogram(&mut out, &name, &labels, h, format),
            }
        }
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn histogram(out: &mut String, name: &str, labels: &str, value: &HistogramValue, format: Format) {
    let mut below = 0;
    for (index, count) in value.counts.iter().enumerate() {
        below += count;
        let bound = value
            .bounds
            .get(index)
            .map_or_else(|| "+Inf".to_owned(), |b| number(*b));
        let exemplar = value.exemplars.get(index).and_then(Option::as_ref);
        let exemplar = exemplar
            .filter(|_| format == Format::OpenMetrics)
            .map(of_trace)
            .unwrap_or_default();
        let labels = braced(labels, Some(&bound));
        line(out, format_args!("{name}_bucket{labels} {below}{exemplar}"));
    }
    let labels = braced(labels, None);
    line(out, format_args!("{name}_sum{labels} {}", value.sum));
    line(out, format_args!("{name}_count{labels} {below}"));
}

fn of_trace(exemplar: &Exemplar) -> String {
    let at = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (trace, span) = (exemplar.trace.trace_id(), exemplar.trace.span_id());
    let (value, at) = (exemplar.value, at.as_secs_f64());
    format!(" # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {value} {at:.3}")
}

/// OpenMetrics requires a bound to be a float.
fn number(bound: f64) -> String {
    let text = bound.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

fn labels(names: &[&str], values: &[String]) -> String {
    let mut text = String::new();
    for (name, value) in names.iter().zip(values) {
        let comma = if text.is_empty() { "" } else { "," };
        let (name, value) = (prometheus(name), escaped(value).replace('"', "\\\""));
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text
}

fn braced(labels: &str, bound: Option<&str>) -> String {
    match (labels, bound) {
        ("", None) => String::new(),
        (labels, None) => format!("{{{labels}}}"),
        ("", Some(bound)) => format!("{{le=\"{bound}\"}}"),
        (labels, Some(bound)) => format!("{{{labels},le=\"{bound}\"}}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Counter, Desc, Histogram};
    use super::*;
    use crate::context::TraceRef;

    const REQUESTS: Desc = Desc::new("a.requests", "{request}", &["faas.invoked_name"], "Requests.\nAll.");
    const TOOK: Desc = Desc::new("a.duration", "s", &[], "How long.").bounds(&[0.5, 1.0]);

    fn registry() -> Registry {
        let registry = Registry::new("test");
        let requests = registry.family::<Counter, 1>(&REQUESTS);
        requests.with(["say \"hi\"\\"]).add(3);
        let took = registry.family::<Histogram, 0>(&TOOK);
        took.with([]).record(Duration::from_millis(250));
        let trace = TraceRef {
            trace_id: [0xab; 16],
            span_id: [1; 8],
        };
        took.with([]).record_in(Duration::from_secs(2), Some(trace));
        registry
    }

    #[test]
    fn prometheus_gets_its_own_format() {
        let (kind, text) = exposition(&registry(), &HeaderMap::new());
        assert!(kind.1.to_str().unwrap().starts_with("text/plain; version=0.0.4"));
        assert_eq!(
            text,
            "# HELP a_requests_total Requests.\\nAll.\n\
             # TYPE a_requests_total counter\n\
             a_requests_total{faas_invoked_name=\"say \\\"hi\\\"\\\\\"} 3\n\
             # HELP a_duration_seconds How long.\n\
             # TYPE a_duration_seconds histogram\n\
             a_duration_seconds_bucket{le=\"0.5\"} 1\n\
             a_duration_seconds_bucket{le=\"1.0\"} 1\n\
             a_duration_seconds_bucket{le=\"+Inf\"} 2\n\
             a_duration_seconds_sum 2.25\n\
             a_duration_seconds_count 2\n"
        );
    }

    #[test]
    fn openmetrics_has_the_trace_of_a_value() {
        let mut asked = HeaderMap::new();
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
        asked.insert(ACCEPT, HeaderValue::from_static(accept));
        let (kind, text) = exposition(&registry(), &asked);
        assert!(kind.1.to_str().unwrap().starts_with("application/openmetrics-text"));
        assert!(text.contains("# TYPE a_requests counter\na_requests_total{"), "{text}");
        let exemplar = format!(
            "a_duration_seconds_bucket{{le=\"+Inf\"}} 2 # {{trace_id=\"{}\"",
            "ab".repeat(16)
        );
        assert!(text.contains(&exemplar), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn what_is_forgotten_is_not_told() {
        let registry = registry();
        registry.forget("faas.invoked_name", "say \"hi\"\\");
        let (_, text) = exposition(&registry, &HeaderMap::new());
        assert!(!text.contains("a_requests_total{"), "{text}");
    }
}
