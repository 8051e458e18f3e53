//! What is started: a function in one language with so much touched memory, on the root filesystem of the platform's
//! runtime.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::args::checkout;
use crate::folder;

/// Memory of an instance besides the touched memory, MiB: the interpreter, its heap, and the cost of a copy.
const BESIDE_MIB: u32 = 192;

/// The function's language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Language {
    /// functions/samples/touch-python
    Python,
    /// load-tests/functions/touch-node
    Node,
    /// load-tests/functions/touch-static: no interpreter and no library.
    Static,
}

/// A language and a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Workload {
    /// The function's language.
    pub(crate) language: Language,
    /// Memory of which it has touched every page, MiB.
    pub(crate) mib: u32,
}

impl Language {
    /// Its name on the command line and in names of functions and files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Static => "static",
        }
    }
}

impl Workload {
    /// Its function's name.
    pub(crate) fn name(self) -> String {
        format!("touch-{}-{}", self.language.name(), self.mib)
    }

    /// Its title for readers.
    pub(crate) fn title(self) -> String {
        let language = match self.language {
            Language::Python => "Python",
            Language::Node => "Node.js",
            Language::Static => "static binary",
        };
        format!("{language}, {} MB touched", self.mib)
    }

    /// The archive of its root filesystem below the cache directory.
    pub(crate) fn root_archive(self, cache: &Path) -> Result<PathBuf> {
        let name = match self.language {
            Language::Python => "python",
            Language::Node => "node",
            Language::Static => "base",
        };
        let path = cache.join("runtimes").join(name).with_extension("tar");
        if !path.exists() {
            bail!("{}: no root filesystem: run scripts/setup.sh host", path.display());
        }
        Ok(path)
    }

    /// The name of the same function, parked after a second without a request.
    pub(crate) fn parked_name(self) -> String {
        format!("{}-parked", self.name())
    }

    /// Makes the folder of the parked function from the other's. Returns its path.
    pub(crate) fn prepare_parked(self, folder: &Path) -> Result<PathBuf> {
        let to = folder.with_file_name(self.parked_name());
        folder::copy(folder, &to)?;
        folder::rename(&to, &self.parked_name(), &[("idle", "\"1s\""), ("park", "\"1h\"")])?;
        Ok(to)
    }

    /// Makes the function's folder below `dir`, as it is deployed. Returns its path.
    pub(crate) fn prepare(self, dir: &Path) -> Result<PathBuf> {
        let from = match self.language {
            Language::Python => "functions/samples/touch-python",
            Language::Node => "load-tests/functions/touch-node",
            Language::Static => "load-tests/functions/touch-static",
        };
        let to = dir.join(self.name());
        folder::copy(&checkout().join(from), &to)?;
        if self.language == Language::Static {
            let built = Command::new(to.join("build.sh")).status();
            if !built.context("build.sh cannot be started")?.success() {
                bail!("{}: the static binary cannot be built (see above)", to.display());
            }
        }
        let memory = format!("\"{}MiB\"", self.memory_mib());
        folder::rename(&to, &self.name(), &[("memory", memory.as_str())])?;
        let manifest = to.join("fn.toml");
        let size = format!("\n[env]\nTOUCH_MIB = \"{}\"\n", self.mib);
        let appended = fs::OpenOptions::new()
            .append(true)
            .open(&manifest)
            .and_then(|mut f| f.write_all(size.as_bytes()));
        appended.with_context(|| format!("{}: cannot be written", manifest.display()))?;
        Ok(to)
    }

    /// The memory limit of an instance, MiB.
    fn memory_mib(self) -> u32 {
        self.mib + BESIDE_MIB
    }

    /// The command in the root filesystem, as the runtime starts it (docs/reference/runtime-contract.md, Three
    /// runtimes).
    pub(crate) fn command(self) -> &'static [&'static str] {
        match self.language {
            Language::Python => &["/usr/bin/python3", "-u", "/opt/rekindle/python/bootstrap.py"],
            Language::Node => &[
                "/usr/bin/node",
                "--require",
                "/opt/rekindle/node/lib/preload.js",
                "/opt/rekindle/node/bootstrap.js",
            ],
            Language::Static => &["/app/server"],
        }
    }

    /// Its environment when it serves this port (docs/reference/runtime-contract.md, Environment).
    pub(crate) fn environment(self, port: u16) -> Vec<(&'static str, String)> {
        let handler = match self.language {
            Language::Python => Some("main.handler"),
            Language::Node => Some("index.handler"),
            Language::Static => None,
        };
        let fixed = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
            ("HOME", "/tmp"),
            ("TMPDIR", "/tmp"),
            ("FN_VERSION", "1"),
            ("FN_TIMEOUT_S", "30"),
        ];
        let mut out: Vec<(&'static str, String)> = fixed.map(|(k, v)| (k, v.to_owned())).to_vec();
        out.extend([
            ("PORT", port.to_string()),
            ("FN_NAME", self.name()),
            ("FN_MEMORY_MIB", self.memory_mib().to_string()),
            ("TOUCH_MIB", self.mib.to_string()),
        ]);
        out.extend(handler.map(|h| ("FN_HANDLER", h.to_owned())));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prepared_folder_has_its_own_name_size_and_memory() {
        let dir = tempfile::tempdir().unwrap();
        for language in [Language::Python, Language::Node] {
            let workload = Workload { language, mib: 128 };
            let folder = workload.prepare(dir.path()).unwrap();
            let text = fs::read_to_string(folder.join("fn.toml")).unwrap();
            let manifest = rekindle_wire::manifest::parse(&text).unwrap();
            assert_eq!(manifest.name.as_str(), workload.name());
            assert_eq!(manifest.memory.0, 320 << 20);
            assert_eq!(manifest.env["TOUCH_MIB"], "128");
            let parked = fs::read_to_string(workload.prepare_parked(&folder).unwrap().join("fn.toml")).unwrap();
            assert_eq!(rekindle_wire::manifest::parse(&parked).unwrap().idle_ms, 1_000);
        }
    }
}
