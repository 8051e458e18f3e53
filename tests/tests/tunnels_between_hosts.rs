//! A WebSocket through roles on hosts of their own.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::websocket::{close, echo, function, open, open_tunnels};
use rekindle_e2e::{Cluster, hub, until};
use serde_json::json;

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

#[test]
fn an_instance_whose_stream_keeps_it_from_moving_serves_on_and_a_drain_starts_another() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        workers: 2,
        ..Size::default()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&function("socket", "max_instances = 1\nidle = \"60s\""));
    let mut socket = open(&cluster, "socket");
    assert_eq!(echo(&mut socket, "before"), "1 before");
    let here = cluster.instances_of("socket").remove(0);
    let id = here.id.to_string();
    let migrated = cluster
        .admin("POST", &format!("/v1/instances/{id}/migrate"))
        .header("content-type", "application/json")
        .body(json!({ "settle_ms": 1 }).to_string())
        .send();
    migrated.error(409, "conflict");
    let beside = cluster.get("socket", "/").ok();
    assert_eq!((beside.instance(), beside.start()), (id.as_str(), "warm"));
    assert_eq!(echo(&mut socket, "after"), "2 after");

    let drain = |how| cluster.admin(how, &format!("/v1/workers/{}/drain", here.worker)).send();
    assert_eq!(drain("PUT").status, 200);
    // It serves on until its turn comes, and is waited for as long as it may still come.
    until("another instance", LIMIT, || {
        let answer = cluster.get("socket", "/").ok();
        (answer.instance() != id).then_some(())
    });
    assert_eq!(echo(&mut socket, "while it drains"), "3 while it drains");
    assert_eq!(drain("DELETE").status, 200);
    close(socket);
}
