//! `rekindle-init`: started by the worker only, with the control socket as standard input.

use std::process::ExitCode;

fn main() -> ExitCode {
    match rekindle_init::zygote::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rekindle-init: {error}");
            ExitCode::FAILURE
        }
    }
}
