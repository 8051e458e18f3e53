//! What the worker tells: heartbeats to the scheduler, metrics, and what functions write.

pub mod heartbeat;
pub mod kept;
pub mod leave;
pub mod logs;
pub mod metrics;
