//! Options of `fn source`.

use clap::{Args, Subcommand};

use super::{FunctionArg, Listing};

/// `fn source`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn source list                      of all functions of the namespace
  fn source list billing
  fn source list billing --json       with what each reader says

Sources are set in fn.toml, as [[source]]. The program rekindle-events reads those of the version that serves.")]
pub(crate) struct SourceArgs {
    #[command(subcommand)]
    pub(crate) command: SourceCommand,
}

/// The commands of `fn source`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SourceCommand {
    /// List sources, with how reading them goes.
    #[command(visible_alias = "ls")]
    List {
        /// The function; all of the namespace by default.
        name: Option<FunctionArg>,
        #[command(flatten)]
        listing: Listing,
    },
}
