//! Options of `fn key` and `fn namespace`.

use std::time::Duration;

use clap::{Args, Subcommand};
use rekindle_wire::access::{AccessRole, KeyId};
use rekindle_wire::function_config::parse_duration;
use rekindle_wire::{FunctionName, Namespace};

use super::Listing;

/// `fn key`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn key create -n team --role deployer ci --expires 90d
  fn key create --role invoker --function hello        of the namespace of -n
  fn key create --role reader --all-namespaces metrics
  fn key list
  fn key revoke k-0123456789abcdef

A key is shown once. Give it to its user as FN_KEY, or as \"Authorization: Bearer KEY\".
Roles: admin does everything, keys included; deployer deploys, releases, sets secrets, invokes and reads; invoker
invokes; reader reads descriptions, logs and numbers.")]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

/// The commands of `fn key`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key, and show it.
    Create(CreateKeyArgs),
    /// List the keys, without the keys themselves.
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Revoke a key, at once and everywhere.
    Revoke {
        /// The key's id, as `fn key list` shows it.
        id: KeyId,
        #[command(flatten)]
        listing: Listing,
    },
}

/// `fn key create`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateKeyArgs {
    /// What it is for, in at most 64 characters.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    /// What its holder may do: admin, deployer, invoker or reader.
    #[arg(long)]
    pub(crate) role: AccessRole,
    /// The only function it is for; by default every one of the namespace.
    #[arg(long, value_name = "NAME", conflicts_with = "all_namespaces")]
    pub(crate) function: Option<FunctionName>,
    /// For every namespace and the platform's hosts, instead of the namespace of -n.
    #[arg(long)]
    pub(crate) all_namespaces: bool,
    /// How long it is valid, such as 90d; by default until it is revoked.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) expires: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `fn namespace`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn namespace create team
  fn -n team deploy .
  fn namespace encrypt team
  fn namespace list
  fn namespace rm team

A deploy with a key for all namespaces makes a namespace that is not there.")]
pub(crate) struct NamespaceArgs {
    #[command(subcommand)]
    pub(crate) command: NamespaceCommand,
}

/// The commands of `fn namespace`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// Make a namespace.
    Create {
        /// The namespace: at most 63 of a-z, 0-9 and '-', starting with a letter.
        name: Namespace,
    },
    /// List the namespaces.
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Encrypt the snapshots that are made in a namespace from now on. This cannot be undone.
    #[command(after_help = "\
Example: fn namespace encrypt team

Snapshots that there are stay as they are until `fn snapshot renew`, or a deploy, replaces them.")]
    Encrypt {
        /// The namespace.
        name: Namespace,
    },
    /// Remove an empty namespace, and revoke its keys.
    Rm {
        /// The namespace.
        name: Namespace,
    },
}
