//! The plots of a comparison, for README and docs/reference/benchmarks: all subjects of one workload, medians over
//! sizes, cold restores.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::plot::{Axis, Dot, Dots, Line, Lines, Row, colour, dots, lines};
use crate::record::{Measured, Record, Worked};
use crate::rounds::Regime;
use crate::stats::{Figures, figures};
use crate::subject::Subject;
use crate::workload::Language;

/// Writes the plots for which there are figures.
pub(crate) fn write(record: &Record, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let put = |name: &str, svg: String| {
        let path = dir.join(name).with_extension("svg");
        fs::write(&path, svg).with_context(|| format!("{}: cannot be written", path.display()))
    };
    for worked in &record.workloads {
        for measured in &worked.regimes {
            let regime = if measured.regime == Regime::BackToBack {
                ""
            } else {
                "-after-idle"
            };
            put(
                &format!("starts-{}{regime}", worked.workload.name()),
                dots(&starts(record, worked, measured))?,
            )?;
        }
    }
    for language in [Language::Python, Language::Node, Language::Static] {
        let sizes: Vec<&Worked> = record
            .workloads
            .iter()
            .filter(|w| w.workload.language == language && !w.regimes.is_empty())
            .collect();
        if sizes.len() > 1 {
            put(
                &format!("sizes-{}", language.name()),
                lines(&over_sizes(record, &sizes))?,
            )?;
        }
    }
    if !record.cold.is_empty() {
        put("cold", dots(&cold(record))?)?;
    }
    Ok(())
}

/// Each subject's median and 99th percentile.
fn starts(record: &Record, worked: &Worked, measured: &Measured) -> Dots {
    let rows: Vec<Row> = measured
        .outcomes
        .iter()
        .map(|outcome| Row {
            name: outcome.subject.title().to_owned(),
            dots: two(measured.figures(outcome.subject)),
        })
        .collect();
    Dots {
        title: format!(
            "{}: to the first response, {}",
            worked.workload.title(),
            measured.regime.title()
        ),
        note: note(record),
        x: Axis::log(
            "ms from the trigger to the last byte of the first response (logarithmic)",
            values(&rows),
        ),
        kinds: kinds(),
        rows,
    }
}

fn cold(record: &Record) -> Dots {
    let rows: Vec<Row> = record
        .cold
        .iter()
        .map(|cold| Row {
            name: format!("restored from S3, {} ms added", cold.delay_ms),
            dots: two(figures(cold.samples.iter().map(|s| s.ms))),
        })
        .collect();
    let greatest: Vec<f64> = values(&rows).collect();
    let title = record.cold.first().map_or_else(String::new, |c| c.workload.title());
    Dots {
        title: format!("{title}: restored by a host that had nothing of the snapshot"),
        note: note(record),
        x: Axis::from_zero(
            "ms from the trigger to the last byte of the first response",
            greatest.into_iter(),
        ),
        kinds: kinds(),
        rows,
    }
}

/// What the plot is of, and whether its figures may be quoted.
fn note(record: &Record) -> String {
    let quiet = if crate::report::was_quiet(record) {
        "a quiet machine"
    } else {
        "THE MACHINE WAS NOT QUIET: read ratios, quote no figure"
    };
    let day = record.date.split('T').next().unwrap_or_default();
    format!(
        "{} at {day}, {} rounds, {}; {quiet}",
        record.revision, record.rounds, record.machine
    )
}

fn kinds() -> Vec<(String, crate::plot::Colour)> {
    vec![
        ("p50, 95 % interval".to_owned(), colour(0)),
        ("p99, 95 % interval".to_owned(), colour(1)),
    ]
}

/// The tail below the median, so that the median is visible if both coincide.
fn two(figures: Option<Figures>) -> Vec<Dot> {
    let Some(figures) = figures else {
        return Vec::new();
    };
    [(1, figures.tail), (0, figures.median)]
        .map(|(kind, p)| Dot {
            kind,
            value: p.value,
            interval: Some((p.low.unwrap_or(p.value), p.high.unwrap_or(p.value))),
        })
        .to_vec()
}

fn values(rows: &[Row]) -> impl Iterator<Item = f64> {
    let dots = rows.iter().flat_map(|r| &r.dots);
    dots.flat_map(|d| {
        let (from, to) = d.interval.unwrap_or((d.value, d.value));
        [from, d.value, to]
    })
}

/// Medians back to back, a line for each subject that depends on the size.
fn over_sizes(record: &Record, sizes: &[&Worked]) -> Lines {
    let of = |subject: Subject| {
        let points = sizes.iter().filter_map(|worked| {
            let measured = worked.regimes.iter().find(|m| m.regime == Regime::BackToBack)?;
            let p50 = figures(measured.samples(subject).map(|s| s.ms))?.p50;
            Some((f64::from(worked.workload.mib), p50))
        });
        points.collect::<Vec<_>>()
    };
    let shown = Subject::ALL.into_iter().filter(|s| !s.is_running()).enumerate();
    let all: Vec<Line> = shown
        .map(|(n, subject)| Line {
            name: subject.title().to_owned(),
            colour: colour(n),
            points: of(subject),
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    let ms: Vec<f64> = all.iter().flat_map(|l| l.points.iter().map(|p| p.1)).collect();
    let mib: Vec<f64> = sizes.iter().map(|w| f64::from(w.workload.mib)).collect();
    let language = sizes.first().map_or_else(String::new, |w| w.workload.title());
    let language = language.split(',').next().unwrap_or_default().to_owned();
    Lines {
        title: format!("{language}: median to the first response by memory touched, back to back"),
        note: note(record),
        x: Axis::marked("MiB touched (logarithmic)", &mib),
        y: Axis::log("ms (logarithmic)", ms.into_iter()),
        lines: all,
    }
}
