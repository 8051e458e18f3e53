//! `fn`. All of it is the library: cargo compiles a library beside the crates that it uses, and a program after them.

use std::process::ExitCode;

fn main() -> ExitCode {
    rekindle_cli::main()
}
