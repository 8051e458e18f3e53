//! The functions of a load: copies of folders of the checkout under names of the load's own, so that no other function
//! is touched.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::scenario::Wanted;
use crate::folder;

/// Copies the folder below `dir` and gives it its name and settings. Returns its path.
pub(super) fn prepare(wanted: &Wanted, dir: &Path) -> Result<PathBuf> {
    let to = dir.join(&wanted.name);
    if to.exists() {
        // From another scenario's platform, which called the same function.
        return Ok(to);
    }
    folder::copy(&wanted.folder, &to)?;
    folder::rename(&to, &wanted.name, &wanted.settings)?;
    Ok(to)
}

/// Packs a folder for the API. Returns the archive.
pub(super) fn pack(folder: &Path) -> Result<PathBuf> {
    let archive = folder.with_extension("tar.gz");
    let status = Command::new("tar")
        .arg("-czf")
        .arg(&archive)
        .arg("-C")
        .arg(folder)
        .arg(".")
        .status()
        .context("tar cannot be started")?;
    if !status.success() {
        bail!("{}: tar: {status}", folder.display());
    }
    Ok(archive)
}
