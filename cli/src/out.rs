//! Standard output: the one place that writes to it. Its reader may stop before the end (`fn list | head`). That ends
//! the command quietly, and what it has done remains done. `println!` would panic.

use std::fmt;
use std::io::{self, Write as _};
use std::process;

use crate::terminal::harmless_but_colours;

/// Prints a line, like `println!`.
macro_rules! say {
    () => { $crate::out::line(format_args!("")) };
    ($($arg:tt)*) => { $crate::out::line(format_args!($($arg)*)) };
}

/// Writes a line. Of what a terminal would obey, only the colours of `show` and ends of lines pass: any part of it may
/// be a function's.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let text = harmless_but_colours(&text.to_string());
    settled(writeln!(io::stdout().lock(), "{text}"));
}

/// Writes text that may not end its line, at once.
pub(crate) fn text(text: &str) {
    bytes(text.as_bytes());
}

/// Writes bytes, at once.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    settled(out.write_all(bytes).and_then(|()| out.flush()));
}

fn settled(written: io::Result<()>) {
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => process::exit(0),
        Err(error) => {
            eprintln!("error: standard output cannot be written: {error}");
            process::exit(1);
        }
    }
}
