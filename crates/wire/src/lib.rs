//! The vocabulary shared by the parts of the platform and its users: ids, the `fn.toml` config, error codes, header
//! names, and the request and response types of every HTTP interface. No I/O, no state.
//!
//! - [`ids`]: newtypes for ids and names that could be confused.
//! - [`function_config`]: `fn.toml`, parsed and validated.
//! - [`error`]: error codes that a user can meet, and their response format.
//! - [`function_call`]: calls between functions of one namespace.
//! - [`headers`]: names of the HTTP headers that the platform reads and writes.
//! - [`access`]: roles, scopes and keys of callers.
//! - [`api`]: the public admin API under `/v1/`.
//! - [`asynchronous`]: invocations that are accepted now and run later.
//! - [`secret`]: names and values of secrets.
//! - [`settings_file`]: the settings file of a host's programs.
//! - [`snapshot_key`]: keys that snapshots are encrypted with.
//! - [`schedule`]: schedules of functions, and the times at which their runs are due.
//! - [`event_source`]: queues whose messages functions are invoked with.
//! - [`stats`]: figures about invocations and workers.
//! - [`interface`]: the HTTP interfaces, operation by operation.
//! - [`internal`]: messages between roles; [`lease`]: fencing of leases on an instance; [`migration`]: messages about
//!   migrating an instance.

pub mod access;
pub mod api;
pub mod asynchronous;
pub mod clock;
pub mod destination;
pub mod error;
pub mod event_source;
pub mod function_call;
pub mod function_config;
pub mod headers;
pub mod ids;
pub mod interface;
pub mod internal;
pub mod lease;
pub mod migration;
pub mod processor;
pub mod renewal;
pub mod schedule;
pub mod secret;
pub mod settings_file;
pub mod snapshot_key;
pub mod stats;

pub use destination::Destination;
pub use error::{ApiError, ErrorCode};
pub use event_source::{EventSource, SourceName};
pub use ids::{
    AliasName, CallId, DEFAULT_NAMESPACE, FunctionId, FunctionName, InstanceId, MigrationId, Namespace, Selector,
    SnapshotId, VersionNumber, WorkerId,
};
pub use schedule::ScheduleName;
pub use secret::{Secret, SecretName, SecretValue};
pub use snapshot_key::SnapshotKey;
