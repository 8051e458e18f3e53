//! Drives an unmodified CRIU over its RPC protocol. The worker lets init start `criu swrk` inside a sandbox and keeps
//! the other end of its socket: [`Session`]. Everything here blocks, up to a limit, and belongs on its own thread.

mod log;
mod messages;
mod session;

pub use log::{cause_in, cause_of, read_log};
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
