//! The pager: it replaces CRIU's lazy-pages daemon and serves the page faults of restored processes.
//!
//! There is one thread per instance, so that an instance whose pages arrive slowly delays no other:
//!
//! ```text
//! Waiting ──CRIU connects──> Handshake ──all descriptors, "finished"──> Serving ──stop──> gone
//!                               │ faults are served from the first descriptor on      │
//!                               └──────────────── a page is lost: the instance is killed, then gone
//! ```
//!
//! - [`address_map`]: which addresses of a process still belong to the snapshot (pure).
//! - [`source`]: a trait for the origin of pages.
//! - `pin`: how a source's host evicts pages that may be in use.
//! - [`handshake`]: the protocol on `lazy-pages.socket`; [`Ancestor`]: the alternative without it.
//! - [`memory`]: one process's memory; [`userfault`]: its userfaultfd, the only place that makes those system calls.
//! - [`pager`]: the handle; `command`: what it and the thread tell each other; `layout`: the memory that is served.
//! - `thread` reads events (which `poller` waits for), `fill` answers faults, `ahead` fills pages that are likely
//!   touched next (`streams` detects sequential reads), `fetching` fetches absent pages.
//! - `stats`: counters; [`latency`]: the latency of faults.

pub mod address_map;
mod ahead;
mod ancestor;
mod command;
mod fetching;
mod fill;
#[doc(hidden)]
pub mod fuzz;
pub mod handshake;
pub mod latency;
mod layout;
pub mod memory;
pub mod pager;
mod pin;
mod poller;
pub mod source;
mod stats;
mod streams;
mod thread;
pub mod userfault;

pub use ancestor::Ancestor;
pub use command::{BackgroundFill, Handover, LostPage, PreparedMemory, StoppedProcess};
pub use latency::Latency;
pub use layout::{Layout, PageRange};
pub use pager::{Pager, PagerConfig, PagerError, PendingPreparation};
pub use pin::{Pin, pin, unpinned};
pub use source::{AheadPage, PageLookup, PageRef, PageSource, SourceError};
pub use stats::{Milestones, Stats};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
