//! Output on a terminal: tables, sizes, durations, colours, progress. Off a terminal there is no colour and progress is
//! plain lines on standard error, so that standard output stays usable in pipes.

use std::env;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rekindle_wire::ApiError;
use rekindle_wire::function_config::{Base, Runtime};
use serde::Serialize;

use crate::terminal::{COLOURS, PLAIN, harmless, harmless_but_colours, json_escaped};

/// A runtime with the version of its interpreter: `python3.13`, `http, node22` for a server of the function's own, or
/// the name of its container image.
pub(crate) fn runtime(runtime: Runtime, base: Option<Base>, image: Option<&str>) -> String {
    if let Some(image) = image {
        return format!("image {image}");
    }
    let versioned = base
        .and_then(Base::interpreter)
        .map(|interpreter| interpreter.versioned);
    match (runtime, versioned) {
        (Runtime::Http, Some(versioned)) => format!("{}, {versioned}", runtime.as_str()),
        (_, versioned) => versioned.unwrap_or(runtime.as_str()).to_owned(),
    }
}

/// A colour by its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// It works.
    Good,
    /// It works less well than it could.
    Warning,
    /// It does not work.
    Bad,
    /// It matters less.
    Faint,
}

/// `text` in its colour if standard output is a terminal and colour is not disabled.
pub(crate) fn tinted(text: &str, tone: Tone) -> String {
    tint(text, tone, io::stdout().is_terminal())
}

/// `text` in its colour if standard error is a terminal and colour is not disabled.
pub(crate) fn tinted_err(text: &str, tone: Tone) -> String {
    tint(text, tone, io::stderr().is_terminal())
}

fn tint(text: &str, tone: Tone, terminal: bool) -> String {
    if !terminal || env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) {
        return text.to_owned();
    }
    format!("{}{text}{PLAIN}", COLOURS[tone as usize])
}

/// A table without lines, at most as wide as the terminal.
pub(crate) fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(head.map(|h| tinted(h, Tone::Faint)));
    table
}

/// Prints a table without the blanks at line ends.
pub(crate) fn print_table(table: &Table) {
    for line in table.lines() {
        say!("{}", line.trim_end());
    }
}

/// Prints `value` as JSON.
pub(crate) fn print_json<T: Serialize + ?Sized>(value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("the answer cannot be written as JSON")?;
    say!("{}", json_escaped(&text));
    Ok(())
}

/// `1536` as `1.5 KiB`.
pub(crate) fn bytes(n: u64) -> String {
    let mut value = n as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{n} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// Milliseconds with as many digits as matter.
pub(crate) fn millis(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.2} s", ms / 1_000.0)
    }
}

/// A duration in milliseconds, with as many digits as matter.
pub(crate) fn duration(d: Duration) -> String {
    millis(d.as_secs_f64() * 1_000.0)
}

/// `n` of something, in the plural unless there is one.
pub(crate) fn count(n: usize, what: &str) -> String {
    let ending = match what {
        _ if n == 1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{n} {what}{ending}")
}

/// Prints an error the way every command does: the API's with its code and the page about it, any other with its
/// causes.
pub(crate) fn print_error(error: &anyhow::Error) {
    let label = |text: &str| tinted_err(text, Tone::Bad);
    if let Some(api) = error.downcast_ref::<ApiError>() {
        eprintln!("{}", api_error(api, label));
        return;
    }
    eprintln!("{} {error:#}", label("error:"));
}

/// Prints an error that does not end the command, with its causes.
pub(crate) fn print_warning(error: &dyn std::error::Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    eprintln!("{} {}", tinted_err("warning:", Tone::Warning), harmless(&text, &[]));
}

fn api_error(error: &ApiError, label: impl Fn(&str) -> String) -> String {
    let code = error.code.as_str();
    let message = harmless(&error.message, &['\t', '\n']);
    let mut text = format!("{} {message}\n", label(&format!("error[{code}]:")));
    if let Some(id) = &error.request_id {
        text.push_str(&format!("  request {id}\n"));
    }
    text.push_str(&format!("  see docs/reference/errors/{code}.md"));
    text
}

/// Progress of long work: a spinner on a terminal, one plain line for each step elsewhere.
#[derive(Debug)]
pub(crate) struct Steps {
    bar: ProgressBar,
    plain: bool,
}

impl Steps {
    /// Shows nothing before the first step; with `quiet`, nothing at all.
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let bar = ProgressBar::new_spinner();
        if quiet || !terminal {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        } else {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self {
            bar,
            plain: !quiet && !terminal,
        }
    }

    /// Whether each step is a line of its own.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Shows that the work is now at `step`.
    pub(crate) fn step(&self, step: impl Into<String>) {
        let step = harmless_but_colours(&step.into());
        if self.plain {
            eprintln!("{step}");
        } else {
            self.bar.set_message(step);
        }
    }

    /// Prints a remark that stays.
    pub(crate) fn note(&self, line: &str) {
        let line = harmless_but_colours(line);
        if self.plain {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Ends the progress; its line is removed.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A bar for `total` bytes of `what`; hidden off a terminal.
pub(crate) fn byte_bar(total: u64, what: &'static str, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if quiet || !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

#[cfg(test)]
mod tests {
    use rekindle_wire::ErrorCode;

    use super::*;

    #[test]
    fn a_runtime_is_shown_with_its_version() {
        assert_eq!(runtime(Runtime::Python, Some(Base::Python313), None), "python3.13");
        assert_eq!(runtime(Runtime::Node, Some(Base::Node), None), "node18");
        assert_eq!(runtime(Runtime::Http, Some(Base::Node22), None), "http, node22");
        assert_eq!(runtime(Runtime::Http, Some(Base::Base), None), "http");
        assert_eq!(
            runtime(Runtime::Http, Some(Base::Base), Some("./a.tar")),
            "image ./a.tar"
        );
        assert_eq!(runtime(Runtime::Python, None, None), "python");
    }

    #[test]
    fn sizes_and_times_have_the_unit_that_fits() {
        assert_eq!(bytes(12), "12 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(256 << 20), "256.0 MiB");
        assert_eq!(count(1, "process"), "1 process");
        assert_eq!(count(0, "process"), "0 processes");
        assert_eq!(count(2, "file"), "2 files");
        assert_eq!(millis(1.234), "1.23 ms");
        assert_eq!(millis(123.4), "123 ms");
        assert_eq!(millis(12_345.0), "12.35 s");
    }

    #[test]
    fn an_error_names_its_code_and_its_page() {
        let error = ApiError::new(ErrorCode::Throttled, "busy").with_request_id("r-1");
        let text = api_error(&error, str::to_owned);
        assert_eq!(
            text,
            "error[throttled]: busy\n  request r-1\n  see docs/reference/errors/throttled.md"
        );
    }

    #[test]
    fn colours_are_for_terminals() {
        assert_eq!(tint("x", Tone::Bad, false), "x");
    }
}
