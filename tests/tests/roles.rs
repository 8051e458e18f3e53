//! Gateway, scheduler and worker as processes of their own, started as docs/how-to/run-a-cluster.md says. Each is
//! killed and started again.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use memchr::memmem;
use rekindle_e2e::cluster::Role;
use rekindle_e2e::s3::{self, ObjectStore};
use rekindle_e2e::{Cluster, Folder, host, hub, until};
use rekindle_s3_servers::{Kind, Server};

const SOON: Duration = Duration::from_secs(20);
const CODE: &str = "count = 0\ndef handler(event, context):\n    global count\n    count += 1\n    return count\n";

const USER: (&str, &str) = ("tests", "secret-of-the-tests");

#[test]
fn each_role_lives_dies_and_returns_alone_on_an_s3_server_that_is_not_ours() {
    hub::enter();
    if let Some(store) = Server::start(Kind::Versitygw, hub::ADDRESS, USER) {
        the_life_of_a_cluster(Cluster::start(store.endpoint(), s3::environment(USER.0, USER.1)));
        assert!(keeps_readable_manifests(&store));
    }
}

#[test]
fn a_cluster_lives_on_an_s3_server_that_encrypts_and_leaves_nothing_readable_there() {
    hub::enter();
    if let Some(store) = Server::start(Kind::Minio, hub::ADDRESS, USER) {
        let mut variables = s3::environment(USER.0, USER.1);
        for (name, value) in [
            ("FN_S3_SSE", "aws:kms"),
            ("FN_S3_SSE_KEY", Kind::ENCRYPTION_KEY),
            ("FN_S3_PREFIX", "one/of/many"),
        ] {
            variables.push((name.to_owned(), value.to_owned()));
        }
        the_life_of_a_cluster(Cluster::start(store.endpoint(), variables));
        assert!(!keeps_readable_manifests(&store));
    }
}

/// Whether something on the server's disk names what all manifests of snapshots name.
fn keeps_readable_manifests(store: &Server) -> bool {
    let kept = store.kept();
    assert!(kept.len() > 1 << 20, "{} bytes: nothing was kept", kept.len());
    let name = br#""frozen_us":"#;
    memmem::find(&kept, name).is_some()
}

#[test]
fn each_role_lives_dies_and_returns_alone_on_the_s3_server_of_fn_up() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    the_life_of_a_cluster(Cluster::start(store.endpoint(), store.environment()));
}

fn the_life_of_a_cluster(mut cluster: Cluster) {
    cluster.deploy(&Folder::python("short", "idle = \"2s\"", CODE));
    cluster.deploy(&Folder::python("long", "", CODE));
    let booted = cluster.fresh("booted", "short", "/").ok();
    assert_eq!((booted.start(), booted.text().as_str()), ("booted", "1"));
    assert_eq!(cluster.get("short", "/").ok().start(), "warm");
    cluster.until_gone("short", SOON);
    let restored = cluster.get("short", "/").ok();
    assert_eq!((restored.start(), restored.text().as_str()), ("restored", "1"));

    let first = cluster.get("long", "/").ok();
    assert_eq!(first.start(), "warm");

    // The gateway: all else goes on. The slot that it held is free again when its lease has run out.
    cluster.kill9(Role::Gateway);
    cluster.restart(Role::Gateway);
    assert_all_there(&cluster);
    let warm = cluster.get("long", "/").ok();
    let known = cluster.instances_of("long");
    assert!(known.iter().any(|i| i.id.as_str() == first.instance()), "{known:?}");

    // The scheduler: the gateway's leased instance serves meanwhile, and is known again afterwards.
    cluster.kill9(Role::Scheduler);
    let alone = cluster.get("long", "/").ok();
    assert_eq!((alone.start(), alone.instance()), ("warm", warm.instance()));
    cluster.restart(Role::Scheduler);
    assert_all_there(&cluster);
    until("the instance is in the books again", SOON, || {
        let known = cluster.instances_of("long");
        known.iter().any(|i| i.id.as_str() == warm.instance()).then_some(())
    });
    assert_eq!(cluster.get("long", "/").ok().instance(), warm.instance());

    // The worker: its instances are gone with it, and others are restored once it is back.
    let run = cluster.directory(Role::Worker, "run");
    let ids: Vec<String> = cluster.instances().iter().map(|i| i.id.to_string()).collect();
    let processes: Vec<i32> = ids
        .iter()
        .flat_map(|id| host::processes_below(&cluster, &run, id).into_values())
        .collect();
    assert!(!processes.is_empty());
    cluster.kill9(Role::Worker);
    until("the end of its functions' processes", SOON, || {
        (!processes.iter().any(|pid| host::runs(*pid))).then_some(())
    });
    cluster.restart(Role::Worker);
    assert_all_there(&cluster);
    let again = cluster.get("long", "/").ok();
    assert_eq!((again.start(), again.text().as_str()), ("restored", "1"));
    let known: Vec<String> = cluster.instances().iter().map(|i| i.id.to_string()).collect();
    assert!(!ids.iter().any(|id| known.contains(id)), "{ids:?} {known:?}");

    // Once more a deploy, as every part has been new since the last one; then an end in good order.
    cluster.deploy(&Folder::python("late", "", CODE));
    assert_eq!(cluster.fresh("restored", "late", "/").ok().start(), "restored");
    for role in Role::ALL.into_iter().rev() {
        cluster.stop(role);
    }
    assert_eq!(cluster.leftovers(), Vec::<String>::new());
}

fn assert_all_there(cluster: &Cluster) {
    let names: BTreeSet<String> = cluster.functions().iter().map(|f| f.name.to_string()).collect();
    assert!(names.contains("short") && names.contains("long"), "{names:?}");
}
