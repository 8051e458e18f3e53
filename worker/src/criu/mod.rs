//! How the worker uses CRIU. Deploys, runtimes' snapshots, starts and migrations all take these paths; what speaks to
//! CRIU itself is the crate `rekindle-criu`.
//!
//! - [`dump`]: a checkpoint of a running instance. [`quiesce`] stops the function for it, [`same_files`] and
//!   [`semaphores`] look for what a copy would not have.
//! - `prepared_restore`: a CRIU with its order and its images, for a restore.
//! - `probe`: what CRIU has to know of the kernel, found out once.

pub mod dump;
pub(crate) mod prepared_restore;
pub(crate) mod probe;
pub mod quiesce;
pub mod same_files;
pub mod semaphores;
