//! Functions that the platform runs by itself: when, with what, and that a killed scheduler costs no run and makes none
//! twice.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::postgres::Postgres;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, Platform, hub, until};
use rekindle_wire::api::{ScheduleInfo, VersionInfo};
use rekindle_wire::asynchronous::{AsyncCall, CallState};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(90);
/// Answers what it was given, and since when.
const CODE: &str = "import time\n\
    def handler(event, context):\n\
    \x20   began, body = time.time(), event.pop('data', None)\n\
    \x20   time.sleep(body.get('sleep', 0) if body else 0)\n\
    \x20   return {'event': event, 'body': body, 'began': began, 'ended': time.time()}\n";

fn function(name: &str, schedules: &str) -> Folder {
    Folder::python(name, &format!("max_instances = 4\n{schedules}"), CODE)
}

fn run(client: &Client, args: &[&str]) -> String {
    let output = client.cli(args);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {told}\n{}", client.log_tail(30));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn schedules(client: &Client, function: &str) -> Vec<ScheduleInfo> {
    client.cli_json(&["schedule", "list", function, "--json"]).unwrap()
}

/// The calls of a schedule's runs that are over, with the seconds at which they were due, the first first.
fn runs(client: &Client, function: &str, schedule: &str) -> Vec<(u64, AsyncCall)> {
    let args = [
        "async", "list", function, "--state", "done", "--limit", "1000", "--json",
    ];
    let Ok(calls) = client.cli_json::<Vec<AsyncCall>>(&args) else {
        return Vec::new();
    };
    let due = |call: AsyncCall| {
        let time = call.idempotency_key.as_ref()?.strip_prefix(&format!("{schedule}/"))?;
        let at = humantime::parse_rfc3339(time).unwrap();
        Some((at.duration_since(UNIX_EPOCH).unwrap().as_secs(), call))
    };
    let mut all: Vec<_> = calls.into_iter().filter_map(due).collect();
    all.sort_by_key(|(at, _)| *at);
    all
}

fn due(client: &Client, function: &str, schedule: &str) -> Vec<u64> {
    let all = runs(client, function, schedule).into_iter();
    all.map(|(at, _)| at).collect()
}

fn answer(client: &Client, call: &AsyncCall) -> Value {
    client
        .request("GET", &format!("/async-results/{}", call.id))
        .send()
        .json()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_schedule_is_followed_paused_changed_without_a_build_and_gone_with_its_function() {
    hub::enter();
    let platform = Platform::start();
    let schedule = "[[schedule]]\nname = \"tick\"\ncron = \"*/2 * * * * *\"\npayload = { job = \"clean\" }";
    platform.deploy(&function("report", schedule));
    let three = until("three runs", LIMIT, || {
        Some(runs(&platform, "report", "tick")).filter(|runs| runs.len() >= 3)
    });
    for pair in three.windows(2) {
        assert_eq!(pair[1].0 - pair[0].0, 2, "{three:?}");
    }
    let (at, call) = &three[0];
    let told = answer(&platform, call);
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(*at)).to_string();
    assert_eq!(
        told["event"],
        json!({"specversion": "1.0", "type": "rekindle.schedule.due", "id": time, "time": time,
            "source": "/functions/report/schedules/tick", "subject": "tick", "datacontenttype": "application/json"})
    );
    assert_eq!(told["body"], json!({"job": "clean"}));
    let began = told["began"].as_f64().unwrap();
    assert!(began >= *at as f64, "before it was due: {told}");
    let [only] = &schedules(&platform, "report")[..] else {
        panic!("one schedule")
    };
    assert_eq!(
        (only.cron.as_str(), only.timezone.as_str(), only.paused),
        ("*/2 * * * * *", "UTC", false)
    );
    assert!(only.last.is_some());
    assert!(run(&platform, &["schedule", "list"]).contains("tick"));

    run(&platform, &["schedule", "pause", "report", "tick"]);
    let paused = &schedules(&platform, "report")[0];
    assert_eq!((paused.paused, paused.next_unix_ms), (true, None));
    let last = paused.last.as_ref().unwrap().due_unix_ms;
    let until_then = now() + 5;
    until("more runs would be due", LIMIT, || (now() > until_then).then_some(()));
    assert_eq!(
        schedules(&platform, "report")[0].last.as_ref().unwrap().due_unix_ms,
        last
    );
    // By hand it runs all the same.
    let id = run(&platform, &["schedule", "run", "report", "tick"]);
    let result = platform
        .request("GET", &format!("/async-results/{id}?wait=20"))
        .send()
        .ok();
    assert_eq!(result.json()["body"], json!({"job": "clean"}));

    // Another version has it too: it stays paused.
    let changed = schedule.replace("*/2", "*/3").replace("clean", "sweep");
    let version: VersionInfo = platform.deploy(&function("report", &changed));
    assert!(
        version.reused.is_some_and(|reused| reused.snapshot),
        "only settings differ"
    );
    let then = &schedules(&platform, "report")[0];
    assert_eq!(
        (then.cron.as_str(), then.version.0, then.paused),
        ("*/3 * * * * *", 2, true)
    );
    run(&platform, &["schedule", "resume", "report", "tick"]);
    let run_of_2 = until("a run of the second version", LIMIT, || {
        let all = runs(&platform, "report", "tick").into_iter();
        all.map(|(at, call)| (at, answer(&platform, &call)))
            .find(|(_, told)| told["body"]["job"] == "sweep")
    });
    assert_eq!(run_of_2.0 % 3, 0);
    run(&platform, &["rollback", "report"]);
    assert_eq!(schedules(&platform, "report")[0].cron, "*/2 * * * * *");
    let told = platform.cli(&["schedule", "pause", "report"]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("no schedule \"default\"; it has tick"), "{told}");
    platform.delete("report").unwrap();
    assert!(!platform.cli(&["schedule", "list", "report"]).status.success());
    let all: Vec<ScheduleInfo> = platform.cli_json(&["schedule", "list", "--json"]).unwrap();
    assert_eq!(all, []);
}

#[test]
fn an_instance_is_restored_before_the_run_is_due() {
    hub::enter();
    let platform = Platform::start();
    let folder = function("seldom", "idle = \"1s\"\n[[schedule]]\ncron = \"*/20 * * * * *\"");
    platform.deploy(&folder);
    let three = until("three runs", LIMIT, || {
        Some(runs(&platform, "seldom", "default")).filter(|runs| runs.len() >= 3)
    });
    // The first may have met the instance of the deploy.
    for (_, call) in &three[1..] {
        let reply = platform
            .request("GET", &format!("/async-results/{}", call.id))
            .send()
            .ok();
        assert_eq!(reply.start(), "parked", "{}", platform.log_tail(20));
    }
    platform.until_gone("seldom", LIMIT);
}

#[test]
fn while_a_run_goes_on_the_next_is_left_out_or_waits_as_the_schedule_says() {
    hub::enter();
    let platform = Platform::start();
    let slow = "cron = \"* * * * * *\"\npayload = { sleep = 2.5 }";
    platform.deploy(&function("skips", &format!("[[schedule]]\n{slow}")));
    platform.deploy(&function(
        "queues",
        &format!("[[schedule]]\noverlap = \"queue\"\n{slow}"),
    ));
    for (name, most) in [("skips", 4), ("queues", 4)] {
        let all = until("some runs", LIMIT, || {
            Some(runs(&platform, name, "default")).filter(|runs| runs.len() >= most)
        });
        let told: Vec<Value> = all.iter().map(|(_, call)| answer(&platform, call)).collect();
        for pair in told.windows(2) {
            let (ended, began) = (pair[0]["ended"].as_f64().unwrap(), pair[1]["began"].as_f64().unwrap());
            assert!(ended <= began, "{name}: two at once: {told:?}");
        }
        let gaps: Vec<u64> = all.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        match name {
            "skips" => assert!(gaps.iter().all(|gap| *gap >= 2), "{gaps:?}"),
            _ => assert!(gaps.iter().all(|gap| *gap == 1), "{gaps:?}"),
        }
    }
    assert!(schedules(&platform, "queues")[0].waiting > 0);
    assert_eq!(schedules(&platform, "skips")[0].waiting, 0);
}

#[test]
fn what_was_due_while_the_platform_was_down_is_run_once_or_each() {
    hub::enter();
    let mut platform = Platform::start();
    let schedules = "[[schedule]]\nname = \"each\"\ncron = \"* * * * * *\"\noverlap = \"queue\"\nmissed = \"each\"\n\
         [[schedule]]\nname = \"once\"\ncron = \"* * * * * *\"\noverlap = \"queue\"";
    platform.deploy(&function("tick", schedules));
    let both = |platform: &Platform| ["each", "once"].map(|name| due(platform, "tick", name));
    until("runs of both", LIMIT, || {
        both(&platform).iter().all(|due| due.len() >= 2).then_some(())
    });
    platform.kill9();
    let (killed, back) = (now(), now() + 6);
    until("runs would be due", LIMIT, || (now() >= back).then_some(()));
    platform.restart();
    let is_later = |due: &[u64]| due.last().is_some_and(|last| *last > back + 2);
    until("both caught up", LIMIT, || {
        both(&platform).iter().all(|due| is_later(due)).then_some(())
    });
    let [each, once] = both(&platform);
    assert!(each.windows(2).all(|pair| pair[1] - pair[0] == 1), "{each:?}");
    let missed = |due: &[u64]| (killed + 1..back).filter(|at| !due.contains(at)).count();
    assert_eq!(missed(&each), 0);
    assert!(missed(&once) >= 4, "{once:?}, down from {killed} to {back}");
}

#[test]
fn no_run_is_lost_or_made_twice_when_another_scheduler_takes_over() {
    hub::enter();
    let Some(database) = Postgres::start_at(hub::ADDRESS) else {
        return;
    };
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size::two_schedulers(&database.database());
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    let schedule = "[[schedule]]\nname = \"each\"\ncron = \"* * * * * *\"\noverlap = \"queue\"\nmissed = \"each\"";
    cluster.deploy(&function("tick", schedule));
    let mut leader = 0;
    for round in 0..4 {
        let before = due(&cluster, "tick", "each").len();
        until("some runs", LIMIT, || {
            (due(&cluster, "tick", "each").len() > before + 3).then_some(())
        });
        // At any moment of a second, so that at times a run is queued and not yet recorded.
        thread::sleep(Duration::from_millis(round * 270));
        let killed = now();
        cluster.kill9(Role::Scheduler.nth(leader));
        leader = 1 - leader;
        until("the other fires what was due", LIMIT, || {
            due(&cluster, "tick", "each")
                .iter()
                .any(|at| *at > killed + 2)
                .then_some(())
        });
        cluster.restart(Role::Scheduler.nth(1 - leader));
    }
    let all = due(&cluster, "tick", "each");
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] == 1), "{all:?}");
    let dead: Vec<AsyncCall> = cluster
        .cli_json(&["async", "list", "tick", "--state", CallState::Dead.as_str(), "--json"])
        .unwrap();
    assert_eq!(dead.len(), 0, "{dead:?}");
}

/// The names and the data of what `fn invoke --cloudevent` sends, as handlers of both runtimes have it.
#[test]
fn a_cloud_event_reaches_handlers_of_both_runtimes_and_one_that_they_return_is_sent() {
    hub::enter();
    let platform = Platform::start();
    let python = "def handler(event, context):\n    return {**event, 'type': 'reply', 'subject': event['type']}\n";
    platform.deploy(&Folder::python("snake", "", python));
    let node = Folder::with_config("name = \"knot\"\nruntime = \"node\"\nentry = \"index.handler\"\n");
    let code = "exports.handler = async (event) => ({ ...event, type: 'reply', subject: event.type });\n";
    platform.deploy(&node.file("index.js", code));
    for name in ["snake", "knot"] {
        let sent = [
            "invoke",
            name,
            "--cloudevent",
            "order.made",
            "--source",
            "/shop",
            "-d",
            "{\"order\":7}",
            "--json",
        ];
        let binary: Value = platform.cli_json(&sent).unwrap();
        let header = |header: &str| binary["headers"][header].clone();
        assert_eq!(
            (header("ce-type"), header("ce-subject")),
            (json!("reply"), json!("order.made")),
            "{binary}"
        );
        assert_eq!(header("ce-source"), "/shop");
        let structured: Value = platform.cli_json(&[&sent[..], &["--structured"]].concat()).unwrap();
        let body: Value = serde_json::from_str(structured["body"].as_str().unwrap()).unwrap();
        assert_eq!(
            (&body["type"], &body["data"]),
            (&json!("reply"), &json!({"order": 7})),
            "{structured}"
        );
    }
}
