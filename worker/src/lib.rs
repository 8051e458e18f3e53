//! The worker: one per host. It runs instances in sandboxes, restores them from snapshots and takes snapshots of them.
//!
//! ```text
//!  http::serve ─┬─ POST /instances ──> instance::start ─┬─> boot     (or a runtime snapshot)
//!               │                                       └─> restore  (lazily)
//!               ├─ ANY /invoke/… ────> instance::invoke  (one request into an instance)
//!               └─ POST /prepare ────> deploy::prepare   (build, boot, warm up, checkpoint, publish, ...)
//! ```
//!
//! The rooms, each of which imports only those further down (`scripts/check-layers.py`):
//!
//! - [`http`]: what schedulers, gateways and other workers call. `startup` puts a `worker` together, from its
//!   [`config`].
//! - [`reporting`]: heartbeats, and levels as metrics.
//! - [`deploy`]: builds, and the preparation of a version. [`migration`]: moving an instance to another host. [`idle`]:
//!   eviction of memory that nobody touches. [`calls`]: requests of functions to functions.
//! - [`instance`]: the life of one running copy: boot, restore, checkpoint, requests, parking, its end.
//! - `metrics`: counters and durations of all this.
//! - [`criu`]: the one way to dump an instance and the one way to restore it. `restorer`: a restore without CRIU.
//! - [`snapshots`]: snapshots open on this host, and the template that the pager takes pages from. [`layers`]: unpacked
//!   layers.
//! - [`host`]: control groups, networks and sandboxes of this host, its pressure and load, the confined process.
//!   [`logs`]: functions' logs.
//!
//! No struct is held by all of them. What does something, such as an [`instance::start::Starter`], holds what it needs
//! for that; `startup` hands it out.

#![recursion_limit = "256"]

pub mod calls;
pub mod config;
pub mod criu;
pub mod deploy;
mod errors;
pub mod host;
pub mod http;
pub mod idle;
pub mod instance;
pub mod layers;
pub mod logs;
pub mod metrics;
pub mod migration;
pub mod reporting;
mod restorer;
pub mod snapshots;
mod startup;
#[cfg(test)]
mod testing;
mod worker;

pub use config::WorkerConfig;
pub use http::{ServeError, serve};
