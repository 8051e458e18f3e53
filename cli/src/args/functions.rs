//! Options of commands about functions.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rekindle_wire::FunctionName;
use rekindle_wire::api::{CanarySteps, STEP_MAX_S};
use rekindle_wire::function_config::{Base, Runtime, parse_duration};
use rekindle_wire::internal::BUILD_TOOLS;

use super::{FunctionArg, Listing, PlatformDirs, S3Args, VersionArg, seconds};

/// What `fn init` makes a function for: a runtime, and a version of it if one is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) runtime: Runtime,
    pub(crate) base: Option<Base>,
}

impl FromStr for Template {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unversioned = [Runtime::Python, Runtime::Node, Runtime::Http];
        if let Some(runtime) = unversioned.into_iter().find(|runtime| runtime.as_str() == name) {
            return Ok(Self { runtime, base: None });
        }
        let base = Base::of_runtime(name);
        let versioned = base.and_then(|base| Some((base.runtime()?, base)));
        versioned
            .map(|(runtime, base)| Self {
                runtime,
                base: Some(base),
            })
            .ok_or_else(|| {
                let versions = Base::ALL
                    .into_iter()
                    .filter_map(Base::interpreter)
                    .map(|is| is.versioned);
                let names: Vec<_> = unversioned.map(Runtime::as_str).into_iter().chain(versions).collect();
                format!("choose of {}", names.join(", "))
            })
    }
}

/// `fn init`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn init greet                    Python, in ./greet
  fn init --runtime node24
  fn init --runtime http api       any HTTP server
  fn init --name greet My_Folder   a folder whose name is none for a function")]
pub(crate) struct InitArgs {
    /// The runtime that the function is written for: http, python or node, or a version of `fn runtimes list`. Without
    /// a version, it is the newest that is built on this machine and is still repaired.
    #[arg(long, short, value_name = "NAME", default_value = "python")]
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
  fn deploy --no-traffic           ready, but the version before goes on serving
  fn deploy --canary 10%           a tenth of the invocations, then 25%, 50% and all, a minute each
  fn deploy --canary 5,50 --step-time 10m
  fn deploy --all functions        every function in the folders below
  fn deploy --dry-run              what would change, or fail; exit code 3 if anything would change

A folder that has not changed since its function's newest version makes no new one: that one serves, if it did not. \
A canary is rolled back by itself if it is worse than what serves now. fn deploy waits until it has all invocations; \
it goes on without. \
Where only settings differ from the live version, nothing is built, and for most nothing is booted. \
What .fnignore names (the syntax of .gitignore) stays behind, as do .git, __pycache__, .venv and node_modules.")]
pub(crate) struct DeployArgs {
    /// The function's folder, with its fn.toml; with --all, the folder that has such folders.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// Make a new version even if nothing has changed.
    #[arg(long)]
    pub(crate) force: bool,
    /// Do everything but make the version live.
    #[arg(long)]
    pub(crate) no_traffic: bool,
    /// Give the version a share of the invocations that grows in steps, and roll it back if it is worse. The value is
    /// the first share in percent, or all of them, such as 10,25,50.
    #[arg(long, value_name = "PERCENT", conflicts_with = "no_traffic")]
    pub(crate) canary: Option<CanarySteps>,
    /// How long each step of a canary lasts at least: 1s to 24h.
    #[arg(long, value_name = "DURATION", requires = "canary", default_value = "60s", value_parser = step_time)]
    pub(crate) step_time: Duration,
    /// Deploy every function in the folders below, four at once; fails if any does.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) all: bool,
    /// Show what would change, and what the deploy would fail for without a build, and upload nothing. Exit codes: 0
    /// nothing would change, 3 something would, 1 it would fail.
    #[arg(long, conflicts_with_all = ["force", "no_traffic", "canary", "wait"])]
    pub(crate) dry_run: bool,
    /// How long to wait until it is live; by default 900 plus twice the function's boot_timeout, and a canary's steps.
    #[arg(long, value_name = "SECONDS", value_parser = seconds())]
    pub(crate) wait: Option<u64>,
    /// Print the live version as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses the duration of a canary's step.
fn step_time(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|e| e.to_string())?;
    let allowed = Duration::from_secs(1)..=Duration::from_secs(STEP_MAX_S);
    match allowed.contains(&duration) && duration.subsec_nanos() == 0 {
        true => Ok(duration),
        false => Err("a step takes 1s to 24h, in whole seconds".to_owned()),
    }
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
  fn invoke hello --cloudevent order.made -d '{\"id\":7}'    a CloudEvent
  fn invoke hello@7                           a version, or @ALIAS
  fn invoke hello --start restored            a fresh instance from the snapshot
  fn invoke hello --async -d @order.json      later: prints the id; `fn async result ID --wait 20`
  fn invoke hello --json | jq .timing         everything about the answer, for programs")]
pub(crate) struct InvokeArgs {
    /// The function: NAME, or NAME.NAMESPACE; with @8 that version of it, with @ALIAS what the alias names.
    pub(crate) name: VersionArg,
    /// The body: text, @file, or - for standard input.
    #[arg(short, long, value_name = "BODY|@FILE|-")]
    pub(crate) data: Option<String>,
    /// Send the body as the event itself instead of as an HTTP request.
    #[arg(long, conflicts_with_all = ["path", "method"])]
    pub(crate) event: bool,
    /// Send a CloudEvent of this type with the body as its data, as JSON unless a content-type says otherwise.
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["event", "method"])]
    pub(crate) cloudevent: Option<String>,
    /// With --cloudevent: where the event is from.
    #[arg(long, value_name = "URI", default_value = "/fn/invoke", requires = "cloudevent")]
    pub(crate) source: String,
    /// With --cloudevent: send attributes and data as one JSON document, instead of attributes as headers.
    #[arg(long, requires = "cloudevent")]
    pub(crate) structured: bool,
    /// Path and query, as the function sees them.
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    /// HTTP method; by default POST if there is a body, otherwise GET.
    #[arg(long, short = 'X')]
    pub(crate) method: Option<String>,
    /// A header to send; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// Start a fresh instance in this way instead of using the best one (needs a deployer's key).
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
    #[arg(long, value_name = "SECONDS", default_value_t = 960, value_parser = seconds())]
    pub(crate) wait: u64,
}

/// Parses `Name: value`.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("\"{text}\" is not a header: write \"name: value\""))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// `fn describe`, `fn stats` and `fn versions`.
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
    /// The function: NAME, or NAME.NAMESPACE; with @8 or @ALIAS only the lines of those versions, among the last ones.
    pub(crate) name: VersionArg,
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
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RuntimesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RuntimesCommand>,
    #[command(flatten)]
    pub(crate) list: RuntimesListArgs,
}

/// The commands of `fn runtimes`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RuntimesCommand {
    /// List the versions of the runtimes: until when their projects repair them, and which are built on this machine.
    List(RuntimesListArgs),
    /// Build versions of the runtimes on this machine, and import them.
    Add(RuntimesAddArgs),
    /// Import the archives in `<cache>/runtimes/` into the store.
    Import {
        #[command(flatten)]
        places: PlatformDirs,
        #[command(flatten)]
        s3: S3Args,
    },
}

/// `fn runtimes list`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RuntimesListArgs {
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn runtimes add`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Needs root, mmdebstrap, and for Node.js a C compiler and npm. What is built from the same files already is only
imported: into the store that --s3-endpoint names, otherwise into that of the platform that runs here.

Examples:
  fn runtimes add python3.13 node24
  fn runtimes add --force python3.13                        with the newest Debian packages
  fn runtimes add node24 --s3-endpoint http://10.0.0.9:9000 for a cluster")]
pub(crate) struct RuntimesAddArgs {
    /// Names of `fn runtimes list`, or build: pip and npm.
    #[arg(required = true, value_name = "NAME", value_parser = root_filesystem)]
    pub(crate) names: Vec<&'static str>,
    /// Build again what is there.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

/// The name of the archive that a runtime is in.
fn root_filesystem(name: &str) -> Result<&'static str, String> {
    let others = [Base::Base.as_str(), BUILD_TOOLS];
    let of_runtime = Base::of_runtime(name).map(Base::as_str);
    of_runtime
        .or_else(|| others.into_iter().find(|other| *other == name))
        .ok_or_else(|| {
            let runtimes = Base::ALL.into_iter().filter_map(Base::interpreter);
            let names: Vec<_> = runtimes.map(|is| is.versioned).chain(others).collect();
            format!("choose of {}", names.join(", "))
        })
}
