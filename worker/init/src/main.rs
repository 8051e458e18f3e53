//! `rekindle-init`: started by the worker only, with the control socket as standard input. As `rekindle-init confined`,
//! it works on untrusted bytes.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|a| a == rekindle_confined::SUBCOMMAND)
    {
        return rekindle_confined::run(&rekindle_init::seccomp::program());
    }
    match rekindle_init::zygote::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rekindle-init: {error}");
            ExitCode::FAILURE
        }
    }
}
