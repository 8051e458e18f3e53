//! The upgrade of docs/how-to/upgrade.md, walked under load: every process of a cluster is replaced, and no request
//! fails.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::load::Load;
use rekindle_e2e::postgres::Postgres;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, hub, until};
use rekindle_wire::api::WorkerState;

const LIMIT: Duration = Duration::from_secs(90);
const CODE: &str = "import time\ndef handler(event, context):\n    time.sleep(0.01)\n    return 1\n";
/// Answers between two steps.
const CALM: usize = 40;

#[test]
fn every_role_is_replaced_under_load_and_no_request_fails() {
    hub::enter();
    let Some(database) = Postgres::start_at(hub::ADDRESS) else {
        return;
    };
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        gateways: 2,
        workers: 2,
        ..Size::two_schedulers(&database.database())
    };
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&Folder::python("busy", "concurrency = 4\nidle = \"60s\"", CODE));
    // As behind a balancer: who does not answer is passed over.
    let at = |n| format!("{}/function/busy/", cluster.gateway(n).url());
    let load = Load::start(vec![at(0), at(1)], 2);
    let other = Load::start(vec![at(1), at(0)], 2);
    let calm = |what: &str| {
        for load in [&load, &other] {
            load.until_answered(CALM, LIMIT);
            assert_eq!(load.take_failed(), Vec::<String>::new(), "{what}");
        }
    };
    calm("before");

    // The one that stands by first; with the other the lead goes over.
    let first = until("one leads", LIMIT, || cluster.leader());
    for n in [1 - first, first] {
        assert_eq!(cluster.leader(), Some(first));
        cluster.stop(Role::Scheduler.nth(n));
        // Started at once it might be the first again to ask for the lead.
        until("the other leads", LIMIT, || {
            cluster.leader().filter(|leads| *leads == 1 - n)
        });
        cluster.restart(Role::Scheduler.nth(n));
        cluster.until_ready();
        calm(&format!("scheduler {n}"));
    }
    assert_eq!(cluster.leader(), Some(1 - first));
    for n in 0..2 {
        let id = cluster.worker(n).id;
        let drain = |how| {
            let answer = cluster.admin(how, &format!("/v1/workers/{id}/drain")).send();
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        drain("PUT");
        until("it is drained", LIMIT, || {
            let all = cluster.try_workers()?;
            all.iter()
                .any(|w| w.id == id && w.state == WorkerState::Drained)
                .then_some(())
        });
        calm(&format!("worker {n}, drained"));
        cluster.stop(Role::Worker.nth(n));
        cluster.restart(Role::Worker.nth(n));
        cluster.until_ready();
        let undrained = cluster.admin("DELETE", &format!("/v1/workers/{id}/drain")).send();
        assert_eq!(undrained.status, 200);
        calm(&format!("worker {n}"));
    }
    for n in 0..2 {
        cluster.stop(Role::Gateway.nth(n));
        calm(&format!("gateway {n}, gone"));
        cluster.restart(Role::Gateway.nth(n));
        calm(&format!("gateway {n}"));
    }
    assert_eq!([load.end(), other.end()].concat(), Vec::<String>::new());
    for role in Role::ALL.into_iter().rev() {
        let numbers = if role == Role::Scheduler { [1, 0] } else { [0, 1] };
        for n in numbers {
            cluster.stop(role.nth(n));
        }
    }
    assert_eq!(cluster.leftovers(), Vec::<String>::new());
}
