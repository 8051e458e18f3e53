//! A deploy restores its snapshot once, before anybody calls: what the first call finds then, and what the developer is
//! told.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME, shared};
use rekindle_snapshotter::load_working_set;
use rekindle_wire::api::VersionState;

/// Each request reads 8 MiB that do not compress, a page at a time.
const CODE: &str = "\
import os
DATA = os.urandom(8 << 20)
def handler(event, context):
    print('asked', event['requestContext']['http']['method'], event['rawPath'], flush=True)
    return sum(DATA[::4096])
";
const PAGES: u64 = (8 << 20) >> 12;

/// Lines of a function's log with this text: one for each request.
fn asked(function: &str, text: &str) -> usize {
    let lines = shared().logs(function);
    lines.iter().filter(|line| line.text == text).count()
}

#[test]
fn the_first_call_finds_the_working_set_which_the_store_has_by_then() {
    let store = ObjectStore::start();
    let platform = Platform::start_with(store.options());
    let version = platform.deploy(&Folder::python("first", "", CODE));
    let snapshot = version.snapshot.unwrap();
    let rehearsal = snapshot.rehearsal.unwrap();
    assert!(rehearsal.restore_ms > 0.0, "{rehearsal:?}");
    assert!(rehearsal.pages > PAGES, "{rehearsal:?}");
    assert_eq!(rehearsal.warning, None);
    assert!(version.phases.iter().any(|p| p.phase == VersionState::Rehearsing));
    let stored = RUNTIME
        .block_on(load_working_set(&store.client(), &snapshot.id))
        .unwrap();
    assert!(stored.is_some(), "nobody has called yet");
    assert_eq!(
        platform.worker_metric("rekindle_rehearsals_total{outcome=\"done\"}"),
        1.0
    );
    let of_the_deploy = platform.instances_of("first");
    assert_eq!(of_the_deploy.len(), 1, "the copy is gone: {of_the_deploy:?}");

    let counted = || {
        let pages = |how: &str| platform.worker_metric(&format!("rekindle_pager_pages_total{{how=\"{how}\"}}"));
        (platform.worker_metric("rekindle_pager_faults_total"), pages("ahead"))
    };
    let before = counted();
    store.take_asked();
    assert_eq!(platform.fresh("restored", "first", "/").ok().start(), "restored");
    let after = counted();
    let (faults, ahead) = (after.0 - before.0, after.1 - before.1);
    assert!(ahead > PAGES as f64, "{ahead} pages ahead, {faults} faults");
    assert!(faults < PAGES as f64 / 10.0, "{ahead} pages ahead, {faults} faults");
    let gets: Vec<_> = store
        .take_asked()
        .into_iter()
        // What was touched may have been stored meanwhile, which looks at what others stored.
        .filter(|a| a.what.contains("GET") && !a.what.contains("working-set"))
        .collect();
    assert!(gets.is_empty(), "all of it is here: {gets:?}");
}

#[test]
fn the_copy_is_asked_what_the_original_was_or_the_root_and_nothing_where_it_is_turned_off() {
    let warmup = "[[warmup]]\npath = \"/one\"\n[[warmup]]\nmethod = \"POST\"\npath = \"/two\"";
    shared().deploy(&Folder::python("asked", warmup, CODE));
    shared().deploy(&Folder::python("unasked", "", CODE));
    let off = shared().deploy(&Folder::python("off", &format!("rehearse = false\n{warmup}"), CODE));
    shared().until_logged("asked", "asked POST /two");
    for (function, text, times) in [
        ("asked", "asked GET /one", 2),
        ("asked", "asked POST /two", 2),
        ("asked", "asked GET /", 0),
        ("unasked", "asked GET /", 1),
        ("off", "asked GET /one", 1),
        ("off", "asked POST /two", 1),
    ] {
        assert_eq!(asked(function, text), times, "{function}: {text}");
    }
    assert_eq!(off.snapshot.unwrap().rehearsal, None);
    assert!(off.phases.iter().all(|p| p.phase != VersionState::Rehearsing));
    assert_eq!(shared().fresh("restored", "off", "/").ok().start(), "restored");
}

#[test]
fn a_snapshot_that_cannot_be_restored_is_none_and_the_deploy_says_why() {
    let code = "\
import rekindle
@rekindle.after_restore
def fail():
    raise ValueError('no licence here')
def handler(event, context):
    return 1
";
    let version = shared().try_deploy(&Folder::python("stuck", "", code)).unwrap();
    assert_eq!(version.state, VersionState::Live);
    assert_eq!(version.snapshot, None);
    let why = version.snapshot_error.unwrap();
    assert!(
        why.contains("could not be restored") && why.contains("no licence here"),
        "{why}"
    );
    assert_eq!(shared().fresh("booted", "stuck", "/").ok().start(), "booted");
    let refused = shared().fresh("restored", "stuck", "/");
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("no licence here"), "{}", refused.text());
    assert_eq!(
        shared().worker_metric("rekindle_rehearsals_total{outcome=\"failed\"}"),
        2.0
    );
}

#[test]
fn what_the_copy_answers_worse_than_the_original_is_told_and_the_snapshot_stays() {
    let code = "\
calls = 0
def handler(event, context):
    global calls
    calls += 1
    if calls > 1 and event['rawPath'] == '/once':
        raise ValueError('once was enough')
    return calls
";
    let folder = Folder::python("once", "[[warmup]]\npath = \"/once\"", code);
    let told = shared().cli(&["deploy", folder.path().to_str().unwrap()]);
    let told = String::from_utf8(told.stdout).unwrap();
    for part in [
        "rehearsing ",
        "rehearsal restored in",
        "the copy: warm-up request GET /once",
        "once was enough",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(shared().fresh("restored", "once", "/").ok().start(), "restored");
    let described = String::from_utf8(shared().cli(&["describe", "once"]).stdout).unwrap();
    assert!(described.contains("once was enough"), "{described}");
    // Of the request that nobody had asked the original any answer will do.
    let deployed = shared().deploy(&Folder::python(
        "never",
        "",
        "def handler(event, context):\n    raise ValueError('no')\n",
    ));
    assert_eq!(deployed.snapshot.unwrap().rehearsal.unwrap().warning, None);
}

/// Servers cache the date, and renew it by a timer; this one never does.
#[test]
fn the_date_of_an_answer_is_now_whatever_a_copy_remembers() {
    let code = "\
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def date_time_string(self, timestamp=None):
        return 'Mon, 02 Jan 2006 15:04:05 GMT'
    def do_GET(self):
        self.send_response(200)
        self.send_header('content-length', '0')
        self.end_headers()
ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()
";
    shared().deploy(&Folder::server("dated", "", code));
    for start in ["booted", "restored"] {
        let answer = shared().fresh(start, "dated", "/").ok();
        assert_eq!(answer.start(), start);
        let dates: Vec<_> = answer.headers.get_all("date").iter().collect();
        let [date] = dates.as_slice() else {
            panic!("{dates:?}");
        };
        // The gateway's own answers have the time of its host.
        let (said, now) = (
            parsed(date.to_str().unwrap()),
            parsed(shared().request("GET", "/readyz").send().header("date")),
        );
        assert_eq!(said.0, now.0);
        let apart = said.1.abs_diff(now.1);
        assert!(apart.min(86_400 - apart) < 60, "{said:?}, and it is {now:?}");
    }
}

/// The year of a date, and the second of the day.
fn parsed(date: &str) -> (String, u32) {
    let words: Vec<_> = date.split(' ').collect();
    let second = words[4]
        .split(':')
        .fold(0, |sum, part| sum * 60 + part.parse::<u32>().unwrap());
    (words[3].to_owned(), second)
}

#[test]
fn the_platform_s_own_requests_are_for_localhost_and_a_refused_one_is_told() {
    let code = "\
import rekindle
def handler(event, context):
    print('host', event['headers']['host'], flush=True)
    return {'statusCode': 403 if event['rawPath'] == '/private' else 200}
";
    let folder = Folder::python(
        "refused",
        "[[warmup]]\npath = \"/\"\n[[warmup]]\npath = \"/private\"",
        code,
    );
    let told = shared().cli(&["deploy", folder.path().to_str().unwrap()]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains("refused: GET /private was answered 403 Forbidden"),
        "{told}"
    );
    assert!(!told.contains("GET / was answered"), "{told}");
    let described = String::from_utf8(shared().cli(&["describe", "refused"]).stdout).unwrap();
    assert!(
        described.contains("refused: GET /private was answered 403"),
        "{described}"
    );
    shared().until_logged("refused", "warm-up request GET /private was answered 403");
    shared().until_logged("refused", "host localhost");
    assert_eq!(shared().fresh("restored", "refused", "/").ok().start(), "restored");
}
