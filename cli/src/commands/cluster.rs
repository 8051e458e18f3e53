//! `fn cluster`: the authority and its join tokens, on the scheduler's host. Nobody else is asked.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use rekindle_identity::Authority;

use crate::args::{ClusterCommand, JoinTokenArgs, Places};
use crate::up::membership::AUTHORITY;

/// Runs one of its commands.
pub(crate) fn run(command: &ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Init { places } => init(places),
        ClusterCommand::Token(args) => token(args),
    }
}

fn init(places: &Places) -> Result<ExitCode> {
    let directory = places.data.join(AUTHORITY);
    let authority = Authority::init(&directory)?;
    say!("made the cluster's authority in {}", directory.display());
    say!("  fingerprint  {}", authority.fingerprint());
    say!("  (re)start `fn scheduler`, then let each host in: fn cluster token --role worker");
    say!("  keep a copy of authority.key where only you read it: who has it can let anybody in");
    Ok(ExitCode::SUCCESS)
}

fn token(args: &JoinTokenArgs) -> Result<ExitCode> {
    let directory = args.places.data.join(AUTHORITY);
    let authority = Authority::open(&directory)?.with_context(|| {
        format!(
            "{}: no authority is there: run `fn cluster init` first",
            directory.display()
        )
    })?;
    let tokens = authority.tokens();
    let token = tokens.make(authority.fingerprint(), args.role.into(), args.uses, args.life)?;
    say!("{token}");
    Ok(ExitCode::SUCCESS)
}
