//! Formats errors as one line, for readers without access to their sources: users and logs.

use std::error::Error;

/// An error and its causes, from the outermost inwards, separated by colons.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}
