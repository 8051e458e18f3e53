//! `fn access`: rules that let holders of tokens and certificates in without a key.

use std::process::ExitCode;

use anyhow::{Result, bail};
use rekindle_wire::access::{Admitted, TokenHolder};
use rekindle_wire::api::{AccessRule, NewRuleRequest};

use super::describe::when;
use crate::args::{AccessCommand, AddRuleArgs};
use crate::client::Client;
use crate::show;

/// Adds, lists or removes rules.
pub(crate) async fn run(client: &Client, command: &AccessCommand) -> Result<ExitCode> {
    match command {
        AccessCommand::Add(args) => add(client, args).await?,
        AccessCommand::List(listing) => {
            let rules = client.rules().await?;
            match listing.json {
                true => show::print_json(&rules)?,
                false => print(&rules),
            }
        }
        AccessCommand::Rm { id, listing } => {
            let removed = client.remove_rule(id).await?;
            if listing.json {
                show::print_json(&removed)?;
                return Ok(ExitCode::SUCCESS);
            }
            say!("{id} is removed");
            if !removed.everywhere {
                say!("  not every gateway has confirmed it: one that is cut off lets nobody in within a minute");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(client: &Client, args: &AddRuleArgs) -> Result<()> {
    let admits = match (&args.issuer, &args.certificate) {
        (Some(issuer), None) => Admitted::Token(TokenHolder {
            issuer: issuer.clone(),
            claims: args.claim.iter().cloned().collect(),
        }),
        (None, Some(name)) => Admitted::Certificate(name.clone()),
        _ => bail!("whom the rule lets in is missing: name --issuer with --claim, or --certificate"),
    };
    if let Admitted::Token(TokenHolder { claims, .. }) = &admits
        && claims.len() != args.claim.len()
    {
        bail!("a claim is named twice: a rule asks for one value of each");
    }
    let wanted = NewRuleRequest {
        admits,
        role: args.role,
        namespace: (!args.all_namespaces).then(|| client.namespace().clone()),
        function: args.function.clone(),
        expires_s: args.expires.map(|life| life.as_secs()),
    };
    let rule = client.add_rule(&wanted).await?;
    if args.json {
        show::print_json(&rule)?;
    } else {
        say!(
            "{}: {} for {}: {}",
            rule.id,
            rule.role,
            rule.scope().in_words(),
            rule.admits
        );
    }
    // A gateway says which issuers it takes. The rule is set even if it does not answer.
    if let (Some(issuer), Ok(status)) = (&args.issuer, client.auth().await)
        && !status.issuers.contains(issuer)
    {
        eprintln!("the gateway takes no tokens of {issuer} yet: start it with --oidc-issuer {issuer}");
    }
    Ok(())
}

fn print(rules: &[AccessRule]) {
    if rules.is_empty() {
        say!("there are no rules: `fn access add` makes one");
        return;
    }
    let mut table = show::table(["RULE", "LETS IN", "ROLE", "FOR", "ADDED", "BY", "EXPIRES"]);
    for rule in rules {
        table.add_row([
            rule.id.to_string(),
            rule.admits.to_string(),
            rule.role.to_string(),
            rule.scope().to_string(),
            when(rule.created_unix_s),
            rule.created_by.clone(),
            rule.expires_unix_s.map_or("never".to_owned(), when),
        ]);
    }
    show::print_table(&table);
}
