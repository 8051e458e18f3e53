//! Folders with functions, written by the tests themselves or the samples under `functions/samples/`.

use std::fs;
use std::path::{Path, PathBuf};

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
        let from = checkout().join("functions/samples").join(name);
        let dir = tempfile::tempdir().unwrap();
        copy(&from, dir.path());
        let manifest = dir.path().join("fn.toml");
        fs::write(&manifest, change(fs::read_to_string(&manifest).unwrap())).unwrap();
        Self {
            path: dir.path().to_owned(),
            _temporary: Some(dir),
        }
    }

    /// A folder with this `fn.toml` and nothing else.
    pub fn with_manifest(text: &str) -> Self {
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
        Self::with_manifest(&format!("{text}{settings}\n")).file("main.py", code)
    }

    /// A Python program that serves HTTP itself, with 128 MiB unless `settings` say otherwise.
    pub fn server(name: &str, settings: &str, code: &str) -> Self {
        let mut text = format!(
            "name = \"{name}\"\nruntime = \"http\"\nbase = \"python\"\ncommand = [\"python3\", \"server.py\"]\n"
        );
        if !settings.lines().any(|l| l.starts_with("memory")) {
            text.push_str("memory = \"128MiB\"\n");
        }
        Self::with_manifest(&format!("{text}{settings}\n")).file("server.py", code)
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
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if ["target", "node_modules", "__pycache__"].iter().any(|n| name == *n) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(to.join(&name)).unwrap();
            copy(&entry.path(), &to.join(&name));
        } else {
            fs::copy(entry.path(), to.join(&name)).unwrap();
        }
    }
}
