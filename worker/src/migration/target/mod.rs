//! The target of a migration: an instance that arrives from another host.

mod host;
mod images;
mod memory;
mod migration_target;
mod restore;
mod targets;
mod transfer;

pub use host::TargetHost;
pub use migration_target::MigrationTarget;
pub use targets::MigrationTargets;
