//! The report: one HTML page with its plots in it, which needs no server and no external resource, and each plot as a
//! file of its own.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use super::plots;
use super::record::{LoadRecord, Ran};
use crate::stats::figures;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#212529;background:#fff;max-width:900px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}h2{margin-top:2.2em;border-top:1px solid #dee2e6;padding-top:1em}\
table{border-collapse:collapse;margin:.8em 0}th,td{padding:.2em .8em;border-bottom:1px solid #dee2e6;text-align:right}\
th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto;display:block;margin:1em 0}\
.fact{text-align:left}.no{color:#b00020;font-weight:600}.note{color:#495057}pre{overflow-x:auto;font-size:13px}code{background:#f1f3f5;padding:0 .3em}";

/// Writes `index.html` and the plots.
pub(super) fn write(record: &LoadRecord, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let mut sections = String::new();
    for ran in &record.scenarios {
        let plots = plots::of(ran)?;
        for plot in &plots {
            put(
                &dir.join(format!("{}-{}.svg", ran.scenario.name(), plot.name)),
                &plot.svg,
            )?;
        }
        sections.push_str(&section(ran, &plots));
    }
    sections += &traced(record);
    put(&dir.join("index.html"), &page(record, &sections))
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Prints the tables to the terminal.
pub(super) fn print(record: &LoadRecord) {
    println!("\n{} at {} on {}", record.revision, record.date, record.machine);
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header([
        "scenario", "start", "answers", "p50 ms", "p90", "p99", "max", "failures",
    ]);
    for ran in &record.scenarios {
        for (n, row) in latencies(ran).into_iter().enumerate() {
            let name = if n == 0 { ran.scenario.name() } else { "" };
            let failures = if n == 0 {
                ran.tally.failures().to_string()
            } else {
                String::new()
            };
            table.add_row([name.to_owned()].into_iter().chain(row).chain([failures]));
        }
    }
    println!("{table}");
    match &record.trace {
        Ok(trace) => println!(
            "\ntrace {} of a restored invocation, as Jaeger has it\n{}\n",
            trace.id,
            trace.text()
        ),
        Err(why) => println!("\nno trace read back: {why}\n"),
    }
    for note in notes(record) {
        println!("note: {note}");
    }
}

fn page(record: &LoadRecord, sections: &str) -> String {
    let mut out = String::new();
    let facts = [
        ("revision", record.revision.clone()),
        ("began", record.date.clone()),
        ("machine", record.machine.to_string()),
        ("platform", record.platform.clone()),
        ("client", format!("{}, on the same machine", record.k6)),
        ("each scenario", format!("{:.0} s", record.duration_s)),
        (
            "settings",
            match record.settings.is_empty() {
                true => "as they are".to_owned(),
                false => record
                    .settings
                    .iter()
                    .map(|(k, v)| format!("{k}={v}"))
                    .collect::<Vec<_>>()
                    .join(", "),
            },
        ),
    ];
    let rows: String = facts
        .iter()
        .map(|(name, value)| format!("<tr><td>{name}</td><td class=\"fact\">{}</td></tr>", escaped(value)))
        .collect();
    let notes: String = notes(record)
        .iter()
        .map(|n| format!("<li>{}</li>", escaped(n)))
        .collect();
    // Writing to a String does not fail.
    let _written = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Load, {revision}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\n<body><h1>Rekindle under load</h1>\n\
         <table>{rows}</table>\n<ul class=\"note\">{notes}</ul>\n{sections}</body></html>\n",
        revision = escaped(&record.revision),
    );
    out
}

fn traced(record: &LoadRecord) -> String {
    let body = match &record.trace {
        Ok(trace) => {
            let lacks = match trace.lacks.is_empty() {
                true => "It is whole: every span leads to the client's, and gateway, scheduler and worker are in it."
                    .to_owned(),
                false => format!(
                    "<span class=\"no\">It lacks {}.</span>",
                    escaped(&trace.lacks.join(", "))
                ),
            };
            format!(
                "<p>{} as Jaeger has it. {lacks}</p><pre>{}</pre>",
                escaped(&trace.id),
                escaped(&trace.text())
            )
        }
        Err(why) => format!("<p>None was read back: {}</p>", escaped(why)),
    };
    format!("<h2 id=\"trace\">Trace of one restored invocation</h2>{body}\n")
}

fn section(ran: &Ran, plots: &[plots::Plot]) -> String {
    let tally = &ran.tally;
    let mut out = format!(
        "<h2 id=\"{name}\">{name}</h2><p>{}</p><p>{} answers and {} failures in {:.0} s.</p>\n",
        escaped(ran.scenario.about()),
        tally.answers(),
        tally.failures(),
        ran.took_s,
        name = ran.scenario.name(),
    );
    out += &table(&["start", "answers", "p50, ms", "p90", "p99", "max"], latencies(ran));
    if !tally.errors.is_empty() {
        let rows = tally.errors.iter().map(|(code, n)| vec![code.clone(), n.to_string()]);
        out += &table(&["failure", "times"], rows.collect());
    }
    let told = |met: bool| if met { "met" } else { "CROSSED" };
    let rows = ran
        .thresholds
        .iter()
        .map(|t| vec![t.metric.clone(), t.limit.clone(), told(t.met).to_owned()]);
    out += &table(&["threshold", "limit", ""], rows.collect());
    for plot in plots {
        out += &plot.svg;
    }
    if !tally.phases.is_empty() {
        out += "<details><summary>Phases of Server-Timing, medians, ms (they may overlap)</summary>";
        for (start, phases) in &tally.phases {
            let rows = phases
                .iter()
                .map(|(phase, h)| vec![phase.clone(), ms(h.percentile(50.0)), ms(h.percentile(99.0))]);
            out += &table(&[start, "p50", "p99"], rows.collect());
        }
        out += "</details>";
    }
    if tally.functions.len() > 1 {
        let rows = tally.functions.iter().map(|(function, starts)| {
            let of = |start: &str| starts.get(start).copied().unwrap_or(0).to_string();
            vec![function.clone(), of("warm"), of("restored"), of("booted")]
        });
        out += "<details><summary>Answers by function</summary>";
        out += &table(&["function", "warm", "restored", "booted"], rows.collect());
        out += "</details>";
    }
    for (what, samples) in [
        (
            "deploys meanwhile, from the upload until the version serves",
            &tally.deploys_ms,
        ),
        (
            "migrations meanwhile, from the order until the instance serves elsewhere",
            &tally.moves_ms,
        ),
    ] {
        if let Some(f) = figures(samples.iter().copied()) {
            let (count, p50, slowest) = (f.count, ms(f.p50), ms(f.p99));
            let _written = write!(out, "<p>{count} {what}: p50 {p50} ms, slowest {slowest} ms.</p>");
        }
    }
    out
}

/// A row for each start kind.
fn latencies(ran: &Ran) -> Vec<Vec<String>> {
    let rows = ran.tally.latency.iter().map(|(start, h)| {
        let percentiles = [50.0, 90.0, 99.0].map(|p| ms(h.percentile(p)));
        [start.clone(), h.count().to_string()]
            .into_iter()
            .chain(percentiles)
            .chain([ms(h.max())])
            .collect()
    });
    rows.collect()
}

fn notes(record: &LoadRecord) -> Vec<String> {
    let mut notes = vec![
        "k6, the platform and its functions share the cores: under load a latency holds waiting for the client's and other functions' work too".to_owned(),
    ];
    if let Some(fixed) = figures(record.cpu_loop_ms.iter().copied()) {
        notes.push(format!(
            "a fixed CPU loop, {} times before and after the load: min {}, p50 {}, greatest {} ms; its spread is the machine's",
            fixed.count,
            ms(fixed.min),
            ms(fixed.p50),
            ms(fixed.p99)
        ));
    }
    notes.push(format!(
        "others kept {:.0} % of {} cores busy in the second before; load average {:.2}",
        record.busy_before * 100.0,
        record.machine.cores,
        record.load_before
    ));
    notes
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let head: String = head.iter().map(|h| format!("<th>{}</th>", escaped(h))).collect();
    let cell = |text: &String| {
        let class = if text == "CROSSED" { " class=\"no\"" } else { "" };
        format!("<td{class}>{}</td>", escaped(text))
    };
    let rows: String = rows
        .iter()
        .map(|r| format!("<tr>{}</tr>", r.iter().map(cell).collect::<String>()))
        .collect();
    format!("<table><tr>{head}</tr>{rows}</table>\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// About three significant digits.
fn ms(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
