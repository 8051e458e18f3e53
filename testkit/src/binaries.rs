//! The programs under test and what they need.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use anyhow::{Context as _, Result, ensure};

/// The names of the root filesystems.
pub(crate) const RUNTIMES: [&str; 4] = ["base", "python", "node", "build"];

/// The directory of `fn` and `rekindle-init`.
#[derive(Debug, Clone)]
pub struct Programs(PathBuf);

impl Programs {
    /// Those in `named`, or in `REKINDLE_BIN_DIR`, or where cargo built this program.
    ///
    /// # Errors
    /// If one of them is not there.
    pub fn find(named: Option<&Path>) -> Result<Self> {
        let own = std::env::current_exe().context("the path of this program is not known")?;
        // target/dist/rekindle-bench, target/release/deps/loop-0123
        let built = own.ancestors().skip(1).find(|dir| !dir.ends_with("deps"));
        let set = std::env::var_os("REKINDLE_BIN_DIR").map(PathBuf::from);
        let dir = named.map(Path::to_owned).or(set);
        let dir = dir.or(built.map(Path::to_owned)).unwrap_or_default();
        for name in ["fn", "rekindle-init"] {
            let path = dir.join(name);
            ensure!(
                path.exists(),
                "{}: missing: run `make build`, or name its directory (--bin, REKINDLE_BIN_DIR)",
                path.display()
            );
        }
        Ok(Self(dir))
    }

    /// Their directory.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// `fn`.
    pub fn cli(&self) -> PathBuf {
        self.0.join("fn")
    }

    /// The sandbox's init.
    pub fn init(&self) -> PathBuf {
        self.0.join("rekindle-init")
    }

    /// `fn`, as a client of this gateway.
    pub fn client(&self, url: &str, key: &str) -> Command {
        let mut command = Command::new(self.cli());
        command.env("FN_URL", url).env("FN_KEY", key).env("NO_COLOR", "1");
        command.stdin(Stdio::null());
        command
    }
}

/// The directory of `fn` and `rekindle-init`: `REKINDLE_BIN_DIR`, or where cargo built the test.
///
/// # Panics
/// If they are not there.
pub fn directory() -> PathBuf {
    Programs::find(None).unwrap_or_else(|e| panic!("{e:#}")).0
}

/// The project's checkout: the one in which this is run, otherwise the one in which it was built, which may have been
/// moved since.
pub fn checkout() -> &'static Path {
    static CHECKOUT: LazyLock<PathBuf> = LazyLock::new(|| {
        let here = std::env::current_dir().ok();
        let found = here.as_deref().and_then(checkout_above);
        found.map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned(),
            Path::to_owned,
        )
    });
    &CHECKOUT
}

/// The checkout that contains `dir`.
fn checkout_above(dir: &Path) -> Option<&Path> {
    dir.ancestors().find(|dir| dir.join("load-tests/jaeger.yaml").is_file())
}

/// The directory of the root filesystems' archives, which are built if needed: that takes minutes, once.
pub fn runtimes() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let cache = std::env::var_os("FN_CACHE").map_or_else(|| PathBuf::from("/var/cache/rekindle"), PathBuf::from);
        let dir = cache.join("runtimes");
        for name in RUNTIMES {
            let status = Command::new(checkout().join("functions/runtimes/build.sh"))
                .arg(name)
                .arg(dir.join(format!("{name}.tar")))
                .status()
                .unwrap();
            assert!(status.success(), "the root filesystem \"{name}\" could not be built");
        }
        dir
    });
    &BUILT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkout_is_the_one_that_it_is_run_in() {
        let elsewhere = tempfile::tempdir().unwrap();
        let deep = elsewhere.path().join("load-tests/results");
        std::fs::create_dir_all(&deep).unwrap();
        assert_eq!(checkout_above(&deep), None);
        std::fs::write(elsewhere.path().join("load-tests/jaeger.yaml"), "").unwrap();
        assert_eq!(checkout_above(&deep), Some(elsewhere.path()));
    }
}
