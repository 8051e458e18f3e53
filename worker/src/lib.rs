//! The worker: one per host. It runs instances in sandboxes, restores them from snapshots and takes snapshots of them.
//!
//! ```text
//!  http::serve ─┬─ POST /instances ──> instance::start ─┬─> boot     (or a runtime snapshot)
//!               │                                       └─> restore  (lazily)
//!               ├─ ANY /invoke/… ────> invoke            (one request into an instance)
//!               └─ POST /prepare ────> prepare           (build, boot, warm up, checkpoint, publish, ...)
//! ```
//!
//! - [`config`], [`worker`]: what it is given and what it holds.
//! - [`host`]: control groups, networks and sandboxes of this host, its pressure and load, the confined process.
//! - [`snapshots`]: snapshots open on this host, and the template that the pager takes pages from.
//! - [`criu`]: the one way to dump an instance and the one way to restore it.
//! - [`instance`]: the life of one running copy: boot, restore, checkpoint, parking, its end.
//! - [`deploy`]: layers, builds, and the preparation of a version.
//! - [`migration`]: moving an instance to another host.
//! - [`idle`]: eviction of memory that nobody touches.
//! - [`http`]: what schedulers, gateways and other workers call.
//! - [`reporting`]: heartbeats, metrics, functions' logs.
//!
//! [`host`] imports nothing from the others, and [`snapshots`] only [`host`]. [`criu`] knows instances, but none of the
//! rooms that dump and restore them (`scripts/check-layers.py`).

#![recursion_limit = "256"]

pub mod config;
pub mod criu;
pub mod deploy;
pub mod host;
pub mod http;
pub mod idle;
pub mod instance;
pub mod migration;
pub mod reporting;
mod restorer;
pub mod snapshots;
#[cfg(test)]
mod testing;
pub mod worker;

pub use config::WorkerConfig;
pub use http::{ServeError, serve};
