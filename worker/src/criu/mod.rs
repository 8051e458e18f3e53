//! How the worker uses CRIU. Deploys, runtimes' snapshots, starts and migrations all take these paths; what speaks to
//! CRIU itself is the crate `rekindle-criu`.
//!
//! - [`dump`]: a checkpoint of a running instance. [`quiesce`] stops the function for it, [`same_files`] and
//!   [`semaphores`] look for what a copy would not have.
//! - `restore`: processes from images, and `stages`: the work while CRIU waits. `prepared_restore` is what they begin
//!   with: a CRIU with its order and its images. `memory` is what a pager serves of them.
//! - `probe`: what CRIU has to know of the kernel, found out once.

pub mod dump;
pub(crate) mod memory;
pub(crate) mod prepared_restore;
pub(crate) mod probe;
pub mod quiesce;
pub(crate) mod restore;
pub mod same_files;
pub mod semaphores;
pub(crate) mod stages;
