//! Folders with functions, written by the tests themselves or the samples under `functions/samples/`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::binaries::checkout;

/// A function's folder. One in a temporary directory is removed with the value.
pub struct Folder {
    path: PathBuf,
    _temporary: Option<TempDir>,
}

impl Folder {
    /// A copy of a sample; `change` edits the text of its fn.toml.
    pub fn sample(name: &str, change: impl FnOnce(String) -> String) -> Self {
        let folder = Self::of(&format!("functions/samples/{name}")).unwrap();
        folder.edit(change).unwrap();
        folder
    }

    /// A copy of a folder of the checkout.
    ///
    /// # Errors
    /// If it cannot be read, or written.
    pub fn of(folder: &str) -> Result<Self> {
        Self::copy(&checkout().join(folder))
    }

    /// A copy of any folder.
    ///
    /// # Errors
    /// If it cannot be read, or written.
    pub fn copy(from: &Path) -> Result<Self> {
        let dir = tempfile::tempdir().context("no temporary directory")?;
        copy(from, dir.path()).with_context(|| format!("{}: cannot be copied", from.display()))?;
        Ok(Self {
            path: dir.path().to_owned(),
            _temporary: Some(dir),
        })
    }

    /// Names the function, and replaces settings of its fn.toml by literal values.
    ///
    /// # Errors
    /// If fn.toml cannot be read, or written.
    pub fn set(&self, name: &str, settings: &[(&str, &str)]) -> Result<()> {
        self.edit(|text| edited(&text, name, settings))
    }

    /// Edits the text of its fn.toml.
    ///
    /// # Errors
    /// If it cannot be read, or written.
    pub fn edit(&self, change: impl FnOnce(String) -> String) -> Result<()> {
        let config = self.path.join("fn.toml");
        let text = fs::read_to_string(&config).with_context(|| format!("{}: cannot be read", config.display()))?;
        fs::write(&config, change(text)).with_context(|| format!("{}: cannot be written", config.display()))
    }

    /// Adds a line to one of its files.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn append(&self, file: &str, line: &str) -> Result<()> {
        let path = self.path.join(file);
        let appended = fs::OpenOptions::new().append(true).open(&path);
        let appended = appended.and_then(|mut file| writeln!(file, "{line}"));
        appended.with_context(|| format!("{}: cannot be written", path.display()))
    }

    /// A folder with this `fn.toml` and nothing else.
    pub fn with_config(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fn.toml"), text).unwrap();
        Self {
            path: dir.path().to_owned(),
            _temporary: Some(dir),
        }
    }

    /// A Python handler in `main.py`. `settings` are further lines of fn.toml; by default it has 96 MiB and one request
    /// at a time.
    pub fn python(name: &str, settings: &str, code: &str) -> Self {
        let mut text = format!("name = \"{name}\"\nruntime = \"python\"\nentry = \"main.handler\"\n");
        for (key, value) in [("memory", "\"96MiB\""), ("idle", "\"60s\"")] {
            if !settings.lines().any(|l| l.starts_with(key)) {
                text.push_str(&format!("{key} = {value}\n"));
            }
        }
        Self::with_config(&format!("{text}{settings}\n")).file("main.py", code)
    }

    /// A Python program that serves HTTP itself, with 128 MiB unless `settings` say otherwise.
    pub fn server(name: &str, settings: &str, code: &str) -> Self {
        let mut text = format!(
            "name = \"{name}\"\nruntime = \"http\"\nbase = \"python\"\ncommand = [\"python3\", \"server.py\"]\n"
        );
        if !settings.lines().any(|l| l.starts_with("memory")) {
            text.push_str("memory = \"128MiB\"\n");
        }
        Self::with_config(&format!("{text}{settings}\n")).file("server.py", code)
    }

    /// Adds a file.
    #[must_use]
    pub fn file(self, name: &str, content: &str) -> Self {
        fs::write(self.path.join(name), content).unwrap();
        self
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Copies a folder, without what builds leave in it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if ["target", "node_modules", "__pycache__"].iter().any(|n| name == *n) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::create_dir(to.join(&name))?;
            copy(&entry.path(), &to.join(&name))?;
        } else {
            fs::copy(entry.path(), to.join(&name))?;
        }
    }
    Ok(())
}

/// The config with the name and the settings replaced; a setting it lacks is added after the name.
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
    fn a_config_gets_its_name_and_settings_and_keeps_the_rest() {
        let text = "# why\nname = \"hello\"\nidle = \"60s\"\nruntime = \"python\"\n\n[env]\nname = \"kept\"\n";
        assert_eq!(
            edited(text, "load-x", &[("idle", "\"5s\""), ("concurrency", "2")]),
            "# why\nname = \"load-x\"\nidle = \"5s\"\nconcurrency = 2\nruntime = \"python\"\n\n[env]\nname = \"kept\"\n"
        );
    }

    #[test]
    fn a_copy_has_every_file_but_no_bytecode() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir_all(from.path().join("package/__pycache__")).unwrap();
        fs::write(from.path().join("main.py"), "1").unwrap();
        fs::write(from.path().join("package/module.py"), "2").unwrap();
        fs::write(from.path().join("package/__pycache__/module.pyc"), "3").unwrap();
        let copied = Folder::copy(from.path()).unwrap();
        let to = copied.path();
        assert_eq!(fs::read_to_string(to.join("package/module.py")).unwrap(), "2");
        assert!(to.join("main.py").exists() && !to.join("package/__pycache__").exists());
    }
}
