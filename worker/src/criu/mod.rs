//! How the worker uses CRIU. Deploys, runtimes' snapshots, starts and migrations all take these paths; what speaks to
//! CRIU itself is the crate `rekindle-criu`.
//!
//! - [`Criu`]: how it is run, and what it has found out about the kernel: `probe`, and `tracking` of changed pages.
//! - [`dump`]: a checkpoint of running processes. [`quiesce`] stops the function for it, [`code_pages`] has CRIU find
//!   the pages that it touches, [`same_files`] and [`semaphores`] look for what a copy would not have.
//! - `connections`: those of a function to itself, at checkpoints and restores. `link_names`: names that a checkpoint
//!   leaves. `open_files`: databases that are open at one. `unix_names`: where the files of UNIX sockets are.
//!   `watches`: paths of what is watched.
//! - `restore`: processes from images, and `stages`: the work while CRIU waits, also on `sockets`. `prepared_restore`
//!   is what they begin with: a CRIU with its order and its images. `memory` is what a pager serves of them.

pub mod code_pages;
pub(crate) mod connections;
pub mod dump;
mod installation;
pub(crate) mod link_names;
pub(crate) mod memory;
pub(crate) mod open_files;
pub(crate) mod prepared_restore;
pub(crate) mod probe;
pub mod quiesce;
pub(crate) mod refusal;
pub(crate) mod restore;
pub mod same_files;
pub mod semaphores;
mod sockets;
pub(crate) mod stages;
mod tracking;
mod unix_names;
pub mod watches;

pub use installation::{Criu, CriuSettings};
pub use tracking::Tracking;
pub(crate) use tracking::forget_changes;
