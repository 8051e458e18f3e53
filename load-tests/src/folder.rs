//! Folders of functions.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Copies a folder without the bytecode in it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("{}: cannot be made", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{}: cannot be read", from.display()))? {
        let path = entry
            .with_context(|| format!("{}: cannot be read", from.display()))?
            .path();
        let Some(name) = path.file_name().filter(|n| *n != "__pycache__") else {
            continue;
        };
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).with_context(|| format!("{}: cannot be copied", path.display()))?;
        }
    }
    Ok(())
}

/// Renames the function in a folder, and replaces settings of its fn.toml by literal values.
pub(crate) fn rename(folder: &Path, name: &str, settings: &[(&str, &str)]) -> Result<()> {
    let manifest = folder.join("fn.toml");
    let text = fs::read_to_string(&manifest).with_context(|| format!("{}: cannot be read", manifest.display()))?;
    let text = edited(&text, name, settings);
    fs::write(&manifest, text).with_context(|| format!("{}: cannot be written", manifest.display()))
}

/// The manifest with the name and the settings replaced; a setting it lacks is added after the name.
fn edited(text: &str, name: &str, settings: &[(&str, &str)]) -> String {
    let name = format!("\"{name}\"");
    let settings: Vec<(&str, &str)> = [("name", name.as_str())]
        .into_iter()
        .chain(settings.iter().copied())
        .collect();
    let mut lines = Vec::new();
    let mut in_table = false;
    for line in text.lines() {
        in_table |= line.starts_with('[');
        let key = line.split('=').next().unwrap_or_default().trim();
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
        let text = "# why\nname = \"hello\"\nidle = \"60s\"\nruntime = \"python\"\n\n[env]\nname = \"kept\"\n";
        assert_eq!(
            edited(text, "load-x", &[("idle", "\"5s\""), ("concurrency", "2")]),
            "# why\nname = \"load-x\"\nidle = \"5s\"\nconcurrency = 2\nruntime = \"python\"\n\n[env]\nname = \"kept\"\n"
        );
    }

    #[test]
    fn a_copy_has_every_file_but_no_bytecode() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("package/__pycache__")).unwrap();
        fs::write(from.join("main.py"), "1").unwrap();
        fs::write(from.join("package/module.py"), "2").unwrap();
        fs::write(from.join("package/__pycache__/module.pyc"), "3").unwrap();
        let to = dir.path().join("to");
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("package/module.py")).unwrap(), "2");
        assert!(to.join("main.py").exists() && !to.join("package/__pycache__").exists());
    }
}
