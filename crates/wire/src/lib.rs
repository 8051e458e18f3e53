//! What the parts of the platform say to each other and to their users: ids, the `fn.toml` manifest, error codes,
//! header names, and the request and answer types of every HTTP interface. No I/O, no state.
//!
//! - [`ids`]: newtypes for what could be mixed up.
//! - [`manifest`]: `fn.toml`, read and checked.
//! - [`error`]: the error codes a user can meet, and their answer format.
//! - [`headers`]: the names of the HTTP headers the platform reads and writes.
//! - [`api`]: the public admin API under `/v1/`.
//! - [`asynchronous`]: invocations that are accepted now and run later.
//! - [`stats`]: invocations and workers in numbers.
//! - [`internal`]: scheduler and worker interfaces, used by the platform alone; [`lease`]: who may send to an instance; [`migration`]: those for moving an instance.

pub mod api;
pub mod asynchronous;
pub mod error;
pub mod headers;
pub mod ids;
pub mod internal;
pub mod lease;
pub mod manifest;
pub mod migration;
pub mod processor;
pub mod renewal;
pub mod stats;

pub use error::{ApiError, ErrorCode};
pub use ids::{CallId, FunctionName, InstanceId, MigrationId, SnapshotId, VersionNumber, WorkerId};
