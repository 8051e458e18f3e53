//! Runs `nft` in the calling thread's network namespace.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Why the packet filter could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program is missing.
    #[error("nft is missing: install the package nftables, or start the worker with --egress off")]
    Missing,
    /// It could not be run.
    #[error("run nft")]
    Run(#[source] std::io::Error),
    /// It refused the rules.
    #[error("nft refused the rules: {0}")]
    Refused(String),
}

/// Finds `nft`: not every PATH has the directories of root's programs.
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut all = std::env::split_paths(&path).chain(usual);
    all.find_map(|dir| Some(dir.join("nft")).filter(|f| f.is_file()))
}

/// Applies a document, wholly or not at all. Blocks for some milliseconds.
///
/// # Errors
/// Returns an error when `nft` is missing or refuses.
pub(super) fn apply(document: &str) -> Result<(), NftError> {
    run(&["-f", "-"], document).map(drop)
}

/// Lists `what` as text. Returns nothing if it cannot be listed.
pub(super) fn list(what: &[&str]) -> String {
    let mut arguments = vec!["list"];
    arguments.extend(what);
    run(&arguments, "").unwrap_or_default()
}

fn run(arguments: &[&str], input: &str) -> Result<String, NftError> {
    let program = find().ok_or(NftError::Missing)?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(NftError::Run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Its exit status and output tell why it stopped reading.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(NftError::Run)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        let first: Vec<&str> = said.lines().take(3).collect();
        Err(NftError::Refused(first.join(" | ")))
    }
}
