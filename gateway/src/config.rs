//! How to run a gateway.

use std::sync::Arc;
use std::time::Duration;

use rekindle_identity::Member;
use rekindle_relay::InProcessRoles;

use crate::async_calls::CallbackAllow;
use crate::clients::ClientLimits;
use crate::host::Hosts;
use crate::key::KeyHash;
use crate::pace::MinRate;
use crate::tokens::{IdentityIssuers, TokenIssuer};

/// What functions have below `/function/`, where they share a host and so, to a browser, an origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Paths {
    /// Paths, and pages that a browser isolates from those of other functions.
    #[default]
    Apart,
    /// Paths, and pages that may read each other's.
    Trusted,
    /// No paths: functions are reached by their hosts.
    Off,
}

/// How to run a gateway.
#[derive(Clone)]
pub struct Config {
    /// Address of the scheduler, `host:port`; of several that share a database, all, separated by commas.
    pub scheduler: String,
    /// The cluster's secret.
    pub cluster_token: String,
    /// The admin key's hash.
    pub admin_key: KeyHash,
    /// Maximum number of invocations in flight; more are answered 503.
    pub max_in_flight: usize,
    /// Largest request body that a function has in memory as a whole, bytes; a larger one is answered 413. Servers read
    /// bodies of any length while they come.
    pub max_body_bytes: u64,
    /// How long an invocation may wait for a slot.
    pub place_wait: Duration,
    /// Maximum number of client connections; more wait to be accepted.
    pub max_connections: usize,
    /// Limits for one client.
    pub clients: ClientLimits,
    /// Memory for requests' bodies, over all requests, bytes. A request that would need more is answered 503.
    pub body_memory_bytes: u64,
    /// Limit for a request's head, from its first byte; a longer one is answered 408.
    pub head_limit: Duration,
    /// Minimum rate for sending a body, otherwise 408, and for taking a response, which is otherwise cut off.
    pub min_rate: MinRate,
    /// Maximum number of asynchronous invocations run at once; they count as in flight.
    pub async_in_flight: usize,
    /// Where callbacks may go that a caller without a key names, and private networks that any callback may go to.
    pub callback_allow: Vec<CallbackAllow>,
    /// Issuers whose tokens callers of functions may show.
    pub token_issuers: Vec<TokenIssuer>,
    /// Issuers whose tokens do as keys do, where rules of access say so.
    pub identities: IdentityIssuers,
    /// What functions have below `/function/`.
    pub paths: Paths,
    /// Hosts of functions and of the API.
    pub hosts: Hosts,
    /// Port of HTTPS to which plain requests are redirected.
    pub redirect: Option<u16>,
    /// How long browsers remember that a host has HTTPS; sent with responses over it.
    pub hsts: Option<Duration>,
    /// Address at which workers pass on calls of functions to it, if it takes any. A name of its own if all workers are
    /// in the same process.
    pub functions_at: Option<String>,
    /// The gateway's certificate, if the cluster has an authority.
    pub member: Option<Arc<Member>>,
    /// In-process transport to workers of the same process.
    pub in_process: InProcessRoles,
}

impl Config {
    /// A configuration with the defaults: 4096 invocations in flight, bodies of 32 MiB, ten seconds for a slot, 16384
    /// connections, 128 asynchronous invocations. No private network for callbacks, 256 MiB for bodies, ten seconds for
    /// a head, and the defaults of [`ClientLimits`] and [`MinRate`].
    pub fn new(scheduler: impl Into<String>, cluster_token: impl Into<String>, admin_key: KeyHash) -> Self {
        Self {
            scheduler: scheduler.into(),
            cluster_token: cluster_token.into(),
            admin_key,
            max_in_flight: 4_096,
            max_body_bytes: 32 << 20,
            place_wait: Duration::from_secs(10),
            max_connections: 16_384,
            clients: ClientLimits::default(),
            body_memory_bytes: 256 << 20,
            head_limit: Duration::from_secs(10),
            min_rate: MinRate::default(),
            async_in_flight: 128,
            callback_allow: Vec::new(),
            token_issuers: Vec::new(),
            identities: IdentityIssuers::default(),
            paths: Paths::default(),
            hosts: Hosts::default(),
            redirect: None,
            hsts: None,
            functions_at: None,
            member: None,
            in_process: InProcessRoles::default(),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("Config")
            .field("scheduler", &self.scheduler)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("place_wait", &self.place_wait)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}
