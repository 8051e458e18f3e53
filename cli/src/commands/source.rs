//! `fn source`.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::api::{SourceInfo, SourceProgress, SourceState};

use crate::args::SourceCommand;
use crate::client::Client;
use crate::show;

pub(crate) async fn run(client: &Client, command: &SourceCommand) -> Result<ExitCode> {
    let SourceCommand::List { name, listing } = command;
    let function = name.as_ref().map(|name| client.function_id(name));
    let all = client.sources(function.as_ref()).await?;
    if listing.json {
        show::print_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = show::table([
        "FUNCTION",
        "SOURCE",
        "QUEUE",
        "STATE",
        "LAG",
        "IN FLIGHT",
        "FAILED",
        "DEAD",
    ]);
    for one in &all {
        let sum = |of: fn(&SourceProgress) -> u64| one.readers.iter().map(|r| of(&r.progress)).sum::<u64>().to_string();
        table.add_row([
            one.function.to_string(),
            one.source.name.to_string(),
            one.source.to_string(),
            state(one),
            lag(one),
            sum(|p| p.in_flight.into()),
            sum(|p| p.failed),
            sum(|p| p.dead),
        ]);
    }
    show::print_table(&table);
    for one in &all {
        for reader in &one.readers {
            if let Some(problem) = &reader.progress.problem {
                say!("{} {}: {}: {problem}", one.function, one.source.name, reader.reader);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The worst state of any reader.
fn state(one: &SourceInfo) -> String {
    let rank = |state: SourceState| match state {
        SourceState::Reading => 0,
        SourceState::Connecting => 1,
        SourceState::Throttled => 2,
        SourceState::Failing => 3,
    };
    let states = one.readers.iter().map(|reader| reader.progress.state);
    match states.max_by_key(|state| rank(*state)) {
        Some(state) => state.as_str().to_owned(),
        None => "no reader".to_owned(),
    }
}

/// What waits in the queue, as the readers see it.
fn lag(one: &SourceInfo) -> String {
    let lags = one.readers.iter().filter_map(|reader| reader.progress.lag);
    lags.max().map_or_else(String::new, |lag| lag.to_string())
}

#[cfg(test)]
mod tests {
    use rekindle_wire::api::SourceReader;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_source_is_as_well_as_its_worst_reader() {
        let mut one: SourceInfo = serde_json::from_value(json!({
            "function": "billing", "version": 1, "timeout_ms": 30_000,
            "source": {"name": "orders", "type": "nats", "url": "nats://q:4222", "queue": "ORDERS", "batch": 1,
                "batch_window_ms": 0, "concurrency": 1, "max_deliveries": 5},
        }))
        .unwrap();
        assert_eq!((state(&one), lag(&one)), ("no reader".to_owned(), String::new()));
        for (reader, state, lag) in [("a", SourceState::Failing, None), ("b", SourceState::Reading, Some(7))] {
            let progress = SourceProgress {
                state,
                lag,
                ..SourceProgress::default()
            };
            let reader = reader.to_owned();
            one.readers.push(SourceReader { reader, progress });
        }
        assert_eq!((state(&one), lag(&one)), ("failing".to_owned(), "7".to_owned()));
    }
}
