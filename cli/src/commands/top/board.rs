//! The content of `fn top`'s screen, and what its keys do.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState};
use rekindle_wire::stats::Stats;

use super::screen;
use super::view::{Row, View};

/// Number of readings whose rates are drawn.
const HISTORY: usize = 240;
/// Number of lines from which there is room for the rates' curve.
const CURVE_FROM: u16 = 20;
const PAGE: usize = 10;

/// What a key asks of the drawing loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopAction {
    GoOn,
    End,
}

/// The order of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Rate,
    Cold,
    Failed,
    P99,
    Waiting,
    Memory,
    Name,
}

impl Order {
    const ALL: [Self; 7] = [
        Self::Rate,
        Self::Cold,
        Self::Failed,
        Self::P99,
        Self::Waiting,
        Self::Memory,
        Self::Name,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Cold => "cold",
            Self::Failed => "failed",
            Self::P99 => "p99",
            Self::Waiting => "waiting",
            Self::Memory => "memory",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|o| *o == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Orders the row that comes first as the smaller one.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let most = match self {
            Self::Rate => b.per_second.total_cmp(&a.per_second),
            Self::Cold => b.cold_per_second.total_cmp(&a.cold_per_second),
            Self::Failed => b.failed_per_second.total_cmp(&a.failed_per_second),
            Self::P99 => b.p99_ms.unwrap_or(-1.0).total_cmp(&a.p99_ms.unwrap_or(-1.0)),
            Self::Waiting => b.waiting.cmp(&a.waiting),
            Self::Memory => b.memory_bytes.cmp(&a.memory_bytes),
            Self::Name => Ordering::Equal,
        };
        most.then_with(|| a.name.cmp(&b.name))
    }
}

/// The screen.
#[derive(Debug)]
pub(super) struct Board {
    every: Duration,
    pub(super) view: View,
    /// Why there is no newer view.
    pub(super) error: Option<String>,
    /// Invocations a second between readings, in thousandths, newest first.
    rates: VecDeque<u64>,
    order: Order,
    /// The marked function; the first if it is gone.
    marked: Option<String>,
    /// Whether its kinds of start are shown.
    is_open: bool,
    functions: TableState,
}

impl Board {
    /// An empty screen. What it shows is read once in `every`.
    pub(super) fn new(every: Duration) -> Self {
        Self {
            every,
            view: View::default(),
            error: None,
            rates: VecDeque::new(),
            order: Order::Rate,
            marked: None,
            is_open: false,
            functions: TableState::default(),
        }
    }

    /// Records a reading `after`, with the one `before` it.
    pub(super) fn note(&mut self, before: Option<&Stats>, after: &Stats) {
        self.error = None;
        if let Some(before) = before {
            let rate = View::between(before, after).total.per_second;
            self.rates.push_front((rate * 1e3) as u64);
            self.rates.truncate(HISTORY);
        }
    }

    pub(super) fn on_key(&mut self, key: KeyEvent) -> LoopAction {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return LoopAction::End,
            KeyCode::Esc if self.is_open => self.is_open = false,
            KeyCode::Char('q') | KeyCode::Esc => return LoopAction::End,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Enter => self.is_open = !self.is_open,
            KeyCode::Up | KeyCode::Char('k') => self.mark(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.mark(|at, _| at + 1),
            KeyCode::PageUp => self.mark(|at, _| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.mark(|at, _| at + PAGE),
            KeyCode::Home => self.mark(|_, _| 0),
            KeyCode::End => self.mark(|_, last| last),
            _ => {}
        }
        LoopAction::GoOn
    }

    /// Marks a function, chosen from the mark's place and the last one's.
    fn mark(&mut self, place: impl Fn(usize, usize) -> usize) {
        let sorted = self.sorted();
        let Some(last) = sorted.len().checked_sub(1) else {
            return;
        };
        let at = self.marked_at(&sorted).unwrap_or_default();
        self.marked = Some(sorted[place(at, last).min(last)].name.clone());
    }

    fn marked_at(&self, rows: &[&Row]) -> Option<usize> {
        rows.iter().position(|row| Some(&row.name) == self.marked.as_ref())
    }

    fn sorted(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.view.functions.iter().collect();
        rows.sort_by(|a, b| self.order.compare(a, b));
        rows
    }

    /// Draws the whole screen.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let all = frame.area();
        let curve = if all.height >= CURVE_FROM { 3 } else { 0 };
        let workers = u16::try_from(self.view.workers.len() + 1).unwrap_or(u16::MAX);
        let starts = self.starts();
        let open = u16::try_from(starts.as_ref().map_or(0, |rows| rows.len() + 2)).unwrap_or(u16::MAX);
        let [head, rates, _, hosts, _, functions, detail, keys] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(curve),
            Constraint::Length(1),
            Constraint::Length(workers.min(all.height / 3)),
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(open.min(all.height / 3)),
            Constraint::Length(1),
        ])
        .areas(all);
        let lines = [screen::headline(&self.view), screen::totals(&self.view)];
        frame.render_widget(Paragraph::new(Text::from_iter(lines)), head);
        let data: Vec<u64> = self.rates.iter().rev().copied().collect();
        let shown = data.len().saturating_sub(usize::from(rates.width));
        let curve = Sparkline::default().data(&data[shown..]).style(Color::Cyan);
        frame.render_widget(curve, rates);
        let rows = self.view.workers.iter().map(|w| screen::worker(w).to_vec()).collect();
        let workers = table(&screen::WORKERS, 2, &screen::WORKERS_SPARED, rows, hosts.width);
        frame.render_widget(workers, hosts);
        self.draw_functions(frame, functions);
        if let Some(rows) = starts {
            frame.render_widget(table(&screen::STARTS, 1, &["EVER"], rows, detail.width), detail);
        }
        frame.render_widget(self.last_line(), keys);
    }

    fn draw_functions(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let sorted = self.sorted();
        let at = self.marked_at(&sorted);
        let rows: Vec<Vec<String>> = sorted.iter().map(|row| screen::function(row).to_vec()).collect();
        let is_empty = rows.is_empty();
        let table = table(&screen::FUNCTIONS, 1, &screen::FUNCTIONS_SPARED, rows, area.width)
            .row_highlight_style(Modifier::REVERSED);
        self.functions.select(Some(at.unwrap_or_default()));
        frame.render_stateful_widget(table, area, &mut self.functions);
        if is_empty && area.height > 1 {
            let below = Rect {
                y: area.y + 1,
                height: 1,
                ..area
            };
            frame.render_widget("Nothing is deployed: `fn deploy DIR` does that.", below);
        }
    }

    /// How invocations of the marked function start, if that is shown.
    fn starts(&self) -> Option<Vec<Vec<String>>> {
        let sorted = self.sorted();
        let row = sorted.get(self.marked_at(&sorted).unwrap_or_default());
        let row = row.filter(|_| self.is_open)?;
        Some(
            row.starts
                .iter()
                .map(|(start, s)| screen::start(&row.name, start, s).to_vec())
                .collect(),
        )
    }

    fn last_line(&self) -> Line<'static> {
        if let Some(error) = &self.error {
            let every = self.every.as_secs();
            let text = format!(
                "not up to date, asked again every {every} s: {}",
                error.replace('\n', " ")
            );
            return Line::styled(text, Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        }
        let order = self.order.name();
        Line::styled(
            format!("q ends  ↑ ↓ PgUp PgDn move  Enter: how it starts  s: by {order}"),
            Modifier::DIM,
        )
    }
}

/// Cells between two columns.
const SPACING: u16 = 2;

/// A table of text whose first columns are names, and the others numbers. What is not wide enough for all goes without
/// the columns that can be spared, one after the other.
fn table<'a>(head: &[&'a str], names: usize, spared: &[&str], rows: Vec<Vec<String>>, width: u16) -> Table<'a> {
    let wide = |text: &str| u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    let width_of = |(column, head): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| wide(cell));
        cells.max().unwrap_or_default().max(wide(head))
    };
    let mut columns: Vec<(usize, u16)> = head.iter().enumerate().map(|at| (at.0, width_of(at))).collect();
    for name in spared {
        let needed = columns.iter().map(|(_, wide)| wide.saturating_add(SPACING));
        if needed.fold(0, u16::saturating_add) <= width.saturating_add(SPACING) {
            break;
        }
        columns.retain(|(column, _)| head[*column] != *name);
    }
    let cell = |(column, text): (usize, String)| {
        let side = if column < names {
            Alignment::Left
        } else {
            Alignment::Right
        };
        Cell::from(Text::from(text).alignment(side))
    };
    let row = |cells: Vec<String>| {
        let kept = cells.into_iter().enumerate();
        let kept = kept.filter(|(at, _)| columns.iter().any(|(column, _)| column == at));
        TableRow::new(kept.map(cell).collect::<Vec<_>>())
    };
    let widths: Vec<_> = columns.iter().map(|(_, wide)| Constraint::Length(*wide)).collect();
    let head = row(head.iter().map(|h| (*h).to_owned()).collect()).style(Modifier::BOLD);
    Table::new(rows.into_iter().map(row).collect::<Vec<_>>(), widths)
        .header(head)
        .column_spacing(SPACING)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::view::tests::stats;
    use super::*;

    /// So many functions, of which the last is the busiest.
    fn board(functions: usize) -> Board {
        let names: Vec<String> = (0..functions).map(|n| format!("f{n:03}")).collect();
        let of = |count: fn(usize) -> u64| -> Vec<(&str, &str, u64, u64)> {
            let one = |(n, name): (usize, &'_ String)| -> (&'static str, &'static str, u64, u64) {
                (Box::leak(name.clone().into_boxed_str()), "restored", count(n), 0)
            };
            names.iter().enumerate().map(one).collect()
        };
        let (before, after) = (stats(0, &of(|_| 0)), stats(1_000, &of(|n| n as u64)));
        let mut board = Board::new(Duration::from_secs(1));
        board.note(Some(&before), &after);
        board.view = View::between(&before, &after);
        board
    }

    fn drawn(board: &mut Board, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| board.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn press(board: &mut Board, codes: &[KeyCode]) -> LoopAction {
        let mut wish = LoopAction::GoOn;
        for code in codes {
            wish = board.on_key(KeyEvent::from(*code));
        }
        wish
    }

    fn functions_of(lines: &[String]) -> Vec<&str> {
        let first = |line: &'_ String| line.split_whitespace().next().map(str::len) == Some(4) && line.starts_with('f');
        lines.iter().filter(|line| first(line)).map(|line| &line[..4]).collect()
    }

    #[test]
    fn a_narrow_screen_shows_fewer_columns_and_cuts_none_off() {
        let mut board = board(2);
        board.view.functions[0].memory_bytes = 640 << 20;
        let has = |lines: &[String], what: &str| lines.iter().any(|line| line.contains(what));
        let wide = drawn(&mut board, 120, 30);
        assert!(has(&wide, "EVICTED") && has(&wide, "640.0 MiB"), "{wide:#?}");
        let narrow = drawn(&mut board, 72, 30);
        assert!(!has(&narrow, "EVICTED") && has(&narrow, "640.0 MiB"), "{narrow:#?}");
    }

    #[test]
    fn the_busiest_is_first_and_all_can_be_scrolled_to() {
        let mut board = board(100);
        let lines = drawn(&mut board, 120, 30);
        assert!(lines[0].contains("100 functions"), "{lines:#?}");
        assert!(lines.last().unwrap().contains("s: by rate"), "{lines:#?}");
        assert_eq!(functions_of(&lines)[..2], ["f099", "f098"]);
        press(&mut board, &[KeyCode::End]);
        assert_eq!(functions_of(&drawn(&mut board, 120, 30)).last(), Some(&"f000"));
        press(&mut board, &[KeyCode::Home]);
        assert_eq!(functions_of(&drawn(&mut board, 120, 30))[0], "f099");
    }

    #[test]
    fn the_mark_stays_with_its_function_whatever_the_order() {
        let mut board = board(20);
        press(&mut board, &[KeyCode::Down, KeyCode::Down]);
        assert_eq!(board.marked.as_deref(), Some("f017"));
        while board.order != Order::Name {
            press(&mut board, &[KeyCode::Char('s')]);
        }
        assert_eq!(functions_of(&drawn(&mut board, 120, 40))[0], "f000");
        press(&mut board, &[KeyCode::Up]);
        assert_eq!(board.marked.as_deref(), Some("f016"));
        press(&mut board, &[KeyCode::PageDown]);
        assert_eq!(board.marked.as_deref(), Some("f019"), "there is nothing below");
    }

    #[test]
    fn a_function_s_kinds_of_start_are_opened_and_closed() {
        let mut board = board(5);
        assert!(!drawn(&mut board, 120, 30).concat().contains("restored"));
        press(&mut board, &[KeyCode::Enter]);
        let lines = drawn(&mut board, 120, 30);
        let starts = lines.iter().find(|line| line.contains("restored"));
        assert!(starts.is_some_and(|line| line.starts_with("f004")), "{lines:#?}");
        assert_eq!(
            press(&mut board, &[KeyCode::Esc]),
            LoopAction::GoOn,
            "it closes that first"
        );
        assert_eq!(press(&mut board, &[KeyCode::Esc]), LoopAction::End);
    }

    #[test]
    fn a_platform_that_does_not_answer_is_told_until_it_does() {
        let mut board = board(5);
        board.error = Some("no connection:\nrefused".to_owned());
        let lines = drawn(&mut board, 120, 30);
        assert!(lines.last().unwrap().contains("no connection: refused"), "{lines:#?}");
        assert_eq!(functions_of(&lines).len(), 5, "what was last seen stays");
        board.note(None, &stats(2_000, &[]));
        assert!(!drawn(&mut board, 120, 30).last().unwrap().contains("refused"));
    }

    #[test]
    fn it_fits_any_terminal() {
        let mut board = board(50);
        press(&mut board, &[KeyCode::Enter]);
        for (width, height) in [(1, 1), (10, 3), (40, 10), (80, 24), (300, 100)] {
            assert_eq!(drawn(&mut board, width, height).len(), usize::from(height));
        }
        let lines = drawn(&mut Board::new(Duration::from_secs(1)), 80, 24);
        assert!(lines.iter().any(|l| l.contains("fn deploy")), "{lines:#?}");
    }

    #[test]
    fn q_and_interrupts_end_it() {
        let mut board = board(1);
        assert_eq!(press(&mut board, &[KeyCode::Char('x')]), LoopAction::GoOn);
        assert_eq!(press(&mut board, &[KeyCode::Char('q')]), LoopAction::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(board.on_key(interrupt), LoopAction::End);
        assert_eq!(press(&mut board, &[KeyCode::Char('c')]), LoopAction::GoOn);
    }
}
