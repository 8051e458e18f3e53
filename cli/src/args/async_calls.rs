//! The options of `fn async`.

use clap::{Args, Subcommand, ValueEnum};
use rekindle_wire::CallId;
use rekindle_wire::asynchronous::CallState;

use super::{FunctionArg, Listing, seconds};

/// `fn async`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AsyncArgs {
    #[command(subcommand)]
    pub(crate) command: AsyncCommand,
}

/// The state of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// It waits to be run.
    Queued,
    /// It is running.
    Running,
    /// The function has responded.
    Done,
    /// It was given up.
    Dead,
}

impl State {
    /// The same state in the API.
    pub(crate) fn state(self) -> CallState {
        match self {
            Self::Queued => CallState::Queued,
            Self::Running => CallState::Running,
            Self::Done => CallState::Done,
            Self::Dead => CallState::Dead,
        }
    }
}

/// The commands of `fn async`.
#[derive(Debug, Clone, Subcommand)]
#[command(after_help = "\
Examples:
  fn invoke hello --async -d @order.json      prints the id
  fn async result a-0192… --wait 20           what the function answered
  fn async list --state dead                  dead letters
  fn async retry a-0192…                      queue one anew
  fn async retry --dead-of hello              queue all of a function anew")]
pub(crate) enum AsyncCommand {
    /// List calls, newest first.
    #[command(visible_alias = "ls")]
    List {
        /// Only this function's calls.
        name: Option<FunctionArg>,
        /// Only calls in this state.
        #[arg(long, value_enum)]
        state: Option<State>,
        /// Maximum number of calls.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show everything about one call.
    Show {
        /// The call's id.
        id: CallId,
        #[command(flatten)]
        listing: Listing,
    },
    /// Print the function's response.
    Result {
        /// The call's id.
        id: CallId,
        /// How long to wait for its end.
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = seconds())]
        wait: u64,
    },
    /// Queue dead letters again.
    Retry {
        /// The call's id.
        #[arg(required_unless_present = "dead_of")]
        id: Option<CallId>,
        /// All dead letters of this function.
        #[arg(long, value_name = "FUNCTION", conflicts_with = "id")]
        dead_of: Option<FunctionArg>,
    },
    /// Delete a call; a waiting one is not run any more.
    #[command(visible_alias = "delete")]
    Rm {
        /// The call's id.
        id: CallId,
    },
}
