//! Options of commands about this host.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use rekindle_wire::InstanceId;

use super::{FunctionArg, Listing, PlatformDirs};

/// `fn config`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn config                          what `fn up` would run with
  fn config worker                   what `fn worker` would
  fn config up --changed             only what is not a default
  fn config --config ./rekindle.toml check a file before it is installed")]
pub(crate) struct ConfigArgs {
    /// The role.
    #[arg(default_value = "up", value_parser = clap::builder::PossibleValuesParser::new(crate::settings::ROLES))]
    pub(crate) role: String,
    /// Leave out what is as it is by default.
    #[arg(long)]
    pub(crate) changed: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `fn backup`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  fn backup /mnt/backups/rekindle-$(date +%F).tar")]
pub(crate) struct BackupArgs {
    /// The file, which must not exist yet.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
}

/// `fn restore-backup`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  fn down && fn restore-backup /mnt/backups/rekindle-2026-11-21.tar && fn up")]
pub(crate) struct RestoreBackupArgs {
    /// The file that `fn backup` wrote.
    pub(crate) file: PathBuf,
    /// Restore even if the existing data is newer. That data is kept beside it.
    #[arg(long)]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
}

/// `fn doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn doctor                        prove CRIU with a real checkpoint; exit 1 if something required lacks
  fn doctor --quick                without the proof
  fn doctor --criu /usr/sbin/criu  prove that CRIU
  fn doctor --function hello       what keeps a running function from its snapshot, or is lost in copies")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    /// The CRIU binary to test.
    #[arg(long, value_name = "PATH", env = "FN_CRIU")]
    pub(crate) criu: Option<PathBuf>,
    /// Look at a function instead, at one of its instances: each open file, socket and mapping, what becomes of it in
    /// copies, and what to change.
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["criu_only", "quick"])]
    pub(crate) function: Option<FunctionArg>,
    /// That instance of the function; by default the one that has run longest.
    #[arg(long, value_name = "ID", requires = "function")]
    pub(crate) instance: Option<InstanceId>,
    /// Of a function, list what is kept one by one.
    #[arg(long, requires = "function")]
    pub(crate) all: bool,
    /// Skip the checkpoint and the restores.
    #[arg(long, conflicts_with = "criu_only")]
    pub(crate) quick: bool,
    /// Test CRIU and check nothing else.
    #[arg(long)]
    pub(crate) criu_only: bool,
    /// Where the gateway would listen.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// The hidden process of `fn doctor`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorTargetArgs {
    /// File to which it writes its port once it listens.
    pub(crate) ready: PathBuf,
    /// Memory that it fills, MiB.
    #[arg(long, default_value_t = 16)]
    pub(crate) mib: usize,
}
