//! Drives an unmodified CRIU over its RPC protocol, and reads and edits its image files.
//!
//! - [`Session`]: one conversation with one `criu swrk`, which init starts and whose socket the worker keeps.
//! - [`Prestart`]: a CRIU that was ordered ahead to restore what is not known yet.
//! - [`descriptors`]: what a CRIU process is started with, and its names for files and pipes.
//! - [`cause_of`]: why CRIU failed, from its log.
//! - [`images`]: the image files. Pure.
//!
//! Everything but the images blocks, up to a limit, and belongs on its own thread.

pub mod descriptors;
pub mod images;
mod log;
mod messages;
mod page;
mod prestart;
mod scratch_dir;
mod session;
mod stage;

pub use log::{cause_in, cause_of, is_of_function, read_log};
pub use page::{PAGE_BYTES, PageIndex};
pub use prestart::{AwaitedImages, PendingRestore, Prestart, PrestartDir, PrestartError};
pub use scratch_dir::ScratchDir;
pub use session::{AfterDump, DumpOrder, InheritFd, RestoreOrder, Session};
pub use stage::{CriuError, Stage, StageError};

/// The result of a kernel probe, in the working directory of the CRIU that made it, and of one that is to use it.
pub const PROBE_FILE: &str = "criu.kdat";
/// CRIU's log of a probe, in the directory that CRIU was given for it.
pub const PROBE_LOG: &str = "probe.log";
/// CRIU's log of a dump, in the image directory.
pub const DUMP_LOG: &str = "dump.log";
/// CRIU's log of a restore, in the image directory.
pub const RESTORE_LOG: &str = "restore.log";
