//! Work on foreign bytes and foreign programs in a process without rights: unpacking what was uploaded or fetched, and
//! running what installs a function's dependencies.
//!
//! ```text
//! worker ──Order──► rekindle-init confined       root; joins the control group, leaves the host's namespaces
//!    ▲                 │ fork
//!    │                 ▼
//!    │              pid 1: its files are laid out   ([`files`])
//!    │                 │ user namespace, one id; no capabilities, no_new_privs, filter   ([`rights`])
//!    │                 ▼
//!    └──Report──────  unpacks ([`upload`], [`layer`]), or starts a program and reaps ([`process`])
//! ```
//!
//! A process of its own image: who takes it over by a defect of a decompressor finds none of the worker's memory there.

mod files;
pub mod layer;
pub mod links;
mod order;
mod process;
mod rights;
pub mod upload;

pub use order::{ORDER, Order, Program, Report, SET_UP_FAILED, SUBCOMMAND, Shown, USER, Work};
pub use process::run;
pub use rights::{MEMLOCK, MESSAGE_QUEUES, decode_program};

/// A cause that came from another process, as text.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl From<std::io::Error> for Cause {
    fn from(e: std::io::Error) -> Self {
        Self(e.to_string())
    }
}

/// Whether a character does something to who reads it, instead of being read: control characters, and the two
/// separators that some programs end a line at.
#[must_use]
pub fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}
