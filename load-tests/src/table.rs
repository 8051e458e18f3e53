//! The tables of a record, for a terminal or a page: one for each title, a row for each combination of labels, a column
//! for each measure. The first measure is shown in full and beside the baselines, others by their medians.

use std::fmt::Display;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use crate::record::{Record, Series};
use crate::stats::{Percentile, ROUNDS_MIN, Ratio, ratio};

/// A table with its title.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grid {
    /// Title above it.
    pub(crate) title: String,
    /// Number of columns with words, which come first.
    pub(crate) words: usize,
    /// Titles of the columns.
    pub(crate) head: Vec<String>,
    /// Cells, row by row.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Display for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN);
        table.set_header(&self.head);
        for row in &self.rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(self.words) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        write!(f, "{}\n\n{table}", self.title)
    }
}

/// All tables of a record, in the order in which they were measured.
pub(crate) fn all(record: &Record) -> Vec<Grid> {
    // Levels over time are for plots.
    let shown = || record.series.iter().filter(|s| s.at.is_empty());
    let titles = unique(shown().map(|s| s.table.as_str()));
    let of = |title: &&str| shown().filter(|s| s.table == **title).collect::<Vec<_>>();
    titles
        .iter()
        .map(|title| grid(title, &of(title), &record.baselines))
        .collect()
}

fn grid(title: &str, series: &[&Series], baselines: &[(String, String)]) -> Grid {
    let labels = varying(series);
    let measures = unique(series.iter().map(|s| s.name.as_str()));
    let rows = unique(series.iter().map(|s| &s.labels));
    let find = |labels: &Vec<(String, String)>, name: &str| {
        series.iter().copied().find(|s| s.labels == *labels && s.name == name)
    };
    // Those of whose rows some are compared with others.
    let baselines: Vec<_> = baselines
        .iter()
        .filter(|(label, value)| labels.contains(&label.as_str()) && series.iter().any(|s| s.label(label) == value))
        .collect();
    let mut head: Vec<String> = labels.iter().map(|l| (*l).to_owned()).collect();
    let columns: Vec<Column> = measures
        .iter()
        .enumerate()
        .map(|(n, name)| Column::of(n == 0, series.iter().copied().filter(|s| s.name == *name)))
        .collect();
    for (column, name) in columns.iter().zip(&measures) {
        let title = series
            .iter()
            .find(|s| s.name == *name)
            .map_or_else(String::new, |s| s.title());
        head.extend(column.head(&title));
    }
    head.extend(baselines.iter().map(|(_, value)| format!("over {value}")));
    let cells = |row: &&Vec<(String, String)>| {
        let value = |label: &&str| {
            row.iter()
                .find(|(n, _)| n == label)
                .map_or_else(String::new, |(_, v)| v.clone())
        };
        let mut cells: Vec<String> = labels.iter().map(value).collect();
        for (column, name) in columns.iter().zip(&measures) {
            cells.extend(column.cells(find(row, name)));
        }
        for (label, value) in &baselines {
            let own = find(row, measures[0]);
            let base = series
                .iter()
                .find(|s| own.is_some_and(|own| is_base(s, own, label, value)));
            let ratio = own.zip(base).and_then(|(own, base)| ratio(&base.values, &own.values));
            cells.push(ratio.map_or_else(|| "-".to_owned(), beside));
        }
        cells
    };
    Grid {
        title: title.to_owned(),
        words: labels.len(),
        rows: rows.iter().map(cells).collect(),
        head,
    }
}

/// Whether `base` is the series with which `own` is compared: of the same measure and labels, but for this one.
fn is_base(base: &Series, own: &Series, label: &str, value: &str) -> bool {
    let others = |s: &Series| s.labels.iter().filter(|(n, _)| n != label).cloned().collect::<Vec<_>>();
    own.label(label) != value && base.label(label) == value && base.name == own.name && others(base) == others(own)
}

/// The labels that distinguish rows; of a table with one row all of them.
fn varying<'a>(series: &[&'a Series]) -> Vec<&'a str> {
    let all = unique(
        series
            .iter()
            .flat_map(|s| s.labels.iter().map(|(name, _)| name.as_str())),
    );
    let differs = |name: &&str| series.iter().any(|s| s.label(name) != series[0].label(name));
    let varying: Vec<&str> = all.iter().copied().filter(differs).collect();
    if varying.is_empty() { all } else { varying }
}

/// How a measure is shown.
enum Column {
    /// Number of samples, least, median, tail.
    Full,
    /// Percentiles of a distribution of many samples.
    Distribution,
    /// The median with its interval.
    Median,
    /// The only sample.
    Single,
}

impl Column {
    fn of<'a>(first: bool, series: impl Iterator<Item = &'a Series> + Clone) -> Self {
        if series.clone().any(|s| !s.values.counts.is_empty()) {
            Self::Distribution
        } else if !series.clone().any(|s| s.values.count() > 1 || s.missing.is_some()) {
            Self::Single
        } else if first {
            Self::Full
        } else {
            Self::Median
        }
    }

    fn head(&self, title: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Full => &["runs", "min", "", "p99"],
            Self::Distribution => &["count", "", "p95", "p99", "p99.9", "max"],
            Self::Median | Self::Single => &[""],
        };
        let word = |word: &&str| match word.is_empty() {
            true => title.to_owned(),
            false => (*word).to_owned(),
        };
        words.iter().map(word).collect()
    }

    fn cells(&self, series: Option<&Series>) -> Vec<String> {
        let width = self.head("").len();
        let figures = series.and_then(|s| s.values.figures());
        let (Some(series), Some(f)) = (series, figures) else {
            let missing = series.is_some_and(|s| s.missing.is_some());
            let mut cells = vec!["-".to_owned(); width];
            cells[0] = if missing { "missing" } else { "-" }.to_owned();
            return cells;
        };
        let at = |percent| number(series.values.percentile(percent).unwrap_or_default());
        match self {
            Self::Full => vec![f.count.to_string(), number(f.min), within(f.median), within(f.tail)],
            Self::Distribution => vec![
                f.count.to_string(),
                number(f.p50),
                at(95.0),
                at(99.0),
                at(99.9),
                number(f.max),
            ],
            Self::Median => vec![within(f.median)],
            Self::Single => vec![number(f.p50)],
        }
    }
}

fn unique<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut out = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}

/// About three significant digits; whole numbers as they are.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.0}"),
        v if v < 0.01 => format!("{value:.4}"),
        v if v < 0.1 => format!("{value:.3}"),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A percentile and its interval; an end that cannot be determined from the samples is left out.
pub(crate) fn within(percentile: Percentile) -> String {
    let end = |end: Option<f64>| end.map_or_else(|| "?".to_owned(), number);
    match (percentile.low, percentile.high) {
        (None, None) => number(percentile.value),
        (low, high) => format!("{} [{}, {}]", number(percentile.value), end(low), end(high)),
    }
}

/// A ratio and its interval.
pub(crate) fn beside(ratio: Ratio) -> String {
    match ratio.interval {
        Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}]", ratio.value),
        None => format!("{:.2}", ratio.value),
    }
}

/// Prints everything that a record says.
pub(crate) fn print(record: &Record) {
    println!("\n{} at {} on {}", record.revision, record.date, record.machine);
    for (name, value) in &record.facts {
        println!("{name}: {value}");
    }
    for grid in all(record) {
        println!("\n{grid}");
    }
    for (title, text) in &record.texts {
        println!("\n{title}\n{text}");
    }
    println!();
    for line in record.findings.iter().chain(&troubles(record)) {
        println!("{line}");
    }
    for note in notes(record) {
        println!("note: {note}");
    }
}

/// What could not be measured, or not always.
fn troubles(record: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    for series in &record.series {
        let labels: Vec<&str> = series.labels.iter().map(|(_, value)| value.as_str()).collect();
        let name = labels.join(", ");
        if let Some(why) = &series.missing {
            lines.push(format!("missing: {name}: {why}"));
        } else if let Some(first) = series.errors.first() {
            lines.push(format!("{name}: {} runs failed: {first}", series.errors.len()));
        }
    }
    lines
}

/// How far the figures can be trusted.
pub(crate) fn notes(record: &Record) -> Vec<String> {
    let mut notes = Vec::new();
    let few = |s: &Series| (2..100).contains(&s.values.count());
    if record.series.iter().any(few) {
        notes.push(format!(
            "below 100 runs p99 is the slowest run; in brackets is where the true figure lies with \
             95 %, ? where so few runs do not tell; ratios take {ROUNDS_MIN} rounds"
        ));
    }
    if let Some(fixed) = crate::stats::figures(record.cpu_loop_ms.iter().copied()) {
        notes.push(format!(
            "a fixed CPU loop, {} times: min {}, p50 {}, p99 {} ms, p99/p50 {:.2}",
            fixed.count,
            number(fixed.min),
            number(fixed.p50),
            number(fixed.p99),
            fixed.p99 / fixed.p50
        ));
    }
    notes.push(format!(
        "others kept {:.0} % of {} cores busy in the second before; load average {:.2} before, {:.2} after",
        record.busy_before * 100.0,
        record.machine.cores,
        record.load_before,
        record.load_after
    ));
    if !record.was_quiet() {
        notes.push("THE MACHINE WAS NOT QUIET: compare within this run, and quote no figure of it".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Row;

    fn cells(grid: &Grid, word: &str) -> Vec<String> {
        grid.rows
            .iter()
            .find(|row| row.iter().any(|c| c == word))
            .unwrap()
            .clone()
    }

    #[test]
    fn ratios_are_those_of_medians_with_the_same_other_labels() {
        let mut record = Record::begin("test");
        record.baseline("subject", "plain");
        for (subject, samples) in [
            ("restored", &[9.0, 10.0, 30.0][..]),
            ("plain", &[100.0]),
            ("podman", &[]),
        ] {
            let row = Row::of("Starts", &[("subject", &subject), ("size", &64)]);
            record.extend(&row, "first response", "ms", samples.iter().copied());
            record.push(&row, "sandboxes", "", 3.0);
        }
        record
            .series(
                &Row::of("Starts", &[("subject", &"podman"), ("size", &64)]),
                "first response",
                "ms",
            )
            .missing = Some("not installed".to_owned());
        let all = all(&record);
        assert_eq!(all.len(), 1);
        assert_eq!(
            all[0].head,
            [
                "subject",
                "runs",
                "min",
                "first response, ms",
                "p99",
                "sandboxes",
                "over plain"
            ],
            "a label that all rows share is no column"
        );
        let restored = cells(&all[0], "restored");
        assert_eq!(restored[1..6], ["3", "9", "10", "30 [10, ?]", "3"]);
        assert!(restored[6].starts_with("0.10"), "{restored:?}");
        assert_eq!(cells(&all[0], "plain")[6], "-");
        assert_eq!(cells(&all[0], "podman")[1], "missing");
        assert!(troubles(&record)[0].ends_with("not installed"));
    }

    #[test]
    fn a_distribution_has_its_percentiles() {
        let mut record = Record::begin("test");
        let row = Row::of("Faults", &[("memory", &"template")]);
        record.series(&row, "took", "µs").values.add([(1.0, 98), (50.0, 2)]);
        let grid = &all(&record)[0];
        assert_eq!(grid.head[1..], ["count", "took, µs", "p95", "p99", "p99.9", "max"]);
        assert_eq!(grid.rows[0][1..], ["100", "1", "1", "50", "50", "50"]);
    }
}
