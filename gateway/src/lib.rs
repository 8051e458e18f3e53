//! The gateway: HTTP and HTTPS in. Functions are under `/function/{name}/…` and at `{name}.localhost`, the admin API
//! is under `/v1/`.
//!
//! `dispatch` is the life of an invocation. It takes a slot from `slots`, which holds leases and asks the scheduler
//! for more. It sends the request through `exchange` and `forward`, and returns the response as it comes. Limits keep
//! callers from starving each other: `clients` (what one client may have), `connection` and `body` (how slow it may
//! be), `budget` (how much memory all bodies may take). `host` knows the owners of hosts, and `tls` their
//! certificates. `function_calls` is what functions reach of it. `grpc` tells clients of gRPC of errors. `quotas`
//! keeps limits of namespaces, and `usage` counts what they use.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod admin;
mod async_calls;
mod body;
mod budget;
mod callers;
mod clients;
mod config;
mod connection;
mod cors;
mod dispatch;
mod exchange;
mod forward;
mod function_calls;
mod gateway;
mod grpc;
mod headers;
mod host;
mod keeper;
mod key;
mod keys;
mod lease;
mod metrics;
mod openapi;
mod pace;
mod quotas;
mod route;
mod routes;
mod rules;
mod scheduler;
mod server;
mod share;
mod slots;
mod timing;
mod tls;
mod tokens;
mod usage;
mod workers;

pub use async_calls::CallbackAllow;
pub use clients::ClientLimits;
pub use config::{Config, Paths};
pub use host::{DomainName, Hosts, ParseDomainNameError};
pub use key::{KeyHash, ParseKeyHashError};
pub use openapi::document as openapi_document;
pub use pace::MinRate;
pub use server::{ServeError, serve};
pub use tls::{CertificateFiles, CertificatesError, Listeners, PairError};
pub use tokens::{IdentityIssuers, ParseTokenIssuerError, TokenIssuer};
