//! What the worker reports: heartbeats to the scheduler, metrics, and the output of functions.

pub mod heartbeat;
pub mod kept;
pub mod leave;
pub mod logs;
pub mod metrics;
