//! What docs/reference/losses.md promises when a part of a cluster is lost, under steady load: each part is lost, and
//! what fails is compared.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::load::Load;
use rekindle_e2e::s3::{Line, ObjectStore};
use rekindle_e2e::{Call, Cluster, Folder, hub, until};
use rekindle_wire::api::WorkerState;
use rekindle_wire::stats::WorkerStats;

const SOON: Duration = Duration::from_secs(60);
const CODE: &str = "import time\ndef handler(event, context):\n    time.sleep(0.03)\n    return 1\n";
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// How long the store is away.
const GONE_FOR: Duration = Duration::from_secs(60);
/// Between two losses: so many answers of each function without a failure say that it has healed.
const HEALTHY: usize = 30;
/// Limits of docs/reference/losses.md: where nothing has to be waited for, and where a worker has to be given up first.
const AT_ONCE: Duration = Duration::from_secs(1);
const GIVEN_UP: Duration = Duration::from_secs(10);
/// What a busy machine may add to that, and the answers that are waited for.
const SLACK: Duration = Duration::from_secs(20);

/// Load on a function that may run twice and on one that may not.
struct Loads {
    again: Load,
    once: Load,
    /// Where asynchronous invocations are taken.
    later: Vec<String>,
    /// Results of those that were accepted.
    accepted: RefCell<Vec<String>>,
}

impl Loads {
    fn start(cluster: &Cluster, first: u8) -> Self {
        let at = |function: &str| {
            let gateways = [first, 1 - first];
            let urls = gateways.map(|n| format!("{}/function/{function}/", cluster.gateway(n).url()));
            Load::start(urls.to_vec(), 2)
        };
        let later = |n| format!("{}/async-function/once/", cluster.gateway(n).url());
        Self {
            again: at("again"),
            once: at("once"),
            later: [first, 1 - first].map(later).to_vec(),
            accepted: RefCell::default(),
        }
    }

    /// Sends an asynchronous invocation or two; while there is no scheduler none is accepted.
    fn send_later(&self) {
        for url in &self.later {
            if let Ok(answer) = Call::post(url).try_send()
                && answer.status == 202
            {
                self.accepted.borrow_mut().push(answer.header("location").to_owned());
            }
        }
    }

    /// Ends the load, and waits until everything that was accepted has its result. Answers what failed since that was
    /// asked last.
    #[track_caller]
    fn end(self, cluster: &Cluster, least: usize) -> Vec<String> {
        let accepted = self.accepted.into_inner();
        assert!(accepted.len() >= least, "{} were accepted", accepted.len());
        for path in accepted {
            let answer = until("the result of an asynchronous invocation", SOON, || {
                let answer = cluster.request("GET", &format!("{path}?wait=5")).try_send().ok()?;
                (answer.header("x-fn-async-state") == "done").then_some(answer)
            });
            assert_eq!((answer.status, answer.text().as_str()), (200, "1"));
        }
        [self.again.end(), self.once.end()].concat()
    }

    /// Waits until both are answered again; answers what failed of the one that may not run twice. Of the other nothing
    /// may.
    #[track_caller]
    fn healed(&self, what: &str) -> Vec<String> {
        self.healed_within(what, AT_ONCE)
    }

    /// The same, where it takes so long.
    #[track_caller]
    fn healed_within(&self, what: &str, promised: Duration) -> Vec<String> {
        self.send_later();
        let end = Instant::now() + promised + SLACK;
        for load in [&self.again, &self.once] {
            load.until_answered(HEALTHY, end.saturating_duration_since(Instant::now()));
        }
        assert_eq!(self.again.take_failed(), Vec::<String>::new(), "{what}");
        self.once.take_failed()
    }
}

/// What was in a worker that is lost says that it may have run, and nothing else fails.
#[track_caller]
fn assert_only_what_was_in_it(failed: &[String], what: &str) {
    // Two clients, each with one request at a time, which may meet the lost worker's instances before they are given
    // up.
    assert!(failed.len() <= 8, "{what}: {failed:?}");
    for why in failed {
        assert!(why.starts_with("503") && why.contains("may have run"), "{what}: {why}");
    }
}

/// What has a process take it for another time; nothing, with a word, where that cannot be done.
fn wrong_clock(by: &'static str) -> Vec<(&'static str, &'static str)> {
    if Path::new(FAKETIME).exists() {
        return vec![
            ("LD_PRELOAD", FAKETIME),
            ("FAKETIME", by),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
    }
    assert!(
        std::env::var("REKINDLE_REQUIRE_ALL").as_deref() != Ok("1"),
        "{FAKETIME} is missing"
    );
    println!("skipped: a clock that is wrong, as {FAKETIME} is missing");
    Vec::new()
}

#[test]
fn each_part_may_be_lost_under_load_and_only_what_was_in_it_fails() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut size = Size {
        workers: 2,
        gateways: 2,
        ..Size::default()
    };
    // A host whose clock is an hour behind: no deadline, lease or certificate may mind.
    for (name, value) in wrong_clock("-1h") {
        size.env.push((Role::Gateway.nth(1), name.to_owned(), value.to_owned()));
    }
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&Folder::python("again", "idempotent = true\nidle = \"60s\"", CODE));
    cluster.deploy(&Folder::python("once", "idle = \"60s\"", CODE));
    let date = |n: u8| {
        cluster
            .gateway(n)
            .request("GET", "/healthz")
            .send()
            .ok()
            .header("date")
            .to_owned()
    };
    if Path::new(FAKETIME).exists() {
        assert_ne!(date(0)[..20], date(1)[..20], "the clock of one gateway is to be wrong");
    }

    // The gateway whose clock is wrong serves like the other.
    let loads = Loads::start(&cluster, 1);
    assert_eq!(loads.healed("a clock that is wrong"), Vec::<String>::new());
    // It is killed: its clients go to the other one.
    cluster.kill9(Role::Gateway.nth(1));
    loads.healed("a gateway killed");
    assert_eq!(loads.healed("after a gateway was killed"), Vec::<String>::new());
    cluster.restart(Role::Gateway.nth(1));
    loads.end(&cluster, 2);

    let loads = Loads::start(&cluster, 0);
    loads.healed("before");
    // The scheduler: what gateways hold serves on.
    cluster.kill9(Role::Scheduler);
    assert_eq!(loads.healed("the scheduler killed"), Vec::<String>::new());
    cluster.restart(Role::Scheduler);
    assert_eq!(loads.healed("the scheduler back"), Vec::<String>::new());

    // A worker, killed and then cut off: each time the one that serves.
    let serving = |cluster: &Cluster| {
        let instance = cluster.get("once", "/").instance().to_owned();
        let at = |n: &u8| {
            let id = cluster.worker(*n).id;
            cluster
                .instances()
                .iter()
                .any(|i| i.worker == id && i.id.as_str() == instance)
        };
        until("a worker that serves", SOON, || (0..2).find(at))
    };
    let killed = serving(&cluster);
    loads.once.take_failed();
    cluster.kill9(Role::Worker.nth(killed));
    assert_only_what_was_in_it(&loads.healed("a worker killed"), "a worker killed");
    cluster.restart(Role::Worker.nth(killed));
    let cut = serving(&cluster);
    loads.once.take_failed();
    cluster.host(Role::Worker.nth(cut)).cut();
    let failed = loads.healed_within("a worker cut off", GIVEN_UP);
    assert_only_what_was_in_it(&failed, "a worker cut off");
    until("it is gone", GIVEN_UP + SLACK, || {
        (cluster.worker(cut).state == WorkerState::Gone).then_some(())
    });
    cluster.host(Role::Worker.nth(cut)).mend();
    cluster.until_ready();
    loads.healed("a worker back");

    // The object store: what runs serves on, and what a host has the memory of is restored.
    store.set(Line::Dead);
    assert_eq!(loads.healed("no store"), Vec::<String>::new());
    let gone = Instant::now();
    while gone.elapsed() < GONE_FOR {
        assert_eq!(cluster.fresh("restored", "once", "/").ok().start(), "restored");
        loads.send_later();
        thread::sleep(Duration::from_secs(3));
    }
    let refused = cluster.try_deploy(&Folder::python("late", "", CODE)).unwrap_err();
    assert!(!refused.is_empty());
    assert_eq!(loads.healed("no store, after a deploy"), Vec::<String>::new());
    store.set(Line::Good);
    cluster.deploy(&Folder::python("late", "", CODE));
    assert_eq!(cluster.fresh("restored", "late", "/").ok().text(), "1");
    assert_eq!(loads.end(&cluster, 20), Vec::<String>::new());
}

#[test]
fn a_bad_store_a_full_disk_and_wrong_clocks_fail_no_request() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let ahead = wrong_clock("+1h");
    let of_worker = |(name, value): &(&str, &str)| (Role::Worker.nth(1), (*name).to_owned(), (*value).to_owned());
    let size = Size {
        workers: 2,
        gateways: 2,
        // Certificates have times in them.
        guarded: true,
        env: ahead.iter().map(of_worker).collect(),
        disks: vec![(Role::Worker.nth(0), 1024)],
        ..Size::default()
    };
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&Folder::python("again", "idempotent = true\nidle = \"60s\"", CODE));
    cluster.deploy(&Folder::python("once", "idle = \"60s\"", CODE));
    // On both workers, whatever their clocks say.
    let loads = Loads::start(&cluster, 0);
    for (here, there) in [(0, 1), (1, 0)] {
        let drain = |how| cluster.admin(how, &format!("/v1/workers/{}/drain", cluster.worker(here).id));
        assert_eq!(drain("PUT").send().status, 200);
        let fresh = cluster.fresh("restored", "once", "/").ok();
        let all = cluster.instances_of("once");
        let on = all.iter().find(|i| i.id.as_str() == fresh.instance());
        assert_eq!(on.map(|i| &i.worker), Some(&cluster.worker(there).id));
        assert_eq!(drain("DELETE").send().status, 200);
    }
    assert_eq!(loads.healed("the clock of a worker"), Vec::<String>::new());

    // A scheduler that comes back at another time than it went.
    cluster.kill9(Role::Scheduler);
    for (name, value) in wrong_clock("-1h") {
        cluster.set_env(Role::Scheduler, name, value);
    }
    cluster.restart(Role::Scheduler);
    cluster.fresh("restored", "once", "/").ok();
    assert_eq!(loads.healed("the clock of the scheduler"), Vec::<String>::new());

    // A store that takes a second for each answer, and one that breaks every second connection.
    store.set_delay(Duration::from_secs(1));
    cluster.deploy(&Folder::python("slow", "", CODE));
    assert_eq!(cluster.fresh("restored", "slow", "/").ok().text(), "1");
    assert_eq!(loads.healed("a slow store"), Vec::<String>::new());
    store.set_delay(Duration::ZERO);
    store.set(Line::Fails);
    cluster.deploy(&Folder::python("broken", "", CODE));
    assert_eq!(cluster.fresh("restored", "broken", "/").ok().text(), "1");
    assert_eq!(loads.healed("a store that fails"), Vec::<String>::new());
    store.set(Line::Good);

    // A disk that others have filled.
    let disk = cluster.directory(Role::Worker.nth(0), "cache");
    fill(&disk.join("others"));
    until("the scheduler has heard of it", SOON, || {
        let stats = cluster.admin("GET", "/v1/stats").send().ok().json();
        let workers: Vec<WorkerStats> = serde_json::from_value(stats["workers"].clone()).unwrap();
        let full = |w: &WorkerStats| w.levels.disk_free_bytes == Some(0);
        workers.iter().any(full).then_some(())
    });
    for n in 0..4 {
        cluster.deploy(&Folder::python(&format!("full-{n}"), "", CODE));
        cluster.get(&format!("full-{n}"), "/").ok();
        cluster.fresh("restored", "once", "/").ok();
    }
    assert_eq!(loads.healed("a full disk"), Vec::<String>::new());
    std::fs::remove_file(disk.join("others")).unwrap();
    assert_eq!(loads.healed("after a full disk"), Vec::<String>::new());
    assert_eq!(loads.end(&cluster, 10), Vec::<String>::new());
}

/// Writes until there is no room.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let block = vec![1; 1 << 20];
    let full = std::iter::repeat_with(|| file.write_all(&block)).find_map(Result::err);
    assert_eq!(full.unwrap().kind(), ErrorKind::StorageFull);
}
