//! `fn`: the one binary of Rekindle. It is the client of the platform (deploy, invoke, logs, …) and the platform
//! itself (`fn up`, or one role each with `fn gateway`, `fn scheduler`, `fn worker`).
//!
//! `main` stays without threads and without tokio. `fn up --foreground` and `fn worker` first enter a mount namespace
//! of their own, and a thread started earlier would stay outside.
//!
//! Exit codes: 0 done, 1 it failed (the reason is on standard error), 2 the command line is wrong. Commands that
//! compare end with 3 if something differs.

#![warn(clippy::print_stdout)]

#[macro_use]
mod out;

mod args;
mod client;
mod commands;
mod settings;
mod show;
mod terminal;
mod up;

use std::future::Future;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, FromArgMatches as _};

use crate::args::{Cli, Command, RuntimesCommand};
use crate::client::Client;

/// Runs the command line of this process, and returns its exit code.
pub fn main() -> ExitCode {
    let cli = match command_line() {
        Ok(cli) => cli,
        Err(error) => {
            show::print_error(&error);
            return ExitCode::from(2);
        }
    };
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            show::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// The command line, with what the settings file adds.
fn command_line() -> Result<Cli> {
    let mut root = Cli::command();
    root.build();
    let completed = settings::complete(&root, std::env::args_os().collect())?;
    let matches = root.try_get_matches_from_mut(&completed.words);
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut root)));
    Ok(parsed.unwrap_or_else(|mut error| {
        forget_hidden(&root, &mut error);
        let code = error.exit_code();
        if completed.secrets.is_empty() {
            // Nobody is there to be told that standard error is closed.
            drop(error.print());
        } else {
            eprint!(
                "{}",
                settings::redacted(error.render().to_string(), completed.secrets.iter())
            );
        }
        let from = completed.from.filter(|(_, options)| code != 0 && !options.is_empty());
        if let Some((path, options)) = from {
            eprintln!("\nread from {}: {}", path.display(), options.join(", "));
        }
        std::process::exit(code)
    }))
}

/// Has an error suggest no command that is hidden.
fn forget_hidden(root: &clap::Command, error: &mut clap::Error) {
    let is_hidden = |name: &String| {
        let known = root.get_subcommands().find(|command| command.get_name() == name);
        known.is_some_and(clap::Command::is_hide_set)
    };
    let kind = ContextKind::SuggestedSubcommand;
    if let Some(ContextValue::Strings(names)) = error.remove(kind) {
        let shown: Vec<_> = names.into_iter().filter(|name| !is_hidden(name)).collect();
        if !shown.is_empty() {
            error.insert(kind, ContextValue::Strings(shown));
        }
    }
}

/// Runs one command. Commands that need no client and no threads come first.
fn run(cli: Cli) -> Result<ExitCode> {
    let Cli { client, command, .. } = cli;
    match command {
        Command::Up(args) => up::run(&args),
        Command::Down(args) => commands::down::run(&args),
        Command::Gateway(args) => up::role::gateway(&args),
        Command::Scheduler(args) => up::role::scheduler(&args),
        Command::Worker(args) => up::role::worker(&args),
        Command::Runtimes(args) => match args.command {
            None => commands::runtimes::list(&args.list),
            Some(RuntimesCommand::List(args)) => commands::runtimes::list(&args),
            Some(RuntimesCommand::Add(args)) => commands::runtimes::add(&args),
            Some(RuntimesCommand::Import { places, s3 }) => up::runtimes::run(&places, &s3),
        },
        Command::Backup(args) => commands::backup::backup(&args),
        Command::RestoreBackup(args) => commands::backup::restore(&args),
        Command::Cluster(args) => match commands::cluster::run_here(&args.command) {
            Some(done) => done,
            None => block_on(async { commands::cluster::run(&Client::new(&client)?, &args.command).await }),
        },
        Command::Doctor(args) => match &args.function {
            Some(function) => {
                block_on(async { commands::doctor::function::run(&Client::new(&client)?, function, &args).await })
            }
            None => commands::doctor::run(&args),
        },
        Command::Config(args) => commands::config::run(&args),
        Command::DoctorTarget(args) => commands::doctor::target::run(&args),
        Command::Init(args) => commands::init::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fn", &mut script);
            out::bytes(&script);
            Ok(ExitCode::SUCCESS)
        }
        Command::Snapshot(args) => commands::snapshot::execute(&client, &args.command),
        Command::Deploy(args) => block_on(async { commands::deploy::run(&Client::new(&client)?, &args).await }),
        Command::Invoke(args) => block_on(async { commands::invoke::run(&Client::new(&client)?, &args).await }),
        Command::Async(args) => {
            block_on(async { commands::async_calls::run(&Client::new(&client)?, &args.command).await })
        }
        Command::List(args) => block_on(async { commands::list::run(&Client::new(&client)?, args).await }),
        Command::Describe(args) => block_on(async { commands::describe::run(&Client::new(&client)?, &args).await }),
        Command::Diff(args) => block_on(async { commands::diff::run(&Client::new(&client)?, &args).await }),
        Command::Versions(args) => block_on(async { commands::versions::run(&Client::new(&client)?, &args).await }),
        Command::Alias(args) => block_on(async { commands::alias::run(&Client::new(&client)?, &args.command).await }),
        Command::Secret(args) => block_on(async { commands::secret::run(&Client::new(&client)?, &args.command).await }),
        Command::Key(args) => block_on(async { commands::key::run(&Client::new(&client)?, &args.command).await }),
        Command::Access(args) => block_on(async { commands::access::run(&Client::new(&client)?, &args.command).await }),
        Command::Login(args) => block_on(commands::login::login(client, &args)),
        Command::Logout(args) => block_on(commands::login::logout(client, &args)),
        Command::Whoami(listing) => block_on(async { commands::login::whoami(&Client::new(&client)?, listing).await }),
        Command::Audit(args) => match commands::audit::run_here(&args) {
            Some(done) => done,
            None => block_on(async { commands::audit::run(&Client::new(&client)?, &args).await }),
        },
        Command::Namespace(args) => {
            block_on(async { commands::namespace::run(&Client::new(&client)?, &args.command).await })
        }
        Command::Quota(args) => block_on(async { commands::quota::run(&Client::new(&client)?, &args.command).await }),
        Command::Usage(args) => block_on(async { commands::usage::run(&Client::new(&client)?, &args).await }),
        Command::Schedule(args) => {
            block_on(async { commands::schedule::run(&Client::new(&client)?, &args.command).await })
        }
        Command::Source(args) => block_on(async { commands::source::run(&Client::new(&client)?, &args.command).await }),
        Command::Rollback(args) => block_on(async { commands::rollback::run(&Client::new(&client)?, &args).await }),
        Command::Logs(args) => block_on(async { commands::logs::run(&Client::new(&client)?, &args).await }),
        Command::Delete(args) => block_on(async { commands::delete::run(&Client::new(&client)?, &args).await }),
        Command::Instances(args) => block_on(async { commands::instances::run(&Client::new(&client)?, args).await }),
        Command::Workers(args) => block_on(async { commands::workers::list(&Client::new(&client)?, args).await }),
        Command::Drain(args) => block_on(async { commands::workers::drain(&Client::new(&client)?, &args).await }),
        Command::Undrain(args) => block_on(async { commands::workers::undrain(&Client::new(&client)?, &args).await }),
        Command::Migrate(args) => block_on(async { commands::migrate::run(&Client::new(&client)?, &args).await }),
        Command::Stats(args) => block_on(async { commands::stats::run(&Client::new(&client)?, &args).await }),
        Command::Top(args) => block_on(async { commands::top::run(&Client::new(&client)?, &args).await }),
        Command::Status(args) => block_on(async { commands::status::run(&Client::new(&client)?, args).await }),
        Command::Demo(args) => block_on(async { commands::demo::run(&Client::new(&client)?, &args).await }),
    }
}

/// Runs a client's work on a single-threaded runtime. ^C ends the process, since nothing needs a clean stop.
fn block_on(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?
        .block_on(work)
}
