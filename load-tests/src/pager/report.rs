//! The tables.

use comfy_table::Table;

use super::Record;
use super::case::{Case, Latency};
use super::kinds::{Way, Workload, name};
use crate::report::table;
use crate::stats::figures;

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!(
        "{} rounds of {} ms, {} MiB restored",
        record.rounds,
        record.millis,
        record.pages * 4 / 1024
    );
    for (floor, busy) in record.floor.iter().zip([false, true]) {
        let title = if busy {
            "every core kept busy by others"
        } else {
            "the machine as it is"
        };
        println!("\nFaults that waited for the pager, µs, as their thread sees them: {title}");
        println!("{}", latencies(record, busy, |c| &c.waited));
        println!("\nFirst touches of restored pages, µs: {title}");
        println!("{}", latencies(record, busy, |c| &c.first_touches));
        println!("\nWork done, and what the pager took for it: {title}");
        println!("{}", work(record, busy));
        println!(
            "\na word to a sleeping thread and its answer, by pipes: p50 {:.1}, p99 {:.1}, max {:.0} µs",
            floor.p50, floor.p99, floor.max
        );
    }
    if let Some(figures) = figures(record.cpu_loop_ms.iter().copied()) {
        let (min, p50, p99) = (figures.min, figures.p50, figures.p99);
        println!("note: a fixed CPU loop, once a round: min {min:.2}, p50 {p50:.2}, p99 {p99:.2} ms");
    }
}

fn latencies(record: &Record, busy: bool, of: fn(&Case) -> &Latency) -> Table {
    let mut table = table(&["workload", "memory", "count", "p50", "p95", "p99", "p99.9", "max"], 2);
    for case in record.cases.iter().filter(|c| c.busy == busy && of(c).count > 0) {
        let latency = of(case);
        table.add_row([
            name(case.workload),
            name(case.way),
            latency.count.to_string(),
            format!("{:.1}", latency.p50),
            format!("{:.1}", latency.p95),
            format!("{:.1}", latency.p99),
            format!("{:.0}", latency.p999),
            format!("{:.0}", latency.max),
        ]);
    }
    table
}

fn work(record: &Record, busy: bool) -> Table {
    let header = [
        "workload",
        "memory",
        "units/s",
        "/ anonymous",
        "/ file",
        "pager user",
        "pager sys",
        "faults",
        "pages",
        "events",
    ];
    let mut table = table(&header, 2);
    let median = |samples: &[f64]| figures(samples.iter().copied()).map(|f| f.p50);
    let cases = || record.cases.iter().filter(|c| c.busy == busy);
    let throughput = |workload: Workload, way: Way| {
        let case = cases().find(|c| c.workload == workload && c.way == way)?;
        median(&case.throughput)
    };
    for case in cases() {
        let own = median(&case.throughput).unwrap_or_default();
        let over = |way| throughput(case.workload, way).map_or_else(|| "-".to_owned(), |t| format!("{:.2}", own / t));
        let percent = |samples| median(samples).map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", s * 100.0));
        let count = |names: &[&str]| {
            let sum: u64 = names.iter().filter_map(|n| case.pager.get(n)).sum();
            if case.way.is_served() {
                sum.to_string()
            } else {
                "-".to_owned()
            }
        };
        table.add_row([
            name(case.workload),
            name(case.way),
            format!("{own:.0}"),
            over(Way::Anonymous),
            over(Way::File),
            percent(&case.pager_user),
            percent(&case.pager_sys),
            count(&["faults"]),
            count(&["let_in", "copied", "zeroed", "around"]),
            count(&["events"]),
        ]);
    }
    table
}
