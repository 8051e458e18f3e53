//! The parts of the platform, one each, for a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::shared::{InstanceArgs, Places, S3Args, SchedulerAddress, TokenArgs};

/// `fn gateway`.
#[derive(Debug, Clone, Args)]
pub(crate) struct GatewayArgs {
    /// Where it listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) scheduler: SchedulerAddress,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
    /// File with the admin key.
    #[arg(
        long,
        value_name = "FILE",
        env = "FN_ADMIN_KEY_FILE",
        default_value = "/var/lib/rekindle/admin.key"
    )]
    pub(crate) key_file: PathBuf,
}

/// `fn scheduler`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SchedulerArgs {
    /// Where it listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
    #[command(flatten)]
    pub(crate) places: Places,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

/// `fn worker`.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkerArgs {
    /// Where it listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8082")]
    pub(crate) listen: SocketAddr,
    /// Where gateways and the scheduler reach it; needed when it listens on every address.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    #[command(flatten)]
    pub(crate) scheduler: SchedulerAddress,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
    #[command(flatten)]
    pub(crate) places: Places,
    #[command(flatten)]
    pub(crate) s3: S3Args,
    #[command(flatten)]
    pub(crate) instances: InstanceArgs,
}
