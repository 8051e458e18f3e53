//! Options of commands about releases: versions, rollback.

use clap::Args;
use rekindle_wire::VersionNumber;

use super::{FunctionArg, Listing};

/// `fn versions`.
#[derive(Debug, Clone, Args)]
pub(crate) struct VersionsArgs {
    /// The function: NAME, or NAME.NAMESPACE.
    pub(crate) name: FunctionArg,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn rollback`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn rollback hello                the version that was live before
  fn rollback hello 7

Nothing is built: instances are restored from the version's snapshot. Invocations in flight end where they are.")]
pub(crate) struct RollbackArgs {
    /// The function: NAME, or NAME.NAMESPACE.
    pub(crate) name: FunctionArg,
    /// The version, as `fn versions` lists it; by default the one that was live before.
    #[arg(value_parser = version)]
    pub(crate) version: Option<VersionNumber>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a version's number.
fn version(text: &str) -> Result<VersionNumber, String> {
    let number = text.parse().map(VersionNumber);
    number.map_err(|_| format!("\"{text}\" is no version: use a number that `fn versions` lists"))
}
