//! `fn snapshot list`.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use rekindle_snapshotter::Store;
use rekindle_snapshotter::inspect::list;

use crate::args::Listing;
use crate::show;

/// Prints every snapshot in the store, newest last. Unreadable ones are named on standard error.
pub(super) async fn run(store: &Store, listing: Listing) -> Result<ExitCode> {
    let found = Box::pin(list(store)).await?;
    if listing.json {
        show::print_json(&found.snapshots)?;
    } else if found.snapshots.is_empty() && found.sealed.is_empty() {
        say!("no snapshots yet: `fn deploy` makes one, `fn snapshot import` another");
    } else {
        let mut table = show::table(["SNAPSHOT", "OF", "MADE", "MEMORY", "ZERO", "EAGER", "STORED", "SHARED"]);
        for s in &found.snapshots {
            let made = UNIX_EPOCH + Duration::from_secs(u64::try_from(s.created_unix_s).unwrap_or(0));
            table.add_row([
                s.id.to_string(),
                s.origin.to_string(),
                humantime::format_rfc3339_seconds(made).to_string(),
                show::bytes(s.totals.memory_bytes),
                show::bytes(s.totals.zero_bytes),
                show::bytes(s.totals.eager_bytes),
                show::bytes(s.totals.stored_bytes),
                show::bytes(s.totals.shared_bytes),
            ]);
        }
        for id in &found.sealed {
            table.add_row([id.to_string(), "(encrypted)".to_owned()]);
        }
        show::print_table(&table);
    }
    for error in &found.unreadable {
        show::print_warning(error);
    }
    Ok(if found.unreadable.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
