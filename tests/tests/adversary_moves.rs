//! The function that does at random whatever it may, while it moves from worker to worker and is copied. Whatever comes
//! of it, no instance has more than a function may have. Rounds and seeds as in `adversary.rs`.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::adversary::{bounds, folder, look, seeds};
use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, hub};
use serde_json::json;

const ROUNDS: u64 = 3;
const HOPS: usize = 4;
const GONE: Duration = Duration::from_secs(30);

#[test]
fn whatever_a_function_does_while_it_moves_or_is_copied_it_has_no_more_than_it_may() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        workers: 2,
        args: vec![(Role::Worker, "--memory".into()), (Role::Worker, "2GiB".into())],
        ..Size::default()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    let (mut moved, mut looks) = (0, 0);
    for seed in seeds(ROUNDS) {
        let (has_moved, looked) = round(&cluster, seed);
        moved += has_moved;
        looks += looked;
    }
    println!("{moved} moves and copies, {looks} looks");
}

/// How often it moved or was copied, and how often it was looked at.
fn round(cluster: &Cluster, seed: u64) -> (usize, usize) {
    let name = format!("moving-{seed}");
    let Ok(version) = cluster.try_deploy(&folder(&name, seed, "idle = \"60s\"")) else {
        return (0, 0);
    };
    println!("seed {seed}: {:?}", version.snapshot_error);
    let Some(bounds) = bounds(&name) else {
        return (0, 0);
    };
    let answer = cluster.fresh("restored", &name, "/");
    let (mut moved, mut looks) = (0, 0);
    let workers = [cluster.worker(0).id, cluster.worker(1).id];
    for hop in 0..HOPS {
        let all = cluster.instances_of(&name);
        let Some(at) = all.iter().find(|i| i.id.as_str() == answer.instance()) else {
            println!("seed {seed}: it has ended");
            break;
        };
        let to = workers.iter().find(|id| **id != at.worker).unwrap();
        let order = json!({ "to": to, "clone": hop % 2 == 1 });
        let path = format!("/v1/instances/{}/migrate", at.id);
        let json = cluster.admin("POST", &path).header("content-type", "application/json");
        let told = json.body(order.to_string()).send();
        match told.status {
            200 => moved += 1,
            _ => {
                println!("seed {seed}, hop {hop}: {}", told.text());
                assert!(told.message().len() > 10, "seed {seed}, hop {hop}: {}", told.text());
            }
        }
        looks += look(&name, &bounds, &format!("hop {hop}"));
    }
    let deleted = cluster.admin("DELETE", &format!("/v1/functions/{name}")).send();
    assert!(deleted.status < 300, "seed {seed}: {}", deleted.text());
    cluster.until_gone(&name, GONE);
    (moved, looks)
}
