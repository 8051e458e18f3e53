//! The pager: it takes the seat of CRIU's lazy-pages daemon and serves the page faults of restored processes.
//!
//! One thread an instance, so that an instance whose pages come slowly delays no other:
//!
//! ```text
//! Waiting ──CRIU connects──> Handshake ──all descriptors, "finished"──> Serving ──stop──> gone
//!                               │ faults are served from the first descriptor on      │
//!                               └──────────────── a page is lost: the instance is killed, then gone
//! ```
//!
//! - [`address_map`]: which addresses of a process still belong to the snapshot (pure).
//! - [`source`]: where pages come from, behind a trait.
//! - `pin`: how a source's host takes pages back that somebody may be looking at.
//! - [`handshake`]: the protocol on `lazy-pages.socket`; [`Ancestor`]: the way without it.
//! - [`memory`]: one process's userfaultfd; the only place that makes its system calls.
//! - [`pager`]: the handle; `thread` reads what happens (`waiting` for it), `fill` answers it, `ahead` fills what is likely
//!   touched next (`streams` tells what is read from front to back), `fetching` has what is absent brought.
//! - [`latency`]: how long faults took.

pub mod address_map;
mod ahead;
mod ancestor;
mod fetching;
mod fill;
#[doc(hidden)]
pub mod fuzz;
pub mod handshake;
pub mod latency;
pub mod memory;
pub mod pager;
mod pin;
mod poller;
pub mod source;
mod streams;
mod thread;

pub use ancestor::Ancestor;
pub use latency::Latency;
pub use pager::{
    FilledBehind, Given, Handover, Layout, LostPage, Marks, PageRange, Pager, PagerConfig, PagerError, Prepared,
    Preparing, Stats,
};
pub use pin::{Pin, pin, unpinned};
pub use source::{AheadPage, Held, PageRef, PageSource, SourceError};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
