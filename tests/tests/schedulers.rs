//! Two schedulers on one PostgreSQL, in a cluster that speaks TLS. When the one that leads is killed or stopped under
//! load, the other takes over within seconds, and nothing that was accepted is lost.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::load::Load;
use rekindle_e2e::postgres::Postgres;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, SetOnDrop, host, hub, until};
use rekindle_wire::api::{Alias, Canary, CanaryState, FunctionDetail, WorkerState};

const LIMIT: Duration = Duration::from_secs(90);
/// What docs/reference/losses.md promises until another leads, and what a busy machine adds.
const TAKEN_OVER: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_secs(20);
/// How long the database is away: the leader gives up after three seconds.
const GONE_FOR: Duration = Duration::from_secs(10);
const CODE: &str = "count = 0\ndef handler(event, context):\n    global count\n    count += 1\n    return count\n";

/// What `curl` prints of these arguments; nothing when there is no answer.
fn curl(args: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-s", "-m", "30"])
        .args(args)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A cluster with two schedulers on this database, and two functions.
fn start(store: &ObjectStore, database: &Postgres) -> Cluster {
    let size = Size {
        gateways: 2,
        guarded: true,
        ..Size::two_schedulers(&database.database())
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&Folder::python("busy", "max_instances = 3", CODE));
    cluster.deploy(&Folder::python("calm", "idle = \"1s\"", CODE));
    cluster
}

fn names(cluster: &Cluster) -> BTreeSet<String> {
    cluster.functions().iter().map(|f| f.name.to_string()).collect()
}

#[test]
fn another_scheduler_takes_over_from_one_that_is_killed_or_stands_still_under_load() {
    hub::enter();
    let Some(database) = Postgres::start_at(hub::ADDRESS) else {
        return;
    };
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = start(&store, &database);
    for round in 0..2 {
        let first = until("one leads", LIMIT, || cluster.leader());
        let before = names(&cluster);
        let (stop, answered) = (AtomicBool::new(false), AtomicU32::new(0));
        let (refused, accepted) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let urls = [cluster.gateway(0).url(), cluster.gateway(1).url()];
        thread::scope(|s| {
            for url in &urls {
                let (stop, answered, refused, accepted) = (&stop, &answered, &refused, &accepted);
                s.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let status = curl(&[
                            "-o",
                            "/dev/null",
                            "-w",
                            "%{http_code}",
                            &format!("{url}/function/busy/"),
                        ]);
                        match status.as_str() {
                            "200" => drop(answered.fetch_add(1, Ordering::Relaxed)),
                            other => refused.lock().unwrap().push(other.to_owned()),
                        }
                        let later = ["-o", "/dev/null", "-w", "%{http_code} %header{location}", "-d", "1"];
                        let told = curl(&[&later[..], &[&format!("{url}/async-function/busy/")]].concat());
                        accepted
                            .lock()
                            .unwrap()
                            .extend(told.strip_prefix("202 ").map(str::to_owned));
                    }
                });
            }
            let end = SetOnDrop(&stop);
            until("load", LIMIT, || (answered.load(Ordering::Relaxed) >= 20).then_some(()));
            let killed = Instant::now();
            let pid = Pid::from_raw(cluster.pid(Role::Scheduler.nth(first)));
            match round {
                0 => cluster.kill9(Role::Scheduler.nth(first)),
                // It stands still, with all its connections.
                _ => kill(pid, Signal::SIGSTOP).unwrap(),
            }
            let second = until("another leads", LIMIT, || cluster.leader().filter(|n| *n != first));
            let taken_over = killed.elapsed();
            eprintln!("round {round}: another led after {taken_over:?}");
            assert!(taken_over < TAKEN_OVER + SLACK, "{taken_over:?}");
            assert_ne!(first, second);
            let then = answered.load(Ordering::Relaxed);
            until("load goes on", LIMIT, || {
                (answered.load(Ordering::Relaxed) >= then + 20).then_some(())
            });
            drop(end);
            if round > 0 {
                kill(pid, Signal::SIGCONT).unwrap();
                until("it has ended by itself", LIMIT, || {
                    (!host::runs(pid.as_raw())).then_some(())
                });
                cluster.kill9(Role::Scheduler.nth(first));
            }
        });
        assert_eq!(
            refused.into_inner().unwrap(),
            Vec::<String>::new(),
            "round {round}: requests failed"
        );
        assert_eq!(names(&cluster), before);
        for path in accepted.into_inner().unwrap() {
            until(&format!("the result at {path}"), LIMIT, || {
                let answer = cluster.request("GET", &format!("{path}?wait=20")).try_send().ok()?;
                (answer.header("x-fn-async-state") == "done").then_some(())
            });
        }
        // Placements, deploys and the database are the new one's.
        until("its worker has told it what runs", LIMIT, || {
            let workers = cluster.try_workers()?;
            workers.iter().any(|w| w.state == WorkerState::Ready).then_some(())
        });
        cluster.until_gone("calm", LIMIT);
        assert_eq!(cluster.get("calm", "/").ok().start(), "restored");
        cluster.deploy(&Folder::python(&format!("later-{round}"), "", CODE));
        cluster.restart(Role::Scheduler.nth(first));
        assert_eq!(cluster.leader(), Some(1 - first), "who comes back stands by");
        if first == 0 {
            // Tokens are made there: it lets hosts in though it does not lead.
            let late = Role::Gateway.nth(1);
            cluster.stop(late);
            std::fs::remove_dir_all(cluster.directory(late, "data").join("identity")).unwrap();
            cluster.restart(late);
        }
    }
    // In good order the lead is handed over at once.
    let first = cluster.leader().unwrap();
    cluster.stop(Role::Scheduler.nth(first));
    until("the other leads", LIMIT, || cluster.leader().filter(|n| *n != first));
    cluster.get("busy", "/").ok();
}

#[test]
fn while_the_database_is_gone_what_runs_serves_and_nothing_accepted_is_lost() {
    hub::enter();
    let Some(mut database) = Postgres::start_at(hub::ADDRESS) else {
        return;
    };
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = start(&store, &database);
    let urls = [0, 1].map(|n| format!("{}/function/busy/", cluster.gateway(n).url()));
    let load = Load::start(urls.to_vec(), 2);
    load.until_answered(20, LIMIT);
    let accepted: Vec<String> = (0..10)
        .map(|_| {
            let answer = cluster.request("POST", "/async-function/busy/").send();
            assert_eq!(answer.status, 202);
            answer.header("location").to_owned()
        })
        .collect();
    let led = until("one leads", LIMIT, || cluster.leader());

    database.crash();
    let gone = Instant::now();
    // The one that leads ends by itself; its unit starts it again for as long as that fails.
    let pid = cluster.pid(Role::Scheduler.nth(led));
    until("the leader gives up", SLACK, || (!host::runs(pid)).then_some(()));
    let refused = cluster.request("POST", "/async-function/busy/").send();
    assert_eq!(refused.status, 503, "{}", refused.text());
    while gone.elapsed() < GONE_FOR {
        load.until_answered(20, LIMIT);
    }
    assert_eq!(load.take_failed(), Vec::<String>::new(), "while the database was gone");
    let standing_by = cluster.pid(Role::Scheduler.nth(1 - led));
    assert!(host::runs(standing_by), "who stands by waits for the database");

    database.launch();
    until("one leads again", TAKEN_OVER + SLACK, || cluster.leader());
    assert_eq!(load.end(), Vec::<String>::new(), "after the database was back");
    cluster.kill9(Role::Scheduler.nth(led));
    cluster.restart(Role::Scheduler.nth(led));
    for path in accepted {
        until(&format!("the result at {path}"), LIMIT, || {
            let answer = cluster.request("GET", &format!("{path}?wait=20")).try_send().ok()?;
            (answer.header("x-fn-async-state") == "done").then_some(())
        });
    }
    cluster.deploy(&Folder::python("later", "", CODE));
    assert_eq!(cluster.fresh("restored", "later", "/").ok().text(), "1");
}

#[test]
fn aliases_and_a_canary_go_on_under_another_leader() {
    hub::enter();
    let Some(database) = Postgres::start_at(hub::ADDRESS) else {
        return;
    };
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = start(&store, &database);
    let version = |answer: u32| {
        let code = format!("def handler(event, context):\n    return {answer}\n");
        Folder::python("busy", "concurrency = 4\nmax_instances = 2", &code)
    };
    cluster.deploy(&version(2));
    let run = |cluster: &Cluster, args: &[&str]| {
        let output = cluster.cli(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(&cluster, &["alias", "set", "busy", "old", "1"]);
    run(&cluster, &["alias", "set", "busy", "both", "1=50,2=50"]);
    let aliases =
        |cluster: &Cluster| -> Option<Vec<Alias>> { cluster.cli_json(&["alias", "list", "busy", "--json"]).ok() };
    let canary = |cluster: &Cluster| -> Option<Canary> {
        let detail: FunctionDetail = cluster.cli_json(&["describe", "busy", "--json"]).ok()?;
        detail.canary
    };
    let folder = version(3);
    let path = folder.path().to_str().unwrap();
    // Long enough for a change of leaders; nobody calls before that.
    cluster.cli(&["deploy", path, "--canary", "40,80", "--step-time", "5s", "--wait", "1"]);
    until("the canary has begun", LIMIT, || canary(&cluster));
    let named = aliases(&cluster).unwrap();
    assert_eq!(named.len(), 3, "{named:?}");

    let first = until("one leads", LIMIT, || cluster.leader());
    let urls = [0, 1].map(|n| format!("{}/function/busy/", cluster.gateway(n).url()));
    let load = Load::start(urls.to_vec(), 2);
    load.until_answered(20, LIMIT);
    cluster.kill9(Role::Scheduler.nth(first));
    until("another leads", LIMIT, || cluster.leader().filter(|n| *n != first));
    let then = until("it tells the aliases", LIMIT, || aliases(&cluster));
    let but_live = |aliases: &[Alias]| {
        aliases
            .iter()
            .filter(|a| !a.name.is_live())
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(but_live(&then), but_live(&named));
    assert_eq!(cluster.get("busy@old", "/").ok().header("x-fn-version"), "1");
    let live = until("the canary has taken over", LIMIT, || {
        canary(&cluster).filter(|canary| canary.state == CanaryState::Live)
    });
    assert_eq!((live.from.0, live.to.0), (2, 3));
    assert_eq!(load.end(), Vec::<String>::new());
    assert_eq!(cluster.get("busy", "/").ok().text().trim(), "3");
    // What is set under one leader is what the next one goes on with.
    run(&cluster, &["rollback", "busy", "1"]);
    cluster.restart(Role::Scheduler.nth(first));
    cluster.kill9(Role::Scheduler.nth(1 - first));
    until("the first leads again", LIMIT, || {
        cluster.leader().filter(|n| *n == first)
    });
    until("it serves the version of the rollback", LIMIT, || {
        let answer = cluster.request("GET", "/function/busy/").try_send().ok()?;
        (answer.header("x-fn-version") == "1").then_some(())
    });
}
