//! Functions of one namespace call each other, and reach nothing else of the platform that way. That holds whatever
//! they say of themselves, of whom they call, and by which form of HTTP.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::LazyLock;

use rekindle_e2e::{Client, Folder, Platform, shared};
use serde_json::{Value, json};

/// Calls whom it is told to, and tells what came of it.
const CALLER: &str = r#"
import http.client, json, socket

def raw(step):
    with socket.create_connection((step.get("connect", "fn.internal"), 80), timeout=20) as sock:
        sock.sendall(step["raw"].encode("latin-1"))
        got = b""
        try:
            while data := sock.recv(65536):
                got += data
        except ConnectionResetError:
            pass
        return {"got": got.decode("latin-1")}

def call(step):
    if "raw" in step:
        return raw(step)
    host = step["host"]
    connection = http.client.HTTPConnection(step.get("connect", host), 80, timeout=30)
    body = step.get("body", "x" * step["bytes"] if "bytes" in step else None)
    connection.request(step.get("method", "GET"), step.get("path", "/"), body, {"Host": host} | step.get("headers", {}))
    answer = connection.getresponse()
    text = answer.read().decode()
    try:
        text = json.loads(text)
    except ValueError:
        pass
    return {"status": answer.status, "body": text, "headers": {k.lower(): v for k, v in answer.getheaders()}}

def handler(event, context):
    out = []
    for step in json.loads(event["body"]):
        step.setdefault("headers", {})
        if step.pop("trace", False):
            step["headers"]["traceparent"] = context.traceparent
        try:
            out.append(call(step))
        except socket.gaierror as error:
            out.append({"error": "no such name"})
        except OSError as error:
            out.append({"error": repr(error)})
    return out
"#;

/// Tells what it was sent.
const CALLEE: &str = r#"
import os
def handler(event, context):
    if "rawPath" not in event:
        return {"whose": os.environ["WHOSE"], "event": event}
    return {"whose": os.environ["WHOSE"], "path": event["rawPath"], "method": event["requestContext"]["http"]["method"],
            "headers": event["headers"], "bytes": len(event.get("body") or ""),
            "left": context.get_remaining_time_in_millis()}
"#;

/// Calls itself until it is refused, with and without passing its trace on.
const LOOP: &str = r#"
import http.client, json
def handler(event, context):
    connection = http.client.HTTPConnection("loop.fn.internal", 80, timeout=30)
    headers = {"traceparent": context.traceparent} if event["rawPath"] == "/traced" else {}
    connection.request("GET", event["rawPath"], headers=headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    if answer.status != 200:
        return {"calls": 1, "end": [answer.status, said["code"]]}
    return {"calls": said["calls"] + 1, "end": said["end"]}
"#;

/// Invokes by the runtime: while it is imported, in hooks, and in the handler.
const PYTHON: &str = r#"
import rekindle
AT_IMPORT = rekindle.invoke("stock", "import")
HOOKED = None

@rekindle.before_snapshot
def before():
    rekindle.invoke("stock", "before")

@rekindle.after_restore
def after():
    global HOOKED
    HOOKED = rekindle.invoke("stock", "after")

def handler(event, context):
    errors = []
    invoke = context.invoke
    for call in (lambda: invoke("nobody"), lambda: invoke("thrower", {}), lambda: invoke("shut")):
        try:
            call()
        except rekindle.InvokeError as error:
            errors.append([error.status, error.code])
    try:
        context.invoke("stock.team")
    except ValueError:
        errors.append("name")
    return {"import": AT_IMPORT["event"], "hook": HOOKED["event"],
            "result": context.invoke("stock", {"n": [1, None, "ü"]})["event"],
            "later": context.invoke_async("stock", {"n": 2}), "errors": errors}
"#;

/// The same in Node.js.
const NODE: &str = r#"
const rekindle = require('rekindle');
let hooked, early;
rekindle.beforeSnapshot(async () => { early = await rekindle.invoke('stock', 'before'); });
rekindle.afterRestore(async () => { hooked = await rekindle.invoke('stock', 'after'); });
exports.handler = async (event, context) => {
  const errors = [];
  const invoke = context.invoke;
  for (const call of [() => invoke('nobody'), () => invoke('thrower', {}), () => invoke('shut')]) {
    await call().catch((error) => errors.push(
      error instanceof rekindle.InvokeError ? [error.status, error.code] : String(error)));
  }
  await context.invoke('stock.team').catch((error) => errors.push(error instanceof TypeError ? 'name' : String(error)));
  return { import: early.event === 'before' ? 'import' : early, hook: hooked.event,
    result: (await context.invoke('stock', { n: [1, null, 'ü'] })).event,
    later: await context.invokeAsync('stock', { n: 2 }), errors };
};
"#;

fn callee(name: &str, whose: &str, settings: &str) -> Folder {
    Folder::python(name, &format!("{settings}\n[env]\nWHOSE = \"{whose}\""), CALLEE)
}

#[track_caller]
fn deploy_in(client: &Client, namespace: &str, folder: &Folder) {
    let output = client.cli(&["-n", namespace, "deploy", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn deploy(client: &Client) {
    let made = client.cli(&["namespace", "create", "team"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    client.deploy(&Folder::python("caller", "", CALLER));
    client.deploy(&callee("stock", "default", ""));
    deploy_in(client, "team", &callee("stock", "team", ""));
    deploy_in(client, "team", &callee("theirs", "team", ""));
    deploy_in(client, "team", &Folder::python("caller", "", CALLER));
}

static DEPLOYED: LazyLock<()> = LazyLock::new(|| {
    deploy(shared());
    shared().deploy(&callee("shut", "default", "auth = \"key\""));
    shared().deploy(&callee("ajar", "default", "auth = \"key\"\nallow = [\"functions\"]"));
    shared().deploy(&Folder::python("loop", "concurrency = 40\ntimeout = \"60s\"", LOOP));
});

fn platform() -> &'static Platform {
    LazyLock::force(&DEPLOYED);
    shared()
}

/// What came of a caller's steps.
#[track_caller]
fn steps(client: &Client, caller: &str, start: Option<&str>, steps: &[Value]) -> Vec<Value> {
    let mut call = client.admin("POST", &format!("/function/{caller}/"));
    if let Some(start) = start {
        call = call.header("x-fn-force-start", start);
    }
    let answer = call
        .header("content-type", "application/json")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .body(Value::from(steps).to_string())
        .send()
        .ok();
    answer.json().as_array().unwrap().clone()
}

#[track_caller]
fn step(caller: &str, what: Value) -> Value {
    steps(platform(), caller, None, &[what]).remove(0)
}

#[test]
fn a_function_reaches_others_of_its_namespace_booted_or_restored() {
    let platform = platform();
    for start in ["booted", "restored"] {
        let done = steps(
            platform,
            "caller",
            Some(start),
            &[
                json!({"host": "stock.fn.internal", "path": "/a%2Fb?c=1", "method": "PUT", "bytes": 3_000_000}),
                json!({"host": "STOCK.fn.internal.:80", "connect": "stock.fn.internal", "trace": true}),
                json!({"host": "1--stock.fn.internal"}),
                json!({"host": "nobody.fn.internal"}),
            ],
        );
        let first = &done[0]["body"];
        assert_eq!(done[0]["status"], 200, "{start}: {done:?}");
        assert_eq!(
            (&first["whose"], &first["method"], &first["bytes"]),
            (&json!("default"), &json!("PUT"), &json!(3_000_000))
        );
        assert_eq!(first["headers"]["x-fn-caller"], "caller");
        for other in &done[..2] {
            let trace = other["body"]["headers"]["traceparent"].as_str().unwrap();
            assert!(trace.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"), "{trace}");
            let headers = other["body"]["headers"].to_string();
            assert!(!headers.contains("x-rekindle"), "{headers}");
        }
        assert_eq!(done[2]["status"], 200, "{done:?}");
        assert_eq!(
            (&done[3]["status"], &done[3]["body"]["code"]),
            (&json!(404), &json!("function_not_found"))
        );
    }
    let theirs = step("caller.team", json!({"host": "stock.fn.internal"}));
    assert_eq!(theirs["body"]["whose"], "team");
}

#[test]
fn whatever_a_function_says_it_stays_in_its_namespace() {
    let (host, get) = ("stock.fn.internal", "GET / HTTP/1.1\r\n");
    // Names of others do not resolve, and are no function if another address is connected to.
    for name in ["theirs.team.fn.internal", "stock.team.fn.internal"] {
        let done = step("caller", json!({ "host": name }));
        assert_eq!(done["error"], "no such name", "{name}: {done}");
        let done = step("caller", json!({"host": name, "connect": host}));
        assert_eq!(done["status"], 404, "{name}: {done}");
    }
    let done = step("caller", json!({"host": "theirs.fn.internal"}));
    assert_eq!(done["body"]["code"], "function_not_found", "{done}");
    // What a worker says to a gateway counts for nothing from a function.
    let call = json!({
        "caller": "caller.team", "instance": "i-1", "callee": "theirs", "how": "http", "depth": 1, "left_ms": 9000
    });
    let forged = json!({
        "x-rekindle-function-call": call.to_string(),
        "x-rekindle-depth": "0", "x-fn-caller": "somebody", "x-forwarded-for": "203.0.113.9", "x-rekindle-token": "x"
    });
    let done = step("caller", json!({"host": host, "headers": forged}));
    assert_eq!(
        (&done["body"]["whose"], &done["body"]["headers"]["x-fn-caller"]),
        (&json!("default"), &json!("caller")),
        "{done}"
    );
    assert_eq!(done["body"]["headers"]["x-forwarded-for"], "198.18.0.2");
    // Two hosts, absolute targets, a proxy's method, and HTTP/2 in three ways.
    for (raw, status) in [
        (format!("{get}Host: {host}\r\nHost: theirs.fn.internal\r\n\r\n"), "400"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (
            format!("GET http://theirs.team.fn.internal/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            "400",
        ),
        (
            format!("GET http://127.0.0.1:8080/v1/status HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            "400",
        ),
        (format!("CONNECT {host}:80 HTTP/1.1\r\nHost: {host}:80\r\n\r\n"), "400"),
        (
            format!("CONNECT 127.0.0.1:8080 HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            "400",
        ),
        (format!("OPTIONS * HTTP/1.1\r\nHost: {host}\r\n\r\n"), "400"),
        (format!("{get}Host: {host}:8080\r\nConnection: close\r\n\r\n"), "400"),
    ] {
        let raw = raw.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let done = step("caller", json!({"connect": host, "raw": raw}));
        let got = done["got"].as_str().unwrap_or_default();
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{raw:?}: {done}");
    }
    let upgrade = format!(
        "{get}Host: {host}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
         HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n\
         {get}Host: {host}\r\nConnection: close\r\n\r\n"
    );
    let done = step("caller", json!({"connect": host, "raw": upgrade}));
    let got = done["got"].as_str().unwrap();
    assert_eq!(
        got.matches("HTTP/1.1 200 ").count(),
        2,
        "both are plain requests: {done}"
    );
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    let done = step("caller", json!({"connect": host, "raw": preface}));
    let got = done["got"].as_str().unwrap_or_default();
    assert!(got.is_empty() || got.starts_with("HTTP/1.1 400"), "{done}");
}

#[test]
fn nothing_of_the_platforms_interface_is_there() {
    let key = platform().key();
    for path in [
        "/v1/status",
        "/v1/functions",
        "/v1/functions/stock/invocations",
        "/v1/namespaces/team/functions",
        "/metrics",
        "/healthz",
        "/function/stock",
        "/function/stock.team",
        "/async-function/stock.team",
        "/invoke/stock.team",
        "/invoke/..%2fv1%2fstatus",
    ] {
        // Even with the platform's key.
        let headers = json!({"authorization": format!("Bearer {key}")});
        let what = json!({"host": "fn.internal", "path": path, "method": "POST", "headers": headers});
        let done = step("caller", what);
        assert_eq!(
            (&done["status"], &done["body"]["code"]),
            (&json!(404), &json!("not_found")),
            "{path}: {done}"
        );
    }
    // Below a function's host they are its own paths, and hooks are nobody's.
    let done = step("caller", json!({"host": "stock.fn.internal", "path": "/v1/status"}));
    assert_eq!(done["body"]["path"], "/v1/status", "{done}");
    let done = step(
        "caller",
        json!({"host": "stock.fn.internal", "path": "/.rekindle/after-restore"}),
    );
    assert_eq!(done["status"], 404, "{done}");
    // By addresses nothing is reached: neither the router's, nor the gateway of the host.
    let done = step(
        "caller",
        json!({"host": "198.18.0.1", "connect": "198.18.0.1", "path": "/v1/status"}),
    );
    assert_eq!(done["status"], 404, "{done}");
    let ports = json!({"connect": "198.18.0.1", "host": "fn.internal:81", "path": "/"});
    assert_eq!(step("caller", ports)["status"], 400);
}

#[test]
fn a_function_with_a_key_says_whether_functions_need_it() {
    let platform = platform();
    let done = step("caller", json!({"host": "shut.fn.internal"}));
    assert_eq!(
        (&done["status"], &done["body"]["code"]),
        (&json!(401), &json!("unauthorized")),
        "{done}"
    );
    assert!(
        done["body"]["message"]
            .as_str()
            .unwrap()
            .contains("allow = [\"functions\"]"),
        "{done}"
    );
    let done = step("caller", json!({"host": "ajar.fn.internal"}));
    assert_eq!(done["status"], 200, "{done}");
    // From outside it needs the key, whoever the client says it is.
    let call = platform
        .request("GET", "/function/ajar/")
        .header("x-fn-caller", "caller");
    let forged = r#"{"caller":"caller","instance":"i-1","callee":"ajar","how":"http","depth":1,"left_ms":9000}"#;
    call.header("x-rekindle-function-call", forged)
        .send()
        .error(401, "unauthorized");
}

#[test]
fn a_loop_ends() {
    for path in ["/plain", "/traced"] {
        let answer = platform().get("loop", path).ok().json();
        // The client's own is no call.
        assert_eq!(answer, json!({"calls": 17, "end": [508, "call_too_deep"]}), "{path}");
    }
}

#[test]
fn events_are_sent_now_or_later() {
    let event = json!({"host": "fn.internal", "path": "/invoke/stock", "method": "POST", "body": "{\"n\": 1}"});
    let done = step("caller", event);
    assert_eq!(done["body"], json!({"whose": "default", "event": {"n": 1}}), "{done}");
    let later = json!({"host": "fn.internal", "path": "/invoke-async/stock", "method": "POST", "body": "{\"n\": 2}"});
    let done = step("caller", later);
    assert_eq!(done["status"], 202, "{done}");
    let id = done["body"]["id"].as_str().unwrap();
    let result = platform()
        .request("GET", &format!("/async-results/{id}?wait=20"))
        .send()
        .ok();
    assert_eq!(result.json()["event"], json!({"n": 2}));
}

#[test]
fn what_is_called_learns_how_long_its_caller_waits() {
    shared().deploy(&Folder::python("hasty", "timeout = \"3s\"", CALLER));
    let done = steps(platform(), "hasty", None, &[json!({"host": "stock.fn.internal"})]).remove(0);
    let left = done["body"]["left"].as_u64().unwrap();
    assert!(left <= 3_000, "not its own 30 s: {left} ms");
}

#[test]
fn runtimes_invoke_and_raise_what_fails() {
    let platform = platform();
    platform.deploy(&Folder::python(
        "thrower",
        "",
        "def handler(event, context):\n    raise KeyError('x')\n",
    ));
    platform.deploy(&Folder::python("in-python", "", PYTHON));
    let config = "name = \"in-node\"\nruntime = \"node\"\nentry = \"index.handler\"\n";
    platform.deploy(&Folder::with_config(config).file("index.js", NODE));
    for (function, starts) in [("in-python", &["restored", "warm"]), ("in-node", &["restored", "warm"])] {
        for start in starts {
            let reply = match *start {
                "warm" => platform.get(function, "/").ok(),
                start => platform.fresh(start, function, "/").ok(),
            };
            let mut said = reply.json();
            let later = said.as_object_mut().unwrap().remove("later").unwrap();
            assert_eq!(
                said,
                json!({
                    "import": "import", "hook": "after", "result": {"n": [1, null, "ü"]},
                    "errors": [[404, "function_not_found"], [502, "function_error"], [401, "unauthorized"], "name"],
                }),
                "{function} {start}"
            );
            let path = format!("/async-results/{}?wait=20", later.as_str().unwrap());
            assert_eq!(
                platform.request("GET", &path).send().ok().json()["event"],
                json!({"n": 2})
            );
        }
    }
}
