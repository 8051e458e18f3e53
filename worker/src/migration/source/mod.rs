//! The source of a migration: an instance that leaves this host, or whose copy does.

mod images;
mod memory;
mod migration_source;
mod pages;
mod sources;

pub use migration_source::MigrationSource;
pub use sources::MigrationSources;
