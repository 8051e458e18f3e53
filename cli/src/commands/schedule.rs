//! `fn schedule`.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::api::ScheduleInfo;

use super::describe::when;
use crate::args::ScheduleCommand;
use crate::client::Client;
use crate::show;

/// Lists, pauses, resumes or runs schedules.
pub(crate) async fn run(client: &Client, command: &ScheduleCommand) -> Result<ExitCode> {
    match command {
        ScheduleCommand::List { name, listing } => {
            let function = name.as_ref().map(|name| client.function_id(name));
            let all = client.schedules(function.as_ref()).await?;
            if listing.json {
                show::print_json(&all)?;
                return Ok(ExitCode::SUCCESS);
            }
            let mut table = show::table(["FUNCTION", "SCHEDULE", "CRON", "TIME ZONE", "LAST", "NEXT"]);
            for one in &all {
                table.add_row([
                    one.function.to_string(),
                    one.name.to_string(),
                    one.cron.clone(),
                    one.timezone.clone(),
                    one.last.as_ref().map_or_else(String::new, |last| at(last.due_unix_ms)),
                    next(one),
                ]);
            }
            show::print_table(&table);
        }
        ScheduleCommand::Pause(of) => {
            let function = client.function_id(&of.name);
            client.pause_schedule(&function, &of.schedule, true).await?;
            say!("{function} {} is paused", of.schedule);
        }
        ScheduleCommand::Resume(of) => {
            let function = client.function_id(&of.name);
            let resumed = client.pause_schedule(&function, &of.schedule, false).await?;
            say!("{function} {} runs next at {}", of.schedule, next(&resumed));
        }
        ScheduleCommand::Run(of) => {
            let function = client.function_id(&of.name);
            let call = client.run_schedule(&function, &of.schedule).await?;
            say!("{}", call.id);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn at(unix_ms: i64) -> String {
    when(unix_ms.div_euclid(1_000))
}

/// When a schedule runs next, and what waits.
fn next(one: &ScheduleInfo) -> String {
    let next = match (one.paused, one.next_unix_ms) {
        (true, _) => "paused".to_owned(),
        (false, Some(next)) => at(next),
        (false, None) => "never".to_owned(),
    };
    match one.waiting {
        0 => next,
        waiting => format!("{next}, {waiting} waiting"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_run_is_told_with_what_waits() {
        let mut one = ScheduleInfo {
            function: "hello".parse().unwrap(),
            name: Default::default(),
            version: rekindle_wire::VersionNumber(1),
            cron: "@daily".to_owned(),
            timezone: "UTC".to_owned(),
            overlap: Default::default(),
            missed: Default::default(),
            paused: false,
            next_unix_ms: Some(1_795_737_600_000),
            waiting: 0,
            last: None,
        };
        assert_eq!(next(&one), "2026-11-27T00:00:00Z");
        one.waiting = 2;
        assert_eq!(next(&one), "2026-11-27T00:00:00Z, 2 waiting");
        (one.paused, one.waiting) = (true, 0);
        assert_eq!(next(&one), "paused");
    }
}
