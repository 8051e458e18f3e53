//! A record as one HTML page with its tables and plots in it, which needs no server and no external resource.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::draw;
use crate::record::Record;
use crate::table::{self, Grid};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#212529;background:#fff;max-width:960px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}\
table{border-collapse:collapse;margin:.8em 0}th,td{padding:.2em .8em;border-bottom:1px solid #dee2e6;text-align:right}\
.word{text-align:left}svg{max-width:100%;height:auto;display:block;margin:1em 0}\
.note{color:#495057}pre{overflow-x:auto;font-size:13px}";

/// Writes the page.
pub(crate) fn write(record: &Record, path: &Path) -> Result<()> {
    let page = page(record)?;
    fs::write(path, page).with_context(|| format!("{}: cannot be written", path.display()))
}

fn page(record: &Record) -> Result<String> {
    let mut facts = vec![
        ("revision".to_owned(), record.revision.clone()),
        ("began".to_owned(), record.date.clone()),
        ("machine".to_owned(), record.machine.to_string()),
        (
            "platform".to_owned(),
            record.program.clone().unwrap_or_else(|| "none".to_owned()),
        ),
    ];
    facts.extend(record.facts.iter().cloned());
    let grid = Grid {
        title: String::new(),
        words: 2,
        head: Vec::new(),
        rows: facts.into_iter().map(|(name, value)| vec![name, value]).collect(),
    };
    let (part, revision) = (escaped(&record.part), escaped(&record.revision));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{part}, {revision}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\n\
         <body><h1>{part}</h1>\n{}",
        html(&grid)
    );
    // Writing to a String does not fail.
    let list = |lines: &[String]| {
        lines
            .iter()
            .map(|l| format!("<li>{}</li>", escaped(l)))
            .collect::<String>()
    };
    for lines in [&record.failures, &record.findings, &table::notes(record)] {
        let _written = writeln!(out, "<ul class=\"note\">{}</ul>", list(lines));
    }
    for (_, svg) in draw::all(record)? {
        out += &svg;
    }
    for grid in table::all(record) {
        out += &html(&grid);
    }
    for (title, text) in &record.texts {
        let _written = writeln!(out, "<h2>{}</h2><pre>{}</pre>", escaped(title), escaped(text));
    }
    out += "</body></html>\n";
    Ok(out)
}

fn html(grid: &Grid) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cell = |(n, text): (usize, &String)| {
            let class = if n < grid.words { " class=\"word\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escaped(text))
        };
        format!("<tr>{}</tr>", cells.iter().enumerate().map(cell).collect::<String>())
    };
    let rows: String = grid.rows.iter().map(|cells| row("td", cells)).collect();
    let title = escaped(&grid.title);
    format!("<h2>{title}</h2><table>{}{rows}</table>\n", row("th", &grid.head))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Row;

    #[test]
    fn a_page_holds_facts_tables_and_texts_and_escapes_them() {
        let mut record = Record::begin("load");
        record.fact("setting", "<RATE>");
        record.push(&Row::of("Answers", &[("start", &"warm & idle")]), "latency", "ms", 1.5);
        record.texts.push(("A trace".to_owned(), "a < b".to_owned()));
        let page = page(&record).unwrap();
        for part in ["&lt;RATE&gt;", "warm &amp; idle", "latency, ms", "<pre>a &lt; b</pre>"] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }
}
