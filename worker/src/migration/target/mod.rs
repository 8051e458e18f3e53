//! The target of a migration: an instance that arrives from another host.

mod arrival;
mod host;
mod images;
mod memory;
mod restore;
mod targets;
mod transfer;

pub use arrival::MigrationTarget;
pub use host::TargetHost;
pub use targets::MigrationTargets;
