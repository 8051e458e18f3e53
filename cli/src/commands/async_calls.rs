//! `fn async`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rekindle_wire::asynchronous::{AsyncCall, CallState};
use rekindle_wire::clock::unix_ms;
use rekindle_wire::interface::Endpoint as _;
use rekindle_wire::interface::users::ReadCallResult;
use rekindle_wire::{CallId, headers};

use super::invoke::{InvokeOutcome, copy, platform_error};
use crate::args::AsyncCommand;
use crate::client::Client;
use crate::show::{self, Tone};
use crate::terminal::harmless;

/// Longest wait that the platform keeps open, seconds.
const WAIT_MAX: u64 = 30;

pub(crate) async fn run(client: &Client, command: &AsyncCommand) -> Result<ExitCode> {
    match command {
        AsyncCommand::List {
            name,
            state,
            limit,
            listing,
        } => {
            let function = name.as_ref().map(|name| client.function_id(name));
            let calls = client
                .calls(function.as_ref(), state.map(|s| s.state()), *limit)
                .await?;
            match listing.json {
                true => show::print_json(&calls)?,
                false => table(&calls),
            }
        }
        AsyncCommand::Show { id, listing } => {
            let call = client.async_call(id).await?;
            match listing.json {
                true => show::print_json(&call)?,
                false => describe(&call),
            }
        }
        AsyncCommand::Result { id, wait } => return result(client, id, Duration::from_secs(*wait)).await,
        AsyncCommand::Retry { id: Some(id), .. } => {
            let call = client.retry_call(id).await?;
            say!("{} is {}", call.id, call.state);
        }
        AsyncCommand::Retry { dead_of, .. } => {
            let Some(name) = dead_of else {
                bail!("say which: an id, or --dead-of FUNCTION")
            };
            let name = client.function_id(name);
            let calls = client.retry_dead_calls(&name).await?.calls;
            say!(
                "{} of {name} queued anew",
                show::count(usize::try_from(calls).unwrap_or(usize::MAX), "dead letter")
            );
        }
        AsyncCommand::Rm { id } => {
            client.remove_call(id).await?;
            say!("{id} is removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(calls: &[AsyncCall]) {
    let mut table = show::table(["ID", "FUNCTION", "STATE", "AGE", "ATTEMPTS", "OUTCOME"]);
    for call in calls {
        table.add_row([
            call.id.to_string(),
            call.function.to_string(),
            show::tinted(call.state.as_str(), tone(call.state)),
            age(call.accepted_unix_ms),
            call.attempts.to_string(),
            outcome(call),
        ]);
    }
    show::print_table(&table);
}

fn tone(state: CallState) -> Tone {
    match state {
        CallState::Queued => Tone::Faint,
        CallState::Running => Tone::Warning,
        CallState::Done => Tone::Good,
        CallState::Dead => Tone::Bad,
    }
}

fn outcome(call: &AsyncCall) -> String {
    match (&call.error, call.status) {
        (Some(error), _) => error.code.as_str().to_owned(),
        (None, Some(status)) => status.to_string(),
        (None, None) => "-".to_owned(),
    }
}

fn describe(call: &AsyncCall) {
    say!("{} {}", call.id, show::tinted(call.state.as_str(), tone(call.state)));
    say!(
        "  {} {} of {} ({})",
        call.method,
        harmless(&call.path, &[]),
        call.function,
        show::bytes(call.bytes)
    );
    say!(
        "  request {}, accepted {} ago",
        call.request_id,
        age(call.accepted_unix_ms)
    );
    if let Some(key) = &call.idempotency_key {
        say!("  idempotency key {key}");
    }
    say!(
        "  {}, of which {} failed",
        show::count(call.attempts as usize, "attempt"),
        call.failures
    );
    if let Some(due) = call.due_unix_ms.filter(|due| *due > unix_ms()) {
        say!("  the next one in {}", millis(due - unix_ms()));
    }
    if let Some(status) = call.status {
        say!("  answered {status}");
    }
    if let Some(error) = &call.error {
        say!("  {}", harmless(&error.to_string(), &[]));
    }
    for (what, told) in [("callback", &call.callback), ("destination", &call.destination)] {
        let Some(told) = told else { continue };
        let attempts = show::count(told.attempts as usize, "attempt");
        let (to, state) = (harmless(&told.url, &[]), &told.state);
        say!("  {what} {to}: {state}, {attempts}");
        if let Some(error) = &told.error {
            say!("    {}", harmless(error, &[]));
        }
    }
}

async fn result(client: &Client, id: &CallId, wait: Duration) -> Result<ExitCode> {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_secs().min(WAIT_MAX);
        let result = ReadCallResult {
            id: id.clone(),
            wait: Some(left),
        };
        let request = client
            .anonymous(ReadCallResult::OPERATION.method, &result.uri())
            .timeout(Duration::from_secs(left + 30));
        let response = client.send(request).await?;
        let state = response
            .headers()
            .get(headers::ASYNC_STATE)
            .and_then(|v| v.to_str().ok())
            .map(str::to_owned);
        let failed = response.status().is_client_error() || response.status().is_server_error();
        match state.as_deref() {
            Some("queued" | "running") if left > 0 => {}
            Some(pending @ ("queued" | "running")) => bail!("{id} is {pending}: wait for it with --wait SECONDS"),
            _ => {
                match platform_error(response).await? {
                    InvokeOutcome::Platform(error) => return Err(error.into()),
                    InvokeOutcome::Function(response) => copy(response).await?,
                }
                return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
            }
        }
    }
}

fn age(since_unix_ms: i64) -> String {
    millis(unix_ms() - since_unix_ms)
}

/// Whole seconds, in readable form.
fn millis(ms: i64) -> String {
    let seconds = Duration::from_secs(u64::try_from(ms / 1_000).unwrap_or(0));
    humantime::format_duration(seconds).to_string()
}
