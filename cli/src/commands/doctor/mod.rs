//! `fn doctor`: what this machine supports, one line for each ability, and how to fix what is missing. The expensive
//! part, a real checkpoint with two restores, is in [`criu`]. `fn doctor --function` is in [`function`].

mod bounded;
mod criu;
mod dumped;
pub(crate) mod function;
mod halting;
mod host;
mod memory;
mod paging;
mod platform;
mod process;
mod proof;
pub(crate) mod target;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::show::{self, Steps, Tone};

pub(crate) use criu::find as find_criu;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    pub(crate) ability: &'static str,
    /// Whether the machine has it.
    pub(crate) ok: bool,
    /// Whether the platform requires it.
    pub(crate) required: bool,
    pub(crate) found: String,
    /// How to fix its absence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Check {
    /// An ability that the machine has.
    fn ok(ability: &'static str, found: impl Into<String>) -> Self {
        Self {
            ability,
            ok: true,
            required: true,
            found: found.into(),
            fix: None,
        }
    }

    /// A required ability that is missing.
    fn lack(ability: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            ability,
            ok: false,
            required: true,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }

    /// A missing ability without which the platform is slower or can do less.
    fn weaker(ability: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            required: false,
            ..Self::lack(ability, found, fix)
        }
    }

    /// Whether the platform cannot run because of it.
    pub(crate) fn stops(&self) -> bool {
        self.required && !self.ok
    }
}

/// Checks everything and prints it. Exit code 1 if something required is missing.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let steps = Steps::new(args.listing.json);
    let mut checks = Vec::new();
    if !args.criu_only {
        steps.step("looking at the kernel");
        checks.extend(cheap());
        checks.push(halting::check());
        checks.extend(platform::checks(&args.places, args.listen));
    }
    match criu::find(args.criu.as_deref()) {
        Err(check) => checks.push(check),
        Ok(found) => {
            checks.push(found.check());
            if !args.quick {
                checks.extend(proof::prove(&found, &steps));
            }
        }
    }
    steps.finish();
    if args.listing.json {
        show::print_json(&checks)?;
    } else {
        print(&checks);
    }
    let stops = checks.iter().any(Check::stops);
    Ok(if stops { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Checks that the kernel answers within milliseconds; `fn up` makes them at each start.
pub(crate) fn cheap() -> Vec<Check> {
    let mut checks = host::checks();
    checks.extend(memory::checks());
    checks
}

/// Prints the checks as a table, with the fixes below it.
pub(crate) fn print(checks: &[Check]) {
    let mut table = show::table(["ABILITY", "", "FOUND"]);
    for check in checks {
        let verdict = match (check.ok, check.required) {
            (true, _) => show::tinted("ok", Tone::Good),
            (false, true) => show::tinted("LACKS", Tone::Bad),
            (false, false) => show::tinted("weaker", Tone::Warning),
        };
        table.add_row([check.ability, &verdict, &check.found]);
    }
    show::print_table(&table);
    for check in checks {
        if let Some(fix) = &check.fix {
            say!("\n{}: {fix}", check.ability);
        }
    }
}
