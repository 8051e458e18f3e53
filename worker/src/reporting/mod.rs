//! What the worker reports: heartbeats to the scheduler, and levels as metrics.

pub mod heartbeat;
pub mod leave;
pub mod levels;
pub mod membership;
mod observe;
pub mod restorable;
mod snapshots;

pub use observe::{Observed, observe};
