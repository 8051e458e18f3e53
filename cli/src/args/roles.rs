//! Options of the platform and its roles.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rekindle_identity::Token;

use super::{
    BuildArgs, CallerArgs, CodecArgs, DefaultQuotaArgs, EgressArgs, HttpsArgs, OfferArgs, PlatformDirs, RetentionArgs,
    RoomArgs, S3Args, seconds,
};

/// The key for secrets in the scheduler's database.
#[derive(Debug, Clone, Args)]
pub(crate) struct SealingArgs {
    /// File with the key that encrypts secrets in the scheduler's database; by default master.key below --data. It is
    /// made if it does not exist. Schedulers that share a database need the same key.
    #[arg(long, value_name = "FILE", env = "FN_MASTER_KEY_FILE")]
    pub(crate) master_key: Option<PathBuf>,
    /// Shell command that prints that key at each start, in place of a file: at least 32 random characters, such as
    /// from a cloud's key service. It may take a minute.
    #[arg(
        long,
        value_name = "COMMAND",
        env = "FN_MASTER_KEY_COMMAND",
        conflicts_with = "master_key"
    )]
    pub(crate) master_key_command: Option<String>,
    /// Key of AWS KMS (id, ARN or alias/NAME) that wraps that key in the database; KMS unwraps it at each start. A key
    /// that was kept in a file stays the same: KMS wraps it at the first start. Credentials, and the region unless an
    /// ARN names it, come from the usual AWS variables.
    #[arg(
        long,
        value_name = "KEY",
        env = "FN_MASTER_KEY_KMS",
        conflicts_with = "master_key_command"
    )]
    pub(crate) master_key_kms: Option<String>,
    /// Name of the cluster in the encryption context that KMS is told (rekindle:cluster).
    #[arg(long, value_name = "NAME", env = "FN_MASTER_KEY_CLUSTER", default_value = "rekindle")]
    pub(crate) master_key_cluster: String,
}

/// When the scheduler removes unneeded objects from the object store.
#[derive(Debug, Clone, Args)]
pub(crate) struct CollectingArgs {
    /// Number of newest versions of a function that are kept; those that an alias names, as the live one, always are.
    #[arg(long, value_name = "N", env = "FN_KEEP_VERSIONS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_versions: u32,
    /// How often to remove unneeded objects from the object store; 0s for never automatically.
    #[arg(long, value_name = "DURATION", env = "FN_COLLECT_EVERY", default_value = "1h")]
    #[arg(value_parser = rekindle_wire::function_config::parse_duration)]
    pub(crate) collect_every: std::time::Duration,
}

/// What snapshots of functions may share.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SharingArgs {
    /// Which versions begin as the same snapshot of their runtime: none, the versions of a function, or all functions
    /// of a namespace. Their own snapshots then take a tenth in the store, but share one memory layout and one hash
    /// secret.
    #[arg(long, value_name = "WHAT", env = "FN_SHARE_MEMORY", value_enum, default_value_t = ShareMemory::None)]
    pub(crate) share_memory: ShareMemory,
}

/// Which versions begin as the same snapshot of their runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShareMemory {
    /// None: each version is booted from nothing.
    None,
    /// The versions of one function.
    Versions,
    /// All functions of a namespace with the same runtime.
    Functions,
}

impl From<SharingArgs> for rekindle_wire::internal::Sharing {
    fn from(args: SharingArgs) -> Self {
        match args.share_memory {
            ShareMemory::None => Self::None,
            ShareMemory::Versions => Self::Versions,
            ShareMemory::Functions => Self::Functions,
        }
    }
}

/// `fn up`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn up                                          in the background; returns when ready
  fn up --foreground                             for an init system or a container
  fn up --listen 0.0.0.0:8080                    reachable from other machines
  fn up --traces                                 spans to the trace store on this machine (`make traces` starts one)
  fn up --s3-endpoint http://s3.local --s3-bucket functions")]
pub(crate) struct UpArgs {
    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Leave the session of the terminal; `fn up` passes this to the process that it starts.
    #[arg(long, hide = true, requires = "foreground")]
    pub(crate) detached: bool,
    /// Where the gateway listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    #[command(flatten)]
    pub(crate) s3: S3Args,
    #[command(flatten)]
    pub(crate) collecting: CollectingArgs,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
    #[command(flatten)]
    pub(crate) sealing: SealingArgs,
    #[command(flatten)]
    pub(crate) retention: RetentionArgs,
    #[command(flatten, next_help_heading = "Quotas of namespaces")]
    pub(crate) quota: DefaultQuotaArgs,
    /// The CRIU binary to use.
    #[arg(long, value_name = "PATH", env = "FN_CRIU")]
    pub(crate) criu: Option<PathBuf>,
    /// How long to wait for the platform to be ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = seconds())]
    pub(crate) wait: u64,
    #[command(flatten)]
    pub(crate) room: RoomArgs,
    /// Send traces by OTLP (gRPC) to this collector; without a value, to the one on this machine, and print where to
    /// look.
    #[arg(long, value_name = "URL", env = "FN_TRACES", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = crate::up::LOCAL_TRACES)]
    pub(crate) traces: Option<String>,
    #[command(flatten)]
    pub(crate) codec: CodecArgs,
    #[command(flatten)]
    pub(crate) callbacks: CallbackArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten, next_help_heading = "Callers")]
    pub(crate) callers: CallerArgs,
    #[command(flatten, next_help_heading = "Hosts and HTTPS")]
    pub(crate) https: HttpsArgs,
    #[command(flatten, next_help_heading = "Network of functions")]
    pub(crate) egress: EgressArgs,
    #[command(flatten)]
    pub(crate) building: BuildArgs,
}

/// Where the gateway may post the results of asynchronous invocations.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CallbackArgs {
    /// Where callbacks may go that a caller without a deployer's key names: a host (hooks.example.com), a network
    /// (10.1.0.0/16), or `public` for everywhere. A network may be private or this host's own. May be repeated.
    #[arg(
        long,
        value_name = "HOST|CIDR|public",
        env = "FN_CALLBACK_ALLOW",
        value_delimiter = ','
    )]
    pub(crate) callback_allow: Vec<rekindle_gateway::CallbackAllow>,
}

/// Whose tokens the gateway takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TokenArgs {
    /// Address of an issuer whose tokens (JWT) callers may show to functions with auth = "jwt", as the tokens' iss has
    /// it. The address of its keys follows after a `=` where no OpenID configuration names them. May be repeated.
    #[arg(long, value_name = "ISSUER[=KEYS]", env = "FN_JWT_ISSUER", value_delimiter = ',')]
    pub(crate) jwt_issuer: Vec<rekindle_gateway::TokenIssuer>,
    #[command(flatten)]
    pub(crate) identity: super::IdentityArgs,
}

/// `fn down`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    /// How long the platform may take to stop before it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds())]
    pub(crate) wait: u64,
}

/// Which platform a gateway or a worker belongs to.
#[derive(Debug, Clone, Args)]
pub(crate) struct MemberArgs {
    /// The scheduler's address; of several that share a database, all, separated by commas. The prefix `https://` says
    /// that this host has joined the cluster, or joins now.
    #[arg(
        long,
        value_name = "[https://]HOST:PORT",
        env = "FN_SCHEDULER",
        default_value = "127.0.0.1:8081"
    )]
    pub(crate) scheduler: String,
    /// File with the secret that all parts of the platform share.
    #[arg(
        long,
        value_name = "FILE",
        env = "FN_CLUSTER_TOKEN_FILE",
        default_value = "/var/lib/rekindle/cluster.token"
    )]
    pub(crate) token_file: PathBuf,
}

/// `fn gateway`.
#[derive(Debug, Clone, Args)]
pub(crate) struct GatewayArgs {
    /// Where the gateway listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) member: MemberArgs,
    /// A token of `fn cluster token`, for the first start in a cluster with an authority.
    #[arg(long, value_name = "TOKEN", env = "FN_JOIN", hide_env_values = true)]
    pub(crate) join: Option<Token>,
    /// Where the gateway's certificate is kept.
    #[arg(long, value_name = "DIR", env = "FN_DATA", default_value = "/var/lib/rekindle")]
    pub(crate) data: PathBuf,
    /// Where workers pass on calls of functions to functions of the same namespace; without it, this gateway takes
    /// none. Only workers need to reach it.
    #[arg(long, value_name = "ADDRESS", env = "FN_FUNCTIONS_LISTEN")]
    pub(crate) functions_listen: Option<SocketAddr>,
    /// Where workers reach --functions-listen; needed if it is every address.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "FN_FUNCTIONS_ADVERTISE",
        requires = "functions_listen"
    )]
    pub(crate) functions_advertise: Option<String>,
    /// File with the admin key.
    #[arg(
        long,
        value_name = "FILE",
        env = "FN_ADMIN_KEY_FILE",
        default_value = "/var/lib/rekindle/admin.key"
    )]
    pub(crate) key_file: PathBuf,
    #[command(flatten)]
    pub(crate) callbacks: CallbackArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten, next_help_heading = "Callers")]
    pub(crate) callers: CallerArgs,
    #[command(flatten, next_help_heading = "Hosts and HTTPS")]
    pub(crate) https: HttpsArgs,
}

/// `fn scheduler`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SchedulerArgs {
    /// Where the scheduler listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8081")]
    pub(crate) listen: SocketAddr,
    /// Where others reach it; standby schedulers report this address while it leads.
    #[arg(long, value_name = "HOST:PORT", env = "FN_ADVERTISE")]
    pub(crate) advertise: Option<String>,
    /// A PostgreSQL database instead of a file below --data, postgres://USER:PASSWORD@HOST/NAME. Of several schedulers
    /// that share one, one leads and the others stand by.
    #[arg(long, value_name = "URL", env = "FN_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<rekindle_scheduler::Database>,
    /// File with the secret that all parts of the platform share.
    #[arg(
        long,
        value_name = "FILE",
        env = "FN_CLUSTER_TOKEN_FILE",
        default_value = "/var/lib/rekindle/cluster.token"
    )]
    pub(crate) token_file: PathBuf,
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    #[command(flatten)]
    pub(crate) s3: S3Args,
    #[command(flatten)]
    pub(crate) collecting: CollectingArgs,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
    #[command(flatten)]
    pub(crate) sealing: SealingArgs,
    #[command(flatten)]
    pub(crate) retention: RetentionArgs,
    #[command(flatten, next_help_heading = "Quotas of namespaces")]
    pub(crate) quota: DefaultQuotaArgs,
    /// Share of a worker's processors that its instances must keep busy before some move to other workers, percent; 0
    /// for never.
    #[arg(long, value_name = "PERCENT", env = "FN_REBALANCE_AT", default_value_t = 85)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rebalance_at: u8,
    /// Lifetime of the certificates that it signs, if the cluster has an authority; they are renewed after two thirds
    /// of it.
    #[arg(long, value_name = "DURATION", env = "FN_CERTIFICATE_LIFE", default_value = "720h")]
    #[arg(value_parser = rekindle_wire::function_config::parse_duration)]
    pub(crate) certificate_life: std::time::Duration,
}

/// `fn worker`.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkerArgs {
    /// Where the worker listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8082")]
    pub(crate) listen: SocketAddr,
    /// Where gateways and the scheduler reach it; needed if it listens on every address.
    #[arg(long, value_name = "HOST:PORT", env = "FN_ADVERTISE")]
    pub(crate) advertise: Option<String>,
    #[command(flatten)]
    pub(crate) member: MemberArgs,
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    #[command(flatten)]
    pub(crate) s3: S3Args,
    /// The CRIU binary to use.
    #[arg(long, value_name = "PATH", env = "FN_CRIU")]
    pub(crate) criu: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) room: RoomArgs,
    #[command(flatten)]
    pub(crate) offer: OfferArgs,
    /// A token of `fn cluster token`, for the first start in a cluster with an authority.
    #[arg(long, value_name = "TOKEN", env = "FN_JOIN", hide_env_values = true)]
    pub(crate) join: Option<Token>,
    #[command(flatten)]
    pub(crate) codec: CodecArgs,
    #[command(flatten, next_help_heading = "Network of functions")]
    pub(crate) egress: EgressArgs,
    #[command(flatten)]
    pub(crate) building: BuildArgs,
}
