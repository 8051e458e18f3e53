//! `fn quota`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use rekindle_wire::api::{QuotaKind, QuotaStatus};

use crate::args::{Listing, QuotaCommand, SetQuotaArgs};
use crate::client::Client;
use crate::show;

/// Shows, sets or clears the quota of a namespace.
pub(crate) async fn run(client: &Client, command: &QuotaCommand) -> Result<ExitCode> {
    let (status, listing) = match command {
        QuotaCommand::Show { name, listing } => {
            let name = name.as_ref().unwrap_or(client.namespace());
            (client.quota(name).await?, listing)
        }
        QuotaCommand::Set(args) => (set(client, args).await?, &args.listing),
        QuotaCommand::Clear { name, listing } => (client.clear_quota(name).await?, listing),
    };
    show(&status, *listing)?;
    Ok(ExitCode::SUCCESS)
}

async fn set(client: &Client, args: &SetQuotaArgs) -> Result<QuotaStatus> {
    let before = client.quota(&args.name).await?;
    let Some(limits) = args.applied(before.limits) else {
        bail!("no limit is named: `fn quota set --help` lists them");
    };
    client.set_quota(&args.name, &limits).await
}

fn show(status: &QuotaStatus, listing: Listing) -> Result<()> {
    if listing.json {
        return show::print_json(status);
    }
    let whose = match (status.is_own, status.limits.limits().next()) {
        (true, _) => "its own limits",
        (false, Some(_)) => "the limits of namespaces without any of their own",
        (false, None) => "no limits",
    };
    say!("{}: {whose}", status.namespace);
    let mut table = show::table(["QUOTA", "LIMIT", "IN USE", "OF"]);
    for kind in QuotaKind::ALL {
        let shown = |amount: u64| match kind.is_bytes() {
            true => show::bytes(amount),
            false => amount.to_string(),
        };
        table.add_row([
            kind.as_str().to_owned(),
            status.limits.limit(kind).map_or("none".to_owned(), shown),
            status.used.of(kind).map_or("-".to_owned(), shown),
            kind.in_words().to_owned(),
        ]);
    }
    show::print_table(&table);
    Ok(())
}
