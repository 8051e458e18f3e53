//! The tables and their interpretation: against plain start and lazy-pages, against the targets, and how noisy the
//! machine was.

use std::collections::BTreeSet;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use crate::record::{Cold, Measured, Outcome, Record, Worked};
use crate::stats::{Figures, Percentile, figures};
use crate::subject::Subject;

/// The phases in the order in which they happen; others come after them.
const PHASES: [&str; 12] = [
    "route",
    "place",
    "open",
    "sandbox",
    "start",
    "thaw",
    "listen",
    "criu",
    "working-set",
    "after-restore",
    "restore",
    "function",
];
/// With fewer runs their slowest says nothing about a tail.
const TAIL_RUNS: usize = 20;
/// Share of all cores above which others were busy before we began.
const QUIET_BUSY: f64 = 0.1;
/// Ratio of p99 to p50 of the fixed loop above which the machine was not steady.
const STEADY_SPREAD: f64 = 1.25;

/// The subjects' names on one line.
pub(crate) fn names(subjects: &[Subject]) -> String {
    subjects.iter().map(|s| s.name()).collect::<Vec<_>>().join(", ")
}

/// Prints everything.
pub(crate) fn print(record: &Record) {
    println!("\n{}", heading(record));
    for worked in &record.workloads {
        print_workload(worked);
    }
    if !record.cold.is_empty() {
        println!("\nRestored by a host that had nothing of the snapshot, each request to the store taking longer, ms");
        println!("{}", cold(&record.cold));
        for cold in record.cold.iter().filter(|c| !c.errors.is_empty()) {
            println!(
                "{} ms: {} runs failed: {}",
                cold.delay_ms,
                cold.errors.len(),
                cold.errors[0]
            );
        }
    }
    println!();
    for note in notes(record) {
        println!("note: {note}");
    }
}

fn print_workload(worked: &Worked) {
    println!("\n## {}", worked.workload.title());
    if let Some(why) = &worked.missing {
        println!("missing: {why}");
        return;
    }
    let versions = worked
        .peers
        .versions
        .iter()
        .map(|(program, version)| format!("{program}: {version}"));
    println!("peers: {}", versions.collect::<Vec<_>>().join("; "));
    for measured in &worked.regimes {
        println!(
            "\nTrigger to the last byte of the first response, ms, {} (in brackets where the true figure lies with 95 %)",
            measured.regime.title()
        );
        println!("{}", latencies(measured));
        for outcome in &measured.outcomes {
            if let Some(why) = &outcome.missing {
                println!("missing: {}: {why}", outcome.subject.name());
            } else if !outcome.errors.is_empty() {
                println!("{}: {} runs failed", outcome.subject.name(), outcome.errors.len());
            }
        }
        for line in findings(measured) {
            println!("{line}");
        }
        if let Some(table) = phases(measured) {
            println!("\nServer-Timing of the platform, medians, ms (phases may overlap)\n{table}");
        }
    }
}

fn heading(record: &Record) -> String {
    let program = record.program.as_deref().unwrap_or("none");
    format!(
        "{} at {} on {}\nplatform: {program}",
        record.revision, record.date, record.machine
    )
}

fn latencies(measured: &Measured) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header([
        "",
        "runs",
        "min",
        "p50",
        "p99",
        "p99/p50",
        "p50 / plain",
        "p50 / lazy-pages",
    ]);
    let (plain, lazy) = (of(measured, Subject::Plain), of(measured, Subject::LazyPages));
    for Outcome { subject, .. } in &measured.outcomes {
        let Some(own) = of(measured, *subject) else {
            table.add_row([subject.title(), "missing"]);
            continue;
        };
        let over = |other: Option<Figures>| other.map_or_else(|| "-".to_owned(), |o| format!("{:.2}", own.p50 / o.p50));
        table.add_row([
            subject.title().to_owned(),
            own.count.to_string(),
            ms(own.min),
            within(own.median),
            within(own.tail),
            format!("{:.1}", own.p99 / own.p50),
            over(plain),
            over(lazy),
        ]);
    }
    align_numbers(&mut table);
    table
}

/// A row for each delay.
fn cold(all: &[Cold]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["delay", "runs", "min", "p50", "p99", "p50 over that without delay"]);
    let base = all
        .iter()
        .find(|c| c.delay_ms == 0)
        .and_then(|c| figures(c.samples.iter().map(|s| s.ms)));
    for cold in all {
        let Some(own) = figures(cold.samples.iter().map(|s| s.ms)) else {
            table.add_row([cold.delay_ms.to_string(), "missing".to_owned()]);
            continue;
        };
        table.add_row([
            format!("{} ms", cold.delay_ms),
            own.count.to_string(),
            ms(own.min),
            within(own.median),
            within(own.tail),
            base.map_or_else(|| "-".to_owned(), |b| ms(own.p50 - b.p50)),
        ]);
    }
    align_numbers(&mut table);
    table
}

/// A percentile and its interval; an end that cannot be determined from the samples is left out.
pub(crate) fn within(percentile: Percentile) -> String {
    let end = |end: Option<f64>| end.map_or_else(|| "?".to_owned(), ms);
    match (percentile.low, percentile.high) {
        (None, None) => ms(percentile.value),
        (low, high) => format!("{} [{}, {}]", ms(percentile.value), end(low), end(high)),
    }
}

fn phases(measured: &Measured) -> Option<Table> {
    let columns: Vec<Subject> = Subject::ALL
        .into_iter()
        .filter(|s| measured.samples(*s).any(|sample| !sample.phases.is_empty()))
        .collect();
    if columns.is_empty() {
        return None;
    }
    let named: BTreeSet<&str> = columns
        .iter()
        .flat_map(|s| measured.samples(*s))
        .flat_map(|s| s.phases.keys())
        .map(String::as_str)
        .collect();
    let known = PHASES.into_iter().filter(|p| named.contains(p));
    let others = named.iter().copied().filter(|p| !PHASES.contains(p));
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header([""].into_iter().chain(columns.iter().map(|s| s.name())));
    for phase in known.chain(others) {
        let median = |s: &Subject| {
            figures(
                measured
                    .samples(*s)
                    .filter_map(|sample| sample.phases.get(phase).copied()),
            )
        };
        let cells = columns
            .iter()
            .map(|s| median(s).map_or_else(|| "-".to_owned(), |f| ms(f.p50)));
        table.add_row([phase.to_owned()].into_iter().chain(cells));
    }
    let client = |s: &Subject| of(measured, *s).map_or_else(|| "-".to_owned(), |f| ms(f.p50));
    table.add_row(
        ["client, in all".to_owned()]
            .into_iter()
            .chain(columns.iter().map(client)),
    );
    align_numbers(&mut table);
    Some(table)
}

/// A table whose first columns hold `words`, and the others numbers.
pub(crate) fn table(header: &[&str], words: usize) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(header);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn align_numbers(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// The targets of docs/reference/speed.md, as far as their subjects were measured.
fn findings(measured: &Measured) -> Vec<String> {
    let mut lines = Vec::new();
    let word = |met: bool| if met { "met" } else { "MISSED" };
    let p50 = |s| of(measured, s).map(|f| f.p50);
    if let (Some(ours), Some(theirs)) = (p50(Subject::Restored), p50(Subject::LazyPages)) {
        let met = word(ours <= theirs);
        lines.push(format!(
            "bar: restored no slower than CRIU lazy-pages: {} against {}: {met}",
            ms(ours),
            ms(theirs)
        ));
    }
    if let (Some(warm), Some(direct)) = (p50(Subject::Warm), p50(Subject::Direct)) {
        let added = warm - direct;
        for most in [1.0, 0.3] {
            lines.push(format!(
                "bar: warm adds at most {most} ms to asking directly: {}: {}",
                ms(added),
                word(added <= most)
            ));
        }
    }
    if let (Some(restored), Some(warm)) = (p50(Subject::Restored), p50(Subject::Warm)) {
        let over = restored - warm;
        lines.push(format!(
            "bar: restored at most 10 ms over warm: {}: {}",
            ms(over),
            word(over <= 10.0)
        ));
    }
    if let Some(restored) = of(measured, Subject::Restored).filter(|f| f.count >= TAIL_RUNS) {
        let spread = restored.p99 / restored.p50;
        lines.push(format!(
            "bar: p99 of restored at most 2.5 times its p50: {spread:.1}: {}",
            word(spread <= 2.5)
        ));
    }
    if let (Some(parked), Some(warm)) = (p50(Subject::Parked), p50(Subject::Warm)) {
        let over = parked - warm;
        lines.push(format!(
            "bar: parked at most 2 ms over warm: {}: {}",
            ms(over),
            word(over <= 2.0)
        ));
    }
    lines
}

/// Whether nothing else was running, as far as the record shows.
pub(crate) fn was_quiet(record: &Record) -> bool {
    let regimes = record.workloads.iter().flat_map(|w| &w.regimes);
    let mut loops = regimes.filter_map(|m| figures(m.cpu_loop_ms.iter().copied()));
    record.busy_before <= QUIET_BUSY && loops.all(|fixed| fixed.p99 / fixed.p50 <= STEADY_SPREAD)
}

fn notes(record: &Record) -> Vec<String> {
    let mut notes = vec![
        "below 100 runs p99 is the slowest run".to_owned(),
        "a p99 whose upper end is ? has too few runs to tell; it takes some hundred".to_owned(),
        "the peers have no gateway and no hook after the restore, and share the host's network; their root filesystem, images and kernel probe are on tmpfs"
            .to_owned(),
    ];
    for (worked, measured) in record
        .workloads
        .iter()
        .flat_map(|w| w.regimes.iter().map(move |m| (w, m)))
    {
        if let Some(fixed) = figures(measured.cpu_loop_ms.iter().copied()) {
            let spread = fixed.p99 / fixed.p50;
            notes.push(format!(
                "a fixed CPU loop, once each round of {} {}: min {}, p50 {}, p99 {} ms, p99/p50 {spread:.2}",
                worked.workload.name(),
                measured.regime.title(),
                ms(fixed.min),
                ms(fixed.p50),
                ms(fixed.p99)
            ));
        }
    }
    notes.push(format!(
        "others kept {:.0} % of {} cores busy in the second before; load average {:.2} before, {:.2} after",
        record.busy_before * 100.0,
        record.machine.cores,
        record.load_before,
        record.load_after
    ));
    if !was_quiet(record) {
        notes.push("THE MACHINE WAS NOT QUIET: compare within this run, and quote no figure of it".to_owned());
    }
    notes
}

fn of(measured: &Measured, subject: Subject) -> Option<Figures> {
    measured.figures(subject)
}

/// About three significant digits.
pub(crate) fn ms(value: f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rounds::Regime;
    use crate::subject::Sample;

    fn measured(subjects: &[(Subject, &[f64])]) -> Measured {
        let outcomes = subjects.iter().map(|(subject, samples)| {
            let mut outcome = Outcome::of(*subject, None);
            outcome.samples = samples
                .iter()
                .map(|ms| Sample {
                    ms: *ms,
                    phases: BTreeMap::new(),
                })
                .collect();
            outcome
        });
        Measured {
            regime: Regime::BackToBack,
            outcomes: outcomes.collect(),
            cpu_loop_ms: vec![5.0],
        }
    }

    #[test]
    fn ratios_are_those_of_medians_in_the_same_regime() {
        let table = latencies(&measured(&[
            (Subject::Restored, &[9.0, 10.0, 30.0]),
            (Subject::Plain, &[100.0]),
            (Subject::LazyPages, &[25.0]),
        ]))
        .to_string();
        let row = table.lines().find(|l| l.contains("restored")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).filter(|c| !c.is_empty()).collect();
        assert_eq!(
            cells[1..],
            ["3", "9.00", "10.0", "30.0 [10.0, ?]", "3.0", "0.10", "0.40"],
            "{table}"
        );
    }

    #[test]
    fn a_subject_without_samples_is_missing_and_judges_no_bar() {
        let measured = measured(&[(Subject::Restored, &[10.0]), (Subject::LazyPages, &[])]);
        assert!(latencies(&measured).to_string().contains("missing"));
        assert_eq!(findings(&measured), Vec::<String>::new());
    }

    #[test]
    fn a_bar_is_met_or_missed_by_medians() {
        let slow = findings(&measured(&[
            (Subject::Restored, &[30.0]),
            (Subject::LazyPages, &[25.0]),
        ]));
        assert!(slow[0].ends_with("MISSED"), "{slow:?}");
        let warm = findings(&measured(&[(Subject::Warm, &[1.25]), (Subject::Direct, &[0.5])]));
        assert_eq!(
            warm,
            [
                "bar: warm adds at most 1 ms to asking directly: 0.75: met",
                "bar: warm adds at most 0.3 ms to asking directly: 0.75: MISSED",
            ]
        );
        let of_many = findings(&measured(&[(
            Subject::Restored,
            &[vec![10.0; 19], vec![26.0]].concat(),
        )]));
        assert_eq!(of_many, ["bar: p99 of restored at most 2.5 times its p50: 2.6: MISSED"]);
    }

    #[test]
    fn phases_come_in_the_order_they_happen() {
        let mut measured = measured(&[(Subject::Restored, &[10.0])]);
        let timing = [("function", 1.0), ("zebra", 4.0), ("criu", 2.0), ("route", 3.0)];
        measured.outcomes[0].samples[0].phases = timing.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        let table = phases(&measured).unwrap().to_string();
        let at = |word: &str| table.find(word).unwrap();
        assert!(
            at("route") < at("criu") && at("criu") < at("function") && at("function") < at("zebra"),
            "{table}"
        );
    }
}
