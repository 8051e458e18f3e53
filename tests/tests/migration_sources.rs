//! Instances that are asked to move and stay.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, Reply, hub, until};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

fn migrate(cluster: &Cluster, instance: &str, request: &Value) -> Reply {
    cluster
        .admin("POST", &format!("/v1/instances/{instance}/migrate"))
        .header("content-type", "application/json")
        .body(request.to_string())
        .send()
}

/// Has a connection that was written to and is not accepted, or a socket with two names, until it is asked for neither.
const IN_THE_WAY: &str = r#"
import os, socket
held = []

def handler(event, context):
    while held:
        held.pop().close()
    listening = socket.socket(socket.AF_UNIX)
    path = event["rawPath"]
    if path == "/":
        return {}
    listening.bind("/tmp" + path)
    listening.listen()
    held.append(listening)
    if path == "/waiting":
        client = socket.socket(socket.AF_UNIX)
        client.connect("/tmp" + path)
        client.send(b"x")
        held.append(client)
    else:
        os.link("/tmp" + path, "/tmp" + path + ".too")
    return {}
"#;

#[test]
fn an_instance_that_stays_for_what_it_has_is_a_conflict_that_says_what_to_do() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    cluster.deploy(&Folder::python(
        "stays",
        "idle = \"120s\"\nmax_instances = 1",
        IN_THE_WAY,
    ));
    let first = cluster.fresh("restored", "stays", "/").ok();
    let here = cluster.instances_of("stays");
    let to = json!({ "to": ids.iter().find(|id| **id != here[0].worker).unwrap() });
    for (path, told) in [("/waiting", "accept it"), ("/linked", "remove the others")] {
        cluster.get("stays", path).ok();
        let stayed = migrate(&cluster, first.instance(), &to)
            .error(409, "conflict")
            .message();
        assert!(stayed.contains(told), "{stayed}");
    }
    assert_eq!(cluster.get("stays", "/").ok().instance(), first.instance());
    until("it moves", SOON, || {
        let moved = migrate(&cluster, first.instance(), &to);
        (moved.status != 409).then(|| moved.ok())
    });
}
