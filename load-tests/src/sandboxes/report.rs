//! The tables of `rekindle-bench sandboxes`, and the targets.

use comfy_table::Table;

use super::making::Steps;
use super::row::{Level, Row};
use super::{Crowd, Record};
use crate::report::{ms, table};
use crate::stats::{Figures, figures};

/// Target for taking one from the pool, milliseconds.
const TAKE_BAR_MS: f64 = 0.2;
/// Target for a new one, as a multiple of the bare floor of the same parts.
const NEW_BAR: f64 = 1.5;

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!("\nOne at a time, ms\n{}", alone(record));
    println!("\nSteps of ours as the pool makes them, ms\n{}", steps(&record.whole));
    println!(
        "\nMany at once, from nothing to gone, a second\n{}",
        crowds(&record.crowds)
    );
    if let Some(row) = &record.row {
        println!("\n{} in a row through a pool, ms\n{}", row.count, latencies(row));
        println!("\nWhat the host has\n{}", levels(&row.before, &row.after));
    }
    for line in bars(record) {
        println!("{line}");
    }
}

fn row_of(table: &mut Table, name: &str, figures: Option<Figures>) {
    if let Some(f) = figures {
        table.add_row([name.to_owned(), f.count.to_string(), ms(f.min), ms(f.p50), ms(f.p99)]);
    }
}

fn alone(record: &Record) -> Table {
    let mut table = table(&["", "runs", "min", "p50", "p99"], 1);
    let names = [
        "bare floor: clone, pivot_root, exit",
        "… with a network namespace",
        "… and a control group",
    ];
    for (name, floor) in names.into_iter().zip(&record.floors) {
        row_of(&mut table, name, figures(floor.iter().copied()));
    }
    let lean = figures(record.lean.iter().map(Steps::lean));
    row_of(&mut table, "ours, of the same parts, from nothing to gone", lean);
    let again = figures(record.again.iter().map(Steps::lean));
    row_of(&mut table, "… in a control group that is used again", again);
    let whole = figures(record.whole.iter().map(Steps::made));
    row_of(
        &mut table,
        "ours, with CRIU and a link, from nothing to furnished",
        whole,
    );
    table
}

fn steps(all: &[Steps]) -> Table {
    type Step = (&'static str, fn(&Steps) -> f64);
    const STEPS: [Step; 8] = [
        ("control group: have it again, limit", |s| s.group),
        ("init: fork, join the group, namespaces, loopback", |s| s.namespaces),
        ("CRIU: start, hear from it", |s| s.criu),
        ("link to the router, packet filter", |s| s.link),
        ("control group: rename, limit", |s| s.assign),
        ("files: mounts, pivot_root", |s| s.furnish),
        ("kill, reap", |s| s.end),
        ("control group: clean, keep", |s| s.remove),
    ];
    let mut table = table(&["step", "runs", "min", "p50", "p99"], 1);
    for (name, of) in STEPS {
        row_of(&mut table, name, figures(all.iter().map(of)));
    }
    table
}

fn crowds(all: &[Crowd]) -> Table {
    let mut table = table(
        &[
            "at once",
            "bare floor",
            "ours, lean",
            "CPU ms each",
            "ours, whole",
            "CPU ms each",
        ],
        0,
    );
    for crowd in all {
        table.add_row([
            crowd.at_once.to_string(),
            format!("{:.0}", crowd.floor_a_second),
            format!("{:.0}", crowd.lean_a_second),
            ms(crowd.lean_cpu_ms),
            format!("{:.0}", crowd.whole_a_second),
            ms(crowd.whole_cpu_ms),
        ]);
    }
    table
}

fn latencies(row: &Row) -> Table {
    let mut table = table(&["", "runs", "min", "p50", "p99"], 1);
    let kinds = [
        ("take", &row.take_ms),
        ("name, limits, files", &row.furnish_ms),
        ("from one to the next", &row.each_ms),
    ];
    for (name, all) in kinds {
        let tenth = all.len().div_ceil(10);
        row_of(&mut table, name, figures(all.iter().copied()));
        let (first, last) = (&all[..tenth], &all[all.len() - tenth..]);
        row_of(&mut table, "… the first tenth", figures(first.iter().copied()));
        row_of(&mut table, "… the last tenth", figures(last.iter().copied()));
    }
    table
}

fn levels(before: &Level, after: &Level) -> Table {
    let mut table = table(&["", "before", "after"], 1);
    let rows = [
        ("processes", before.processes as u64, after.processes as u64),
        ("mounts", before.mounts as u64, after.mounts as u64),
        ("control groups", before.groups as u64, after.groups as u64),
        (
            "network namespaces",
            before.network_namespaces as u64,
            after.network_namespaces as u64,
        ),
        (
            "descriptors of the worker's part",
            before.descriptors as u64,
            after.descriptors as u64,
        ),
        (
            "memory of the worker's part, KiB",
            before.resident_kib,
            after.resident_kib,
        ),
        ("memory of the kernel's own, KiB", before.kernel_kib, after.kernel_kib),
    ];
    for (name, before, after) in rows {
        table.add_row([name.to_owned(), before.to_string(), after.to_string()]);
    }
    table
}

fn bars(record: &Record) -> Vec<String> {
    let median = |all: &[f64]| figures(all.iter().copied()).map(|f| f.p50);
    let verdict = |met: bool| if met { "met" } else { "missed" };
    let mut lines = Vec::new();
    if let Some(take) = record.row.as_ref().and_then(|r| median(&r.take_ms)) {
        lines.push(format!(
            "bar: a pooled sandbox is taken in less than {TAKE_BAR_MS} ms: {}, {take:.4} ms",
            verdict(take < TAKE_BAR_MS)
        ));
    }
    let again: Vec<f64> = record.again.iter().map(Steps::lean).collect();
    if let (Some(floor), Some(ours)) = (median(&record.floors[2]), median(&again)) {
        let ratio = ours / floor;
        lines.push(format!(
            "bar: a new one costs at most {NEW_BAR} times the bare floor of the same parts: {}, {ratio:.2} times",
            verdict(ratio <= NEW_BAR)
        ));
    }
    lines
}
