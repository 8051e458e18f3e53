//! Programs of AWS's own Lambda clients, unmodified: of Python, Go, Node.js, Rust and Java. What they answer is
//! compared with what they answer under AWS's emulator, and they are restored and moved.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::lambda::{
    JAVA_EVENTS, NODE_24, assert_alike, emulated, greets, has_a_snapshot, invoke, python_is_alike, sample,
};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, Platform, Reply, skip, until};
use rekindle_wire::WorkerId;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// The binary's platform, which has that root filesystem.
fn shared() -> &'static Platform {
    let _before_it_starts = *NODE_24;
    rekindle_e2e::shared()
}

/// Checks that a request to the sample is answered with a stream that has a head of its own.
#[track_caller]
fn is_streamed(answer: &Reply, status: u16, content_type: &str) {
    assert_eq!((answer.status, answer.text().as_str()), (status, "0\n1\n2\n"));
    assert_eq!(answer.header("content-type"), content_type);
}

/// Checks that an answer that fails after its beginning has no end. Its head need not be passed on.
#[track_caller]
fn is_cut_off(function: &str, answer: Result<Reply, impl std::fmt::Display>, why: &str) {
    match answer {
        Ok(answer) => drop(answer.error(502, "invalid_response")),
        Err(cut) => println!("{cut:#}"),
    }
    shared().until_logged(function, why);
}

#[test]
fn a_program_of_awslambdaric_answers_as_under_the_emulator() {
    let folder = Folder::sample("lambda-python", |text| text);
    greets(shared(), &folder, "lambda-python", Some(1));

    let failed = invoke(shared(), "lambda-python", r#"{"raise": "no"}"#);
    assert_eq!(
        (failed.status, failed.header("x-amz-function-error")),
        (200, "Unhandled")
    );
    let event = |body: &str| {
        let path = "/v1/functions/lambda-python/invocations";
        shared().admin("POST", path).body(body.to_owned()).send()
    };
    assert_eq!(event(r#"{"name": "Bo"}"#).ok().json()["greeting"], "Hello, Bo!");
    event(r#"{"raise": "no"}"#).error(502, "function_error");

    let requirements = folder.path().join("requirements.txt");
    if !python_is_alike(shared(), "lambda-python", folder.path(), &requirements) {
        skip("pip is missing, or cannot install awslambdaric for this machine's Python")
    }
}

#[test]
fn a_program_of_aws_lambda_go_answers_as_under_the_emulator() {
    let Some(folder) = sample("go") else { return };
    greets(shared(), &folder, "lambda-go", None);

    // The library says nothing of a stream but its type.
    let streamed = shared().get("lambda-go", "/?stream=3");
    is_streamed(&streamed, 201, "text/plain");
    assert_eq!(streamed.header("x-pieces"), "3");
    let late = shared().request("GET", "/function/lambda-go/?stream=3&end=late");
    is_cut_off("lambda-go", late.try_send(), "late");

    if let Some(emulated) = emulated(&folder, "handler") {
        let events = [
            r#"{"name": "é"}"#,
            r#"{"raise": "why"}"#,
            "1",
            "no JSON",
            r#"{"stream": 3}"#,
            r#"{"exit": 3}"#,
        ];
        assert_alike(shared(), "lambda-go", &emulated, &events);
    }
    // It ends after the error. Until it is gone, the emulator may say the one or the other.
    let panicked = invoke(shared(), "lambda-go", r#"{"panic": "no way on"}"#).json();
    assert_eq!(
        (&panicked["errorType"], &panicked["errorMessage"]),
        (&json!("string"), &json!("no way on"))
    );
}

#[test]
fn a_program_of_aws_lambda_ric_answers_as_under_the_emulator() {
    let Some(folder) = sample("node").filter(|_| *NODE_24) else {
        return skip("there is no Node.js 24: scripts/setup.sh says why");
    };
    // The client knows no hooks.
    greets(shared(), &folder, "lambda-node", None);
    if let Some(emulated) = emulated(&folder, "index.handler") {
        // The client ends at what is no JSON.
        let events = [
            r#"{"name": "é\u0000"}"#,
            r#"{"raise": "why"}"#,
            "1",
            r#"{"exit": 3}"#,
            "no JSON",
        ];
        assert_alike(shared(), "lambda-node", &emulated, &events);
    }

    folder
        .set("lambda-node-streams", &[("entry", "\"index.stream\"")])
        .unwrap();
    has_a_snapshot(&shared().deploy(&folder));
    let asked = |order: &str| {
        let call = shared().request("POST", "/function/lambda-node-streams/");
        call.header("content-type", "application/json")
            .body(order.to_owned())
            .try_send()
    };
    let streamed = asked(r#"{"stream": 3}"#).unwrap();
    is_streamed(&streamed, 201, "text/plain");
    assert_eq!(streamed.header("x-pieces"), "3");
    is_cut_off(
        "lambda-node-streams",
        asked(r#"{"stream": 3, "raise": "late"}"#),
        "late",
    );
    if let Some(emulated) = emulated(&folder, "index.stream") {
        assert_alike(shared(), "lambda-node-streams", &emulated, &[r#"{"stream": 3}"#]);
    }
}

#[test]
fn a_program_of_lambda_runtime_answers_as_under_the_emulator() {
    let Some(folder) = sample("rust") else { return };
    greets(shared(), &folder, "lambda-rust", Some(1));
    is_streamed(
        &shared().get("lambda-rust", "/?stream=3"),
        200,
        "application/octet-stream",
    );
    if let Some(emulated) = emulated(&folder, "handler") {
        let events = [
            r#"{"name": "é\u0000"}"#,
            r#"{"raise": "why"}"#,
            r#"{"panic": "no way on"}"#,
            "1",
            "no JSON",
            r#"{"stream": 3}"#,
            r#"{"exit": 3}"#,
        ];
        assert_alike(shared(), "lambda-rust", &emulated, &events);
    }
}

#[test]
fn a_program_of_aws_s_java_client_answers_as_under_the_emulator() {
    let Some(folder) = sample("java") else { return };
    greets(shared(), &folder, "lambda-java", Some(1));
    let body = shared().fresh("restored", "lambda-java", "/").ok().json();
    assert_eq!(body["snapshots"], 1, "its hook has run before the snapshot: {body}");
    if let Some(emulated) = emulated(&folder, "sample.Greeter::handleRequest") {
        assert_alike(shared(), "lambda-java", &emulated, &JAVA_EVENTS);
    }
}

/// A handler whose hook fails after a restore.
const UNWILLING: &str = r#"package sample;
import java.util.Map;
import org.crac.*;
public class Unwilling implements com.amazonaws.services.lambda.runtime.RequestHandler<Object, Object>, Resource {
    public Unwilling() { Core.getGlobalContext().register(this); }
    public void beforeCheckpoint(Context<? extends Resource> context) {}
    public void afterRestore(Context<? extends Resource> context) { throw new IllegalStateException("no way back"); }
    public Object handleRequest(Object event, com.amazonaws.services.lambda.runtime.Context context) { return 1; }
}
"#;

#[test]
fn a_hook_of_java_that_fails_after_a_restore_says_why() {
    let Some(folder) = sample("java") else { return };
    folder
        .set("lambda-unwilling", &[("entry", "\"sample.Unwilling::handleRequest\"")])
        .unwrap();
    fs::write(folder.path().join("Unwilling.java"), UNWILLING).unwrap();
    let compiled = Command::new("javac")
        .args(["-cp", "target/dependency/*", "-d", "target/classes", "Unwilling.java"])
        .current_dir(folder.path())
        .status();
    assert!(compiled.unwrap().success());
    let version = shared().try_deploy(&folder).unwrap();
    let told = version.snapshot_error.unwrap_or_default();
    assert!(
        version.snapshot.is_none() && told.contains("RestoreException"),
        "{told}"
    );
    shared().until_logged("lambda-unwilling", "no way back");
}

/// Moves an instance to the other worker and returns what it then answers.
fn moved(cluster: &Cluster, function: &str, instance: &str, to: &WorkerId) -> Value {
    let order = json!({ "to": to }).to_string();
    until("its memory is settled", SOON, || {
        let path = format!("/v1/instances/{instance}/migrate");
        let call = cluster.admin("POST", &path);
        let call = call.header("content-type", "application/json");
        let moved = call.body(order.clone()).send();
        (moved.status != 409).then(|| moved.ok())
    });
    let after = cluster.get(function, "/?name=Ada").ok();
    assert_eq!((after.start(), after.instance()), ("warm", instance), "{function}");
    let here = cluster.instances_of(function);
    assert_eq!((here.len(), &here[0].worker), (1, to), "{function}");
    after.json()
}

#[test]
fn a_program_of_each_client_moves_to_another_host_and_back() {
    let _before_it_starts = *NODE_24;
    let store = ObjectStore::start();
    let size = Size {
        on_this_host: true,
        ..Size::two_workers()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    let workers = [cluster.worker(0).id, cluster.worker(1).id];
    for language in ["python", "go", "node", "rust", "java"] {
        let folder = match language {
            "python" => Some(Folder::sample("lambda-python", |text| text)),
            "node" if !*NODE_24 => None,
            _ => sample(language),
        };
        let Some(folder) = folder else { continue };
        let name = format!("lambda-{language}");
        folder
            .set(&name, &[("idle", "\"120s\""), ("max_instances", "1")])
            .unwrap();
        has_a_snapshot(&cluster.deploy(&folder));
        let first = cluster.fresh("restored", &name, "/?name=Ada").ok();
        let before = first.json();
        for _ in 0..2 {
            let at = cluster.instances_of(&name)[0].worker.clone();
            let to = workers.iter().find(|worker| **worker != at).unwrap();
            let after = moved(&cluster, &name, first.instance(), to);
            // A move is no restore to the program: its hooks do not run again.
            for known in ["greeting", "in_time", "restores", "snapshots"] {
                assert_eq!(after[known], before[known], "{language}: {after}");
            }
        }
        cluster.end_instance(first.instance());
    }
}
