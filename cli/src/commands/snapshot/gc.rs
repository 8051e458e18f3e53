//! `fn snapshot gc`.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::api::{CollectRequest, Collected, Swept};

use crate::client::Client;
use crate::show::{self, Tone};

/// Maximum number of unreadable snapshots that are named.
const HELD_SHOWN: usize = 8;

/// Asks the platform to remove unneeded objects, and prints what was removed.
pub(super) async fn run(client: &Client, request: &CollectRequest, json: bool) -> Result<ExitCode> {
    let collected = client.collect(request).await?;
    if json {
        show::print_json(&collected)?;
    } else {
        print(&collected);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(collected: &Collected) {
    let Collected {
        snapshots,
        remains,
        chunks,
        layers,
        sources,
        ..
    } = *collected;
    let total = collected.total();
    let rows = [
        ("snapshots nobody wants", snapshots),
        ("remains of snapshots", remains),
        ("chunks", chunks),
        ("layers", layers),
        ("uploaded folders", sources),
    ];
    let found = rows.iter().filter(|(_, swept)| swept.objects > 0);
    let found: Vec<&(&str, Swept)> = found.collect();
    if found.is_empty() && collected.versions == 0 {
        say!("nothing to remove; {} in use", show::bytes(collected.left.bytes));
    } else {
        let head = if collected.dry_run { "WOULD REMOVE" } else { "REMOVED" };
        let mut table = show::table([head, "NUMBER", "SIZE"]);
        if collected.versions > 0 {
            let number = collected.versions.to_string();
            table.add_row(["old versions".to_owned(), number, String::new()]);
        }
        for (what, Swept { objects, bytes }) in found {
            table.add_row([(*what).to_owned(), objects.to_string(), show::bytes(*bytes)]);
        }
        show::print_table(&table);
        let done = if collected.dry_run { "would be freed" } else { "freed" };
        say!(
            "{} {done}, {} in use",
            show::bytes(total.bytes),
            show::bytes(collected.left.bytes)
        );
    }
    if collected.more {
        say!("there is more: run it again");
    }
    if !collected.held_by.is_empty() {
        let count = show::count(collected.held_by.len(), "snapshot");
        let said = format!(
            "{count} cannot be read: while they are there no chunk and no layer is removed. Deploy what uses them \
             again, and remove them:"
        );
        say!("{}", show::tinted(&said, Tone::Warning));
        for id in collected.held_by.iter().take(HELD_SHOWN) {
            say!("  fn snapshot delete --force {id}");
        }
        let more = collected.held_by.len().saturating_sub(HELD_SHOWN);
        if more > 0 {
            say!("  and {more} more");
        }
    }
}
