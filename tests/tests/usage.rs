//! Usage through the end of every role: what is counted is no more than what was asked for, and lacks at most what a
//! killed gateway had held.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::postgres::Postgres;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Call, Client, Cluster, Folder, hub, until};
use rekindle_wire::api::UsageLine;

const LIMIT: Duration = Duration::from_secs(60);
/// What a killed gateway may lose.
const HELD: Duration = Duration::from_secs(5);
const CODE: &str = "def handler(event, context):\n    return 'well'\n";

/// One client after another, until it is told to end.
struct Asking {
    stop: Arc<AtomicBool>,
    /// When each invocation was asked for, and whether it was answered well.
    asked: Arc<Mutex<Vec<(Instant, bool)>>>,
    thread: thread::JoinHandle<()>,
}

impl Asking {
    fn start(url: String) -> Self {
        let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (told, noted) = (stop.clone(), asked.clone());
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let at = Instant::now();
                let answer = Call::get(&url).try_send();
                let is_well = answer.is_ok_and(|answer| answer.status == 200);
                noted.lock().unwrap().push((at, is_well));
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, asked, thread }
    }

    /// Waits for so many more good answers.
    fn until_answered(&self, more: usize) {
        let well = || self.asked.lock().unwrap().iter().filter(|(_, well)| *well).count();
        let before = well();
        until("more answers", LIMIT, || (well() >= before + more).then_some(()));
    }

    fn end(self) -> Vec<(Instant, bool)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

/// Answered invocations and failed ones.
fn counted(client: &Client) -> (usize, usize) {
    let lines = client.cli_json::<Vec<UsageLine>>(&["usage", "counted", "--by", "function", "--json"]);
    let lines = lines.unwrap_or_default();
    let line = lines.first().cloned().unwrap_or_default();
    (line.ok as usize, line.errors as usize)
}

#[test]
fn usage_is_counted_once_through_the_end_of_every_role_and_a_change_of_leader() {
    hub::enter();
    let Some(database) = Postgres::start_at(hub::ADDRESS) else {
        return;
    };
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size::two_schedulers(&database.database());
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&Folder::python("counted", "", CODE));
    let asking = Asking::start(format!("{}/function/counted/", cluster.url()));
    asking.until_answered(50);
    cluster.kill9(Role::Worker);
    cluster.restart(Role::Worker);
    asking.until_answered(50);
    // Both lead in turn, and each end cuts reports off.
    for n in [0, 1] {
        cluster.kill9(Role::Scheduler.nth(n));
        asking.until_answered(50);
        cluster.restart(Role::Scheduler.nth(n));
        asking.until_answered(50);
    }
    let killed = Instant::now();
    cluster.kill9(Role::Gateway);
    let dead = Instant::now();
    cluster.restart(Role::Gateway);
    asking.until_answered(50);
    let asked = asking.end();
    let well = |from: Option<Instant>| {
        let lost = |at: Instant| from.is_some_and(|from| at >= from && at <= dead);
        asked.iter().filter(|(at, well)| *well && !lost(*at)).count()
    };
    let (all, kept) = (well(None), well(killed.checked_sub(HELD)));
    assert!(kept < all, "something was under way");
    let last = until("everything else is counted", LIMIT, || {
        Some(counted(&cluster)).filter(|(ok, _)| *ok >= kept)
    });
    thread::sleep(HELD);
    let (ok, errors) = counted(&cluster);
    assert!(
        ok >= last.0 && ok + errors <= asked.len(),
        "{ok} and {errors} of {}",
        asked.len()
    );
}
