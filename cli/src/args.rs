//! The command line of `fn`: every command and option, with the examples that `--help` shows. It has no behaviour.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};
use rekindle_wire::Namespace;

mod access;
mod async_calls;
mod audit;
mod building;
mod callers;
mod cluster;
mod codec;
mod egress;
mod function;
mod functions;
mod host;
mod https;
mod identity;
mod migrate;
mod places;
mod quota;
mod releases;
mod retention;
mod roles;
mod room;
mod schedule;
mod secret;
mod snapshot;
mod source;
mod storage;
#[cfg(test)]
mod tests;

pub(crate) use access::{CreateKeyArgs, KeyArgs, KeyCommand, NamespaceArgs, NamespaceCommand};
pub(crate) use async_calls::{AsyncArgs, AsyncCommand};
pub(crate) use audit::{AuditArgs, AuditCommand, VerifyArgs};
pub(crate) use building::BuildArgs;
pub(crate) use callers::CallerArgs;
pub(crate) use cluster::{ClusterArgs, ClusterCommand, DrainArgs, JoinTokenArgs, OfferArgs, RevokeArgs, UndrainArgs};
pub(crate) use codec::CodecArgs;
pub(crate) use egress::EgressArgs;
pub(crate) use function::{FunctionArg, VersionArg};
pub(crate) use functions::{
    DeleteArgs, DemoArgs, DeployArgs, DescribeArgs, InitArgs, InvokeArgs, LogsArgs, RuntimesAddArgs, RuntimesArgs,
    RuntimesCommand, RuntimesListArgs, Template, TopArgs,
};
pub(crate) use host::{BackupArgs, ConfigArgs, DoctorArgs, DoctorTargetArgs, RestoreBackupArgs};
pub(crate) use https::HttpsArgs;
pub(crate) use identity::{AccessArgs, AccessCommand, AddRuleArgs, IdentityArgs, LoginArgs};
pub(crate) use migrate::MigrateArgs;
pub(crate) use places::PlatformDirs;
pub(crate) use quota::{DefaultQuotaArgs, QuotaArgs, QuotaCommand, SetQuotaArgs, UsageArgs};
pub(crate) use releases::{AliasArgs, AliasCommand, DiffArgs, RollbackArgs};
pub(crate) use retention::RetentionArgs;
pub(crate) use roles::{CollectingArgs, DownArgs, GatewayArgs, SchedulerArgs, SealingArgs, UpArgs, WorkerArgs};
pub(crate) use room::RoomArgs;
pub(crate) use schedule::{ScheduleArgs, ScheduleCommand};
pub(crate) use secret::{SecretArgs, SecretCommand, SetSecretArgs};
pub(crate) use snapshot::{ConversionArgs, SnapshotArgs, SnapshotCommand, StoreArgs};
pub(crate) use source::{SourceArgs, SourceCommand};
pub(crate) use storage::S3Args;
#[cfg(feature = "s3")]
pub(crate) use storage::Sse;

const EXAMPLES: &str = "\
Examples:
  fn up                                   start the platform on this machine
  fn init --runtime python greet          make a folder with a function in it
  fn deploy greet                         build, boot, warm up, snapshot, go live
  fn invoke greet -d '{\"name\":\"Ada\"}'     call it
  fn logs greet -f                        follow what it writes
  fn down                                 stop the platform

Settings: FN_URL (the gateway, default http://127.0.0.1:8080), FN_CA (for https: its authority), FN_KEY (a key;
else a login of `fn login`, or the platform's from <data>/admin.key or ~/.config/rekindle/key), FN_NAMESPACE, FN_DATA,
FN_CACHE, FN_RUN, NO_COLOR.";

/// The most seconds that a command waits: a year.
const SECONDS_MAX: u64 = 365 * 24 * 3600;

/// Parses how many seconds to wait.
fn seconds() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(..=SECONDS_MAX)
}

/// Functions that restore instead of booting.
#[derive(Debug, Parser)]
#[command(name = "fn", version, about, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    /// The settings file of this host's roles: /etc/rekindle/rekindle.toml, unless this or FN_CONFIG names another.
    /// Options and variables win over it.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Settings")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the platform is, and the key to it.
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
    /// A key of the API; by default what `fn login` got, or the platform's own from its file.
    #[arg(
        long,
        global = true,
        env = "FN_KEY",
        hide_env_values = true,
        help_heading = "Connection"
    )]
    pub(crate) key: Option<String>,
    /// A file with the authority of an https gateway's certificate (PEM), instead of those that this machine trusts.
    #[arg(long, global = true, value_name = "FILE", env = "FN_CA", help_heading = "Connection")]
    pub(crate) ca: Option<PathBuf>,
    /// A certificate with its chain (PEM) to show to an https gateway in place of a key.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FN_CLIENT_CERT",
        requires = "client_key",
        help_heading = "Connection"
    )]
    pub(crate) client_cert: Option<PathBuf>,
    /// The key of --client-cert (PEM).
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FN_CLIENT_KEY",
        requires = "client_cert",
        help_heading = "Connection"
    )]
    pub(crate) client_key: Option<PathBuf>,
    /// Namespace of the functions that are named without one; by default what the settings file says, or "default".
    #[arg(
        long,
        short,
        global = true,
        value_name = "NAME",
        env = "FN_NAMESPACE",
        help_heading = "Connection"
    )]
    pub(crate) namespace: Option<Namespace>,
}

/// The commands of `fn`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the platform on this machine.
    Up(Box<UpArgs>),
    /// Stop the platform on this machine and clean up after it.
    Down(DownArgs),
    /// Write everything that this machine's platform must not lose into one file; it may run meanwhile.
    Backup(BackupArgs),
    /// Replace the platform's data by the content of such a file; the platform must be stopped.
    RestoreBackup(RestoreBackupArgs),
    /// Show workers, functions and instances.
    Status(Listing),
    /// Show what this machine supports and how to fix what is missing.
    Doctor(DoctorArgs),
    /// Show the settings that are in force for a role on this host, and where each comes from.
    Config(ConfigArgs),
    /// Make a folder with a function in it.
    Init(InitArgs),
    /// Build a function, boot it, warm it up, snapshot it, and make it live.
    Deploy(DeployArgs),
    /// Call a function.
    Invoke(InvokeArgs),
    /// List the functions.
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show everything about one function.
    Describe(DescribeArgs),
    /// List the versions of a function: which are kept, and which serve.
    Versions(DescribeArgs),
    /// Show what differs between two versions of a function, or a version and a folder.
    Diff(DiffArgs),
    /// Have an earlier version of a function serve again, at once.
    Rollback(RollbackArgs),
    /// Name versions of a function, and share its invocations among them.
    Alias(AliasArgs),
    /// Set values that only instances of functions see, and list or remove them.
    Secret(SecretArgs),
    /// Make, list and revoke keys of the API.
    Key(KeyArgs),
    /// Let holders of tokens and certificates in without a key, and list or remove the rules for that.
    Access(AccessArgs),
    /// Sign in to a platform with an account at its identity provider.
    Login(LoginArgs),
    /// Forget how you have signed in.
    Logout(LoginArgs),
    /// Show who you are to the platform, and what you may do.
    Whoami(Listing),
    /// Show who changed what over the API, and check that nothing of that was altered.
    Audit(AuditArgs),
    /// List, make and remove namespaces.
    Namespace(NamespaceArgs),
    /// Show, set and clear what a namespace may have.
    Quota(QuotaArgs),
    /// Show what functions have used: invocations, gigabyte-seconds, egress, storage.
    Usage(UsageArgs),
    /// Show one function in numbers: invocations by start kind, latencies, snapshot.
    Stats(DescribeArgs),
    /// Show the platform live: rates, latencies, pools.
    Top(TopArgs),
    /// Show when functions run by themselves, pause that, run one now.
    Schedule(ScheduleArgs),
    /// Show the queues whose messages functions are invoked with, and how reading them goes.
    Source(SourceArgs),
    /// Show asynchronous invocations, fetch their results, queue dead letters again.
    Async(AsyncArgs),
    /// Show the output of a function.
    Logs(LogsArgs),
    /// Remove a function with all its versions.
    #[command(visible_alias = "rm")]
    Delete(DeleteArgs),
    /// List the running instances.
    #[command(visible_alias = "ps")]
    Instances(Listing),
    /// List the workers: their state and their room.
    Workers(Listing),
    /// Drain a worker: it takes nothing new, and finishes what it serves.
    Drain(DrainArgs),
    /// Use a drained worker again.
    Undrain(UndrainArgs),
    /// Move a running instance to another worker, with its memory.
    Migrate(MigrateArgs),
    /// Make a cluster's certificate authority and the tokens with which hosts join, and revoke members.
    Cluster(ClusterArgs),
    /// Inspect snapshots, move them in and out, compress images.
    Snapshot(SnapshotArgs),
    /// Run only the gateway.
    Gateway(GatewayArgs),
    /// Run only the scheduler.
    Scheduler(SchedulerArgs),
    /// Run only a worker.
    Worker(Box<WorkerArgs>),
    /// List the versions of the runtimes, build them on this machine, import them into a cluster's store.
    Runtimes(RuntimesArgs),
    /// Show the life of a function in one table: booted, warm, gone, restored.
    #[command(hide = true)]
    Demo(DemoArgs),
    /// The process that `fn doctor` checkpoints and restores.
    #[command(hide = true)]
    DoctorTarget(DoctorTargetArgs),
    /// Write a completion script for a shell to standard output.
    #[command(after_help = "Example:\n  fn completions bash > /etc/bash_completion.d/fn")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Options of every listing.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Listing {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
