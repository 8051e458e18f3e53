//! The plots of `rekindle-bench idle`, like the reference's: throughput, processor time, the tail of faults, and
//! counts.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Record;
use super::case::{Case, Way};
use super::report::{fault_cpu, median, over_staying};
use crate::pager::kinds::name;
use crate::plot::{Axis, Dot, Dots, Row, colour, dots};

/// A figure with its name.
type Figure = (&'static str, fn(&Record, &Case) -> f64);

/// Makes an axis of a scale, with its label, for these values.
type Scale = fn(&str, &[f64]) -> Axis;
/// A plot: its file and title, its axis with the label, and the figures.
type Plot = (&'static str, &'static str, Scale, &'static str, Vec<Figure>);

/// Draws all plots into `directory`.
pub(super) fn draw(record: &Record, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
    let plots: [Plot; 4] = [
        (
            "idle-throughput",
            "Throughput while idle memory goes",
            linear,
            "of that with all memory there",
            vec![("throughput", |r, c| over_staying(r, c, |c| &c.throughput))],
        ),
        (
            "idle-cpu",
            "Processor time for it",
            linear,
            "per cent of one processor",
            vec![
                ("who evicts", |_, c| 100.0 * median(c.background.iter().copied())),
                ("faults", |r, c| 100.0 * fault_cpu(r, c).max(0.0)),
            ],
        ),
        (
            "idle-faults",
            "Touches of evicted pages",
            log,
            "microseconds",
            vec![
                ("p50", |_, c| c.brought.p50),
                ("p95", |_, c| c.brought.p95),
                ("p99", |_, c| c.brought.p99),
            ],
        ),
        (
            "idle-pages",
            "Pages in a run",
            log,
            "pages",
            vec![
                ("compressed", |_, c| counts(&c.out)),
                ("faults", |_, c| counts(&c.faults)),
                ("restored", |_, c| counts(&c.back)),
            ],
        ),
    ];
    for (file, title, axis, label, figures) in plots {
        let path = directory.join(format!("{file}.svg"));
        let svg = dots(&plot(record, title, label, axis, &figures))?;
        fs::write(&path, svg).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

fn counts(all: &[u64]) -> f64 {
    median(all.iter().map(|n| *n as f64))
}

fn linear(label: &str, values: &[f64]) -> Axis {
    Axis::from_zero(label, values.iter().copied())
}

fn log(label: &str, values: &[f64]) -> Axis {
    Axis::log(label, values.iter().copied())
}

fn plot(record: &Record, title: &str, label: &str, axis: fn(&str, &[f64]) -> Axis, figures: &[Figure]) -> Dots {
    let cases = record.cases.iter().filter(|c| c.way != Way::Stays);
    let rows: Vec<Row> = cases
        .map(|case| Row {
            name: format!("{}, {}", name(case.workload), case.way.told()),
            dots: figures
                .iter()
                .enumerate()
                .map(|(kind, (_, figure))| (kind, figure(record, case)))
                // A zero cannot be shown on a logarithmic axis.
                .filter(|(_, value)| *value > 0.0)
                .map(|(kind, value)| Dot {
                    kind,
                    value,
                    interval: None,
                })
                .collect(),
        })
        .collect();
    let values: Vec<f64> = rows
        .iter()
        .flat_map(|row| row.dots.iter().map(|dot| dot.value))
        .collect();
    let kinds = figures.iter().enumerate();
    Dots {
        title: title.to_owned(),
        note: record.taken.to_string(),
        x: axis(label, &values),
        kinds: kinds.map(|(n, (name, _))| ((*name).to_owned(), colour(n))).collect(),
        rows,
    }
}
