//! Limits for each client: connections, requests in flight, requests a second, bodies in memory. A client is an
//! address. For IPv6 it is a network of 64 bits, since one customer has at least that many. All functions of a
//! namespace that call others are one client, too. `address` finds the client behind proxies, `bucket` counts
//! requests a second.

pub(crate) mod address;
mod bucket;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use ipnet::IpNet;
use parking_lot::Mutex;
use rekindle_wire::{ApiError, ErrorCode};

use bucket::Bucket;

/// Idle entries are removed whenever there are twice as many as after the last time, and at least this many.
const SWEEP_AT: usize = 1_024;

/// Bodies of one client that are passed to functions though they pause. Each keeps a function's place.
pub(crate) const EARLY_MAX: u32 = 8;
/// The same for gRPC calls. A service that stands in front of others has many open.
pub(crate) const CALLS_MAX: u32 = 128;

/// Limits for one client; 0 for no limit.
#[derive(Debug, Clone)]
pub struct ClientLimits {
    /// Proxies, and networks of proxies, whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Clients without limits.
    pub exempt: Vec<IpNet>,
    /// Maximum number of connections. Those of trusted proxies are not counted.
    pub connections: u32,
    /// Maximum number of requests in flight, from their heads to the ends of their responses.
    pub in_flight: u32,
    /// Requests a second, of which twice as many may come at once.
    pub per_second: u32,
}

impl Default for ClientLimits {
    /// Limits that a browser, a script or a small service never reaches: 1,024 connections, 512 requests at once, 2,000
    /// a second. Programs on the gateway's own host have none, since they have its processors anyway.
    fn default() -> Self {
        let loopback = ["127.0.0.0/8", "::1/128"];
        Self {
            trusted_proxies: Vec::new(),
            exempt: loopback.iter().filter_map(|net| net.parse().ok()).collect(),
            connections: 1_024,
            in_flight: 512,
            per_second: 2_000,
        }
    }
}

/// Who has limits of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LimitedClient {
    Address(IpAddr),
    /// The functions of a namespace, when they call others.
    Functions(Arc<str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Connections,
    InFlight,
    Rate,
    /// Calls in flight between functions.
    Calls,
}

impl Limit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "client_connections",
            Self::InFlight => "client_in_flight",
            Self::Rate => "client_rate",
            Self::Calls => "function_calls",
        }
    }

    pub(crate) fn error(self) -> ApiError {
        let (what, option) = match self {
            Self::Connections => ("connections", "--client-connections"),
            Self::InFlight => ("requests in flight", "--client-in-flight"),
            Self::Rate => ("requests a second", "--client-rate"),
            Self::Calls => {
                return ApiError::new(
                    ErrorCode::TooManyRequests,
                    "as many calls between functions are in flight at this gateway as may be, of this namespace or of \
                     all: call less at once, or add a gateway",
                );
            }
        };
        ApiError::new(
            ErrorCode::TooManyRequests,
            format!(
                "this address has as many {what} as one client may have: send less at once. Its operator raises \
                 {option}, and names proxies with --trusted-proxy"
            ),
        )
    }
}

/// All clients with anything in use.
#[derive(Debug)]
pub(crate) struct Clients {
    limits: ClientLimits,
    /// Requests that the gateway takes at once.
    places: u32,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    clients: HashMap<LimitedClient, Client>,
    sweep_at: usize,
    /// Calls between functions in flight.
    calls: u32,
}

#[derive(Debug)]
struct Client {
    connections: u32,
    in_flight: u32,
    early: u32,
    /// Blocks of memory that its bodies hold.
    blocks: u32,
    bucket: Bucket,
}

/// One unit of what a client has in use, until it is dropped.
#[derive(Debug)]
pub(crate) struct ClientPermit {
    clients: Arc<Clients>,
    client: LimitedClient,
    what: ClientResource,
}

#[derive(Debug, Clone, Copy)]
enum ClientResource {
    Connection,
    Request,
    Call,
    EarlyBody,
}

impl Clients {
    /// Limits of the clients of a gateway that takes so many requests at once.
    pub(crate) fn new(limits: ClientLimits, places: u32) -> Arc<Self> {
        Arc::new(Self {
            limits,
            places,
            table: Mutex::default(),
        })
    }

    /// Counts a connection from `peer`. `None` if it is not counted.
    pub(crate) fn connect(self: &Arc<Self>, peer: IpAddr) -> Result<Option<ClientPermit>, Limit> {
        let peer = peer.to_canonical();
        if self.limits.connections == 0 || self.is_trusted(peer) || self.is_exempt(peer) {
            return Ok(None);
        }
        let client = LimitedClient::Address(address::client_of(peer));
        let mut table = self.table.lock();
        let entry = table.entry(&client, self.limits.per_second);
        if entry.connections >= self.limits.connections {
            return Err(Limit::Connections);
        }
        entry.connections += 1;
        Ok(Some(self.held(client, ClientResource::Connection)))
    }

    /// Counts a request over a connection from `peer`. `None` if it is not counted.
    pub(crate) fn request(self: &Arc<Self>, peer: IpAddr, headers: &HeaderMap) -> Result<Option<ClientPermit>, Limit> {
        let sender = address::sender(peer, headers, &self.limits.trusted_proxies);
        if self.is_exempt(sender) {
            return Ok(None);
        }
        let client = LimitedClient::Address(address::client_of(sender));
        let mut table = self.table.lock();
        let entry = table.entry(&client, self.limits.per_second);
        if self.limits.in_flight > 0 && entry.in_flight >= self.limits.in_flight {
            return Err(Limit::InFlight);
        }
        if self.limits.per_second > 0 && !entry.bucket.take(self.limits.per_second, Instant::now()) {
            return Err(Limit::Rate);
        }
        entry.in_flight += 1;
        Ok(Some(self.held(client, ClientResource::Request)))
    }

    /// Counts a call of a function of this namespace. All functions' calls may have half of the gateway's places. A
    /// namespace may have as many of these as are left: a quarter of all if it is alone, then an eighth.
    pub(crate) fn call(self: &Arc<Self>, namespace: &str) -> Result<ClientPermit, Limit> {
        let client = LimitedClient::Functions(namespace.into());
        let mut table = self.table.lock();
        let left = self.places.div_ceil(2).saturating_sub(table.calls);
        let entry = table.entry(&client, self.limits.per_second);
        if left == 0 || entry.in_flight > 0 && entry.in_flight >= left {
            return Err(Limit::Calls);
        }
        entry.in_flight += 1;
        table.calls += 1;
        Ok(self.held(client, ClientResource::Call))
    }

    /// Counts a handshake with `peer`, which costs as much as a request.
    pub(crate) fn handshake(&self, peer: IpAddr) -> Result<(), Limit> {
        let peer = peer.to_canonical();
        if self.limits.per_second == 0 || self.is_trusted(peer) || self.is_exempt(peer) {
            return Ok(());
        }
        let mut table = self.table.lock();
        let entry = table.entry(
            &LimitedClient::Address(address::client_of(peer)),
            self.limits.per_second,
        );
        match entry.bucket.take(self.limits.per_second, Instant::now()) {
            true => Ok(()),
            false => Err(Limit::Rate),
        }
    }

    /// Whether this peer may say for whom it sends a request (`X-Forwarded-*`): a trusted proxy, or a process on the
    /// gateway's own machine.
    pub(crate) fn may_speak_for_others(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        peer.is_loopback() || self.is_trusted(peer)
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.limits.trusted_proxies.iter().any(|net| net.contains(&address))
    }

    fn is_exempt(&self, address: IpAddr) -> bool {
        self.limits.exempt.iter().any(|net| net.contains(&address))
    }

    fn held(self: &Arc<Self>, client: LimitedClient, what: ClientResource) -> ClientPermit {
        ClientPermit {
            clients: Arc::clone(self),
            client,
            what,
        }
    }
}

impl Table {
    fn entry(&mut self, client: &LimitedClient, per_second: u32) -> &mut Client {
        let now = Instant::now();
        if self.clients.len() >= self.sweep_at.max(SWEEP_AT) && !self.clients.contains_key(client) {
            self.clients.retain(|_, c| !c.is_idle(per_second, now));
            self.sweep_at = self.clients.len() * 2;
        }
        self.clients.entry(client.clone()).or_insert_with(|| Client {
            connections: 0,
            in_flight: 0,
            early: 0,
            blocks: 0,
            bucket: Bucket::full(per_second, now),
        })
    }
}

impl Client {
    /// Whether a new entry would be equal.
    fn is_idle(&self, per_second: u32, now: Instant) -> bool {
        let in_use = [self.connections, self.in_flight, self.early, self.blocks];
        in_use == [0; 4] && self.bucket.is_full(per_second, now)
    }
}

impl ClientPermit {
    /// Counts a body of the same client that is passed on though it pauses. `None` if it has as many as `max`.
    pub(crate) fn early(&self, max: u32) -> Option<Self> {
        // All functions of a namespace have more to say to each other than one address has.
        let max = if matches!(self.client, LimitedClient::Functions(_)) {
            CALLS_MAX
        } else {
            max
        };
        let mut table = self.clients.table.lock();
        let entry = table.clients.get_mut(&self.client)?;
        if entry.early >= max {
            return None;
        }
        entry.early += 1;
        Some(self.clients.held(self.client.clone(), ClientResource::EarlyBody))
    }

    /// Counts memory for bodies of the same client, unless it would then hold more than `most` blocks.
    pub(crate) fn take_blocks(&self, blocks: u32, most: u32) -> bool {
        let mut table = self.clients.table.lock();
        let entry = table.entry(&self.client, self.clients.limits.per_second);
        let all = entry.blocks.saturating_add(blocks);
        if all <= most {
            entry.blocks = all;
        }
        all <= most
    }

    /// Gives memory back.
    pub(crate) fn give_blocks(&self, blocks: u32) {
        if let Some(entry) = self.clients.table.lock().clients.get_mut(&self.client) {
            entry.blocks = entry.blocks.saturating_sub(blocks);
        }
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut table = self.clients.table.lock();
        if matches!(self.what, ClientResource::Call) {
            table.calls = table.calls.saturating_sub(1);
        }
        let Some(entry) = table.clients.get_mut(&self.client) else {
            return;
        };
        let count = match self.what {
            ClientResource::Connection => &mut entry.connections,
            ClientResource::Request | ClientResource::Call => &mut entry.in_flight,
            ClientResource::EarlyBody => &mut entry.early,
        };
        *count = count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(connections: u32, in_flight: u32, per_second: u32) -> Arc<Clients> {
        let limits = ClientLimits {
            connections,
            in_flight,
            per_second,
            ..ClientLimits::default()
        };
        Clients::new(limits, 64)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_client_keeps_few_places_with_bodies_that_pause() {
        let clients = clients(0, 0, 0);
        let request = |who: &str| clients.request(address(who), &HeaderMap::new()).unwrap().unwrap();
        let (greedy, other) = (request("203.0.113.1"), request("203.0.113.2"));
        let held: Vec<_> = (0..EARLY_MAX).map(|_| greedy.early(EARLY_MAX).unwrap()).collect();
        assert!(greedy.early(EARLY_MAX).is_none() && request("203.0.113.1").early(EARLY_MAX).is_none());
        assert!(other.early(EARLY_MAX).is_some());
        drop(held);
        assert!(greedy.early(EARLY_MAX).is_some());
    }

    #[test]
    fn functions_of_a_namespace_have_as_many_places_as_are_left_of_a_half_of_all() {
        let clients = clients(0, 0, 0);
        let calls = |namespace: &str| -> Vec<_> { (0..64).map_while(|_| clients.call(namespace).ok()).collect() };
        let (greedy, other) = (calls("greedy"), calls("other"));
        let third = calls("third");
        assert_eq!((greedy.len(), other.len(), third.len()), (16, 8, 4));
        assert_eq!(clients.call("greedy").unwrap_err(), Limit::Calls);
        assert!(clients.request(address("203.0.113.1"), &HeaderMap::new()).is_ok());
        let paused: Vec<_> = (0..200).map_while(|_| greedy[0].early(EARLY_MAX)).collect();
        assert_eq!(paused.len(), CALLS_MAX as usize);
        drop((greedy, third));
        assert_eq!(calls("third").len(), 12);
    }

    #[test]
    fn one_clients_limits_are_not_anothers() {
        let clients = clients(2, 3, 0);
        let (greedy, other) = (address("203.0.113.1"), address("203.0.113.2"));
        let none = HeaderMap::new();
        let connections: Vec<_> = (0..2).map(|_| clients.connect(greedy).unwrap()).collect();
        let requests: Vec<_> = (0..3).map(|_| clients.request(greedy, &none).unwrap()).collect();
        assert_eq!(clients.connect(greedy).unwrap_err(), Limit::Connections);
        assert_eq!(clients.request(greedy, &none).unwrap_err(), Limit::InFlight);
        assert!(clients.connect(other).unwrap().is_some());
        assert!(clients.request(other, &none).unwrap().is_some());
        drop((connections, requests));
        assert!(clients.connect(greedy).is_ok() && clients.request(greedy, &none).is_ok());
    }

    #[test]
    fn requests_a_second_are_bounded_with_a_burst() {
        let clients = clients(0, 0, 5);
        let none = HeaderMap::new();
        let taken = (0..1_000).take_while(|_| clients.request(address("203.0.113.1"), &none).is_ok());
        // A few more if this takes a while.
        assert!((10..1_000).contains(&taken.count()));
        // A handshake is one of them.
        assert_eq!(clients.handshake(address("203.0.113.1")), Err(Limit::Rate));
        assert_eq!(clients.handshake(address("203.0.113.3")), Ok(()));
        assert!(clients.request(address("203.0.113.2"), &none).is_ok());
    }

    #[test]
    fn loopback_is_without_limits_and_behind_a_trusted_proxy_the_client_counts() {
        let limits = ClientLimits {
            trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
            connections: 1,
            in_flight: 1,
            ..ClientLimits::default()
        };
        let clients = Clients::new(limits, 64);
        let proxy = address("127.0.0.1");
        let of = |client: &str| -> HeaderMap {
            [(
                http::HeaderName::from_static("x-forwarded-for"),
                client.parse().unwrap(),
            )]
            .into_iter()
            .collect()
        };
        for _ in 0..9 {
            assert!(clients.connect(proxy).unwrap().is_none());
            assert!(clients.request(proxy, &HeaderMap::new()).unwrap().is_none());
        }
        let _one = clients.request(proxy, &of("203.0.113.1")).unwrap().unwrap();
        assert_eq!(clients.request(proxy, &of("203.0.113.1")).unwrap_err(), Limit::InFlight);
        assert!(clients.request(proxy, &of("203.0.113.2")).is_ok());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let clients = clients(1, 0, 0);
        let _one = clients.connect(address("2001:db8:1:2::1")).unwrap();
        assert_eq!(
            clients.connect(address("2001:db8:1:2:ffff::9")).unwrap_err(),
            Limit::Connections
        );
        assert!(clients.connect(address("2001:db8:1:3::1")).is_ok());
        // The same host in either family's notation.
        let _four = clients.connect(address("203.0.113.1")).unwrap();
        assert!(clients.connect(address("::ffff:203.0.113.1")).is_err());
    }

    #[test]
    fn clients_that_have_gone_are_forgotten() {
        let clients = clients(1, 1, 0);
        let none = HeaderMap::new();
        let stays = clients.request(address("203.0.113.1"), &none).unwrap();
        for n in 0..10 * SWEEP_AT as u32 {
            drop(
                clients
                    .request(IpAddr::from(n.wrapping_add(0x0b00_0000).to_be_bytes()), &none)
                    .unwrap(),
            );
        }
        assert!(clients.table.lock().clients.len() <= SWEEP_AT + 1);
        assert!(clients.request(address("203.0.113.1"), &none).is_err());
        drop(stays);
    }
}
