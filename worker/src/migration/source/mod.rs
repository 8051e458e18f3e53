//! The source of a migration: an instance that leaves this host, or whose copy does.

mod departure;
mod images;
mod memory;
mod pages;
mod sources;

pub use departure::MigrationSource;
pub use sources::MigrationSources;
