//! Instances that move while their image is mounted, on hosts that do not have it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::time::Duration;

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::lazy_image::{self, ATTRIBUTES, FILES, MODES, READ};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, hub, until};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);

#[test]
fn an_instance_moves_between_hosts_that_have_mounted_its_image_and_do_not_have_it() {
    hub::enter();
    if !lazy_image::can_mount() {
        return;
    }
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    let (folder, digests) = lazy_image::image("moving-image", "timeout = \"60s\"\nidle = \"120s\"\nmax_instances = 1");
    cluster.deploy(&folder);
    for number in [0, 1] {
        cluster.stop(Role::Worker.nth(number));
        for kept in fs::read_dir(cluster.directory(Role::Worker.nth(number), "cache"))
            .unwrap()
            .flatten()
        {
            if kept.file_type().unwrap().is_dir() && kept.file_name() != "runtimes" {
                fs::remove_dir_all(kept.path()).unwrap();
            }
        }
        cluster.launch(Role::Worker.nth(number));
    }
    cluster.until_ready();
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    let first = cluster
        .get("moving-image", &format!("/?from=0&to={READ}&mapped=1"))
        .ok();
    assert_eq!(first.start(), "restored");
    assert_eq!(first.json()["digests"], json!(digests[..READ]));
    // There, and back to where some of it is by now.
    for (round, range) in [(20, 40), (40, 60)].into_iter().enumerate() {
        let from = cluster.instances_of("moving-image").remove(0).worker;
        let target = u8::from(from == ids[0]);
        let moved = until("it moves", SOON, || {
            let path = format!("/v1/instances/{}/migrate", first.instance());
            let order = json!({ "to": ids[usize::from(target)] }).to_string();
            let order = cluster
                .admin("POST", &path)
                .header("content-type", "application/json")
                .body(order);
            let answer = order.send();
            (answer.status != 409).then_some(answer)
        });
        println!("{round}: {}", moved.ok().json());
        let after = cluster
            .get("moving-image", &format!("/?from={}&to={}&mapped=1", range.0, range.1))
            .ok();
        assert_eq!((after.instance(), after.start()), (first.instance(), "warm"));
        let found = after.json();
        assert_eq!(found["digests"], json!(digests[range.0..range.1]));
        assert_eq!(found["mapped"], json!(digests[99]));
        assert_eq!(
            (&found["modes"], &found["attributes"]),
            (&json!(MODES), &json!(ATTRIBUTES))
        );
    }
    let fetched = cluster.metric_of_each("rekindle_layers_fetched_bytes_total{when=\"start\"}");
    assert!(
        fetched.len() == 2 && fetched.iter().all(|bytes| *bytes > 1e6),
        "mounted by both: {fetched:?}"
    );
    // What is written there goes along as well, and what was never read comes.
    let all = cluster
        .get("moving-image", &format!("/?from=0&to={FILES}&changed=1"))
        .ok();
    assert_eq!(all.json()["digests"], json!(digests));
    assert_eq!(all.json()["changed"], json!([digests[50], 1000, FILES]));
}
