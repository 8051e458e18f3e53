//! Options of a platform with several hosts.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rekindle_identity::Role;
use rekindle_wire::function_config::parse_duration;

use super::{Listing, PlatformDirs, seconds};

/// `fn cluster`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

/// The commands of `fn cluster`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Make the authority that signs the roles' certificates; from the scheduler's next start on they speak TLS with
    /// each other.
    Init {
        #[command(flatten)]
        places: PlatformDirs,
    },
    /// Print a token with which a host joins.
    Token(JoinTokenArgs),
    /// Revoke a member's certificate for good, such as that of a worker whose host was taken over.
    Revoke(RevokeArgs),
    /// List revoked members.
    Revoked(Listing),
}

/// `fn cluster revoke`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn cluster revoke 10.0.0.2                    a worker by address, host name or id, as `fn workers` shows them
  fn cluster revoke --role gateway g-0198...    the name is in the certificate, and in the log of who let it join")]
pub(crate) struct RevokeArgs {
    /// The member: a worker's id, its address with or without the port, or its host's name; a gateway's name.
    pub(crate) member: String,
    /// The member's role.
    #[arg(long, value_enum, default_value = "worker")]
    pub(crate) role: JoiningRole,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn cluster token`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn worker --scheduler https://10.0.0.1:8081 --join $(ssh 10.0.0.1 fn cluster token) ...
  fn cluster token --role gateway
  fn cluster token --uses 20 --life 10m     for a group of hosts that start together")]
pub(crate) struct JoinTokenArgs {
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    /// The role of the host that joins.
    #[arg(long, value_enum, default_value = "worker")]
    pub(crate) role: JoiningRole,
    /// Number of hosts that may join with it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) uses: u32,
    /// Lifetime of the token.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub(crate) life: Duration,
}

/// The roles that join; the scheduler is a member already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JoiningRole {
    /// `fn worker`.
    Worker,
    /// `fn gateway`.
    Gateway,
}

impl From<JoiningRole> for Role {
    fn from(role: JoiningRole) -> Self {
        match role {
            JoiningRole::Worker => Self::Worker,
            JoiningRole::Gateway => Self::Gateway,
        }
    }
}

/// What a worker announces of itself, and how it shuts down.
#[derive(Debug, Clone, Args)]
pub(crate) struct OfferArgs {
    /// The worker's zone, such as a data centre; workers of one zone fail together.
    #[arg(long, value_name = "NAME", env = "FN_ZONE", default_value = "")]
    pub(crate) zone: String,
    /// More to show of it in `fn workers`; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", env = "FN_LABEL", value_delimiter = ',', value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Maximum number of instances, whatever their memory.
    #[arg(long, value_name = "N", env = "FN_MAX_INSTANCES", default_value_t = 2000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_instances: u32,
    /// How long it may finish what it serves after it is told to stop.
    #[arg(long, value_name = "DURATION", env = "FN_LEAVE_LIMIT", default_value = "30s")]
    #[arg(value_parser = parse_duration)]
    pub(crate) leave_limit: Duration,
}

/// Parses `name=value`.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("\"{text}\" is not a label: write name=value")),
    }
}

/// `fn drain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn drain 10.0.0.2                by address, host name or id, as `fn workers` shows them
  fn drain worker-b --wait         returns when nothing runs on it any more")]
pub(crate) struct DrainArgs {
    /// The worker: its id, its address with or without the port, or its host's name.
    pub(crate) worker: String,
    /// Wait until nothing runs on it any more.
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "wait", value_parser = seconds())]
    pub(crate) limit: u64,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn undrain`.
#[derive(Debug, Clone, Args)]
pub(crate) struct UndrainArgs {
    /// The worker: its id, its address with or without the port, or its host's name.
    pub(crate) worker: String,
    #[command(flatten)]
    pub(crate) listing: Listing,
}
