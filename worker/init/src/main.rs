//! `rekindle-init`: started by the worker only, with the control socket as file descriptor 3.

use std::process::ExitCode;

fn main() -> ExitCode {
    match rekindle_init::reactor::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rekindle-init: {error}");
            ExitCode::FAILURE
        }
    }
}
