//! `fn snapshot delete`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::snapshot::read_manifest;
use rekindle_snapshotter::{Store, delete};
use rekindle_wire::SnapshotId;

/// Removes an imported snapshot or a runtime's, or any with `force`. Its chunks are removed by the next collection.
pub(super) async fn run(store: &Store, id: &SnapshotId, force: bool) -> Result<ExitCode> {
    // A snapshot with a damaged manifest has no owner, but its removal must be asked for.
    match Box::pin(read_manifest(store, id)).await.map(|m| m.origin) {
        // What began as a runtime's snapshot keeps the chunks that it needs, and the next deploy makes another.
        Ok(Origin::Import { .. } | Origin::Runtime { .. }) => {}
        _ if force => {}
        Ok(Origin::Function { function, version, .. }) => bail!(
            "{id} is the snapshot of {function} {version}: `fn delete {function}` removes it with the function; \
             --force removes it alone"
        ),
        Err(error) => {
            let error = anyhow::Error::from(error);
            bail!("{id} cannot be read: --force removes it all the same ({error:#})")
        }
    }
    Box::pin(delete(store, id)).await?;
    say!("{id} is removed");
    Ok(ExitCode::SUCCESS)
}
