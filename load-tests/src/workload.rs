//! What is started: a function in one language with so much touched memory, on the root filesystem of the platform's
//! runtime.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use rekindle_testkit::Folder;

/// Memory of an instance besides the touched memory, MiB: the interpreter, its heap, and the cost of a copy.
const BESIDE_MIB: u32 = 192;

/// The function's language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    /// functions/samples/touch-python
    Python,
    /// load-tests/functions/touch-node
    Node,
    /// load-tests/functions/touch-static: no interpreter and no library.
    Static,
}

/// A language and a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// The folder of the parked function, made from the other's.
    pub(crate) fn prepare_parked(self, folder: &Folder) -> Result<Folder> {
        let parked = Folder::copy(folder.path())?;
        parked.set(&self.parked_name(), &[("idle", "\"1s\""), ("park", "\"1h\"")])?;
        Ok(parked)
    }

    /// The name of the same function, each of whose invocations gets a copy of its own.
    pub(crate) fn fresh_name(self) -> String {
        format!("{}-fresh", self.name())
    }

    /// The folder of that function, made from the other's.
    pub(crate) fn prepare_fresh(self, folder: &Folder) -> Result<Folder> {
        let fresh = Folder::copy(folder.path())?;
        fresh.set(&self.fresh_name(), &[("fresh", "true")])?;
        Ok(fresh)
    }

    /// The folder of a function that has none of the memory that this one touches. What is equal in two functions is
    /// stored once, and a host that has one's has the other's.
    pub(crate) fn prepare_other(self) -> Result<Folder> {
        let other = Folder::of("functions/samples/hello-python")?;
        other.set(&self.other_name(), &[])?;
        Ok(other)
    }

    /// The name of that function.
    pub(crate) fn other_name(self) -> String {
        format!("{}-other", self.name())
    }

    /// The function's folder, as it is deployed.
    pub(crate) fn prepare(self) -> Result<Folder> {
        let folder = Folder::of(match self.language {
            Language::Python => "functions/samples/touch-python",
            Language::Node => "load-tests/functions/touch-node",
            Language::Static => "load-tests/functions/touch-static",
        })?;
        if self.language == Language::Static {
            let built = Command::new(folder.path().join("build.sh")).status();
            if !built.context("build.sh cannot be started")?.success() {
                bail!("the static binary cannot be built (see above)");
            }
        }
        let memory = format!("\"{}MiB\"", self.memory_mib());
        folder.set(&self.name(), &[("memory", memory.as_str())])?;
        folder.edit(|text| format!("{text}\n[env]\nTOUCH_MIB = \"{}\"\n", self.mib))?;
        Ok(folder)
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
        let read = |folder: &Folder| std::fs::read_to_string(folder.path().join("fn.toml")).unwrap();
        for language in [Language::Python, Language::Node] {
            let workload = Workload { language, mib: 128 };
            let folder = workload.prepare().unwrap();
            let config = rekindle_wire::function_config::parse(&read(&folder)).unwrap();
            assert_eq!(config.name.as_str(), workload.name());
            assert_eq!(config.memory.0, 320 << 20);
            assert_eq!(config.env["TOUCH_MIB"], "128");
            let parked = read(&workload.prepare_parked(&folder).unwrap());
            assert_eq!(rekindle_wire::function_config::parse(&parked).unwrap().idle_ms, 1_000);
        }
    }
}
