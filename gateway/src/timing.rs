//! `Server-Timing`: the gateway's phases before the worker's own.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use rekindle_wire::headers::SERVER_TIMING;

/// Duration of an invocation's phases.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Phases {
    /// From the request's arrival until a slot was looked for; includes the wait for a small body.
    pub(crate) route: Duration,
    /// Until there was a slot: zero if a lease had one.
    pub(crate) place: Duration,
    /// From sending it to the worker until the response's headers.
    pub(crate) answer: Duration,
}

/// The worker's phases as it wrote them, one header value after the other.
pub(crate) fn of_worker(headers: &HeaderMap) -> String {
    let values = headers.get_all(SERVER_TIMING).iter();
    let parts: Vec<&str> = values.filter_map(|v| v.to_str().ok()).collect();
    parts.join(", ")
}

/// Whether a phase is among them.
pub(crate) fn names(timing: &str, phase: &str) -> bool {
    timing
        .split(',')
        .any(|part| part.trim().split(';').next() == Some(phase))
}

/// The whole header. A worker that reports nothing is measured from outside.
pub(crate) fn merged(phases: &Phases, worker: &str) -> Option<(HeaderName, HeaderValue)> {
    let ms = |d: Duration| d.as_secs_f64() * 1_000.0;
    let mut text = format!("route;dur={:.3}, place;dur={:.3}", ms(phases.route), ms(phases.place));
    if !worker.is_empty() {
        text.push_str(", ");
        text.push_str(worker);
    }
    if !names(worker, "function") {
        text.push_str(&format!(", function;dur={:.3}", ms(phases.answer)));
    }
    let value = HeaderValue::from_str(&text).ok()?;
    Some((HeaderName::from_static(SERVER_TIMING), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_phases_come_after_the_gateways() {
        let phases = Phases {
            route: Duration::from_micros(250),
            place: Duration::from_millis(1),
            answer: Duration::from_millis(30),
        };
        let (_, value) = merged(&phases, "restore;dur=12.5, function;dur=3.1").unwrap();
        assert_eq!(
            value,
            "route;dur=0.250, place;dur=1.000, restore;dur=12.5, function;dur=3.1"
        );
        let (_, value) = merged(&phases, "").unwrap();
        assert_eq!(value, "route;dur=0.250, place;dur=1.000, function;dur=30.000");
    }

    #[test]
    fn a_phase_is_found_by_its_whole_name() {
        assert!(names("boot;dur=3, function;dur=1", "boot"));
        assert!(!names("reboot;dur=3", "boot"));
    }
}
