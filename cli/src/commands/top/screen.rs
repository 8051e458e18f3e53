//! What `fn top` shows, as text: a whole frame of lines off a terminal, and the cells of its tables.

use rekindle_wire::stats::WorkerStats;

use super::view::{Row, StartRow, View};
use crate::show;

pub(super) const WORKERS: [&str; 8] = [
    "WORKER",
    "STATE",
    "INSTANCES",
    "MEMORY",
    "SANDBOXES",
    "TEMPLATES",
    "CHUNKS",
    "FAULT P99",
];
pub(super) const FUNCTIONS: [&str; 11] = [
    "FUNCTION",
    "RATE",
    "COLD",
    "FAILED",
    "P50",
    "P99",
    "INSTANCES",
    "IN FLIGHT",
    "WAITING",
    "MEMORY",
    "EVICTED",
];

/// Columns that a narrow screen goes without, the first of them first.
pub(super) const WORKERS_SPARED: [&str; 4] = ["CHUNKS", "FAULT P99", "TEMPLATES", "SANDBOXES"];
pub(super) const FUNCTIONS_SPARED: [&str; 5] = ["EVICTED", "WAITING", "IN FLIGHT", "P50", "FAILED"];

pub(super) const STARTS: [&str; 7] = ["OF", "START", "RATE", "FAILED", "P50", "P99", "EVER"];

pub(super) fn lines(view: &View) -> Vec<String> {
    let mut workers = show::table(WORKERS);
    workers.add_rows(view.workers.iter().map(worker));
    let mut functions = show::table(FUNCTIONS);
    functions.add_rows(view.functions.iter().map(function));
    let mut lines = vec![headline(view), totals(view), String::new()];
    lines.extend(workers.lines().map(|l| l.trim_end().to_owned()));
    lines.push(String::new());
    lines.extend(functions.lines().map(|l| l.trim_end().to_owned()));
    lines
}

pub(super) fn headline(view: &View) -> String {
    let count = |n: u64, what| show::count(usize::try_from(n).unwrap_or(usize::MAX), what);
    format!(
        "rekindle: {}, {}, {}, {} with {}; rates of the last {:.0} s",
        count(view.gateways, "gateway"),
        count(view.workers.len() as u64, "worker"),
        count(view.functions.len() as u64, "function"),
        count(view.total.instances, "instance"),
        show::bytes(view.total.memory_bytes),
        view.seconds,
    )
}

pub(super) fn totals(view: &View) -> String {
    let Row { p50_ms, p99_ms, .. } = view.total;
    format!(
        "{} invocations/s, {} cold, {} failed; p50 {}, p99 {}; {} in flight, {} waiting",
        rate(view.total.per_second),
        rate(view.total.cold_per_second),
        rate(view.total.failed_per_second),
        ms(p50_ms),
        ms(p99_ms),
        view.total.in_flight,
        view.total.waiting,
    )
}

pub(super) fn worker(worker: &WorkerStats) -> [String; 8] {
    let (info, levels) = (&worker.worker, &worker.levels);
    let of = |part: u64, whole: u64| format!("{}/{}", show::bytes(part), show::bytes(whole));
    [
        info.id.to_string(),
        info.state.as_str().to_owned(),
        info.instances.to_string(),
        of(info.memory_reserved_bytes, info.memory_capacity_bytes),
        format!("{}/{}", levels.sandboxes_ready, levels.sandboxes_wanted),
        format!(
            "{} {}",
            levels.templates,
            of(levels.template_bytes, levels.template_limit_bytes)
        ),
        of(levels.chunk_cache_bytes, levels.chunk_cache_limit_bytes),
        levels
            .fault_p99_us
            .map_or_else(|| "-".to_owned(), |us| format!("{us:.0} µs")),
    ]
}

pub(super) fn function(row: &Row) -> [String; 11] {
    [
        row.name.clone(),
        rate(row.per_second),
        rate(row.cold_per_second),
        rate(row.failed_per_second),
        ms(row.p50_ms),
        ms(row.p99_ms),
        row.instances.to_string(),
        row.in_flight.to_string(),
        row.waiting.to_string(),
        show::bytes(row.memory_bytes),
        show::bytes(row.evicted_bytes),
    ]
}

pub(super) fn start(function: &str, start: &str, row: &StartRow) -> [String; 7] {
    [
        function.to_owned(),
        start.to_owned(),
        rate(row.per_second),
        rate(row.failed_per_second),
        ms(row.p50_ms),
        ms(row.p99_ms),
        row.invocations.to_string(),
    ]
}

fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        r if r < 10.0 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

fn ms(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), show::millis)
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::stats;
    use super::*;

    #[test]
    fn a_frame_has_the_totals_and_the_busiest_function_first() {
        let before = stats(0, &[("idle", "warm", 0, 0), ("busy", "restored", 0, 0)]);
        let after = stats(1_000, &[("idle", "warm", 1, 0), ("busy", "restored", 40, 2)]);
        let frame = lines(&View::between(&before, &after));
        assert!(frame[0].contains("1 gateway, 0 workers, 2 functions"), "{frame:#?}");
        assert!(frame[1].contains("41 invocations/s, 40 cold, 2.0 failed"), "{frame:#?}");
        let at = |name: &str| frame.iter().position(|line| line.trim_start().starts_with(name));
        assert!(at("FUNCTION") < at("busy") && at("busy") < at("idle"), "{frame:#?}");
    }
}
