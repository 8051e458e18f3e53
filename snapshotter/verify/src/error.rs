//! Errors of the verification.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a directory of images is rejected.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It cannot be read.
    #[error("{}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// An entry is not a plain file, but a link, a directory or something else.
    #[error("{0} is not a plain file")]
    NotAFile(String),
    /// More than any function has.
    #[error("{image}: more {what} than {limit}")]
    TooMuch {
        /// The file, or the directory.
        image: String,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// No image of this kind is expected.
    #[error("{0} is an image of a kind that is not accepted")]
    Kind(String),
    /// A required image is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// The magic numbers are different.
    #[error("{0} does not begin with the magic numbers of its kind")]
    Magic(String),
    /// An entry extends beyond the end.
    #[error("{image}: entry {entry} is cut off")]
    Cut {
        /// The image.
        image: String,
        /// Number of the entry, from 0.
        entry: usize,
    },
    /// An image of this kind has another number of entries.
    #[error("{image}: has {found} entries")]
    Entries {
        /// The image.
        image: String,
        /// Number of entries.
        found: usize,
    },
    /// An entry is not a message of its kind.
    #[error("{image}: entry {entry} does not decode")]
    Decode {
        /// The image.
        image: String,
        /// Number of the entry, from 0.
        entry: usize,
        /// The decoder's error.
        #[source]
        source: prost::DecodeError,
    },
    /// An entry has an unknown field, or is not encoded as CRIU does it.
    #[error("{image}: entry {entry} has an unknown field or is not encoded as CRIU does")]
    NotCanonical {
        /// The image.
        image: String,
        /// Number of the entry, from 0.
        entry: usize,
    },
    /// An unlinked file has a special mode bit that no copy gets.
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
    #[error("a file has a lease (F_SETLEASE), which no copy gets: release it before the snapshot")]
    Lease,
    /// A UNIX socket was bound by a name that begins at a working directory, and CRIU cannot bind it by its whole path.
    #[error(
        "{image}: a UNIX socket is bound to {name}, a relative name whose whole path is longer than 107 bytes, or not \
         a directory that the function writes to: bind it by another, before the snapshot"
    )]
    RelativeSocket {
        /// The image.
        image: String,
        /// The socket's name, quoted.
        name: String,
    },
    /// A file of `/proc` or `/sys` is open. Programs that look at themselves have one for a moment.
    #[error("{image}: entry {entry}: reg.name is {path}")]
    OfKernel {
        /// The image.
        image: String,
        /// Number of the entry, from 0.
        entry: usize,
        /// The file's path, quoted.
        path: String,
    },
    /// A field has a value that is not accepted.
    #[error("{image}: entry {entry}: {field} is {found}")]
    Field {
        /// The image.
        image: String,
        /// Number of the entry, from 0.
        entry: usize,
        /// The field's name.
        field: &'static str,
        /// Its value.
        found: String,
    },
}

impl VerifyError {
    /// What a process has that is in the way, in a user's words, and what to do about it. Follows "has".
    pub fn explanation(&self) -> String {
        match self {
            Self::OfKernel { path, .. } => of_file(path),
            Self::Kind(image) if image.starts_with("tty") => {
                "a pseudoterminal open, which no copy gets: close both its ends before the snapshot".to_owned()
            }
            Self::SpecialBits { mode, .. } => format!(
                "an open file that was unlinked with mode {mode:o}, and no copy gets a set-user-id, set-group-id or \
                 sticky bit: take it off, or close the file, before the snapshot"
            ),
            Self::Lease => {
                "a lease on a file (F_SETLEASE), which no copy gets: release it before the snapshot".to_owned()
            }
            Self::RelativeSocket { name, .. } => format!(
                "a UNIX socket that is bound to {name}, a relative name whose whole path is longer than 107 bytes, or \
                 not a directory that the function writes to: bind it by another, before the snapshot"
            ),
            Self::Field { field, found, .. } => match *field {
                "reg.name" => of_file(found),
                WATCHED => format!("a watch (inotify) on {found}, which no copy gets: end it before the snapshot"),
                field => match of_field(field) {
                    Some(told) => told.to_owned(),
                    None => format!("something that no snapshot holds: {self}"),
                },
            },
            _ => format!("something that no snapshot holds: {self}"),
        }
    }

    /// The process or thread that it is about, by its id in the images, where the image's name says so.
    pub fn process(&self) -> Option<u32> {
        let image = match self {
            Self::Field { image, .. } | Self::SpecialBits { image, .. } => image,
            _ => return None,
        };
        let id = image.strip_prefix("core-")?.strip_suffix(".img")?;
        id.parse().ok()
    }

    /// The open file that it is about, by its quoted path.
    pub fn open_path(&self) -> Option<&str> {
        match self {
            Self::OfKernel { path, .. } => Some(path),
            Self::Field {
                field: "reg.name",
                found,
                ..
            } => Some(found),
            _ => None,
        }
    }

    /// The watched file that it is about, by its quoted path.
    pub fn watched_path(&self) -> Option<&str> {
        match self {
            Self::Field {
                field: WATCHED, found, ..
            } => Some(found),
            _ => None,
        }
    }
}

/// The field with the path of what is watched.
pub(crate) const WATCHED: &str = "ify.wd.f_handle.path";

fn of_file(path: &str) -> String {
    format!("{path} open, and no copy gets this file: close it before the snapshot")
}

/// What a function may well have, and no copy gets, by the field that says so.
fn of_field(field: &str) -> Option<&'static str> {
    Some(match field {
        "usk.file_perms.uid" => {
            "a UNIX socket that is not at the path it was bound to, because it was renamed, or its directory is gone: \
             bind it to the path that it keeps, or close it before the snapshot"
        }
        "tc.timers.posix.clock_id" => {
            "a POSIX timer that counts the processor time of the thread that made it (CLOCK_THREAD_CPUTIME_ID, as \
             profilers have it) or of others, which no copy gets: delete it before the snapshot, or name the thread by \
             pthread_getcpuclockid"
        }
        "secbits" => {
            "PR_SET_KEEPCAPS set, which no copy gets: clear it before the snapshot, or do not have the program switch \
             users: it has no rights to keep"
        }
        "opts.so_bound_dev" => {
            "a socket that is bound to an interface (SO_BINDTODEVICE), which no copy gets: bind it to an address \
             instead, or close it before the snapshot"
        }
        _ => return None,
    })
}

/// An entry of an image, to be named in errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryLocation<'a> {
    pub(crate) image: &'a str,
    pub(crate) entry: usize,
}

impl EntryLocation<'_> {
    /// An error about the value of a field.
    pub(crate) fn refuse(&self, field: &'static str, found: impl fmt::Debug) -> VerifyError {
        VerifyError::Field {
            image: self.image.to_owned(),
            entry: self.entry,
            field,
            found: shortened(format!("{found:?}")),
        }
    }

    /// An error about an open file at this path, which is the kernel's.
    pub(crate) fn refuse_of_kernel(&self, path: &[u8]) -> VerifyError {
        VerifyError::OfKernel {
            image: self.image.to_owned(),
            entry: self.entry,
            path: shortened(format!("{:?}", String::from_utf8_lossy(path))),
        }
    }

    /// An error about a socket with this name, which is relative.
    pub(crate) fn refuse_relative(&self, name: &[u8]) -> VerifyError {
        let name = name.strip_suffix(&[0]).unwrap_or(name);
        VerifyError::RelativeSocket {
            image: self.image.to_owned(),
            name: shortened(format!("{:?}", String::from_utf8_lossy(name))),
        }
    }

    /// Rejects the value of a field unless it is `good`.
    pub(crate) fn hold(&self, good: bool, field: &'static str, found: impl fmt::Debug) -> Result<(), VerifyError> {
        if good { Ok(()) } else { Err(self.refuse(field, found)) }
    }
}

/// Maximum length of a value in an error.
const FOUND_MAX: usize = 200;

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(FOUND_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}
