//! Parked instances: frozen when idle, or restored ahead and frozen; they go on with the next request, with all they
//! had.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;
use std::time::Duration;

use rekindle_e2e::{Folder, Platform, shared, until};
use rekindle_wire::api::{InstanceInfo, InstanceState};

const LIMIT: Duration = Duration::from_secs(20);

/// Counts its requests, and by a thread how often 10 ms have passed for it.
const CODE: &str = "import rekindle, threading, time, uuid\n\
    requests = 0\nticks = 0\nME = None\n\
    @rekindle.after_restore\ndef name():\n    global ME\n    ME = uuid.uuid4().hex\n\
    def count():\n    global ticks\n    while True:\n        time.sleep(0.01)\n        ticks += 1\n\
    threading.Thread(target=count, daemon=True).start()\n\
    def handler(event, context):\n    global requests\n    requests += 1\n    \
    return {'requests': requests, 'ticks': ticks, 'me': ME}\n";

fn parked(platform: &rekindle_e2e::Client, function: &str, count: usize) -> Vec<InstanceInfo> {
    until(&format!("{count} parked instances of {function}"), LIMIT, || {
        let mut all = platform.instances_of(function);
        all.retain(|i| i.state == InstanceState::Parked);
        (all.len() == count).then_some(all)
    })
}

#[test]
fn an_idle_instance_stands_still_and_goes_on_where_it_was() {
    let platform = shared();
    platform.deploy(&Folder::python(
        "park-idle",
        "idle = \"1s\"\npark = \"120s\"\nmax_instances = 1",
        CODE,
    ));
    let first = platform.get("park-idle", "/").ok();
    let [instance] = parked(platform, "park-idle", 1).try_into().unwrap();
    assert_eq!(instance.id.as_str(), first.instance());
    // Time that it does not have.
    thread::sleep(Duration::from_secs(2));
    let again = platform.get("park-idle", "/").ok();
    assert_eq!((again.start(), again.instance()), ("parked", first.instance()));
    assert!(
        again.header("server-timing").contains("thaw;dur="),
        "{}",
        again.header("server-timing")
    );
    let (before, after) = (first.json(), again.json());
    assert_eq!(after["requests"], before["requests"].as_u64().unwrap() + 1);
    let ticks = after["ticks"].as_u64().unwrap() - before["ticks"].as_u64().unwrap();
    // Idle for a second and the scheduler's round, at 10 ms each; two more would be 200 more.
    assert!(ticks < 250, "it ran on while it was parked: {ticks} ticks");
    let warm = platform.get("park-idle", "/").ok();
    assert_eq!((warm.start(), warm.instance()), ("warm", first.instance()));
    // One that is parked goes with its function.
    parked(platform, "park-idle", 1);
    platform.admin("DELETE", "/v1/functions/park-idle").send();
    until("no instance", LIMIT, || {
        platform.instances_of("park-idle").is_empty().then_some(())
    });
}

#[test]
fn instances_are_restored_ahead_of_requests_and_the_pool_fills_again() {
    let platform = shared();
    platform.deploy(&Folder::python(
        "park-pool",
        "idle = \"1s\"\nmin_parked = 3\nmax_instances = 12",
        CODE,
    ));
    let pool = parked(platform, "park-pool", 3);
    assert!(pool.iter().all(|i| i.memory_bytes < 48 << 20), "{pool:?}");
    // Until the instance of the deploy is gone, it would take them.
    until("only parked ones", LIMIT, || {
        (platform.instances_of("park-pool").len() == 3).then_some(())
    });
    let answers: Vec<_> = thread::scope(|scope| {
        let ask = || platform.get("park-pool", "/").ok();
        let asking: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|a| a.join().unwrap()).collect()
    });
    assert!(answers.iter().any(|a| a.start() == "parked"), "{answers:?}");
    let mut used: Vec<_> = answers.iter().map(|a| a.instance().to_owned()).collect();
    used.sort();
    used.dedup();
    let mut names: Vec<_> = answers.iter().map(|a| a.json()["me"].to_string()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), used.len(), "clones are not alike: {answers:?}");
    // Those that were used go when they are idle, or stay in the pool; it has three again.
    until("the pool is full again and nothing beside it", LIMIT, || {
        let all = platform.instances_of("park-pool");
        (all.len() == 3 && all.iter().all(|i| i.state == InstanceState::Parked)).then_some(())
    });
    // However often one is taken and does not come back: starts that bring something never have to wait for long.
    for _ in 0..9 {
        let answer = platform.get("park-pool", "/").ok();
        let path = format!("/v1/instances/{}", answer.instance());
        assert_eq!(platform.admin("DELETE", &path).send().status, 204);
        parked(platform, "park-pool", 3);
    }
    // A new version has a pool of its own, and the old one's goes.
    let next = Folder::python(
        "park-pool",
        "idle = \"1s\"\nmin_parked = 2\nmax_instances = 12",
        &format!("{CODE}# 2\n"),
    );
    let version = platform.deploy(&next).version;
    until("the new pool alone", LIMIT, || {
        let all = platform.instances_of("park-pool");
        (all.len() == 2
            && all
                .iter()
                .all(|i| i.version == version && i.state == InstanceState::Parked))
        .then_some(())
    });
    platform.admin("DELETE", "/v1/functions/park-pool").send();
}

#[test]
fn neither_a_stop_nor_kill_9_leaves_anything_of_a_parked_instance() {
    let mut platform = Platform::start();
    platform.deploy(&Folder::python("park-end", "idle = \"60s\"\nmin_parked = 2", CODE));
    parked(&platform, "park-end", 2);
    platform.kill9();
    platform.restart();
    parked(&platform, "park-end", 2);
    assert_eq!(platform.get("park-end", "/").ok().start(), "parked");
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

/// A master that forks workers and watches them, as gunicorn's does: each reports when it wakes, and one that has not
/// reported for two seconds is late. The master has a socket of its own; the workers answer requests.
const MASTER: &str = r#"
import os, select, socket, time
from http.server import BaseHTTPRequestHandler, HTTPServer

LIMIT, EVERY = 2.0, 0.2
late = '/tmp/late'
open(late, 'w').close()

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = open(late).read().encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler)
server.socket.setblocking(False)
reports = {}
for n in range(6):
    read, write = os.pipe()
    if os.fork() == 0:
        while True:
            os.write(write, b'.')
            # Some work before it reports would be the application's.
            if select.select([server.socket], [], [], EVERY)[0]:
                try:
                    server.handle_request()
                except BlockingIOError:
                    pass
    os.set_blocking(read, False)
    reports[read] = time.monotonic()
while True:
    time.sleep(EVERY)
    now = time.monotonic()
    for read in reports:
        try:
            os.read(read, 4096)
            reports[read] = now
        except BlockingIOError:
            if now - reports[read] > LIMIT:
                with open(late, 'a') as out:
                    out.write('%.1f ' % (now - reports[read]))
"#;

#[test]
fn workers_report_before_their_master_looks_after_it() {
    let platform = shared();
    let settings = "idle = \"1s\"\npark = \"120s\"\nmax_instances = 1";
    platform.deploy(&Folder::server("park-master", settings, MASTER));
    let mut said = String::new();
    for _ in 0..4 {
        assert_eq!(platform.get("park-master", "/").ok().text(), said, "late while it ran");
        parked(platform, "park-master", 1);
        // Time that it does not have, and that its clock shows.
        thread::sleep(Duration::from_secs(3));
        assert_eq!(platform.get("park-master", "/").ok().start(), "parked");
        thread::sleep(Duration::from_millis(700));
        let late = platform.get("park-master", "/").ok();
        assert_eq!(late.start(), "warm");
        said = late.text();
    }
    // On a busy machine one may get its turn too late. If nobody waited for them, most would be late.
    let late = said.split_whitespace().count();
    assert!(
        late <= 8,
        "of 24 workers that went on, the master calls these late: {said}"
    );
    platform.admin("DELETE", "/v1/functions/park-master").send();
}
