//! A WebSocket through roles on hosts of their own.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::websocket::{close, echo, function, open, open_tunnels};
use rekindle_e2e::{Cluster, hub, until};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_websocket_passes_between_hosts_whose_connections_are_guarded() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        guarded: true,
        ..Size::default()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&function("socket", ""));
    let mut socket = open(&cluster, "socket");
    for n in 1..=3 {
        assert_eq!(echo(&mut socket, "over TLS"), format!("{n} over TLS"));
    }
    close(socket);
    until("no tunnel", LIMIT, || (open_tunnels(&cluster) == "0").then_some(()));
}
