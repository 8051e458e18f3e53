//! Finds CRIU.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Check;
use super::bounded::run_bounded;

/// Where `scripts/install-criu.sh` puts the private one.
const DEFAULT_CRIU: &str = "/usr/local/lib/rekindle/criu/criu";
pub(super) const FIX: &str =
    "run scripts/install-criu.sh /usr/local/lib/rekindle/criu, or name a working one with --criu";

/// A CRIU that starts.
#[derive(Debug, Clone)]
pub(crate) struct Criu {
    pub(crate) path: PathBuf,
    /// Its version, as it reports it.
    pub(crate) version: String,
}

impl Criu {
    /// The line that says which one it is.
    pub(super) fn check(&self) -> Check {
        Check::ok("CRIU", format!("{} at {}", self.version, self.path.display()))
    }
}

/// The CRIU to use: the one named, otherwise the private one, otherwise the system's. If there is none, the failed
/// check.
pub(crate) fn find(named: Option<&Path>) -> Result<Criu, Check> {
    let candidates = match named {
        Some(path) => vec![path.to_owned()],
        None => candidates(),
    };
    let mut why = "not found".to_owned();
    for path in candidates {
        match version(&path) {
            Ok(version) => return Ok(Criu { path, version }),
            Err(e) => why = format!("{}: {e}", path.display()),
        }
    }
    Err(Check::lack("CRIU", why, FIX))
}

fn candidates() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from(DEFAULT_CRIU)];
    let path = env::var_os("PATH").unwrap_or_default();
    // Debian installs it in sbin, which is not in everyone's PATH.
    let folders = env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    found.extend(folders.map(|f| f.join("criu")));
    found.retain(|p| p.is_file());
    found
}

fn version(path: &Path) -> Result<String, String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut command = Command::new(path);
    command.arg("--version");
    let text = run_bounded(&mut command, Duration::from_secs(5), &scratch.path().join("version"))
        .map_err(|e| format!("it does not start: {e:#}"))?;
    text.lines()
        .find_map(|l| l.strip_prefix("Version: "))
        .map(|v| v.trim().to_owned())
        .ok_or_else(|| "it does not say its version".to_owned())
}
