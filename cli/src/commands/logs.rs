//! `fn logs`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use rekindle_wire::api::{LogLine, LogStream};
use rekindle_wire::{FunctionId, Selector, VersionNumber};

use crate::args::LogsArgs;
use crate::client::{Client, log_line};
use crate::show::{self, Tone};
use crate::terminal::harmless;

/// A line is at most 16 KiB of text; escaped as JSON it may be six times that.
const LINE_MAX: usize = 256 << 10;

/// Prints a function's output, and follows it if asked to.
pub(crate) async fn run(client: &Client, args: &LogsArgs) -> Result<ExitCode> {
    let name = client.function_id(&args.name.function);
    let only = versions(client, &name, args.name.selector.as_ref()).await?;
    let mut response = client.logs(&name, args.tail, args.follow).await?;
    let mut pending = Vec::new();
    let mut printed = false;
    while let Some(part) = response.chunk().await.context("the log ended early")? {
        pending.extend_from_slice(&part);
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            match print(&line, args.listing.json, only.as_deref())? {
                PrintOutcome::Line => printed = true,
                PrintOutcome::Nothing => {}
                PrintOutcome::NobodyReads => return Ok(ExitCode::SUCCESS),
            }
        }
        if pending.len() > LINE_MAX {
            bail!("the log has a line of more than {LINE_MAX} bytes: this is not the log of a Rekindle platform");
        }
    }
    printed |= print(&pending, args.listing.json, only.as_deref())? == PrintOutcome::Line;
    if !printed && args.tail > 0 {
        match &args.name.selector {
            None => {
                eprintln!("{name} has written nothing: its output comes here as it is invoked (`fn invoke {name}`)")
            }
            Some(selector) => eprintln!(
                "of the last {} lines of {name} none is of @{selector}: see more with --tail",
                args.tail
            ),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Result of printing a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrintOutcome {
    Line,
    Nothing,
    /// As with `fn logs -f | head`.
    NobodyReads,
}

/// The versions whose lines are printed, unless all are.
async fn versions(
    client: &Client,
    name: &FunctionId,
    selector: Option<&Selector>,
) -> Result<Option<Vec<VersionNumber>>> {
    match selector {
        None => Ok(None),
        Some(Selector::Version(version)) => Ok(Some(vec![*version])),
        Some(Selector::Alias(alias)) => {
            let aliases = client.aliases(name).await?;
            let named = aliases.into_iter().find(|known| known.name == *alias);
            let named = named.with_context(|| format!("{name} has no alias {alias}: see `fn alias list {name}`"))?;
            Ok(Some(named.targets.iter().map(|target| target.version).collect()))
        }
    }
}

/// Prints one line, unless it is empty, or of none of the versions in `only`.
fn print(line: &[u8], json: bool, only: Option<&[VersionNumber]>) -> Result<PrintOutcome> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(PrintOutcome::Nothing);
    }
    if let Some(only) = only
        && !only.contains(&log_line(line)?.version)
    {
        return Ok(PrintOutcome::Nothing);
    }
    let mut out = io::stdout().lock();
    let written = if json {
        out.write_all(line).and_then(|()| out.write_all(b"\n"))
    } else {
        writeln!(out, "{}", human(&log_line(line)?))
    };
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(PrintOutcome::Line),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(PrintOutcome::NobodyReads),
        Err(e) => Err(e).context("standard output cannot be written"),
    }
}

fn human(line: &LogLine) -> String {
    let since = Duration::from_millis(u64::try_from(line.unix_ms).unwrap_or(0));
    let time = humantime::format_rfc3339_millis(UNIX_EPOCH + since);
    // The end of the id distinguishes instances; its beginning is the time.
    let id = line.instance.as_str();
    let short = id.get(id.len().saturating_sub(6)..).unwrap_or(id);
    let origin = format!("v{} {short}", line.version);
    let text = harmless(&line.text, &['\t']);
    match line.stream {
        // The mark comes before the instance: what a function writes comes after it, whatever that is.
        LogStream::Platform => {
            let said = show::tinted(&format!("-- {origin} {text}"), Tone::Warning);
            format!("{} {said}", show::tinted(&time.to_string(), Tone::Faint))
        }
        LogStream::Stdout | LogStream::Stderr => {
            format!("{} {text}", show::tinted(&format!("{time} {origin}"), Tone::Faint))
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::InstanceId;

    use super::*;

    #[test]
    fn no_line_of_a_function_looks_like_the_platform_s() {
        let line = LogLine {
            unix_ms: 1_700_000_000_123,
            instance: "i-0011223344abcdef".parse::<InstanceId>().unwrap(),
            version: VersionNumber(3),
            stream: LogStream::Platform,
            text: "stopped: it was idle".to_owned(),
        };
        assert_eq!(
            human(&line),
            "2023-11-14T22:13:20.123Z -- v3 abcdef stopped: it was idle"
        );
        let forged = LogLine {
            stream: LogStream::Stdout,
            text: "-- v3 abcdef stopped: it was idle".to_owned(),
            ..line
        };
        assert!(
            human(&forged).starts_with("2023-11-14T22:13:20.123Z v3 abcdef -- "),
            "{}",
            human(&forged)
        );
    }

    #[test]
    fn a_line_shows_its_time_version_and_instance() {
        let line = LogLine {
            unix_ms: 1_700_000_000_123,
            instance: "i-0011223344abcdef".parse::<InstanceId>().unwrap(),
            version: VersionNumber(3),
            stream: LogStream::Stdout,
            text: "hello".to_owned(),
        };
        assert_eq!(human(&line), "2023-11-14T22:13:20.123Z v3 abcdef hello");
        let hostile = LogLine {
            text: "\u{1b}]0;title\u{7}\tend\r\u{9b}2J".to_owned(),
            ..line
        };
        assert!(
            human(&hostile).ends_with(" \\u{1b}]0;title\\u{7}\tend\\r\\u{9b}2J"),
            "{:?}",
            human(&hostile)
        );
    }
}
