//! Options of commands about releases: differences, rollback, aliases.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rekindle_wire::api::AliasTarget;
use rekindle_wire::{AliasName, VersionNumber};

use super::{FunctionArg, Listing};

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

/// `fn diff`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn diff hello                    from the live version to the newest
  fn diff hello 7                  from version 7 to the live one
  fn diff hello 7 8
  fn diff hello --dir .            from the live version to this folder

Settings are compared one by one, files by their digests. A folder's build command runs, as at a deploy.
Exit codes: 0 nothing differs, 3 something does, 1 it failed.")]
pub(crate) struct DiffArgs {
    /// The function: NAME, or NAME.NAMESPACE.
    pub(crate) name: FunctionArg,
    /// The version to compare with; by default the live one.
    #[arg(value_parser = version)]
    pub(crate) from: Option<VersionNumber>,
    /// The other version; by default the live one, or the newest if no version is named.
    #[arg(value_parser = version)]
    pub(crate) to: Option<VersionNumber>,
    /// Compare with this folder instead.
    #[arg(long, value_name = "PATH", conflicts_with = "to")]
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a version's number.
fn version(text: &str) -> Result<VersionNumber, String> {
    let number = text.parse().map(VersionNumber);
    number.map_err(|_| format!("\"{text}\" is no version: use a number that `fn versions` lists"))
}

/// `fn alias`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn alias set hello canary 8      /function/hello@canary, and canary--hello.localhost
  fn alias set hello live 7=90,8=10
  fn alias set hello live 8
  fn alias list hello
  fn alias rm hello canary

The alias live is what the function's plain URL serves. Invocations with the same x-fn-affinity header, or fn-affinity
cookie, go to the same version.")]
pub(crate) struct AliasArgs {
    #[command(subcommand)]
    pub(crate) command: AliasCommand,
}

/// The commands of `fn alias`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum AliasCommand {
    /// Have an alias name a version, or several that share its invocations by weight.
    Set {
        /// The function: NAME, or NAME.NAMESPACE.
        name: FunctionArg,
        /// The alias: at most 13 of a-z, 0-9 and '-'.
        alias: AliasName,
        /// VERSION, or VERSION=WEIGHT,VERSION=WEIGHT.
        #[arg(value_delimiter = ',', value_parser = target, required = true)]
        versions: Vec<AliasTarget>,
    },
    /// List the aliases of a function.
    #[command(visible_alias = "ls")]
    List {
        /// The function: NAME, or NAME.NAMESPACE.
        name: FunctionArg,
        #[command(flatten)]
        listing: Listing,
    },
    /// Remove an alias.
    Rm {
        /// The function: NAME, or NAME.NAMESPACE.
        name: FunctionArg,
        /// The alias.
        alias: AliasName,
    },
}

/// Parses `8` or `8=10`.
fn target(text: &str) -> Result<AliasTarget, String> {
    let Some((number, weight)) = text.split_once('=') else {
        return version(text).map(AliasTarget::only);
    };
    let weight = weight.trim_end_matches('%').parse();
    Ok(AliasTarget {
        version: version(number)?,
        weight: weight.map_err(|_| format!("\"{text}\" has no weight: write VERSION=WEIGHT, such as 8=10"))?,
    })
}
