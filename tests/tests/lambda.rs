//! Programs of AWS's own libraries, unmodified, behind Lambda's runtime interface. What they answer is compared with
//! what they answer under AWS's emulator.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use rekindle_e2e::{Call, Folder, Reply, binaries, platform, shared, skip, until};
use rekindle_wire::api::VersionInfo;
use serde_json::{Value, json};

/// Where the emulator and AWS's API take events.
const INVOCATIONS: &str = "/2015-03-31/functions/function/invocations";
const NEXT: &str = "/2018-06-01/runtime/invocation";
const LIMIT: Duration = Duration::from_secs(20);

/// The emulator, which is built where Go is.
static EMULATOR: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let script = binaries::checkout().join("scripts/install-lambda-emulator.sh");
    let built = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
    let path = String::from_utf8(built.stdout)
        .unwrap()
        .lines()
        .last()
        .map(PathBuf::from);
    path.filter(|_| built.status.success())
});

/// A program under the emulator.
struct Emulated {
    child: Child,
    port: u16,
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Emulated {
    /// Starts `command` in a folder, or skips the test.
    fn start(folder: &Path, command: &[&str], env: &[(&str, &str)]) -> Option<Self> {
        let Some(emulator) = EMULATOR.as_ref() else {
            skip("the emulator cannot be built: scripts/install-lambda-emulator.sh says why");
            return None;
        };
        let [port, api] = [(); 2].map(|()| platform::free_port().unwrap());
        let child = Command::new(emulator)
            .args([
                "--log-level",
                "error",
                "--runtime-api-address",
                &format!("127.0.0.1:{api}"),
            ])
            .args(["--runtime-interface-emulator-address", &format!("127.0.0.1:{port}")])
            .args(command)
            .envs([
                ("AWS_LAMBDA_FUNCTION_NAME", "emulated"),
                ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
            ])
            .envs(env.iter().copied())
            .current_dir(folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let emulated = Self { child, port };
        until("the emulator listens", LIMIT, || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Some(emulated)
    }

    fn invoke(&self, event: &str) -> Reply {
        let url = format!("http://127.0.0.1:{}{INVOCATIONS}", self.port);
        Call::post(&url).body(event.to_owned()).send()
    }
}

fn invoke(function: &str, event: &str) -> Reply {
    let path = format!("/function/{function}{INVOCATIONS}");
    shared().request("POST", &path).body(event.to_owned()).send()
}

/// A body without what differs between any two invocations or hosts.
fn masked(reply: &Reply) -> Value {
    let mut body: Value = serde_json::from_slice(&reply.body).unwrap_or_else(|_| reply.text().into());
    if let Some(object) = body.as_object_mut() {
        for name in ["request", "requestId", "stackTrace", "restores"] {
            object.remove(name);
        }
        if let Some(message) = object.get_mut("errorMessage") {
            let text = message.as_str().unwrap();
            *message = match text.split_once(" Error: ") {
                Some((id, rest)) if id.starts_with("RequestId: ") => rest.into(),
                _ => text.into(),
            };
        }
    }
    body
}

#[track_caller]
fn assert_alike(function: &str, emulated: &Emulated, events: &[&str]) {
    for event in events {
        let (ours, theirs) = (invoke(function, event), emulated.invoke(event));
        assert_eq!(
            (ours.status, masked(&ours)),
            (theirs.status, masked(&theirs)),
            "{event}: {} and {}",
            ours.text(),
            theirs.text()
        );
    }
}

/// Checks that a version has a snapshot, whose first copy answered.
#[track_caller]
fn restores(version: &VersionInfo) {
    let snapshot = version.snapshot.as_ref();
    let snapshot = snapshot.unwrap_or_else(|| panic!("no snapshot: {:?}", version.snapshot_error));
    let warning = snapshot.rehearsal.as_ref().unwrap().warning.as_ref();
    assert_eq!(warning, None);
}

#[test]
fn a_program_of_awslambdaric_answers_as_under_the_emulator() {
    let folder = Folder::sample("lambda-python", |text| text);
    restores(&shared().deploy(&folder));
    for start in ["restored", "booted"] {
        let first = shared().fresh(start, "lambda-python", "/?name=Ada").ok();
        let body = first.json();
        // A copy's hook runs before its first event. So does that of an instance which is no copy.
        assert_eq!((first.start(), &body["restores"]), (start, &json!(1)), "{body}");
        let again = shared().get("lambda-python", "/?name=Ada").ok();
        assert_eq!((again.start(), &again.json()["restores"]), ("warm", &json!(1)));
    }

    let greeted = shared().get("lambda-python", "/?name=Ada").ok();
    assert_eq!(greeted.header("content-type"), "application/json");
    let body = greeted.json();
    assert_eq!(
        (&body["greeting"], &body["in_time"]),
        (&json!("Hello, Ada!"), &json!(true))
    );
    assert_eq!(body["request"], greeted.header("x-request-id"));

    let failed = invoke("lambda-python", r#"{"raise": "no"}"#);
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

    let packages = tempfile::tempdir().unwrap();
    let installed = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--root-user-action=ignore",
        ])
        .arg("--requirement")
        .arg(folder.path().join("requirements.txt"))
        .arg("--target")
        .arg(packages.path())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        skip("pip is missing, or cannot install awslambdaric for this machine's Python");
        return;
    }
    let command = ["python3", "-m", "awslambdaric", "app.handler"];
    let path = packages.path().to_str().unwrap();
    if let Some(emulated) = Emulated::start(folder.path(), &command, &[("PYTHONPATH", path)]) {
        let events = [
            r#"{"name": "Ada"}"#,
            r#"{"raise": "why"}"#,
            "no JSON",
            r#"{"name": "é\u0000"}"#,
        ];
        assert_alike("lambda-python", &emulated, &events);
    }
}

#[test]
fn a_program_of_aws_lambda_go_answers_as_under_the_emulator() {
    if Command::new("go").arg("version").output().is_err() {
        return skip("go is not installed");
    }
    let manifest = "name = \"lambda-go\"\nruntime = \"http\"\ninterface = \"lambda\"\nmemory = \"64MiB\"\n";
    let folder = Folder::with_manifest(manifest);
    let built = Command::new("go")
        .args(["build", "-ldflags", "-s -w", "-o"])
        .arg(folder.path().join("bootstrap"))
        .arg(".")
        .env("CGO_ENABLED", "0")
        .current_dir(binaries::checkout().join("tests/functions/lambda-go"))
        .status();
    assert!(built.unwrap().success());
    restores(&shared().deploy(&folder));
    let copied = shared().fresh("restored", "lambda-go", "/?a=b").ok();
    let body = copied.json();
    assert_eq!((copied.start(), &body["limited"]), ("restored", &json!(true)), "{body}");
    assert_eq!(body["event"]["queryStringParameters"]["a"], "b");
    let Some(emulated) = Emulated::start(folder.path(), &["./bootstrap"], &[]) else {
        return;
    };
    let events = [r#"{"a": [1, "é"]}"#, r#"{"raise": "why"}"#, "1", r#"{"exit": 3}"#];
    assert_alike("lambda-go", &emulated, &events);
    // An exit or a panic ends the process. Once it is gone, the next event finds another.
    until("another copy answers", LIMIT, || {
        (invoke("lambda-go", r#"{"b": 2}"#).status == 200).then_some(())
    });
    assert_eq!(invoke("lambda-go", r#"{"panic": 1}"#).json()["errorType"], "string");
}

/// The runtime that does what it is told.
fn told_runtime() -> Folder {
    let manifest = "name = \"lambda-told\"\nruntime = \"http\"\ninterface = \"lambda\"\nbase = \"python\"\n\
                    memory = \"64MiB\"\nsnapshot = false\nmax_instances = 1\n";
    with_files(Folder::with_manifest(manifest), &["bootstrap"])
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
    let manifest = "name = \"lambda-image\"\nimage = \".\"\ninterface = \"lambda\"\nsnapshot = false\n\
                    max_instances = 1\n";
    let folder = Folder::with_manifest(manifest).file("Dockerfile", DOCKERFILE);
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
