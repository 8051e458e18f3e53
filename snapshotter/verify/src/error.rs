//! Why images are refused.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a directory of images is refused.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It cannot be read.
    #[error("{}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// An entry is a link, a directory or something else that is no plain file.
    #[error("{0} is not a plain file")]
    NotAFile(String),
    /// More than any function has.
    #[error("{image}: more {what} than {limit}")]
    TooMuch {
        /// The file, or the directory.
        image: String,
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// No image of this kind is expected.
    #[error("{0} is an image of a kind that is not accepted{advice}", advice = of_terminal(.0))]
    Kind(String),
    /// An image that must be there is not.
    #[error("{0} is missing")]
    Missing(String),
    /// Other magic numbers.
    #[error("{0} does not begin with the magic numbers of its kind")]
    Magic(String),
    /// An entry reaches beyond the end.
    #[error("{image}: entry {entry} is cut off")]
    Cut {
        /// The image.
        image: String,
        /// Which entry, from 0.
        entry: usize,
    },
    /// Another number of entries than such an image has.
    #[error("{image}: has {found} entries")]
    Entries {
        /// The image.
        image: String,
        /// How many.
        found: usize,
    },
    /// An entry is no message of its kind.
    #[error("{image}: entry {entry} does not decode")]
    Decode {
        /// The image.
        image: String,
        /// Which entry, from 0.
        entry: usize,
        /// What the decoder says.
        #[source]
        source: prost::DecodeError,
    },
    /// An entry has a field that is not known, or is not encoded as CRIU does.
    #[error("{image}: entry {entry} has an unknown field or is not encoded as CRIU does")]
    NotCanonical {
        /// The image.
        image: String,
        /// Which entry, from 0.
        entry: usize,
    },
    /// An unlinked file has a right that no copy is given.
    #[error(
        "{image}: an open file that was unlinked has mode {mode:o}, and no copy gets a set-user-id, set-group-id or \
         sticky bit: take it off, or close the file, before the snapshot"
    )]
    SpecialBits {
        /// The image.
        image: String,
        /// Its permissions.
        mode: u32,
    },
    /// A file has a lease.
    #[error("a file has a lease (F_SETLEASE), which no copy gets: let go of it before the snapshot")]
    Lease,
    /// A field has a value that is not accepted.
    #[error("{image}: entry {entry}: {field} is {found}{advice}", advice = of_name(field))]
    Field {
        /// The image.
        image: String,
        /// Which entry, from 0.
        entry: usize,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: String,
    },
}

/// What to do about a file that no function may have open.
fn of_name(field: &str) -> &'static str {
    match field {
        "reg.name" => ": no copy gets this file; close it before the snapshot",
        _ => "",
    }
}

/// What to do about images of terminals.
fn of_terminal(image: &str) -> &'static str {
    match image.starts_with("tty") {
        true => ": a pseudoterminal is open, which no copy gets; close both its ends before the snapshot",
        false => "",
    }
}

/// An entry of an image, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) image: &'a str,
    pub(crate) entry: usize,
}

impl Place<'_> {
    /// Refuses the value of a field.
    pub(crate) fn refuse(&self, field: &'static str, found: impl fmt::Debug) -> VerifyError {
        VerifyError::Field {
            image: self.image.to_owned(),
            entry: self.entry,
            field,
            found: shortened(format!("{found:?}")),
        }
    }

    /// Refuses the value of a field unless it is `good`.
    pub(crate) fn hold(&self, good: bool, field: &'static str, found: impl fmt::Debug) -> Result<(), VerifyError> {
        if good { Ok(()) } else { Err(self.refuse(field, found)) }
    }
}

/// Longest value in an error.
const FOUND_MAX: usize = 200;

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(FOUND_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}
