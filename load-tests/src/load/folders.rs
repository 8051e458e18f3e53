//! The functions of a load: copies of folders of the checkout, under names of the load's own, so that nobody's function is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::scenario::Wanted;

/// Copies the folder below `dir` and gives it its name and settings. Returns where.
pub(super) fn prepare(wanted: &Wanted, dir: &Path) -> Result<PathBuf> {
    let to = dir.join(&wanted.name);
    crate::folder::copy(&wanted.folder, &to)?;
    let manifest = to.join("fn.toml");
    let text = fs::read_to_string(&manifest).with_context(|| format!("{}: cannot be read", manifest.display()))?;
    fs::write(&manifest, edited(&text, wanted))
        .with_context(|| format!("{}: cannot be written", manifest.display()))?;
    Ok(to)
}

/// Packs a folder as the API wants it. Returns the archive.
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

/// The manifest with the name and the settings in place of its own; a setting it lacks comes after the name.
fn edited(text: &str, wanted: &Wanted) -> String {
    let name = format!("\"{}\"", wanted.name);
    let settings: Vec<(&str, &str)> = [("name", name.as_str())]
        .into_iter()
        .chain(wanted.settings.iter().copied())
        .collect();
    let key_of = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let mut lines = Vec::new();
    let mut in_table = false;
    for line in text.lines() {
        in_table |= line.starts_with('[');
        let key = key_of(line);
        match settings.iter().find(|(k, _)| !in_table && *k == key) {
            Some((key, _)) if *key == "name" => lines.extend(settings.iter().map(|(k, v)| format!("{k} = {v}"))),
            Some(_) => {}
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_gets_its_name_and_settings_and_keeps_the_rest() {
        let wanted = Wanted {
            name: "load-x".to_owned(),
            folder: PathBuf::new(),
            settings: vec![("idle", "\"5s\""), ("concurrency", "2")],
        };
        let text = "# why\nname = \"hello\"\nidle = \"60s\"\nruntime = \"python\"\n\n[env]\nname = \"kept\"\n";
        assert_eq!(
            edited(text, &wanted),
            "# why\nname = \"load-x\"\nidle = \"5s\"\nconcurrency = 2\nruntime = \"python\"\n\n[env]\nname = \"kept\"\n"
        );
    }
}
