//! Handles untrusted bytes and programs in a process without privileges: unpacks uploaded or fetched archives, and runs
//! programs that install a function's dependencies.
//!
//! ```text
//! worker ──Order──► rekindle-init confined       root; joins the control group, leaves the host's namespaces
//!    ▲                 │ fork
//!    │                 ▼
//!    │              pid 1: its files are laid out   ([`files`])
//!    │                 │ user namespace, one id; no capabilities, no_new_privs, filter   ([`rights`])
//!    │                 ▼
//!    └──Report──  unpacks ([`upload`], [`image`], [`layer`]), or starts a program and reaps ([`process`])
//! ```
//!
//! The process has its own program image. An attacker who takes it over through a bug in a decompressor finds none of
//! the worker's memory in it.

pub mod attributes;
mod files;
pub mod image;
pub mod layer;
pub mod links;
mod order;
mod pax;
mod process;
mod rights;
pub mod tree;
pub mod upload;

pub use order::{BindMount, ORDER, Order, Program, Report, SET_UP_FAILED, SUBCOMMAND, USER, Work};
pub use process::run;
pub use rights::{MEMLOCK, MESSAGE_QUEUES, decode_program};

/// A cause from another process, as text.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl From<std::io::Error> for Cause {
    fn from(e: std::io::Error) -> Self {
        Self(e.to_string())
    }
}

/// Whether a character affects its reader instead of being read: control characters, and the two separators that some
/// programs treat as ends of lines.
#[must_use]
pub fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}
