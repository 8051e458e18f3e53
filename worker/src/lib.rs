//! The worker: one per host. It runs instances in sandboxes, restores them from snapshots and takes snapshots of them.
//!
//! ```text
//!  http::serve ─┬─ POST /instances ──> instance::start ──> boot      (from nothing, or as a runtime_snapshot)
//!               │                                     └──> restore   (lazily, from a snapshot)
//!               ├─ ANY /invoke/… ────> invoke          (one request into an instance)
//!               └─ POST /prepare ────> prepare         (build, boot, warm up, freeze, publish, rehearse)
//! ```
//!
//! - [`config`], [`worker`]: what it is given and what it holds.
//! - [`sandbox`]: namespaces and the init inside; [`cgroup`]: limits; [`network`]: the way out.
//! - [`migration`]: moving an instance to another host.
//! - [`snapshots`]: snapshots open on this host, and the template that the pager takes pages from.
//! - [`idle`]: what is not touched for a while goes away.
//! - [`logs`], [`build`], [`layers`]: what functions write; their filesystems. [`confined`]: foreign bytes.
//! - [`metrics`]: what it measures; [`pressure`]: how short of memory its host is; [`load`], [`kept`]: what the scheduler places by.

#![recursion_limit = "256"]

mod apart;
pub mod boot;
mod breakpoints;
pub mod build;
pub mod cgroup;
pub mod checkpoint;
pub mod config;
pub mod confined;
pub mod damage;
mod dump_dir;
pub mod expected;
pub mod heartbeat;
pub mod http;
pub mod idle;
pub mod instance;
pub mod invoke;
pub mod kept;
pub mod layers;
pub mod leave;
pub mod load;
pub mod logs;
mod lost_locks;
pub mod metrics;
pub mod migration;
mod missing;
pub mod network;
pub mod prepare;
mod prepared_restore;
pub mod pressure;
mod probe;
pub mod randomness;
mod rehearsal;
pub mod renewal;
pub mod restore;
pub mod runtime_snapshot;
pub mod same_files;
pub mod sandbox;
pub mod semaphores;
pub mod snapshots;
pub mod standstill;
#[cfg(test)]
mod testing;
mod warm_up;
pub mod worker;

pub use config::WorkerConfig;
pub use http::{ServeError, serve};
