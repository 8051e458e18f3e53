//! Options of `fn secret`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rekindle_wire::SecretName;

use super::Listing;

/// `fn secret`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn secret set DB_URL                        asks for the value, and does not show it
  fn secret set TLS_KEY --file key.pem
  pass show db | fn secret set DB_URL
  fn secret rotate DB_URL                     the same, for a secret that there is
  fn secret list
  fn secret rm DB_URL

A value is never given on the command line, where every user of the host can read it. One newline at the end of what is
typed or piped is left out; a file is taken as it is. Secrets belong to the namespace of -n.")]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

/// The commands of `fn secret`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set a secret, in place of the value before.
    Set(SetSecretArgs),
    /// Set another value of a secret that there is.
    Rotate(SetSecretArgs),
    /// List the secrets, without their values.
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Remove a secret.
    Rm {
        /// The secret.
        name: SecretName,
        /// Remove it although functions need it, which then start no instances.
        #[arg(long)]
        force: bool,
    },
}

/// `fn secret set` and `rotate`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SetSecretArgs {
    /// The secret: at most 64 of A-Z, 0-9 and '_'.
    pub(crate) name: SecretName,
    /// The file that holds the value, at most 64 KiB; by default it is asked for on a terminal, or read from standard
    /// input.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
