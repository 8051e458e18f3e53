//! Draws the memory map as a picture (SVG). Pure.
//!
//! Each mapping with contents is drawn as rows of cells, like lines in a book. A cell stands for one page, or for a
//! power of two of them, so that both 64 MiB and 4 GiB fit on a few screens. Rows without contents are left out and
//! counted.

use std::fmt::Write as _;

use super::view::{Kind, MappingView, ProcessView, Span};
use crate::codec::PAGE_BYTES;

const COLUMNS: u64 = 256;
/// Approximate number of cells in the whole picture.
const CELLS: u64 = 32 << 10;
const CELL_WIDTH: u64 = 4;
const ROW_HEIGHT: u64 = 6;
const LEFT: u64 = 24;
const WIDTH: u64 = LEFT * 2 + COLUMNS * CELL_WIDTH;
const WORKING_SET: &str = "#111827";

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Zero => "#e5e7eb",
        Kind::Raw => "#f97316",
        Kind::Compressed => "#3b82f6",
        Kind::Difference => "#22c55e",
        Kind::Eager => "#a855f7",
        Kind::Parent => "#14b8a6",
    }
}

/// Draws the memory of `processes` under `title`. The size of the picture depends on the number of mappings, and hardly
/// on the number of pages.
pub fn draw(title: &str, processes: &[ProcessView]) -> String {
    let held = |m: &MappingView| m.kinds.total();
    let pages: u64 = processes.iter().flat_map(|p| &p.mappings).map(held).sum::<u64>() / PAGE_BYTES as u64;
    let per_cell = pages.div_ceil(CELLS).max(1).next_power_of_two();
    let mut body = String::new();
    let mut y = legend(&mut body, title, per_cell, processes);
    for process in processes {
        y += 14;
        text(&mut body, LEFT, y + 12, "p", &format!("process {}", process.pid));
        y += 22;
        let (full, empty): (Vec<_>, Vec<_>) = process.mappings.iter().partition(|m| held(m) > 0);
        for mapping in full {
            y = draw_mapping(&mut body, mapping, per_cell, y);
        }
        text(
            &mut body,
            LEFT,
            y + 10,
            "f",
            &format!("and {} mappings of which nothing is stored", empty.len()),
        );
        y += 18;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"ui-monospace, monospace\"><style>\
         .t{{font-size:15px;font-weight:bold}}.p{{font-size:13px;font-weight:bold}}\
         .m{{font-size:10px}}.f{{font-size:10px;fill:#6b7280}}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n",
        height = y + 12,
    )
}

fn legend(body: &mut String, title: &str, per_cell: u64, processes: &[ProcessView]) -> u64 {
    text(body, LEFT, 28, "t", title);
    let mut x = LEFT;
    for kind in Kind::ALL {
        let bytes: u64 = processes.iter().map(|p| p.kinds().of(kind)).sum();
        rect(body, x, 42, 12, 12, colour(kind));
        text(body, x + 17, 52, "m", &format!("{} {}", kind.word(), size(bytes)));
        x += 165;
    }
    let touched: u64 = processes
        .iter()
        .flat_map(|p| &p.mappings)
        .map(|m| m.working_set_bytes)
        .sum();
    rect(body, LEFT, 64, 12, 3, WORKING_SET);
    let cell = size(per_cell * PAGE_BYTES as u64);
    let row = size(per_cell * COLUMNS * PAGE_BYTES as u64);
    let note = format!(
        "working set {} (line under a cell); a cell is {cell}, a row {row}, white holds nothing",
        size(touched)
    );
    text(body, LEFT + 17, 70, "m", &note);
    80
}

/// Number of pages of each kind in a cell, and whether any is in the working set.
#[derive(Clone, Copy, Default)]
struct Cell {
    pages: [u64; Kind::ALL.len()],
    touched: bool,
}

impl Cell {
    /// The most frequent kind.
    fn kind(&self) -> Option<Kind> {
        let most = Kind::ALL.iter().zip(self.pages).max_by_key(|(_, pages)| *pages);
        most.filter(|(_, pages)| *pages > 0).map(|(kind, _)| *kind)
    }
}

fn draw_mapping(body: &mut String, mapping: &MappingView, per_cell: u64, mut y: u64) -> u64 {
    let kinds = &mapping.kinds;
    let parts: Vec<String> = Kind::ALL
        .iter()
        .filter(|k| kinds.of(**k) > 0)
        .map(|k| format!("{} {}", size(kinds.of(*k)), k.word()))
        .collect();
    let label = format!(
        "{:#x}-{:#x} {} {}: {}",
        mapping.start,
        mapping.end,
        mapping.access,
        mapping.name,
        parts.join(", ")
    );
    text(body, LEFT, y + 10, "m", &label);
    y += 14;
    let page = PAGE_BYTES as u64;
    let per_row = per_cell * COLUMNS;
    let start = mapping.start / page;
    let rows = rows_that_hold(mapping, start, per_row);
    let mut next = 0;
    for row in rows {
        y = gap(body, y, (row - next) * per_row * page);
        let cells = cells_of(mapping, start + row * per_row, per_cell);
        draw_row(body, &cells, y);
        y += ROW_HEIGHT + 1;
        next = row + 1;
    }
    let total = (mapping.end / page - start).div_ceil(per_row);
    gap(body, y, total.saturating_sub(next) * per_row * page) + 6
}

/// Notes how much was left out.
fn gap(body: &mut String, y: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        return y;
    }
    text(body, LEFT + 8, y + 9, "f", &format!("… {} not stored", size(bytes)));
    y + 13
}

fn rows_that_hold(mapping: &MappingView, start: u64, per_row: u64) -> Vec<u64> {
    let mut rows: Vec<u64> = Vec::new();
    for span in &mapping.spans {
        let (first, last) = (
            (span.first.0 - start) / per_row,
            (span.first.0 + span.pages - 1 - start) / per_row,
        );
        let from = rows.last().map_or(first, |row| first.max(row + 1));
        rows.extend(from..=last);
    }
    rows
}

fn cells_of(mapping: &MappingView, first: u64, per_cell: u64) -> Vec<Cell> {
    let mut cells = vec![Cell::default(); COLUMNS as usize];
    let end = first + per_cell * COLUMNS;
    let from = mapping.spans.partition_point(|s| s.first.0 + s.pages <= first);
    for span in mapping.spans[from..].iter().take_while(|s| s.first.0 < end) {
        add_span(&mut cells, span, first, end, per_cell);
    }
    let from = mapping.working_set.partition_point(|p| p.0 < first);
    for touched in mapping.working_set[from..].iter().take_while(|p| p.0 < end) {
        cells[((touched.0 - first) / per_cell) as usize].touched = true;
    }
    cells
}

fn add_span(cells: &mut [Cell], span: &Span, first: u64, end: u64, per_cell: u64) {
    let kind = Kind::ALL.iter().position(|k| *k == span.kind).unwrap_or(0);
    let mut page = span.first.0.max(first);
    let last = (span.first.0 + span.pages).min(end);
    while page < last {
        let cell = (page - first) / per_cell;
        let cell_end = (first + (cell + 1) * per_cell).min(last);
        cells[cell as usize].pages[kind] += cell_end - page;
        page = cell_end;
    }
}

/// Draws each run of equal cells as one rectangle.
fn draw_row(body: &mut String, cells: &[Cell], y: u64) {
    runs(cells, Cell::kind, |at, len, kind| {
        let x = LEFT + at * CELL_WIDTH;
        rect(body, x, y, len * CELL_WIDTH, ROW_HEIGHT - 2, colour(kind));
    });
    runs(
        cells,
        |c| c.touched.then_some(()),
        |at, len, ()| {
            let x = LEFT + at * CELL_WIDTH;
            rect(body, x, y + ROW_HEIGHT - 2, len * CELL_WIDTH, 2, WORKING_SET);
        },
    );
}

fn runs<T: PartialEq + Copy>(cells: &[Cell], of: impl Fn(&Cell) -> Option<T>, mut draw: impl FnMut(u64, u64, T)) {
    let mut at = 0;
    for run in cells.chunk_by(|a, b| of(a) == of(b)) {
        let len = run.len() as u64;
        if let Some(value) = of(&run[0]) {
            draw(at, len, value);
        }
        at += len;
    }
}

fn rect(body: &mut String, x: u64, y: u64, width: u64, height: u64, fill: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
    );
}

fn text(body: &mut String, x: u64, y: u64, class: &str, content: &str) {
    let _ = writeln!(
        body,
        "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>",
        escaped(content)
    );
}

/// Escapes text, because a path may contain anything.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Kinds;
    use crate::pagemap::PageIndex;

    /// A mapping of `pages` pages whose runs of 64 pages have each kind in turn, with every 100th page touched, then a
    /// hole.
    fn process(pages: u64) -> ProcessView {
        let spans: Vec<Span> = (0..pages / 64)
            .map(|n| Span {
                first: PageIndex(0x100 + n * 64),
                pages: 64,
                kind: Kind::ALL[(n % 5) as usize],
                stored_bytes: 1,
            })
            .collect();
        let fifth = pages / 5 * 4096;
        let mapping = MappingView {
            start: 0x10_0000,
            end: 0x10_0000 + (pages + (1 << 30)) * 4096,
            access: "rw-".to_owned(),
            name: "/a<b>&c".to_owned(),
            kinds: Kinds {
                zero_bytes: fifth,
                raw_bytes: fifth,
                compressed_bytes: fifth,
                difference_bytes: fifth,
                eager_bytes: fifth,
                parent_bytes: 0,
            },
            stored_bytes: 0,
            working_set_bytes: pages / 100 * 4096,
            spans,
            working_set: (0..pages / 100).map(|n| PageIndex(0x100 + n * 100)).collect(),
        };
        ProcessView {
            pid: 7,
            mappings: vec![mapping],
        }
    }

    #[test]
    fn small_and_large_memory_both_make_a_picture_of_some_size() {
        for mib in [64_u64, 1024, 4096] {
            let picture = draw("a & b", &[process(mib << 8)]);
            assert!(picture.len() < 6 << 20, "{mib} MiB: {} bytes", picture.len());
            let height = picture.split("height=\"").nth(1).unwrap().split('"').next().unwrap();
            let height: u64 = height.parse().unwrap();
            assert!((300..3000).contains(&height), "{mib} MiB: {height} pixels");
            assert!(picture.contains("/a&lt;b&gt;&amp;c") && picture.contains("a &amp; b"));
            assert!(
                picture.contains("4.0 TiB") || picture.contains("GiB not stored"),
                "the hole is told"
            );
            for kind in &Kind::ALL[..5] {
                assert!(
                    picture.matches(colour(*kind)).count() > 1,
                    "{mib} MiB: no {}",
                    kind.word()
                );
            }
            assert!(picture.matches(WORKING_SET).count() > 1);
        }
    }

    #[test]
    fn nothing_makes_a_picture_too() {
        let none = draw("none", &[]);
        assert!(none.starts_with("<svg") && none.ends_with("</svg>\n"));
    }
}
