//! Why a process cannot be put back.

use std::io;

/// Why a process has no point to go back to, or cannot go back. It must not serve anybody then.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It does something that the kernel does not show afterwards, or did so.
    #[error("it has made system call {0}, whose effects cannot be seen")]
    Call(i32),
    /// A thread is not there any more, is new, or does not stop.
    #[error("its threads: {0}")]
    Threads(String),
    /// A signal waits for it, or its handlers have changed.
    #[error("its signals: {0}")]
    Signals(String),
    /// A timer of its own is running.
    #[error("its timers: {0}")]
    Timers(String),
    /// Its memory is of a kind that cannot be put back, or is too much.
    #[error("its memory: {0}")]
    Memory(String),
    /// A descriptor is of a kind that cannot be put back, or has changed.
    #[error("its descriptors: {0}")]
    Descriptors(String),
    /// It is not at rest yet.
    #[error("it is not at rest: {0}")]
    Busy(String),
    /// A filter was not put on it as a whole.
    #[error("its filter")]
    Filter(#[source] Box<Unfit>),
    /// The kernel does not do what is needed.
    #[error("{0}")]
    Kernel(String, #[source] io::Error),
    /// What was to be done before it runs has failed.
    #[error("what comes before it runs: {0}")]
    Last(String),
}

impl Unfit {
    /// A word for the kind of reason.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Call(_) => "call",
            Self::Threads(_) => "threads",
            Self::Signals(_) => "signals",
            Self::Timers(_) => "timers",
            Self::Memory(_) => "memory",
            Self::Descriptors(_) => "descriptors",
            Self::Busy(_) => "busy",
            Self::Kernel(..) | Self::Filter(_) => "kernel",
            Self::Last(_) => "other",
        }
    }
}

/// Turns an error of the kernel into an [`Unfit`].
pub(crate) fn kernel<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Unfit {
    move |error| Unfit::Kernel(what.to_owned(), error.into())
}
