//! Connections that a function changes to another protocol: WebSocket, by a real client.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::websocket::{close, echo, function, open, open_tunnels};
use rekindle_e2e::{shared, until};
use rekindle_wire::api::InstanceState;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_websocket_stays_open_and_its_instance_is_not_idle_meanwhile() {
    let platform = shared();
    platform.deploy(&function(
        "socket",
        "idle = \"1s\"\npark = \"120s\"\nmax_instances = 1\ntimeout = \"2s\"",
    ));
    platform.remove_instances().unwrap();
    let mut first = open(platform, "socket");
    let mut second = open(platform, "socket");
    assert_eq!(echo(&mut first, "hello"), "1 hello");
    let long = "x".repeat(60_000);
    assert_eq!(echo(&mut second, &long), format!("2 {long}"));
    assert_eq!(open_tunnels(platform), "2");
    // Past the function's timeout, and the time after which it would be parked.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(echo(&mut first, "still"), "3 still");
    let instances = platform.instances_of("socket");
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0].state, InstanceState::Ready);
    close(first);
    // Gone without a word.
    drop(second);
    until("no tunnel", LIMIT, || (open_tunnels(platform) == "0").then_some(()));
    until("a parked instance", LIMIT, || {
        let all = platform.instances_of("socket");
        all.iter().all(|i| i.state == InstanceState::Parked).then_some(())
    });
    let mut again = open(platform, "socket");
    assert_eq!(echo(&mut again, "after"), "4 after");
    close(again);
}

#[test]
fn only_what_was_asked_for_changes_a_connection_and_no_request_is_hidden() {
    let platform = shared();
    platform.deploy(&function("changing", ""));
    let answer = platform.get("changing", "/unasked").error(502, "invalid_response");
    assert!(answer.message().contains("no other protocol"), "{}", answer.text());
    for (asked, told) in [("other", "other"), ("h2c", "None"), ("HTTP/2.0", "None")] {
        let call = platform.request("GET", "/function/changing/");
        let answer = call.header("connection", "upgrade").header("upgrade", asked).send();
        assert_eq!(answer.ok().text(), told);
    }
}
