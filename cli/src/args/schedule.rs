//! Options of `fn schedule`.

use clap::{Args, Subcommand};
use rekindle_wire::ScheduleName;

use super::{FunctionArg, Listing};

/// `fn schedule`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn schedule list                    of all functions of the namespace
  fn schedule list report
  fn schedule pause report nightly    until it is resumed, whatever is deployed meanwhile
  fn schedule resume report nightly
  fn schedule run report nightly      now, besides the runs that are due; prints the id of its call
  fn async result ID --wait 30

Schedules are set in fn.toml, as [[schedule]]. Those of the version that serves are followed.")]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) command: ScheduleCommand,
}

/// The commands of `fn schedule`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List schedules, with their last and next runs.
    #[command(visible_alias = "ls")]
    List {
        /// The function; all of the namespace by default.
        name: Option<FunctionArg>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Pause a schedule.
    Pause(OneSchedule),
    /// Resume a paused schedule. Runs that would have been due meanwhile are not caught up on.
    Resume(OneSchedule),
    /// Run a schedule now, besides the runs that are due.
    Run(OneSchedule),
}

/// A schedule of a function.
#[derive(Debug, Clone, Args)]
pub(crate) struct OneSchedule {
    /// The function.
    pub(crate) name: FunctionArg,
    /// The schedule.
    #[arg(default_value_t)]
    pub(crate) schedule: ScheduleName,
}
