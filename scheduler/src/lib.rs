//! The scheduler: which version of a function is live, which instances exist and on which workers, and who may send to
//! them.
//!
//! A placement request enters through `api`. `placement` decides as a pure function of `fleet`, `placing` carries the
//! decision out, and `waiting` queues requests that must wait. `prepare` makes a version live. `reaper` retires idle
//! instances. Only `store` touches the database.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod access;
mod api;
mod async_calls;
mod audit;
mod canary;
mod catalog;
mod clock;
mod cluster;
mod collection;
mod config;
mod digests;
mod evacuation;
#[cfg(test)]
mod fixture;
mod fleet;
mod followed;
mod halting;
mod leadership;
mod master_key;
mod metering;
mod metrics;
mod migration;
mod objects;
mod orders;
mod placement;
mod placing;
mod pools;
#[cfg(test)]
#[allow(unreachable_pub, dead_code, reason = "it is a module of the end-to-end tests too")]
#[path = "../../tests/src/postgres.rs"]
mod postgres;
mod prepare;
mod quotas;
mod reaper;
mod rebalancing;
mod refusal;
mod releases;
mod renewal;
mod retention;
mod schedules;
mod seals;
mod secrets;
mod server;
mod shares;
pub mod simulation;
mod sources;
mod standby_gate;
mod state;
mod store;
mod traffic;
mod upload;
mod usage;
mod waiting;
mod worker;

pub use audit::digest::digest as audit_digest;
pub use collection::collector::CollectionSettings;
pub use config::Config;
pub use master_key::{MasterKeyError, unwrapped_master_key};
pub use objects::{ObjectError, ObjectStore};
pub use rekindle_snapshotter::collect::{NeedsCache, Rule};
pub use server::{ServeError, serve};
pub use store::{CopyError, Database, check_database, copy_database};
