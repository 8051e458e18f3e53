//! What is kept, for how long, and what is evicted first. Pure: time is an argument (a `Duration` since any epoch of
//! the caller's), and nothing is read or awaited. The scheduler decides with it, and the benchmark replays traces
//! against the very same code. Workers use its greedy-dual order for the eviction of templates and chunks.
//!
//! ```text
//!   IdleTimes ──> Plan: ready until, parked until, one standing by from … until     (while memory is plenty)
//!   Figures ───> worth of what stands by: milliseconds saved for each byte taken  ──> greedy-dual order
//!   Pressure ──> how many may go now, in that order                               (when memory is short)
//! ```
//!
//! An instance goes down one ladder: ready (its memory limit is set aside), parked (what it has written), only its
//! snapshot's template on the worker, nothing. [`Plan`] says when it goes down because it is unused. [`Figures`] says
//! what each rung is worth when room must be made. docs/decisions/0017-retention-policy.md has the reasons.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod greedy_dual;
mod history;
mod idle_times;
mod ladder;
mod plan;
mod pressure;

pub use greedy_dual::{Clock, GreedyDual, Worth};
pub use history::{History, MIN_IDLE};
pub use idle_times::{BINS, IdleTimes, StoredHistogram};
pub use ladder::{Figures, Rung};
pub use plan::{Basis, Plan, Settings, Window};
pub use pressure::{Guard, Reading, Thresholds};
