//! `fn snapshot export` and `import`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use rekindle_snapshotter::interchange::{export, import};
use rekindle_snapshotter::{RegionIndex, Store};
use rekindle_wire::SnapshotId;

use crate::show;

/// Writes the images of a snapshot into `dir`.
pub(super) async fn export_to(store: &Store, id: &SnapshotId, dir: &Path) -> Result<ExitCode> {
    let steps = show::Steps::new(false);
    steps.step(format!("writing {id} to {}", dir.display()));
    let written = Box::pin(export(store, id, dir)).await?;
    steps.finish();
    say!(
        "{} holds {} of {id}, {}, for `criu restore` (what that needs beside them: \
         docs/how-to/work-with-snapshots.md, Restoring by hand)",
        dir.display(),
        show::count(written.files, "file"),
        show::bytes(written.bytes)
    );
    Ok(ExitCode::SUCCESS)
}

/// Makes a snapshot of the images in `dir`, named after the directory unless `name` says otherwise.
pub(super) async fn import_from(store: &Store, dir: &Path, name: Option<&str>, scratch: &Path) -> Result<ExitCode> {
    let whole = std::fs::canonicalize(dir).with_context(|| format!("{}: cannot be read", dir.display()))?;
    let own = whole.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = name.map(str::to_owned).or(own).unwrap_or_default();
    let steps = show::Steps::new(false);
    steps.step("learning what the store has");
    let index = RegionIndex::new();
    Box::pin(index.seed(store)).await?;
    steps.step(format!("importing {}", dir.display()));
    let published = Box::pin(import(store, &index, dir, &name, scratch)).await?;
    steps.finish();
    let totals = &published.manifest.totals;
    say!(
        "{} is {name}: {} of memory, {} stored anew, {} shared with other snapshots",
        published.id,
        show::bytes(totals.memory_bytes),
        show::bytes(published.new_bytes),
        show::bytes(totals.shared_bytes)
    );
    Ok(ExitCode::SUCCESS)
}
