//! The target of a migration: an instance that arrives from another host.

mod arrival;
mod images;
mod memory;
mod targets;
mod transfer;

pub use arrival::{MigrationTarget, TargetHost};
pub use targets::MigrationTargets;
