//! The options of `fn migrate`.

use clap::Args;
use rekindle_wire::InstanceId;

/// What to move, and where to.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
What the instance holds in memory goes with it. Invocations wait while it moves, some tens of milliseconds, and go on
there; if anything fails before it runs there, it goes on where it was. Files in /tmp and shared memory make the wait
longer: at most 256 MiB of them are moved. After a second, more invocations than it has room for may start another
instance, and after eight seconds all may.

Examples:
  fn migrate i-0198… --to 10.0.0.3    to this worker
  fn migrate i-0198…                  to the worker with most room
  fn migrate i-0198… --clone          a second copy; the first goes on")]
pub(crate) struct MigrateArgs {
    /// The instance: `fn instances` lists them.
    pub(crate) instance: InstanceId,
    /// The worker that it moves to: `fn workers` lists them, by id, address and host. By default the one with most
    /// room.
    #[arg(long, value_name = "WORKER")]
    pub(crate) to: Option<String>,
    /// Leave the original where it is, and run a copy.
    #[arg(long)]
    pub(crate) clone: bool,
    /// How long invocations in it may take to end, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) settle: f64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
