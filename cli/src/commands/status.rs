//! `fn status`.

use std::process::ExitCode;

use anyhow::Result;

use super::workers;
use crate::args::Listing;
use crate::client::Client;
use crate::show;

/// Prints the platform's workers, its functions and its instances.
pub(crate) async fn run(client: &Client, args: Listing) -> Result<ExitCode> {
    let status = client.status().await?;
    if args.json {
        show::print_json(&status)?;
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "rekindle {} at {}: {}, {}, {}\n",
        status.version,
        client.address(""),
        show::count(status.workers.len(), "worker"),
        show::count(usize::try_from(status.functions).unwrap_or(usize::MAX), "function"),
        show::count(status.instances.len(), "instance"),
    );
    let mut table = show::table(["WORKER", "ADDRESS", "STATE", "INSTANCES", "MEMORY RESERVED"]);
    for w in &status.workers {
        table.add_row([
            w.id.to_string(),
            w.address.clone(),
            workers::state(w.state),
            w.instances.to_string(),
            workers::reserved(w),
        ]);
    }
    show::print_table(&table);
    if !status.instances.is_empty() {
        say!();
        super::print_instances(&status.instances);
    }
    Ok(ExitCode::SUCCESS)
}
