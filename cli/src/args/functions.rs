//! What is done with functions: to make, deploy, call, look at and remove them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rekindle_wire::FunctionName;

use super::shared::Listing;

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
  fn init --runtime http api       any HTTP server")]
pub(crate) struct InitArgs {
    /// What the function is written for.
    #[arg(long, short, value_enum, default_value = "python")]
    pub(crate) runtime: Template,
    /// The folder; made if it is not there.
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
}

/// `fn deploy`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn deploy                        the function in this folder
  fn deploy functions/samples/hello-python

What .fnignore names (the syntax of .gitignore) stays behind, as do .git, __pycache__, .venv and node_modules.")]
pub(crate) struct DeployArgs {
    /// The function's folder, with its fn.toml.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// How long the deploy may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub(crate) wait: u64,
    /// Print the live version as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How an instance is started when the caller insists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForcedStart {
    /// A fresh instance, from nothing.
    Booted,
    /// A fresh instance, from the snapshot.
    Restored,
}

impl ForcedStart {
    /// The word in the request's header.
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
  fn invoke hello --start restored            a fresh instance from the snapshot")]
pub(crate) struct InvokeArgs {
    /// The function.
    pub(crate) name: FunctionName,
    /// The body: text, @file, or - for standard input.
    #[arg(short, long, value_name = "BODY|@FILE|-")]
    pub(crate) data: Option<String>,
    /// Send the body as the event itself instead of as an HTTP request.
    #[arg(long, conflicts_with_all = ["path", "method"])]
    pub(crate) event: bool,
    /// Path and query, as the function sees them.
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    /// HTTP method; POST when there is a body, else GET.
    #[arg(long, short = 'X')]
    pub(crate) method: Option<String>,
    /// A header to send; may be given more than once.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// Start a fresh instance this way instead of taking what is best (needs the admin key).
    #[arg(long, value_enum)]
    pub(crate) start: Option<ForcedStart>,
    /// Show the answer's status and headers.
    #[arg(short, long)]
    pub(crate) include: bool,
    /// Do not print how the invocation went.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// How long to wait for the answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 960)]
    pub(crate) wait: u64,
}

/// Reads `Name: value`.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("\"{text}\" is not a header: write \"name: value\""))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// `fn describe`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DescribeArgs {
    /// The function.
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn logs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  fn logs hello --tail 20\n  fn logs hello -f --json")]
pub(crate) struct LogsArgs {
    /// The function.
    pub(crate) name: FunctionName,
    /// Go on as new lines come.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Lines to begin with.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) tail: u32,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// `fn delete`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArgs {
    /// The function.
    pub(crate) name: FunctionName,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// `fn demo`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// The folder of the function to show it with.
    pub(crate) path: PathBuf,
    /// After how long the function's instance shall go; in its own fn.toml it may take longer than anyone wants to watch.
    #[arg(long, value_name = "DURATION", default_value = "3s")]
    pub(crate) idle: String,
    #[command(flatten)]
    pub(crate) listing: Listing,
}
