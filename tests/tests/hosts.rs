//! Several workers, each on a host of its own, as one platform.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Answer, Cluster, Folder, hub, until};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
/// Answers what it was started with, and how often it was asked.
const CODE: &str = "import os, time\nBORN = time.time_ns()\ncount = 0\n\
    def handler(event, context):\n    global count\n    count += 1\n    return [BORN, count]\n";

fn cluster(store: &ObjectStore, workers: u8) -> Cluster {
    let size = Size {
        workers,
        args: vec![(Role::Worker, "--memory".into()), (Role::Worker, "1GiB".into())],
        ..Size::default()
    };
    Cluster::start_sized(store.endpoint(), store.environment(), size)
}

/// The first answer of the function that is one: what was sent to a host that is gone may fail.
fn answered(cluster: &Cluster) -> Answer {
    until("an answer of the other host", SOON, || {
        let answer = cluster.get("wide", "/");
        (answer.status == 200).then_some(answer)
    })
}

#[test]
fn a_snapshot_made_on_one_host_is_restored_on_the_others_and_a_lost_host_is_done_without() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = cluster(&store, 2);
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    assert_ne!(ids[0], ids[1]);

    // More instances than one host has room for: each takes some, of the one memory that was captured on one of them.
    cluster.deploy(&Folder::python("wide", "memory = \"256MiB\"\nidle = \"60s\"", CODE));
    let born = cluster.get("wide", "/").ok().json()[0].clone();
    for _ in 0..6 {
        let answer = cluster.fresh("restored", "wide", "/").ok();
        assert_eq!(answer.start(), "restored");
        assert_eq!(answer.json(), json!([born, 1]));
    }
    let on = |cluster: &Cluster, worker: u8| {
        let all = cluster.instances_of("wide");
        all.iter().filter(|i| i.worker == ids[usize::from(worker)]).count()
    };
    assert!(
        on(&cluster, 0) >= 3 && on(&cluster, 1) >= 3,
        "{:?}",
        cluster.instances()
    );

    // Cut off, a host is done without as soon as it has been silent; what runs on the other serves on.
    cluster.host(Role::Worker.nth(1)).cut();
    until("the silence is noticed", SOON, || {
        let known = cluster.try_workers()?;
        known.iter().any(|w| w.id == ids[1] && !w.alive).then_some(())
    });
    assert_eq!(answered(&cluster).json()[0], born);

    // Back again, it takes part, with what it still runs.
    cluster.host(Role::Worker.nth(1)).mend();
    cluster.until_ready();
    until("its instances are known again", SOON, || {
        (on(&cluster, 1) > 0).then_some(())
    });

    // Killed, its instances are gone; the other has room for what is asked for.
    cluster.kill9(Role::Worker.nth(1));
    assert_eq!(answered(&cluster).json()[0], born);
    cluster.restart(Role::Worker.nth(1));
    assert_eq!(cluster.fresh("restored", "wide", "/").ok().start(), "restored");
}
