//! Several workers, each on a host of its own, as one platform.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::load::Load;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, Reply, host, hub, until};
use rekindle_wire::WorkerId;
use rekindle_wire::api::{WorkerInfo, WorkerState};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
/// Answers what it was started with, and how often it was asked.
const CODE: &str = "import os, time\nBORN = time.time_ns()\ncount = 0\n\
    def handler(event, context):\n    global count\n    count += 1\n    return [BORN, count]\n";

fn cluster(store: &ObjectStore, workers: u8, guarded: bool) -> Cluster {
    let size = Size {
        workers,
        guarded,
        args: vec![(Role::Worker, "--memory".into()), (Role::Worker, "1GiB".into())],
        ..Size::default()
    };
    Cluster::start_sized(store.endpoint(), store.environment(), size)
}

fn until_state(cluster: &Cluster, worker: u8, state: WorkerState) {
    until(&format!("worker {worker} {}", state.as_str()), SOON, || {
        (cluster.worker(worker).state == state).then_some(())
    });
}

/// The first answer of the function that is one: what was sent to a host that is gone may fail.
fn answered(cluster: &Cluster) -> Reply {
    until("an answer of the other host", SOON, || {
        let answer = cluster.get("wide", "/");
        (answer.status == 200).then_some(answer)
    })
}

#[test]
fn a_snapshot_made_on_one_host_is_restored_on_the_others_and_a_lost_host_is_done_without() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = cluster(&store, 2, false);
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

    // Whose instance there has no function any more when it comes back.
    cluster.deploy(&Folder::python("orphan", "memory = \"64MiB\"\nidle = \"60s\"", CODE));
    let orphan = until("an orphan on worker 1", SOON, || {
        let id = cluster.fresh("restored", "orphan", "/").ok().instance().to_owned();
        let all = cluster.instances_of("orphan");
        all.iter()
            .any(|i| i.id.as_str() == id && i.worker == ids[1])
            .then_some(id)
    });
    let run = cluster.directory(Role::Worker.nth(1), "run");
    let processes = host::processes_below(&cluster, &run, &orphan);
    assert!(!processes.is_empty());

    // Cut off, a host is done without as soon as it has been silent; what runs on the other serves on.
    cluster.host(Role::Worker.nth(1)).cut();
    until_state(&cluster, 1, WorkerState::Silent);
    until_state(&cluster, 1, WorkerState::Gone);
    assert_eq!(on(&cluster, 1), 0);
    assert_eq!(answered(&cluster).json()[0], born);
    let deleted = cluster.admin("DELETE", "/v1/functions/orphan").send();
    assert!(deleted.status < 300, "{}", deleted.text());
    assert!(processes.values().all(|pid| host::runs(*pid)), "nobody could tell it");

    // Back again, it takes part, with what it still runs and is of use.
    cluster.host(Role::Worker.nth(1)).mend();
    cluster.until_ready();
    until("its instances are known again", SOON, || {
        (on(&cluster, 1) > 0).then_some(())
    });
    until("what nobody knows any more is stopped", SOON, || {
        (!processes.values().any(|pid| host::runs(*pid))).then_some(())
    });

    // Killed, its instances are gone; the other has room for what is asked for.
    cluster.kill9(Role::Worker.nth(1));
    assert_eq!(answered(&cluster).json()[0], born);
    cluster.restart(Role::Worker.nth(1));
    assert_eq!(cluster.fresh("restored", "wide", "/").ok().start(), "restored");
}

#[test]
fn a_host_is_emptied_and_a_worker_told_to_stop_leaves_without_a_failed_request() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = cluster(&store, 2, true);
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    let code = "import time\ndef handler(event, context):\n    time.sleep(0.05)\n    return 1\n";
    cluster.deploy(&Folder::python("steady", "memory = \"256MiB\"\nidle = \"60s\"", code));
    let at = |cluster: &Cluster| -> BTreeSet<WorkerId> {
        let all = cluster.instances_of("steady");
        all.into_iter().map(|i| i.worker).collect()
    };
    let load = Load::start(vec![format!("{}/function/steady/", cluster.url())], 4);
    load.until_answered(50, SOON);

    // Whoever has the most is emptied: by its address, as operators call it.
    let here = usize::from(at(&cluster).contains(&ids[1]));
    let name = cluster.worker(u8::try_from(here).unwrap()).address;
    let drained = cluster.cli(&["drain", name.split(':').next().unwrap(), "--wait", "--json"]);
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    let drained: WorkerInfo = serde_json::from_slice(&drained.stdout).unwrap();
    assert_eq!((&drained.id, drained.state), (&ids[here], WorkerState::Drained));
    load.until_answered(50, SOON);
    assert_eq!(at(&cluster), BTreeSet::from([ids[1 - here].clone()]));

    // It stays so when the scheduler is started anew, and the gateway's leases outlast that.
    cluster.kill9(Role::Scheduler);
    load.until_answered(20, SOON);
    cluster.restart(Role::Scheduler);
    until_state(&cluster, u8::try_from(here).unwrap(), WorkerState::Drained);
    load.until_answered(50, SOON);
    assert_eq!(at(&cluster), BTreeSet::from([ids[1 - here].clone()]));
    let table = cluster.cli(&["workers"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("drained") && table.contains("ready"), "{table}");

    // Used again, it takes over from the other, which is told to stop.
    assert!(cluster.cli(&["undrain", ids[here].as_str()]).status.success());
    cluster.stop(Role::Worker.nth(u8::try_from(1 - here).unwrap()));
    load.until_answered(50, SOON);
    assert_eq!(at(&cluster), BTreeSet::from([ids[here].clone()]));
    assert_eq!(load.end(), Vec::<String>::new());
    until_state(&cluster, u8::try_from(1 - here).unwrap(), WorkerState::Gone);
    let refused = cluster.cli(&["drain", "nowhere"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("fn workers"), "{said}");
}
