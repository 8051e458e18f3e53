//! The platform on one machine: `fn up` in the background or the foreground, and one role each for a cluster.
//!
//! ```text
//!  fn up ──> background: starts `fn up --foreground`, waits for /readyz
//!                           │
//!                           ▼
//!            foreground: lock, sweep, mount namespace ──> s3 ──> runtimes ──> scheduler ──> worker ──> gateway
//!                                                          ▲                                              │
//!                                                          └─ stopped in the reverse order of the start ◄─┘
//! ```

mod background;
mod foreground;
mod heap;
mod isolation;
mod key_command;
#[cfg_attr(not(feature = "s3"), path = "no_kms.rs")]
mod kms;
pub(crate) mod layout;
pub(crate) mod leftovers;
pub(crate) mod master_key;
pub(crate) mod membership;
mod objects;
pub(crate) mod pid;
pub(crate) mod role;
mod roles;
pub(crate) mod runtimes;
#[cfg_attr(not(feature = "s3"), path = "no_s3.rs")]
mod s3;
pub(crate) mod secret_file;
pub(crate) mod secrets;
pub(crate) mod store;
mod traces;

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::args::UpArgs;
use layout::Layout;
pub(crate) use traces::LOCAL as LOCAL_TRACES;

/// Target of this module's log lines, as `RUST_LOG` names it.
const LOG: &str = "rekindle_up";

/// `fn up`.
pub(crate) fn run(args: &UpArgs) -> Result<ExitCode> {
    traces::point(args.traces.as_deref())?;
    let layout = Layout::of(&args.places).context("the current directory is gone")?;
    if args.foreground {
        foreground::run(args, &layout)
    } else {
        background::run(args, &layout)
    }
}
