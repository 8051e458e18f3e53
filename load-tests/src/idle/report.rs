//! The table of `rekindle-bench idle`, with the columns of the reference.

use super::Record;
use super::case::{Case, Way};
use crate::pager::kinds::name;
use crate::report::table;
use crate::stats::{figures, ratio};

/// The median; 0 without any.
pub(super) fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    figures(samples).map_or(0.0, |f| f.p50)
}

/// The case of the same workload with all memory resident.
fn staying<'a>(record: &'a Record, case: &Case) -> Option<&'a Case> {
    let same = |c: &&Case| c.way == Way::Stays && c.workload == case.workload;
    record.cases.iter().find(same)
}

/// A case's figure over that of the same workload with all memory resident, round by round.
pub(super) fn over_staying(record: &Record, case: &Case, of: fn(&Case) -> &Vec<f64>) -> f64 {
    let staying = staying(record, case).map(of);
    let pairs = staying.into_iter().flatten().zip(of(case));
    median(pairs.map(|(stays, own)| own / stays))
}

/// The 95 % confidence interval of the ratio of throughputs: the same rounds of both are drawn again and again.
fn interval(record: &Record, case: &Case) -> String {
    let other = staying(record, case).filter(|_| case.way != Way::Stays);
    let ratio = other.and_then(|stays| ratio(&stays.throughput, &case.throughput, 1));
    ratio.map_or_else(|| "-".to_owned(), |r| format!("{:.2} to {:.2}", r.low, r.high))
}

/// Processor time that faults cost the process: in the kernel, beyond what it spends there with all memory resident.
pub(super) fn fault_cpu(record: &Record, case: &Case) -> f64 {
    let staying = staying(record, case).map(|c| &c.kernel);
    let pairs = staying.into_iter().flatten().zip(&case.kernel);
    median(pairs.map(|(stays, own)| own - stays))
}

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!(
        "{} rounds of {} ms, {} MiB each, of which a quarter is in use; what is untouched for {} ms goes",
        record.rounds,
        record.millis,
        record.pages * 4 / 1024,
        record.after_ms
    );
    let header = [
        "workload",
        "idle memory",
        "throughput",
        "with 95 %",
        "in memory, MiB",
        "background CPU",
        "fault CPU",
        "work's time in touches",
        "missing p50, µs",
        "p95",
        "p99",
        "max",
        "compressed",
        "faults",
        "restored",
    ];
    let mut table = table(&header, 2);
    for case in &record.cases {
        let count = |all: &[u64]| format!("{:.0}", median(all.iter().map(|n| *n as f64)));
        let has = case.way != Way::Stays;
        let latency = |value: f64| {
            if has && case.brought.count > 0 {
                format!("{value:.1}")
            } else {
                "-".to_owned()
            }
        };
        let percent = |share: f64| {
            if has {
                format!("{:.2} %", share * 100.0)
            } else {
                "-".to_owned()
            }
        };
        table.add_row([
            name(case.workload),
            case.way.told().to_owned(),
            format!("{:.3}", over_staying(record, case, |c| &c.throughput)),
            interval(record, case),
            format!("{:.0}", median(case.resident.iter().copied())),
            percent(median(case.background.iter().copied())),
            percent(fault_cpu(record, case)),
            percent(median(case.touching.iter().copied())),
            latency(case.brought.p50),
            latency(case.brought.p95),
            latency(case.brought.p99),
            latency(case.brought.max),
            count(&case.out),
            count(&case.faults),
            count(&case.back),
        ]);
    }
    println!("\n{table}");
    let restore = &record.restore;
    println!(
        "\nrestore alone, of a page that is touched while nothing else is done: p50 {:.1}, p95 {:.1}, p99 {:.1} µs ({} faults)",
        restore.p50, restore.p95, restore.p99, restore.count
    );
    if let Some(loops) = figures(record.cpu_loop_ms.iter().copied()) {
        println!(
            "note: a fixed CPU loop, once a round: min {:.2}, p50 {:.2}, p99 {:.2} ms",
            loops.min, loops.p50, loops.p99
        );
    }
}
