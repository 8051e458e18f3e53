//! The plots that a record asks for, drawn from its series.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::plot::{Axis, Colour, Dot, Dots, Line, Lines, Row, colour, dots, lines};
use crate::record::{Plot, PlotKind, Record, Series};

/// Points of a line from left to right.
type Points = Vec<(f64, f64)>;

/// Ratio of greatest to least value from which an axis is logarithmic.
const DECADES: f64 = 20.0;

/// Writes the plots for which there are figures. Returns how many.
pub(crate) fn write(record: &Record, dir: &Path) -> Result<usize> {
    let plots = all(record)?;
    if !plots.is_empty() {
        fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    }
    for (file, svg) in &plots {
        let path = dir.join(file).with_extension("svg");
        fs::write(&path, svg).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(plots.len())
}

/// The plots by the names of their files, as SVG.
pub(crate) fn all(record: &Record) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    for plot in &record.plots {
        let svg = match &plot.kind {
            PlotKind::Dots { table, measures } => dots_of(record, plot, table, measures).map(|d| dots(&d)),
            kind => lines_of(record, plot, kind).map(|l| lines(&l)),
        };
        if let Some(svg) = svg {
            out.push((plot.file.clone(), svg?));
        }
    }
    Ok(out)
}

/// What the plot is of, and whether its figures may be quoted.
fn note(record: &Record) -> String {
    let quiet = match record.was_quiet() {
        true => "a quiet machine",
        false => "THE MACHINE WAS NOT QUIET: read ratios, quote no figure",
    };
    let day = record.date.split('T').next().unwrap_or_default();
    format!("{} at {day}, {}; {quiet}", record.revision, record.machine)
}

fn chosen<'a>(record: &'a Record, plot: &'a Plot) -> impl Iterator<Item = &'a Series> + Clone {
    let fits = |s: &&Series| plot.only.iter().all(|(label, value)| s.label(label) == value);
    record.series.iter().filter(fits)
}

/// An axis for these values: logarithmic where they span decades.
fn axis(title: &str, values: &[f64]) -> Axis {
    let positive = values.iter().copied().filter(|v| *v > 0.0);
    let (least, greatest) = positive.fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(v), b.max(v)));
    match greatest / least > DECADES {
        true => Axis::log(&format!("{title} (logarithmic)"), values.iter().copied()),
        false => Axis::from_zero(title, values.iter().copied()),
    }
}

fn dots_of(record: &Record, plot: &Plot, table: &str, measures: &[String]) -> Option<Dots> {
    let shown = chosen(record, plot).filter(|s| s.table == table && measures.contains(&s.name));
    let first = shown.clone().next()?;
    let varies = |name: &str| shown.clone().any(|s| s.label(name) != first.label(name));
    let mut rows: Vec<(Vec<(String, String)>, Row)> = Vec::new();
    for series in shown.clone() {
        let at = rows
            .iter()
            .position(|(labels, _)| *labels == series.labels)
            .unwrap_or_else(|| {
                let words = series.labels.iter().filter(|(name, _)| varies(name));
                let name = words.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ");
                rows.push((series.labels.clone(), Row { name, dots: Vec::new() }));
                rows.len() - 1
            });
        let Some(f) = series.values.figures() else { continue };
        let dot = |kind, p: crate::stats::Percentile| Dot {
            kind,
            value: p.value,
            interval: Some((p.low.unwrap_or(p.value), p.high.unwrap_or(p.value))),
        };
        let kind = measures.iter().position(|m| *m == series.name)?;
        match measures.len() {
            // The tail below the median, so that the median is visible if both coincide.
            1 if f.count > 1 => rows[at].1.dots.extend([dot(1, f.tail), dot(0, f.median)]),
            // A zero cannot be shown on a logarithmic axis.
            _ if f.p50 > 0.0 => rows[at].1.dots.push(dot(kind, f.median)),
            _ => {}
        }
    }
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    let all = rows.iter().flat_map(|r| &r.dots);
    let values: Vec<f64> = all
        .flat_map(|d| {
            let (from, to) = d.interval.unwrap_or((d.value, d.value));
            [from, d.value, to]
        })
        .collect();
    let names = match measures.len() {
        1 => vec!["p50, 95 % interval".to_owned(), "p99, 95 % interval".to_owned()],
        _ => measures.to_vec(),
    };
    Some(Dots {
        title: plot.title.clone(),
        note: note(record),
        x: axis(
            &if measures.len() == 1 {
                first.title()
            } else {
                first.unit.clone()
            },
            &values,
        ),
        kinds: names
            .into_iter()
            .enumerate()
            .map(|(n, name)| (name, colour(n)))
            .collect(),
        rows,
    })
}

fn lines_of(record: &Record, plot: &Plot, kind: &PlotKind) -> Option<Lines> {
    let (by, mut all): (&str, Vec<(&Series, Points)>) = match kind {
        PlotKind::Dots { .. } => return None,
        PlotKind::Lines { x, y, by } => {
            let point = |s: &&Series| {
                let of_label = s.label(x).parse().ok();
                let other = |o: &&Series| o.table == s.table && o.labels == s.labels && o.name == *x;
                let of_measure = || Some(chosen(record, plot).find(other)?.values.figures()?.p50);
                Some((of_label.or_else(of_measure)?, s.values.figures()?.p50))
            };
            let of = |s: &'_ Series| s.name == *y;
            let points = chosen(record, plot)
                .filter(|s| of(s))
                .filter_map(|s| Some((s, vec![point(&s)?])));
            (by, points.collect())
        }
        PlotKind::Levels { table, by } => {
            let steps = |s: &Series| steps(s.at.iter().copied().zip(s.values.samples.iter().copied()));
            (
                by,
                chosen(record, plot)
                    .filter(|s| s.table == *table)
                    .map(|s| (s, steps(s)))
                    .collect(),
            )
        }
        PlotKind::Shares { table, by } => {
            let steps = |s: &Series| {
                let mut share = 0.0;
                let both = |(value, up_to)| [(value, std::mem::replace(&mut share, up_to)), (value, up_to)];
                s.values.shares().into_iter().flat_map(both).collect()
            };
            (
                by,
                chosen(record, plot)
                    .filter(|s| s.table == *table)
                    .map(|s| (s, steps(s)))
                    .collect(),
            )
        }
    };
    let first = all.first()?.0;
    let mut drawn: Vec<Line> = Vec::new();
    for (series, points) in &mut all {
        let name = series.label(by);
        match drawn.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.append(points),
            None => drawn.push(Line {
                name: name.to_owned(),
                colour: colour_of(name, drawn.len()),
                points: std::mem::take(points),
            }),
        }
    }
    if let PlotKind::Lines { .. } = kind {
        // A point is no line.
        drawn.retain(|line| line.points.len() > 1);
    }
    let values = |of: fn(&(f64, f64)) -> f64| drawn.iter().flat_map(|l| l.points.iter().map(of)).collect::<Vec<_>>();
    let (xs, ys) = (values(|p| p.0), values(|p| p.1));
    let (x, y) = match kind {
        PlotKind::Lines { x, .. } => {
            drawn
                .iter_mut()
                .for_each(|l| l.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
            let unit = record.series.iter().find(|s| s.name == *x).map(Series::title);
            let x = match unit {
                Some(title) => axis(&title, &xs),
                None => Axis::marked(&format!("{x} (logarithmic)"), &xs),
            };
            (x, axis(&first.title(), &ys))
        }
        PlotKind::Shares { .. } => (
            Axis::log(&format!("{} (logarithmic)", first.title()), xs.into_iter()),
            Axis {
                max: 1.0,
                ..Axis::from_zero("share", [1.0].into_iter())
            },
        ),
        _ => (
            Axis::from_zero("seconds since it began", xs.into_iter()),
            Axis::from_zero(&first.title(), ys.into_iter()),
        ),
    };
    Some(Lines {
        title: plot.title.clone(),
        note: note(record),
        x,
        y,
        lines: drawn,
    })
}

/// The colour of a line: a kind of start and a failure have the same in every plot.
fn colour_of(name: &str, at: usize) -> Colour {
    match name {
        "warm" | "busy" => colour(2),
        "restored" => colour(0),
        "booted" | "starting" => colour(1),
        "parked" => colour(3),
        "idle" => colour(5),
        "failures" => Colour { 0: 200, 1: 0, 2: 0 },
        _ => colour(at + 4),
    }
}

/// Levels that hold until the next one.
fn steps(levels: impl Iterator<Item = (f64, f64)>) -> Points {
    let mut out = Points::new();
    for (at, level) in levels {
        if let Some((_, before)) = out.last().copied() {
            out.push((at, before));
        }
        out.push((at, level));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    #[test]
    fn a_level_holds_until_the_next() {
        let levels = [(0.0, 1.0), (2.0, 5.0)].into_iter();
        assert_eq!(steps(levels), [(0.0, 1.0), (2.0, 1.0), (2.0, 5.0)]);
    }

    #[test]
    fn every_kind_of_plot_shows_the_lines_and_rows_of_its_series() {
        let mut record = Record::begin("test");
        for (subject, size) in [("restored", 64), ("restored", 128), ("plain", 64)] {
            let row = record::Row::of("Starts", &[("subject", &subject), ("MiB", &size)]);
            record.extend(&row, "answer", "ms", [1.0, f64::from(size)]);
        }
        let row = record::Row::of("Pool", &[("state", &"busy")]);
        let series = record.series(&row, "instances", "");
        series.values.push(3.0);
        series.at.push(0.5);
        let lines = |x: &str| PlotKind::Lines {
            x: x.to_owned(),
            y: "answer".to_owned(),
            by: "subject".to_owned(),
        };
        let (table, by) = ("Starts".to_owned(), "subject".to_owned());
        for (file, kind) in [
            (
                "dots",
                PlotKind::Dots {
                    table: table.clone(),
                    measures: vec!["answer".to_owned()],
                },
            ),
            ("lines", lines("MiB")),
            ("shares", PlotKind::Shares { table, by }),
            (
                "levels",
                PlotKind::Levels {
                    table: "Pool".to_owned(),
                    by: "state".to_owned(),
                },
            ),
            ("none", lines("nothing")),
        ] {
            let (file, title) = (file.to_owned(), file.to_uppercase());
            record.plots.push(Plot {
                file,
                title,
                only: Vec::new(),
                kind,
            });
        }
        let plots = all(&record).unwrap();
        let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["dots", "lines", "shares", "levels"]);
        for (name, words) in [
            ("dots", "restored, 128"),
            ("lines", "restored"),
            ("shares", "restored"),
            ("levels", "busy"),
        ] {
            let svg = &plots.iter().find(|(n, _)| n == name).unwrap().1;
            assert!(
                svg.contains(words) && svg.contains(&name.to_uppercase()),
                "no {words} in {svg}"
            );
        }
    }
}
