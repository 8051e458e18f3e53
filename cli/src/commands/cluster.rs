//! `fn cluster`: the authority and its join tokens, on the scheduler's host and without a connection. Revocations go
//! through the scheduler, which keeps them.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use rekindle_identity::{Authority, Role};

use crate::args::{ClusterCommand, JoinTokenArgs, Listing, PlatformDirs, RevokeArgs};
use crate::client::Client;
use crate::show;
use crate::up::membership::AUTHORITY;

/// Runs a command that works locally; `None` for the others.
pub(crate) fn run_here(command: &ClusterCommand) -> Option<Result<ExitCode>> {
    match command {
        ClusterCommand::Init { places } => Some(init(places)),
        ClusterCommand::Token(args) => Some(token(args)),
        ClusterCommand::Revoke(_) | ClusterCommand::Revoked(_) => None,
    }
}

/// Runs a command that asks a gateway.
pub(crate) async fn run(client: &Client, command: &ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Revoke(args) => revoke(client, args).await,
        ClusterCommand::Revoked(listing) => revoked(client, *listing).await,
        here => run_here(here).unwrap_or(Ok(ExitCode::SUCCESS)),
    }
}

async fn revoke(client: &Client, args: &RevokeArgs) -> Result<ExitCode> {
    let revoked = client.revoke(Role::from(args.role), &args.member).await?;
    if args.listing.json {
        show::print_json(&revoked)?;
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "revoked the {} {}: no role believes its certificates any more",
        revoked.role,
        revoked.name
    );
    say!("  what it had beside them stays good until it is exchanged: keys to the object store, cluster.token");
    Ok(ExitCode::SUCCESS)
}

async fn revoked(client: &Client, listing: Listing) -> Result<ExitCode> {
    let all = client.revocations().await?;
    if listing.json {
        show::print_json(&all)?;
    } else if all.is_empty() {
        say!("nobody is revoked");
    } else {
        for one in &all {
            let since = UNIX_EPOCH + Duration::from_secs(one.since_unix_s.try_into().unwrap_or(0));
            say!(
                "{} {}  since {}",
                one.role,
                one.name,
                humantime::format_rfc3339_seconds(since)
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn init(places: &PlatformDirs) -> Result<ExitCode> {
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
