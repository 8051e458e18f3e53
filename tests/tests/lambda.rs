//! Lambda's runtime interface as it is served inside: calls out of turn, headers, streams and extensions. What the
//! runtime is answered is compared with what it is answered under AWS's emulator.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::process::Command;

use rekindle_e2e::lambda::{Emulated, INVOCATIONS};
use rekindle_e2e::{Folder, Reply, binaries, shared, skip};
use serde_json::{Value, json};

const NEXT: &str = "/2018-06-01/runtime/invocation";

fn invoke(function: &str, event: &str) -> Reply {
    rekindle_e2e::lambda::invoke(shared(), function, event)
}

/// The runtime that does what it is told.
fn told_runtime() -> Folder {
    let config = "name = \"lambda-told\"\nruntime = \"http\"\ninterface = \"lambda\"\nbase = \"python\"\n\
                    memory = \"64MiB\"\nsnapshot = false\nmax_instances = 1\n";
    with_files(Folder::with_config(config), &["bootstrap"])
}

fn with_files(folder: Folder, names: &[&str]) -> Folder {
    let files = binaries::checkout().join("tests/functions/lambda-runtime");
    for name in names {
        fs::copy(files.join(name), folder.path().join(name)).unwrap();
    }
    folder
}

/// What the runtime was answered: statuses, types and errors.
fn answered(reply: &Reply, of: &str) -> Vec<Value> {
    let calls = reply.json()[of].as_array().unwrap().clone();
    let told = calls.into_iter().map(|call| {
        let body: Value = serde_json::from_str(call[2].as_str().unwrap()).unwrap_or_else(|_| call[2].clone());
        json!([call[0], call[1], body])
    });
    told.collect()
}

#[test]
fn calls_out_of_turn_are_refused_as_by_the_emulator() {
    let folder = told_runtime();
    shared().deploy(&folder);
    let extension = |headers: Value, body: &str| json!(["POST", "/2020-01-01/extension/register", headers, body]);
    let order = json!({
        "before": [
            ["POST", format!("{NEXT}/other/response"), {}, "1"],
            ["POST", format!("{NEXT}/other/error"), {}, "1"],
            ["GET", format!("{NEXT}/next"), {}, ""],
            ["GET", "/2018-06-01/runtime/nothing", {}, ""],
            ["POST", "/2018-06-01/runtime/init/error", {}, "{}"],
            extension(json!({}), "{}"),
            extension(json!({"Lambda-Extension-Name": "x"}), r#"{"events": ["SHUTDOWN"]}"#),
            extension(json!({"Lambda-Extension-Name": "x"}), r#"{"events": ["INVOKE"]}"#),
            ["GET", "/2020-01-01/extension/event/next", {}, ""],
            ["GET", "/2020-01-01/extension/event/next", {"Lambda-Extension-Identifier": "x"}, ""],
            ["PUT", "/2020-08-15/logs", {}, "{}"],
            ["PUT", "/2022-07-01/telemetry", {}, "{}"],
        ],
        "after": [
            ["POST", format!("{NEXT}/{{id}}/response"), {}, "1"],
            ["POST", format!("{NEXT}/{{id}}/error"), {}, "1"],
            ["POST", format!("{NEXT}/other/response"), {}, "1"],
        ],
    });
    let order = order.to_string();
    let (before, after) = (invoke("lambda-told", &order).ok(), invoke("lambda-told", "{}").ok());
    let statuses = |told: &[Value]| told.iter().map(|call| call[0].as_u64().unwrap()).collect::<Vec<_>>();
    let (before, after) = (answered(&before, "before"), answered(&after, "told"));
    assert_eq!(
        statuses(&before),
        [400, 400, 200, 404, 403, 403, 403, 403, 403, 403, 202, 202]
    );
    assert_eq!(statuses(&after), [403, 403, 400]);
    if let Some(emulated) = Emulated::start(folder.path(), &["./bootstrap"], &[]) {
        assert_eq!(before, answered(&emulated.invoke(&order), "before"));
        assert_eq!(after, answered(&emulated.invoke("{}"), "told"));
    }
}

#[test]
fn what_comes_along_with_an_event_is_passed_on_as_by_the_emulator() {
    let folder = told_runtime();
    folder.set("lambda-along", &[]).unwrap();
    shared().deploy(&folder);
    let order = json!({"headers": true}).to_string();
    // {"client": {"app_title": "a"}}
    let along = [
        ("x-amz-client-context", "eyJjbGllbnQiOiB7ImFwcF90aXRsZSI6ICJhIn19"),
        (
            "x-amz-cognito-identity",
            r#"{"cognitoIdentityId":"i","cognitoIdentityPoolId":"p"}"#,
        ),
        ("x-amz-tenant-id", "t-1"),
    ];
    let told = |reply: Reply| {
        let mut headers = reply.ok().json()["headers"].clone();
        // They differ between any two hosts, and the emulator traces nothing.
        for name in ["aws-request-id", "deadline-ms", "invoked-function-arn", "trace-id"] {
            let _differs = headers
                .as_object_mut()
                .unwrap()
                .remove(&format!("lambda-runtime-{name}"));
        }
        headers
    };
    let path = format!("/function/lambda-along{INVOCATIONS}");
    let call = along
        .iter()
        .fold(shared().request("POST", &path), |call, (name, value)| {
            call.header(name, value)
        });
    let ours = told(call.body(order.clone()).send());
    assert_eq!(ours["lambda-runtime-aws-tenant-id"], "t-1", "{ours}");
    if let Some(emulated) = Emulated::start(folder.path(), &["./bootstrap"], &[]) {
        assert_eq!(ours, told(emulated.invoke_with(&order, &along)));
    }
}

#[test]
fn answers_are_streamed_with_a_head_of_their_own_and_errors_within_them_cut_them_off() {
    let folder = told_runtime();
    folder.set("lambda-streams", &[]).unwrap();
    shared().deploy(&folder);
    let asked = |order: Value| {
        let call = shared().request("POST", "/function/lambda-streams/?a=b");
        let call = call.header("content-type", "application/json");
        call.body(json!({ "stream": order }).to_string()).try_send()
    };
    let invoked = |order: Value| invoke("lambda-streams", &json!({ "stream": order }).to_string());
    // Above what a buffered answer may have.
    let large = invoked(json!({"pieces": ["x".repeat(1 << 20)], "times": 7, "type": "text/plain"}));
    assert_eq!((large.status, large.body.len()), (200, 7 << 20));
    assert_eq!(large.header("content-type"), "text/plain");

    let head = json!({"statusCode": 418, "headers": {"x-a": "1", "content-type": "text/html"}, "cookies": ["c=d"]});
    let integration = "application/vnd.awslambda.http-integration-response";
    let pieces = [&head.to_string(), "\0\0\0\0", "\0\0\0\0one", "two"];
    let streamed = asked(json!({"pieces": pieces, "type": integration})).unwrap();
    assert_eq!((streamed.status, streamed.text().as_str()), (418, "onetwo"));
    let headers = ["x-a", "content-type"].map(|name| streamed.header(name));
    assert_eq!(headers, ["1", "text/html"]);
    let cookie = streamed.header("set-cookie");
    assert!(cookie.starts_with("c=d; Path="), "{cookie}");

    // {"errorType": "E", "errorMessage": "late"}
    let error = "eyJlcnJvclR5cGUiOiAiRSIsICJlcnJvck1lc3NhZ2UiOiAibGF0ZSJ9";
    let trailers = json!({"Lambda-Runtime-Function-Error-Type": "E", "Lambda-Runtime-Function-Error-Body": error});
    for order in [
        json!({"pieces": pieces, "type": integration, "trailers": trailers}),
        json!({"pieces": pieces, "type": integration, "cut": true}),
    ] {
        // Where the cut comes along with the head, the head need not be passed on.
        match asked(order) {
            Ok(answer) => drop(answer.error(502, "invalid_response")),
            Err(cut) => println!("{cut:#}"),
        }
    }
    shared().until_logged("lambda-streams", "late");
    let told = invoke("lambda-streams", "{}").ok();
    assert_eq!(
        told.json()["told"],
        json!([400]),
        "the runtime hears that its answer was cut off"
    );
    // Before the head is whole, an error is the answer.
    asked(json!({"pieces": ["{"], "type": integration, "cut": true}))
        .unwrap()
        .error(502, "function_error");
}

const DOCKERFILE: &str = "FROM scratch\nADD python.tar /\nCOPY bootstrap /var/runtime/bootstrap\n\
                          COPY watch /opt/extensions/watch\nENTRYPOINT [\"/var/runtime/bootstrap\"]\n";

#[test]
fn an_image_s_extensions_are_told_of_each_event_before_the_next() {
    if Command::new("buildah").arg("--version").output().is_err() {
        return skip("buildah is missing: run scripts/setup.sh test-packages");
    }
    let config = "name = \"lambda-image\"\nimage = \".\"\ninterface = \"lambda\"\nsnapshot = false\n\
                    max_instances = 1\n";
    let folder = Folder::with_config(config).file("Dockerfile", DOCKERFILE);
    let folder = with_files(folder, &["bootstrap", "watch"]);
    fs::copy(
        binaries::runtimes().join("python.tar"),
        folder.path().join("python.tar"),
    )
    .unwrap();
    shared().deploy(&folder);
    let ids = [(); 3].map(|()| {
        let reply = invoke("lambda-image", "{}").ok();
        reply.header("x-request-id").to_owned()
    });
    let watched = invoke("lambda-image", r#"{"read": "/tmp/watched"}"#).ok().json();
    let watched: Vec<&str> = watched["read"].as_str().unwrap().lines().collect();
    // It may have been told of the last already.
    assert_eq!(watched[..3], ids, "{watched:?}");
}
