//! Drives an unmodified CRIU over its RPC protocol, and reads and edits its image files.
//!
//! - [`Session`]: one conversation with one `criu swrk`, which init starts and whose socket the worker keeps.
//! - [`cause_of`]: why CRIU failed, from its log.
//! - [`images`]: the image files. Pure.
//!
//! Everything but the images blocks, up to a limit, and belongs on its own thread.

pub mod images;
mod log;
mod messages;
mod page;
mod session;

pub use log::{cause_in, cause_of, read_log};
pub use page::{PAGE_BYTES, PageIndex};
pub use session::{
    AfterDump, CriuError, DumpOrder, InheritFd, RestoreOrder, Session, Stage, external_file, own_descriptor,
};

/// What CRIU sends to the pager once all processes are restored.
pub const RESTORE_FINISHED: u32 = 0x5253_5446;
/// CRIU's log of a probe, in the directory that CRIU was given for it.
pub const PROBE_LOG: &str = "probe.log";
/// CRIU's log of a dump, in the image directory.
pub const DUMP_LOG: &str = "dump.log";
/// CRIU's log of a restore, in the image directory.
pub const RESTORE_LOG: &str = "restore.log";
