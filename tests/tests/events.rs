//! Functions that get the messages of queues: nothing is lost when a reader is killed in the middle, and what fails
//! reaches the dead letters, with the queues' own servers.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use rekindle_e2e::queues::{Events, Nats, Sqs};
use rekindle_e2e::{Client, Folder, Options, Platform, hub, until};
use rekindle_wire::api::{SourceInfo, SourceState};
use rekindle_wire::asynchronous::{AsyncCall, CallState};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);
/// Remembers what it was given. Messages with `bad` fail, by name in a batch, and those with `slow` take that long.
const CODE: &str = "import time\n\
    seen, events = [], []\n\
    def handler(event, context):\n\
    \x20   if isinstance(event, dict) and 'specversion' not in event:\n\
    \x20       return {'seen': seen, 'events': events[:3]}\n\
    \x20   batch = event if isinstance(event, list) else [event]\n\
    \x20   failed = []\n\
    \x20   for one in batch:\n\
    \x20       data = one['data']\n\
    \x20       time.sleep(data.get('slow', 0.01))\n\
    \x20       if data.get('bad'):\n\
    \x20           failed.append({'itemIdentifier': one['id']})\n\
    \x20       else:\n\
    \x20           seen.append(data['n'])\n\
    \x20           events.append(one)\n\
    \x20   if failed and not isinstance(event, list):\n\
    \x20       raise ValueError('it is bad')\n\
    \x20   return {'batchItemFailures': failed}\n";

fn function(source: &str) -> Folder {
    Folder::python("orders", &format!("max_instances = 1\n[[source]]\n{source}"), CODE)
}

/// A key that may invoke and nothing else.
fn key(client: &Client) -> String {
    let made = client.cli(&["key", "create", "events", "--role", "invoker"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8_lossy(&made.stdout).trim().to_owned()
}

fn said(client: &Client) -> Value {
    client.get("orders", "/").ok().json()
}

fn seen(client: &Client) -> Vec<u64> {
    let said = said(client);
    said["seen"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .collect()
}

fn sources(client: &Client) -> Vec<SourceInfo> {
    client.cli_json(&["source", "list", "--json"]).unwrap()
}

fn until_seen(client: &Client, wanted: &BTreeSet<u64>) {
    let missing = || -> Vec<u64> {
        let seen: BTreeSet<u64> = seen(client).into_iter().collect();
        wanted.difference(&seen).copied().collect()
    };
    let mut last = Vec::new();
    let end = std::time::Instant::now() + LIMIT;
    while std::time::Instant::now() < end {
        last = missing();
        if last.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("lost: {last:?}; {:?}", sources(client));
}

#[test]
fn no_message_of_nats_is_lost_when_a_reader_is_killed_and_bad_ones_are_dead_letters() {
    hub::enter();
    let Some(mut nats) = Nats::start() else { return };
    let mut client = nats.client();
    client.make_stream("ORDERS", "orders.>");
    client.make_stream("DEAD", "dead.>");
    let platform = Platform::start();
    let url = nats.url();
    platform.deploy(&function(&format!(
        "type = \"nats\"\nurl = \"{url}\"\nstream = \"ORDERS\"\nsubject = \"orders.new.*\"\nbatch = 5\n\
         batch_window = \"100ms\"\nconcurrency = 4\nmax_deliveries = 2\ndead_letter = \"dead.orders\"\n"
    )));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    client.publish("orders.old.1", &[], &json!({"n": 1_000}));
    client.publish("orders.new.eu", &[("traceparent", trace)], &json!({"n": 0}));
    let open = format!("[[events.server]]\ntype = \"nats\"\nurl = \"{url}\"\n");
    let key = key(&platform);

    // A server that the operator has not opened is not connected to, and users are told.
    let closed = Events::start(&platform, &key, "", &[]);
    until("the source is refused", LIMIT, || {
        let reader = sources(&platform).first()?.readers.first()?.progress.clone();
        (reader.state == SourceState::Failing && reader.problem?.contains("[[events.server]]")).then_some(())
    });
    closed.stop();

    let first = Events::start(&platform, &key, &open, &[]);
    until("the first message arrives", LIMIT, || {
        seen(&platform).contains(&0).then_some(())
    });
    let event = said(&platform)["events"][0].clone();
    assert_eq!(
        (
            &event["type"],
            &event["id"],
            &event["source"],
            &event["subject"],
            &event["traceparent"]
        ),
        (
            &json!("rekindle.nats.message"),
            &json!("ORDERS:2"),
            &json!(format!("{url}/ORDERS")),
            &json!("orders.new.eu"),
            &json!(trace)
        )
    );

    let bad: BTreeSet<u64> = [7, 60, 133].into();
    let good: BTreeSet<u64> = (0..200).filter(|n| !bad.contains(n)).collect();
    let second = Events::start(&platform, &key, &open, &[]);
    for n in 1..200_u64 {
        client.publish("orders.new.eu", &[], &json!({"n": n, "bad": bad.contains(&n)}));
    }
    until("some are done", LIMIT, || (seen(&platform).len() > 30).then_some(()));
    first.kill9();
    // A server that dies meanwhile is waited for.
    nats.kill9();
    nats.restart();
    let mut client = nats.client();
    until_seen(&platform, &good);
    until("the bad ones are dead letters", LIMIT, || {
        (client.count("DEAD") == 3).then_some(())
    });
    until("all is settled", LIMIT, || {
        (client.unsettled("ORDERS", "rekindle_default_orders_default") == 0).then_some(())
    });
    assert!(!seen(&platform).contains(&1_000), "of another subject");
    let letter = client.stored("DEAD", 1);
    let headers = decoded(&letter["hdrs"]);
    for part in [
        "Rekindle-Function: orders",
        "Rekindle-Source: default",
        "Rekindle-Deliveries: ",
        "batchItemFailures",
    ] {
        assert!(headers.contains(part), "{part}: {headers}");
    }
    let body: Value = serde_json::from_str(&decoded(&letter["data"])).unwrap();
    assert!(bad.contains(&body["n"].as_u64().unwrap()), "{body}");

    until("the source is listed as well", LIMIT, || {
        let listed = platform.cli(&["source", "list"]);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        (listed.contains("reading") && listed.contains("ORDERS")).then_some(())
    });
    let metrics = second.metrics();
    let labels = "faas_invoked_name=\"orders\",source=\"default\"";
    for name in ["lag", "in_flight", "concurrency"] {
        assert!(
            metrics.contains(&format!("rekindle_events_{name}{{{labels}}}")),
            "{name}: {metrics}"
        );
    }

    // What is under way at a stop ends before the program does.
    client.publish("orders.new.eu", &[], &json!({"n": 500, "slow": 6}));
    until("it is under way", LIMIT, || {
        second
            .metrics()
            .contains(&format!("rekindle_events_in_flight{{{labels}}} 1"))
            .then_some(())
    });
    second.stop();
    assert!(seen(&platform).contains(&500));
    assert_eq!(client.unsettled("ORDERS", "rekindle_default_orders_default"), 0);
    platform.delete("orders").unwrap();
    assert!(sources(&platform).is_empty());
}

/// The messages that a destination was told of, by their ids.
fn told(client: &Client, function: &str, kind: &str) -> BTreeSet<u64> {
    let listed = client.cli_json(&["async", "list", function, "--limit", "1000", "--json"]);
    let all: Vec<AsyncCall> = listed.unwrap_or_default();
    let done: Vec<AsyncCall> = all.into_iter().filter(|call| call.state == CallState::Done).collect();
    let told = done.iter().map(|call| {
        let event = client
            .request("GET", &format!("/async-results/{}", call.id))
            .send()
            .ok()
            .json();
        assert_eq!(event["type"], kind);
        event["data"]["request"]["data"]["n"].as_u64().unwrap()
    });
    let told: BTreeSet<u64> = told.collect();
    assert_eq!(told.len(), done.len(), "each is told of once");
    told
}

#[test]
fn destinations_are_told_of_each_message_once_though_a_reader_is_killed() {
    hub::enter();
    let Some(nats) = Nats::start() else { return };
    let mut client = nats.client();
    client.make_stream("ORDERS", "orders.>");
    let platform = Platform::start();
    for name in ["ledger", "alerts"] {
        let answers = "def handler(event, context):\n    return event\n";
        platform.deploy(&Folder::python(name, "max_instances = 1\n", answers));
    }
    let url = nats.url();
    platform.deploy(&function(&format!(
        "type = \"nats\"\nurl = \"{url}\"\nstream = \"ORDERS\"\nbatch = 3\nmax_deliveries = 2\n\
         on_success = \"ledger\"\non_failure = \"alerts\"\n"
    )));
    let bad: BTreeSet<u64> = [2, 17].into();
    let good: BTreeSet<u64> = (0..30).filter(|n| !bad.contains(n)).collect();
    for n in 0..30_u64 {
        client.publish(
            "orders.new",
            &[],
            &json!({"n": n, "bad": bad.contains(&n), "slow": 0.05}),
        );
    }
    let open = format!("[[events.server]]\ntype = \"nats\"\nurl = \"{url}\"\n");
    let key = key(&platform);
    let first = Events::start(&platform, &key, &open, &[]);
    until("some are told of", LIMIT, || {
        (told(&platform, "ledger", "rekindle.source.succeeded").len() > 3).then_some(())
    });
    first.kill9();
    let second = Events::start(&platform, &key, &open, &[]);
    until("all that succeeded are told of", LIMIT, || {
        (told(&platform, "ledger", "rekindle.source.succeeded") == good).then_some(())
    });
    until("all that failed are told of", LIMIT, || {
        (told(&platform, "alerts", "rekindle.source.failed") == bad).then_some(())
    });
    until("all is settled", LIMIT, || {
        (client.unsettled("ORDERS", "rekindle_default_orders_default") == 0).then_some(())
    });
    assert!(second.metrics().contains("rekindle_events_destinations_total"));
    second.stop();
}

#[test]
fn a_source_that_names_another_subject_goes_on_where_it_was() {
    hub::enter();
    let Some(nats) = Nats::start() else { return };
    let mut client = nats.client();
    client.make_stream("ORDERS", "orders.>");
    let platform = Platform::start();
    let url = nats.url();
    let reading = |subject: &str| {
        let source = format!("type = \"nats\"\nurl = \"{url}\"\nstream = \"ORDERS\"\nsubject = \"{subject}\"\n");
        platform.deploy(&function(&source));
    };
    reading("orders.new");
    let open = format!("[[events.server]]\ntype = \"nats\"\nurl = \"{url}\"\n");
    let reader = Events::start(&platform, &key(&platform), &open, &[]);
    client.publish("orders.new", &[], &json!({"n": 1}));
    until_seen(&platform, &[1].into());
    reading("orders.*");
    until("the reader follows", LIMIT, || {
        let source = sources(&platform).pop()?;
        let progress = source.readers.first()?.progress.clone();
        let is_read = progress.state == SourceState::Reading && progress.lag.is_some();
        (source.source.subject.as_deref() == Some("orders.*") && is_read).then_some(())
    });
    client.publish("orders.other", &[], &json!({"n": 2}));
    until_seen(&platform, &[2].into());
    // The new version has instances of its own. Nothing of before is read again.
    assert_eq!(seen(&platform), [2]);
    reader.stop();
}

#[test]
fn messages_that_are_too_much_for_one_request_arrive_in_several() {
    hub::enter();
    let Some(nats) = Nats::start() else { return };
    let mut client = nats.client();
    client.make_stream("ORDERS", "orders.>");
    client.make_stream("DEAD", "dead.>");
    let args = ["--memory", "12GiB", "--max-body", "2MiB"].map(str::to_owned);
    let platform = Platform::start_with(Options {
        args: args.into(),
        ..Options::default()
    });
    let url = nats.url();
    platform.deploy(&function(&format!(
        "type = \"nats\"\nurl = \"{url}\"\nstream = \"ORDERS\"\nsubject = \"orders.>\"\nbatch = 100\n\
         max_deliveries = 1\ndead_letter = \"dead.orders\"\n"
    )));
    for n in 0..12_u64 {
        client.publish("orders.new", &[], &json!({"n": n, "noise": "x".repeat(700_000)}));
    }
    let open = format!("[[events.server]]\ntype = \"nats\"\nurl = \"{url}\"\n");
    let reader = Events::start(&platform, &key(&platform), &open, &[]);
    until_seen(&platform, &(0..12).collect());
    assert_eq!(client.count("DEAD"), 0);
    reader.stop();
}

fn decoded(value: &Value) -> String {
    let text = value.as_str().unwrap();
    let output = std::process::Command::new("base64")
        .arg("-d")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            use std::io::Write as _;
            child.stdin.take().unwrap().write_all(text.as_bytes())?;
            child.wait_with_output()
        });
    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
}

#[test]
fn no_message_of_sqs_is_lost_when_a_reader_is_killed_and_bad_ones_are_dead_letters() {
    hub::enter();
    let Some(sqs) = Sqs::start() else { return };
    let (queue, dead) = (sqs.make_queue("orders"), sqs.make_queue("dead"));
    let platform = Platform::start();
    let url = sqs.url();
    platform.deploy(&function(&format!(
        "type = \"sqs\"\nurl = \"{url}\"\nqueue = \"{queue}\"\nbatch = 1\nconcurrency = 4\nmax_deliveries = 2\n\
         dead_letter = \"{dead}\"\n"
    )));
    let open = format!("[[events.server]]\ntype = \"sqs\"\nurl = \"{url}\"\nregion = \"us-east-1\"\n");
    let env = [
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
    ];
    let send = |body: Value| {
        let message = json!({"QueueUrl": format!("{url}/{queue}"), "MessageBody": body.to_string()});
        sqs.call("SendMessage", &message);
    };
    let key = key(&platform);
    let bad: BTreeSet<u64> = [3, 40].into();
    let good: BTreeSet<u64> = (0..60).filter(|n| !bad.contains(n)).collect();
    for n in 0..60_u64 {
        send(json!({"n": n, "bad": bad.contains(&n), "slow": 0.05}));
    }
    let first = Events::start(&platform, &key, &open, &env);
    until("some are done", LIMIT, || (seen(&platform).len() > 10).then_some(()));
    let event = said(&platform)["events"][0].clone();
    assert_eq!(
        (&event["type"], &event["source"], &event["datacontenttype"]),
        (
            &json!("rekindle.sqs.message"),
            &json!(format!("{url}/{queue}")),
            &json!("application/json")
        )
    );
    first.kill9();
    let second = Events::start(&platform, &key, &open, &env);
    until_seen(&platform, &good);
    let letters = || {
        let wanted = json!({"QueueUrl": format!("{url}/{dead}"), "AttributeNames": ["ApproximateNumberOfMessages"]});
        let told = sqs.call("GetQueueAttributes", &wanted);
        told["Attributes"]["ApproximateNumberOfMessages"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    until("the bad ones are dead letters", LIMIT, || {
        (letters() == 2).then_some(())
    });
    let letter = sqs.call(
        "ReceiveMessage",
        &json!({"QueueUrl": format!("{url}/{dead}"), "MessageAttributeNames": ["All"]}),
    );
    let reason = letter["Messages"][0]["MessageAttributes"]["Rekindle-Reason"]["StringValue"]
        .as_str()
        .unwrap();
    assert!(
        reason.contains("ValueError") || reason.contains("function_error"),
        "{reason}"
    );
    assert!(second.is_ready());
    second.stop();
}
