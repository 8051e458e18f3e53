//! Groups of options that several commands have, so that they are named, defaulted and explained alike.

use std::path::PathBuf;

use clap::Args;

/// Where the platform is and how to prove who is asking.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClientArgs {
    /// Address of the gateway.
    #[arg(
        long,
        global = true,
        env = "FN_URL",
        default_value = "http://127.0.0.1:8080",
        help_heading = "Connection"
    )]
    pub(crate) url: String,
    /// The admin key itself; by default it is read from its file.
    #[arg(
        long,
        global = true,
        env = "FN_KEY",
        hide_env_values = true,
        help_heading = "Connection"
    )]
    pub(crate) key: Option<String>,
}

/// Options every listing has.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Listing {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The directories of a platform on this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct Places {
    /// What must be kept: functions, snapshots, metadata, keys, logs.
    #[arg(long, value_name = "DIR", env = "FN_DATA", default_value = "/var/lib/rekindle")]
    pub(crate) data: PathBuf,
    /// What can be made again: runtimes, templates, chunks.
    #[arg(long, value_name = "DIR", env = "FN_CACHE", default_value = "/var/cache/rekindle")]
    pub(crate) cache: PathBuf,
    /// What lives as long as the platform runs: its pid and its mounts.
    #[arg(long, value_name = "DIR", env = "FN_RUN", default_value = "/run/rekindle")]
    pub(crate) run: PathBuf,
}

/// An S3 server of one's own; credentials and region come from the usual AWS variables.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct S3Args {
    /// An S3 server to use instead of the embedded one; credentials and region come from the usual AWS variables.
    #[arg(long, value_name = "URL", env = "FN_S3_ENDPOINT")]
    pub(crate) s3_endpoint: Option<String>,
    /// The bucket.
    #[arg(long, value_name = "NAME", env = "FN_S3_BUCKET", default_value = "rekindle")]
    pub(crate) s3_bucket: String,
}

/// The secret of the platform's parts.
#[derive(Debug, Clone, Args)]
pub(crate) struct TokenArgs {
    /// File with the secret that all parts of the platform share.
    #[arg(
        long = "token-file",
        value_name = "FILE",
        env = "FN_CLUSTER_TOKEN_FILE",
        default_value = "/var/lib/rekindle/cluster.token"
    )]
    pub(crate) file: PathBuf,
}

/// Where the scheduler is.
#[derive(Debug, Clone, Args)]
pub(crate) struct SchedulerAddress {
    /// The scheduler's address.
    #[arg(
        long = "scheduler",
        value_name = "HOST:PORT",
        env = "FN_SCHEDULER",
        default_value = "127.0.0.1:8081"
    )]
    pub(crate) address: String,
}

/// What instances are started with.
#[derive(Debug, Clone, Args)]
pub(crate) struct InstanceArgs {
    /// The CRIU binary to use.
    #[arg(long, value_name = "PATH", env = "FN_CRIU")]
    pub(crate) criu: Option<PathBuf>,
    /// Memory that instances may use together, for example 4GiB; by default half of the machine's.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<rekindle_wire::manifest::ByteSize>,
}
