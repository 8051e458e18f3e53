//! The command line of `fn`: every command and option, with the examples that `--help` shows. It has no behaviour.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rekindle_identity::Token;
use rekindle_snapshotter::store::Encryption;
use rekindle_wire::{FunctionName, Namespace};

mod async_calls;
mod building;
mod callers;
mod cluster;
mod codec;
mod egress;
mod function;
mod https;
mod migrate;
mod retention;
mod room;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use async_calls::{AsyncArgs, AsyncCommand};
pub(crate) use building::BuildArgs;
pub(crate) use callers::CallerArgs;
pub(crate) use cluster::{ClusterArgs, ClusterCommand, DrainArgs, JoinTokenArgs, OfferArgs, RevokeArgs, UndrainArgs};
pub(crate) use codec::CodecArgs;
pub(crate) use egress::EgressArgs;
pub(crate) use function::FunctionArg;
pub(crate) use https::HttpsArgs;
pub(crate) use migrate::MigrateArgs;
pub(crate) use retention::RetentionArgs;
pub(crate) use room::RoomArgs;
pub(crate) use snapshot::{ConversionArgs, SnapshotArgs, SnapshotCommand, StoreArgs};

const EXAMPLES: &str = "\
Examples:
  fn up                                   start the platform on this machine
  fn init --runtime python greet          make a folder with a function in it
  fn deploy greet                         build, boot, warm up, snapshot, go live
  fn invoke greet -d '{\"name\":\"Ada\"}'     call it
  fn logs greet -f                        follow what it writes
  fn down                                 stop the platform

Settings: FN_URL (the gateway, default http://127.0.0.1:8080), FN_CA (for https: its authority), FN_KEY (the admin key;
else it is read from <data>/admin.key or ~/.config/rekindle/key), FN_NAMESPACE, FN_DATA, FN_CACHE, FN_RUN, NO_COLOR.";

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
    /// The admin key itself; by default it is read from its file.
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
    Up(UpArgs),
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
    /// Show one function in numbers: invocations by start kind, latencies, snapshot.
    Stats(DescribeArgs),
    /// Show the platform live: rates, latencies, pools.
    Top(TopArgs),
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
    Worker(WorkerArgs),
    /// List the versions of the runtimes; import their root filesystems into a cluster's store.
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

/// The directories of a platform on this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct Places {
    /// Data that must be kept: functions, snapshots, metadata, keys, logs.
    #[arg(long, value_name = "DIR", env = "FN_DATA", default_value = "/var/lib/rekindle")]
    pub(crate) data: PathBuf,
    /// Data that can be made again: runtimes, templates, chunks.
    #[arg(long, value_name = "DIR", env = "FN_CACHE", default_value = "/var/cache/rekindle")]
    pub(crate) cache: PathBuf,
    /// Data that lasts as long as the platform runs: its pid and its mounts.
    #[arg(long, value_name = "DIR", env = "FN_RUN", default_value = "/run/rekindle")]
    pub(crate) run: PathBuf,
}

/// The key for secrets in the scheduler's database.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SealingArgs {
    /// File with the key that encrypts secrets in the scheduler's database; by default master.key below --data. It is
    /// made if it does not exist. Schedulers that share a database need the same key.
    #[arg(long, value_name = "FILE", env = "FN_MASTER_KEY_FILE")]
    pub(crate) master_key: Option<PathBuf>,
}

/// When the scheduler removes unneeded objects from the object store.
#[derive(Debug, Clone, Args)]
pub(crate) struct CollectingArgs {
    /// Number of newest versions of a function that are kept; the live one is always kept.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_versions: u32,
    /// How often to remove unneeded objects from the object store; 0s for never automatically.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = rekindle_wire::manifest::parse_duration)]
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

/// An S3 server instead of the embedded one.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct S3Args {
    /// An S3 server to use instead of the embedded one; credentials and region come from the usual AWS variables.
    #[arg(long, value_name = "URL", env = "FN_S3_ENDPOINT")]
    pub(crate) s3_endpoint: Option<String>,
    /// The bucket.
    #[arg(long, value_name = "NAME", env = "FN_S3_BUCKET", default_value = "rekindle")]
    pub(crate) s3_bucket: String,
    /// Prefix of all keys in the bucket, so that several clusters may share one.
    #[arg(
        long,
        value_name = "NAME",
        env = "FN_S3_PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) s3_prefix: String,
    /// How the server encrypts what it stores; by default as the bucket is configured.
    #[arg(long, value_name = "WORD", env = "FN_S3_SSE", value_enum)]
    pub(crate) s3_sse: Option<Sse>,
    /// With --s3-sse aws:kms: the key, if not the bucket's.
    #[arg(long, value_name = "KEY", env = "FN_S3_SSE_KEY", requires = "s3_sse")]
    pub(crate) s3_sse_key: Option<String>,
}

/// How an S3 server encrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sse {
    /// With keys of its own.
    #[value(name = "AES256")]
    Aes256,
    /// With a key of its key service.
    #[value(name = "aws:kms")]
    Kms,
}

impl S3Args {
    /// The encryption to request from the server.
    pub(crate) fn encryption(&self) -> Encryption {
        match self.s3_sse {
            None => Encryption::AsBucket,
            Some(Sse::Aes256) => Encryption::Aes256,
            Some(Sse::Kms) => Encryption::Kms(self.s3_sse_key.clone()),
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
    pub(crate) places: Places,
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
    /// The CRIU binary to use.
    #[arg(long, value_name = "PATH", env = "FN_CRIU")]
    pub(crate) criu: Option<PathBuf>,
    /// How long to wait for the platform to be ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) wait: u64,
    #[command(flatten)]
    pub(crate) room: RoomArgs,
    /// Send traces by OTLP (gRPC) to this collector; without a value, to the one on this machine, and print where to
    /// look.
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, default_missing_value = crate::up::LOCAL_TRACES)]
    pub(crate) traces: Option<String>,
    #[command(flatten)]
    pub(crate) codec: CodecArgs,
    #[command(flatten)]
    pub(crate) callbacks: CallbackArgs,
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
    /// Where callbacks may go that a caller without the admin key names: a host (hooks.example.com), a network
    /// (10.1.0.0/16), or `public` for the whole world. A network may be private or this host's own. May be repeated.
    #[arg(
        long,
        value_name = "HOST|CIDR|public",
        env = "FN_CALLBACK_ALLOW",
        value_delimiter = ','
    )]
    pub(crate) callback_allow: Vec<rekindle_gateway::CallbackAllow>,
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
    pub(crate) places: Places,
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
    pub(crate) places: Places,
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
    /// The CRIU binary to test.
    #[arg(long, value_name = "PATH", env = "FN_CRIU")]
    pub(crate) criu: Option<PathBuf>,
    /// Skip the checkpoint and the restores.
    #[arg(long, conflicts_with = "criu_only")]
    pub(crate) quick: bool,
    /// Test CRIU and check nothing else.
    #[arg(long)]
    pub(crate) criu_only: bool,
    /// Where the gateway would listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
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

/// The templates of `fn init`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Template {
    /// `handler(event, context)` in Python.
    Python,
    /// `handler(event, context)` in JavaScript.
    Node,
    /// Any command that serves HTTP on $PORT.
    Http,
}

impl Template {
    /// The template's folder under `functions/templates/`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Http => "http",
        }
    }
}

/// `fn init`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn init greet                    Python, in ./greet
  fn init --runtime node
  fn init --runtime http api       any HTTP server
  fn init --name greet My_Folder   a folder whose name is none for a function")]
pub(crate) struct InitArgs {
    /// The runtime that the function is written for.
    #[arg(long, short, value_enum, default_value = "python")]
    pub(crate) runtime: Template,
    /// The function's name; by default the folder's.
    #[arg(long)]
    pub(crate) name: Option<FunctionName>,
    /// The folder; made if it does not exist.
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
}

/// `fn deploy`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn deploy                        the function in this folder
  fn deploy functions/samples/hello-python
  fn deploy --force                although nothing has changed: installs its packages anew

A folder that has not changed since its function's newest version, which is live, makes no new one. What .fnignore names (the syntax of .gitignore) stays behind, as do .git, __pycache__, .venv and node_modules.")]
pub(crate) struct DeployArgs {
    /// The function's folder, with its fn.toml.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// Make a new version even if nothing has changed.
    #[arg(long)]
    pub(crate) force: bool,
    /// How long to wait until it is live; by default 900 plus twice the function's boot_timeout.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
    /// Print the live version as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How an instance is started if the caller forces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForcedStart {
    /// A fresh instance, booted.
    Booted,
    /// A fresh instance, restored from the snapshot.
    Restored,
}

impl ForcedStart {
    /// The value of the request's header.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Booted => "booted",
            Self::Restored => "restored",
        }
    }
}

/// `fn invoke`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn invoke hello
  fn invoke hello -d '{\"name\":\"Ada\"}' -H 'content-type: application/json'
  fn invoke hello --event -d @event.json      the body is the event itself
  fn invoke api --path /users?limit=3 --method DELETE -i
  fn invoke hello --start restored            a fresh instance from the snapshot
  fn invoke hello --async -d @order.json      later: prints the id; `fn async result ID --wait 20`
  fn invoke hello --json | jq .timing         everything about the answer, for programs")]
pub(crate) struct InvokeArgs {
    /// The function: NAME, or NAME.NAMESPACE.
    pub(crate) name: FunctionArg,
    /// The body: text, @file, or - for standard input.
    #[arg(short, long, value_name = "BODY|@FILE|-")]
    pub(crate) data: Option<String>,
    /// Send the body as the event itself instead of as an HTTP request.
    #[arg(long, conflicts_with_all = ["path", "method"])]
    pub(crate) event: bool,
    /// Path and query, as the function sees them.
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    /// HTTP method; by default POST if there is a body, otherwise GET.
    #[arg(long, short = 'X')]
    pub(crate) method: Option<String>,
    /// A header to send; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// Start a fresh instance in this way instead of using the best one (needs the admin key).
    #[arg(long, value_enum)]
    pub(crate) start: Option<ForcedStart>,
    /// Store the invocation and run it later; prints its id.
    #[arg(long = "async", conflicts_with_all = ["start", "include"])]
    pub(crate) asynchronous: bool,
    /// With --async: a word of your choice. The same call sent again with it is run once.
    #[arg(long, value_name = "WORD", requires = "asynchronous")]
    pub(crate) idempotency_key: Option<String>,
    /// With --async: where to post the result.
    #[arg(long, value_name = "URL", requires = "asynchronous")]
    pub(crate) callback: Option<String>,
    /// Show the response's status and headers.
    #[arg(short, long)]
    pub(crate) include: bool,
    /// Print one JSON object: status, start, instance, timing, headers, and the body (base64 if it is not text).
    #[arg(long, conflicts_with = "include")]
    pub(crate) json: bool,
    /// Do not print how the invocation went.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// How long to wait for the response.
    #[arg(long, value_name = "SECONDS", default_value_t = 960)]
    pub(crate) wait: u64,
}

/// Parses `Name: value`.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("\"{text}\" is not a header: write \"name: value\""))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// `fn describe`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DescribeArgs {
    /// The function: NAME, or NAME.NAMESPACE.
    pub(crate) name: FunctionArg,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn top                  until q; arrows move, Enter shows how a function's invocations start, s sorts
  fn top --once           one frame, of the last two seconds; so it is off a terminal too
  fn top --json | jq '.functions[0]'")]
pub(crate) struct TopArgs {
    /// Show one frame and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one frame as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// How often to refresh.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) every: u64,
}

/// `fn logs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  fn logs hello --tail 20\n  fn logs hello -f --json")]
pub(crate) struct LogsArgs {
    /// The function: NAME, or NAME.NAMESPACE.
    pub(crate) name: FunctionArg,
    /// Keep printing new lines.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Number of lines to begin with.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) tail: u32,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn delete`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArgs {
    /// The function: NAME, or NAME.NAMESPACE.
    pub(crate) name: FunctionArg,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// `fn demo`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// The folder of the function to demonstrate.
    pub(crate) path: PathBuf,
    /// Idle time of the function's instance; the one in its own fn.toml may be longer than anyone wants to watch.
    #[arg(long, value_name = "DURATION", default_value = "3s")]
    pub(crate) idle: String,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn runtimes`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RuntimesArgs {
    #[command(subcommand)]
    pub(crate) command: RuntimesCommand,
}

/// The commands of `fn runtimes`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RuntimesCommand {
    /// Import the archives in `<cache>/runtimes/` into the store.
    Import {
        #[command(flatten)]
        places: Places,
        #[command(flatten)]
        s3: S3Args,
    },
    /// List the versions of the runtimes: until when their projects repair them, and which are built on this machine.
    List {
        #[command(flatten)]
        places: Places,
    },
}

/// `fn gateway`.
#[derive(Debug, Clone, Args)]
pub(crate) struct GatewayArgs {
    /// Where the gateway listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
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
    /// A token of `fn cluster token`, for the first start in a cluster with an authority.
    #[arg(long, value_name = "TOKEN", env = "FN_JOIN", hide_env_values = true)]
    pub(crate) join: Option<Token>,
    /// Where the gateway's certificate is kept.
    #[arg(long, value_name = "DIR", env = "FN_DATA", default_value = "/var/lib/rekindle")]
    pub(crate) data: PathBuf,
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
    #[arg(long, value_name = "HOST:PORT")]
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
    pub(crate) places: Places,
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
    /// Share of a worker's processors that its instances must keep busy before some move to other workers, percent; 0
    /// for never.
    #[arg(long, value_name = "PERCENT", env = "FN_REBALANCE_AT", default_value_t = 85, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rebalance_at: u8,
    /// Lifetime of the certificates that it signs, if the cluster has an authority; they are renewed after two thirds
    /// of it.
    #[arg(long, value_name = "DURATION", default_value = "720h", value_parser = rekindle_wire::manifest::parse_duration)]
    pub(crate) certificate_life: std::time::Duration,
}

/// `fn worker`.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkerArgs {
    /// Where the worker listens.
    #[arg(long, value_name = "ADDRESS", env = "FN_LISTEN", default_value = "127.0.0.1:8082")]
    pub(crate) listen: SocketAddr,
    /// Where gateways and the scheduler reach it; needed if it listens on every address.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
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
    #[command(flatten)]
    pub(crate) places: Places,
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
