//! A gateway and a scheduler as they run, with a worker that is played: it speaks the worker's interface and has no
//! sandboxes. Through HTTP only, as users see it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod access;
mod admin;
mod answers;
mod async_calls;
mod async_places;
mod audit;
mod canaries;
mod clients;
mod destinations;
mod errors;
mod harness;
mod https;
mod identities;
mod leases;
mod limits;
mod metrics;
mod played_worker;
mod provider;
mod quotas;
mod relay;
mod releases;
mod scaling;
mod scheduler_restart;
mod secrets;
mod slow_clients;
mod tokens;
mod traces;
mod usage;
