//! `fn key`. A new key goes to standard output alone, everything else about it to standard error.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::access::Scope;
use rekindle_wire::api::{KeySummary, NewKeyRequest};
use rekindle_wire::clock::unix_s;

use super::describe::when;
use crate::args::{CreateKeyArgs, KeyCommand};
use crate::client::Client;
use crate::show;

/// Makes, lists or revokes keys.
pub(crate) async fn run(client: &Client, command: &KeyCommand) -> Result<ExitCode> {
    match command {
        KeyCommand::Create(args) => create(client, args).await?,
        KeyCommand::List(listing) => {
            let keys = client.keys().await?;
            match listing.json {
                true => show::print_json(&keys)?,
                false => print(&keys),
            }
        }
        KeyCommand::Revoke { id, listing } => {
            let revoked = client.revoke_key(id).await?;
            if listing.json {
                show::print_json(&revoked)?;
                return Ok(ExitCode::SUCCESS);
            }
            say!("{id} is revoked");
            if !revoked.everywhere {
                say!("  not every gateway has confirmed it: one that is cut off refuses all keys within a minute");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(client: &Client, args: &CreateKeyArgs) -> Result<()> {
    let wanted = NewKeyRequest {
        name: args.name.clone(),
        role: args.role,
        namespace: (!args.all_namespaces).then(|| client.namespace().clone()),
        function: args.function.clone(),
        expires_s: args.expires.map(|life| life.as_secs()),
    };
    let new = client.create_key(&wanted).await?;
    if args.json {
        return show::print_json(&new);
    }
    let summary = &new.summary;
    let until = summary.expires_unix_s.map_or("it is revoked".to_owned(), when);
    eprintln!(
        "{}: {} for {}, until {until}; the key is not shown again",
        summary.id,
        summary.role,
        scope(summary).in_words()
    );
    say!("{}", new.key);
    Ok(())
}

fn scope(key: &KeySummary) -> Scope {
    Scope::of(key.namespace.clone(), key.function.as_ref())
}

fn print(keys: &[KeySummary]) {
    if keys.is_empty() {
        say!("there are no keys but the platform's own: `fn key create` makes one");
        return;
    }
    let now = unix_s();
    let mut table = show::table(["KEY", "NAME", "ROLE", "FOR", "MADE", "EXPIRES", "LAST USED"]);
    for key in keys {
        let expires = match key.expires_unix_s {
            Some(at) if at <= now => "expired".to_owned(),
            Some(at) => when(at),
            None => "never".to_owned(),
        };
        table.add_row([
            key.id.to_string(),
            key.name.clone(),
            key.role.to_string(),
            scope(key).to_string(),
            when(key.created_unix_s),
            expires,
            key.used_unix_s.map_or("never".to_owned(), when),
        ]);
    }
    show::print_table(&table);
}
