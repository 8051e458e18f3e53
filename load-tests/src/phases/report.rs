//! The tables of `rekindle-bench phases`.

use super::parts::{CRIU, Floor, Part, RESTORE, WHOLE_CRIU, WHOLE_RESTORE, of, split};
use super::{OURS, Record};
use crate::report::{ms, table};
use crate::stats::figures;
use crate::subject::{Sample, Subject};

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    for subject in OURS {
        let samples = record.samples.get(&subject).map_or(&[][..], Vec::as_slice);
        println!(
            "\n{}, {} runs, ms\n{}",
            subject.title(),
            samples.len(),
            parts(record, samples, &of(subject), |s| s.ms)
        );
        if subject == Subject::Restored {
            for (title, name, inner) in [
                ("of it the restore, from its order on", WHOLE_RESTORE, &RESTORE[..]),
                ("of that CRIU", WHOLE_CRIU, &CRIU[..]),
            ] {
                let whole = |s: &Sample| s.phases.get(name).copied().unwrap_or_default();
                println!("\n{title}, ms\n{}", parts(record, samples, inner, whole));
            }
        }
    }
    let floors = &record.floors;
    let mut shown = table(&["floors, ms", "p50", "p99"], 1);
    for (name, samples) in [
        ("exchange over loopback, kept connection", &floors.hop),
        ("… on a new connection", &floors.connected),
        ("the function asked directly", &floors.direct),
    ] {
        if let Some(f) = figures(samples.iter().copied()) {
            shown.add_row([name.to_owned(), ms(f.p50), ms(f.p99)]);
        }
    }
    println!("\n{shown}");
}

fn parts(record: &Record, samples: &[Sample], parts: &[Part], whole: impl Fn(&Sample) -> f64) -> comfy_table::Table {
    let mut shown = table(&["phase", "p50", "p99", "bound by", "floor"], 1);
    let split: Vec<Vec<f64>> = samples.iter().map(|s| split(s, whole(s), parts)).collect();
    for (n, (name, what, bound, floor)) in parts.iter().enumerate() {
        let Some(f) = figures(split.iter().map(|row| row[n])) else {
            continue;
        };
        let title = if name.is_empty() {
            (*what).to_owned()
        } else {
            format!("{name}: {what}")
        };
        shown.add_row([
            title,
            ms(f.p50),
            ms(f.p99),
            (*bound).to_owned(),
            told(record, *floor, f.min),
        ]);
    }
    if let Some(f) = figures(samples.iter().map(&whole)) {
        shown.add_row(["whole".to_owned(), ms(f.p50), ms(f.p99), String::new(), String::new()]);
    }
    shown
}

/// The description of the floor.
fn told(record: &Record, floor: Floor, least: f64) -> String {
    let floors = &record.floors;
    let median = |samples: &[f64]| figures(samples.iter().copied()).map_or(0.0, |f| f.p50);
    match floor {
        Floor::Hop => ms(median(&floors.hop)),
        Floor::NewConnection => ms(median(&floors.connected)),
        Floor::Direct => ms(median(&floors.direct)),
        Floor::Nothing => "0".to_owned(),
        Floor::Least => format!("about {} (the least seen)", ms(least)),
    }
}
