//! The options of `fn async`.

use clap::{Args, Subcommand, ValueEnum};
use rekindle_wire::asynchronous::CallState;
use rekindle_wire::{CallId, FunctionName};

use super::Listing;

/// `fn async`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AsyncArgs {
    #[command(subcommand)]
    pub(crate) command: AsyncCommand,
}

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// It waits to be run.
    Queued,
    /// It is run.
    Running,
    /// The function has answered.
    Done,
    /// It was given up.
    Dead,
}

impl State {
    /// As the API has it.
    pub(crate) fn state(self) -> CallState {
        match self {
            Self::Queued => CallState::Queued,
            Self::Running => CallState::Running,
            Self::Done => CallState::Done,
            Self::Dead => CallState::Dead,
        }
    }
}

/// What can be done with asynchronous invocations.
#[derive(Debug, Clone, Subcommand)]
#[command(after_help = "\
Examples:
  fn invoke hello --async -d @order.json      prints the id
  fn async result a-0192… --wait 20           what the function answered
  fn async list --state dead                  dead letters
  fn async retry a-0192…                      queue one anew
  fn async retry --dead-of hello              queue all of a function anew")]
pub(crate) enum AsyncCommand {
    /// List them, newest first.
    #[command(visible_alias = "ls")]
    List {
        /// Only this function's.
        name: Option<FunctionName>,
        /// Only those that stand so.
        #[arg(long, value_enum)]
        state: Option<State>,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show everything about one.
    Show {
        /// Its id.
        id: CallId,
        #[command(flatten)]
        listing: Listing,
    },
    /// Print what the function answered.
    Result {
        /// Its id.
        id: CallId,
        /// How long to wait for its end.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        wait: u64,
    },
    /// Queue dead letters anew.
    Retry {
        /// Which one.
        #[arg(required_unless_present = "dead_of")]
        id: Option<CallId>,
        /// All of this function.
        #[arg(long, value_name = "FUNCTION", conflicts_with = "id")]
        dead_of: Option<FunctionName>,
    },
    /// Forget one; if it waits, it is not run any more.
    #[command(visible_alias = "delete")]
    Rm {
        /// Its id.
        id: CallId,
    },
}
