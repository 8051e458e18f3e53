//! What is done with the platform of one machine: to start it, stop it, and see whether it can run.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::shared::{InstanceArgs, Listing, Places, S3Args};

/// `fn up`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn up                                          in the background; returns when ready
  fn up --foreground                             for an init system or a container
  fn up --listen 0.0.0.0:8080                    reachable from other machines
  fn up --s3-endpoint http://s3.local --s3-bucket functions")]
pub(crate) struct UpArgs {
    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Leave the session of the terminal; given by `fn up` to the process it starts.
    #[arg(long, hide = true, requires = "foreground")]
    pub(crate) detached: bool,
    /// Where the gateway listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) places: Places,
    #[command(flatten)]
    pub(crate) s3: S3Args,
    /// How long to wait for the platform to be ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) wait: u64,
    #[command(flatten)]
    pub(crate) instances: InstanceArgs,
}

/// `fn down`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) places: Places,
    /// How long the platform may take to stop before it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) wait: u64,
}

/// `fn doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn doctor                        prove CRIU with a real checkpoint; exit 1 if something required lacks
  fn doctor --quick                without the proof
  fn doctor --criu /usr/sbin/criu  prove that CRIU")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) places: Places,
    /// The CRIU binary to prove.
    #[arg(long, value_name = "PATH", env = "FN_CRIU")]
    pub(crate) criu: Option<PathBuf>,
    /// Leave out the checkpoint and the restores.
    #[arg(long, conflicts_with = "criu_only")]
    pub(crate) quick: bool,
    /// Prove CRIU and look at nothing else.
    #[arg(long)]
    pub(crate) criu_only: bool,
    /// Where the gateway would listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// The hidden process under `fn doctor`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorTargetArgs {
    /// Where it writes its port once it listens.
    pub(crate) ready: PathBuf,
    /// Memory it fills, MiB.
    #[arg(long, default_value_t = 16)]
    pub(crate) mib: usize,
}

/// `fn runtimes`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RuntimesArgs {
    #[command(subcommand)]
    pub(crate) command: RuntimesCommand,
}

/// What can be done with runtimes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RuntimesCommand {
    /// Put the archives in `<cache>/runtimes/` into the store.
    Import {
        #[command(flatten)]
        places: Places,
        #[command(flatten)]
        s3: S3Args,
    },
}
