//! The command line of `fn`: every command and option, with the examples that `--help` shows. No behaviour.
//!
//! - [`functions`]: what is done with functions.
//! - [`machine`]: what is done with the platform of one machine.
//! - [`roles`]: the parts of the platform, one each.
//! - [`shared`]: groups of options that several commands have.

mod functions;
mod machine;
mod roles;
mod shared;

use clap::{Parser, Subcommand};

pub(crate) use functions::{DeleteArgs, DemoArgs, DeployArgs, DescribeArgs, InitArgs, InvokeArgs, LogsArgs, Template};
pub(crate) use machine::{DoctorArgs, DoctorTargetArgs, DownArgs, RuntimesArgs, RuntimesCommand, UpArgs};
pub(crate) use roles::{GatewayArgs, SchedulerArgs, WorkerArgs};
pub(crate) use shared::{ClientArgs, Listing, Places, S3Args};

const EXAMPLES: &str = "\
Examples:
  fn up                                   start the platform on this machine
  fn init --runtime python greet          make a folder with a function in it
  fn deploy greet                         build, boot, warm up, snapshot, go live
  fn invoke greet -d '{\"name\":\"Ada\"}'     call it
  fn logs greet -f                        follow what it writes
  fn down                                 stop the platform

Settings: FN_URL (the gateway, default http://127.0.0.1:8080), FN_KEY (the admin key; else it is read from
<data>/admin.key or ~/.config/rekindle/key), FN_DATA, FN_CACHE, FN_RUN, NO_COLOR.";

/// Functions that restore instead of booting.
#[derive(Debug, Parser)]
#[command(name = "fn", version, about, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What `fn` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the platform on this machine.
    Up(UpArgs),
    /// Stop the platform on this machine and clean up after it.
    Down(DownArgs),
    /// Show workers, functions and instances.
    Status(Listing),
    /// Show what this machine can do and what to do about each lack.
    Doctor(DoctorArgs),
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
    /// Show what a function wrote.
    Logs(LogsArgs),
    /// Remove a function with all its versions.
    #[command(visible_alias = "rm")]
    Delete(DeleteArgs),
    /// List the running instances.
    #[command(visible_alias = "ps")]
    Instances(Listing),
    /// Run only the gateway.
    Gateway(GatewayArgs),
    /// Run only the scheduler.
    Scheduler(SchedulerArgs),
    /// Run only a worker.
    Worker(WorkerArgs),
    /// Root filesystems of the runtimes.
    #[command(hide = true)]
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

#[cfg(test)]
mod tests;
