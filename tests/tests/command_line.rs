//! `fn` against a platform: what it prints for programs, and what it says when there is nothing to do or to show.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::Output;

use rekindle_e2e::{Folder, shared};
use serde_json::Value;

const QUIET: &str = "import base64\n\ndef handler(event, context):\n    path = event.get('rawPath')\n    \
    if path == '/raise':\n        raise ValueError('no')\n    \
    if path == '/bytes':\n        return {'statusCode': 201, 'headers': {'content-type': 'image/png'}, \
    'isBase64Encoded': True, 'body': base64.b64encode(b'\\xff\\x00').decode()}\n    \
    return {'statusCode': 200, 'headers': {'content-type': 'text/plain'}, 'body': 'well'}\n";

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What `fn invoke --json` printed, and whether it ended well. It prints nothing else.
fn invoked(arguments: &[&str]) -> (Value, bool) {
    let output = shared().cli(&[&["invoke", "--json"], arguments].concat());
    assert_eq!(err(&output), "");
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.success())
}

#[test]
fn an_invocation_is_told_as_one_json_object() {
    shared().deploy(&Folder::python("told", "", QUIET));
    let (told, well) = invoked(&["told", "--start", "restored"]);
    assert!(well);
    assert_eq!(
        (&told["status"], &told["body"]),
        (&200.into(), &"well".into()),
        "{told}"
    );
    assert_eq!(
        (&told["start"], &told["headers"]["content-type"]),
        (&"restored".into(), &"text/plain".into())
    );
    assert_eq!(told["request_id"], told["headers"]["x-request-id"]);
    let phases = ["restore", "function"].map(|p| told["timing"][p].as_f64().unwrap());
    assert!(
        phases[0] > 0.0 && told["ms"].as_f64().unwrap() > phases[0] + phases[1],
        "{told}"
    );
    let (again, _) = invoked(&["told"]);
    assert_eq!(again["start"], "warm");

    let (bytes, well) = invoked(&["told", "--path", "/bytes"]);
    assert!(well);
    assert_eq!(
        (&bytes["status"], &bytes["body_base64"]),
        (&201.into(), &"/wA=".into()),
        "{bytes}"
    );
    assert_eq!(bytes.get("body"), None);
    for (arguments, code) in [
        (&["told", "--path", "/raise"][..], "function_error"),
        (&["nosuch"], "function_not_found"),
    ] {
        let (error, well) = invoked(arguments);
        assert!(!well, "{error}");
        assert_eq!(error["error"]["code"], code, "{error}");
        assert_eq!(error["error"]["request_id"], error["request_id"], "{error}");
    }
}

#[test]
fn a_folder_that_has_not_changed_makes_no_new_version() {
    let folder = Folder::python("steady", "", QUIET);
    let path = folder.path().to_str().unwrap();
    let first = shared().deploy(&folder);
    let again = shared().cli(&["deploy", path]);
    assert!(again.status.success(), "{}", err(&again));
    assert_eq!(
        out(&again),
        "steady is unchanged: version 1 is live; --force makes a new one all the same\n"
    );
    assert_eq!(shared().deploy(&folder), first, "as JSON it is the version that stays");
    let forced = shared().cli(&["deploy", path, "--force", "--json"]);
    let forced: Value = serde_json::from_slice(&forced.stdout).unwrap();
    assert_eq!(forced["version"], 2, "{forced}");
    let changed = shared().deploy(&folder.file("main.py", &format!("{QUIET}# changed\n")));
    assert_eq!(changed.version.0, 3);
}

#[test]
fn all_functions_below_a_folder_are_deployed_and_one_that_fails_fails_alone() {
    let top = tempfile::tempdir().unwrap();
    for (name, code) in [
        ("all-a", QUIET),
        ("all-b", "raise RuntimeError('no')\n"),
        ("all-c", QUIET),
    ] {
        let function = Folder::python(name, "snapshot = false", code);
        let folder = top.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        for file in ["fn.toml", "main.py"] {
            std::fs::copy(function.path().join(file), folder.join(file)).unwrap();
        }
    }
    let told = shared().cli(&["deploy", "--all", top.path().to_str().unwrap()]);
    assert_eq!(told.status.code(), Some(1), "{}", err(&told));
    let table = out(&told);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    let expected = [
        ["FUNCTION", "VERSION", "STATE"],
        ["all-a", "1", "live"],
        ["all-b", "-", "failed"],
        ["all-c", "1", "live"],
    ];
    assert_eq!(rows, expected, "{table}");
    assert!(err(&told).contains("error[boot_failed]"), "{}", err(&told));
    for name in ["all-a", "all-c"] {
        assert_eq!(shared().get(name, "/").ok().text(), "well");
    }
}

#[test]
fn a_function_that_has_written_nothing_is_said_to() {
    shared().deploy(&Folder::python("silent", "snapshot = false", QUIET));
    let logs = shared().cli(&["logs", "silent", "--tail", "5"]);
    assert!(logs.status.success());
    assert_eq!(out(&logs), "");
    assert!(err(&logs).starts_with("silent has written nothing"), "{}", err(&logs));
}

#[test]
fn deleting_what_is_not_there_says_so_and_asks_nobody() {
    for arguments in [&["delete", "nosuch"][..], &["delete", "nosuch", "--yes"]] {
        let output = shared().cli(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            err(&output).starts_with("error[function_not_found]:"),
            "{}",
            err(&output)
        );
    }
    shared().deploy(&Folder::python("kept", "", QUIET));
    let output = shared().cli(&["delete", "kept"]);
    assert!(err(&output).contains("say --yes"), "{}", err(&output));
    assert_eq!(shared().get("kept", "/").ok().text(), "well");
}

#[test]
fn an_unknown_namespace_is_told_of_with_how_to_make_it() {
    for arguments in [
        &["-n", "team", "list"][..],
        &["invoke", "told", "-n", "team"],
        &["logs", "told.team"],
        &["delete", "told", "--yes", "--namespace", "team"],
    ] {
        let refused = shared().cli(arguments);
        assert!(!refused.status.success(), "{arguments:?}");
        let told = err(&refused);
        assert!(
            told.contains("no namespace \"team\": `fn namespace list` shows"),
            "{arguments:?}: {told}"
        );
    }
    let listed = shared().cli(&["list", "-n", "default", "--json"]);
    assert!(listed.status.success(), "{}", err(&listed));
}

#[test]
fn a_function_that_does_not_boot_is_told_of_in_words() {
    for (name, code, told) in [
        (
            "exits",
            "raise SystemExit(3)",
            "the function's process exited with code 1 before it served HTTP",
        ),
        (
            "dies",
            "import os\nos.kill(os.getpid(), 9)",
            "the function's process was killed by signal 9 (SIGKILL) before it served HTTP",
        ),
    ] {
        let message = shared().try_deploy(&Folder::python(name, "", code)).unwrap_err();
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn who_may_read_a_function_may_look_at_its_instances_and_at_no_other() {
    for name in ["looked-at", "not-looked-at"] {
        shared().deploy(&Folder::python(name, "", QUIET));
        shared().get(name, "/").ok();
    }
    let key = |function: &str| {
        let made = shared().cli(&["key", "create", "--role", "reader", "--function", function]);
        assert!(made.status.success(), "{}", err(&made));
        out(&made).trim_end().to_owned()
    };
    let asked = |key: &str| shared().cli(&["--key", key, "doctor", "--function", "looked-at", "--json"]);
    let told = asked(&key("looked-at"));
    assert!(told.status.success(), "{}", err(&told));
    // The platform's connection to it, which is kept for the next request, is none of its own.
    let told = out(&told);
    assert!(
        told.contains("a listening socket at") && !told.contains("a connection from"),
        "{told}"
    );
    let refused = asked(&key("not-looked-at"));
    assert!(err(&refused).starts_with("error[forbidden]:"), "{}", err(&refused));
    let other = shared().instances_of("not-looked-at").remove(0).id;
    let path = |id| format!("/v1/functions/looked-at/instances/{id}/objects");
    shared().admin("GET", &path(other)).send().error(404, "not_found");
}

#[test]
fn a_key_is_shown_once_listed_and_refused_when_it_is_revoked() {
    let made = shared().cli(&["key", "create", "ci", "--role", "reader", "--expires", "90d"]);
    assert!(made.status.success(), "{}", err(&made));
    let key = out(&made);
    let (key, told) = (key.trim_end(), err(&made));
    assert!(
        key.starts_with("fnk_") && !key.contains(char::is_whitespace),
        "the key alone"
    );
    assert!(
        told.contains("reader for the namespace default, until") && !told.contains(key),
        "{told}"
    );
    let id = told.split(':').next().unwrap();
    let row = || {
        let listed = out(&shared().cli(&["key", "list"]));
        assert!(!listed.contains(key));
        listed
            .lines()
            .find(|line| line.trim_start().starts_with(id))
            .map(str::to_owned)
    };
    let words = row().unwrap();
    assert!(
        words.contains(" ci ") && words.contains(" reader ") && words.contains("*.default"),
        "{words}"
    );
    let with = |arguments: &[&str]| shared().cli(&[&["--key", key], arguments].concat());
    assert!(with(&["list", "--json"]).status.success());
    let refused = with(&["key", "create", "--role", "reader"]);
    assert!(err(&refused).starts_with("error[forbidden]:"), "{}", err(&refused));
    let revoked = shared().cli(&["key", "revoke", id]);
    assert!(
        out(&revoked).starts_with(&format!("{id} is revoked\n")),
        "{}",
        out(&revoked)
    );
    assert_eq!(row(), None);
    assert!(err(&with(&["list"])).starts_with("error[unauthorized]:"));
    let again = shared().cli(&["key", "revoke", id]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err(&again).starts_with("error[not_found]:"), "{}", err(&again));
    // A role that there is not.
    assert_eq!(
        shared().cli(&["key", "create", "--role", "root"]).status.code(),
        Some(2)
    );
}

#[test]
fn the_audit_log_is_shown_exported_and_found_altered() {
    for arguments in [&["namespace", "create", "audited"][..], &["namespace", "rm", "audited"]] {
        assert!(shared().cli(arguments).status.success());
    }
    let shown = out(&shared().cli(&["audit", "--since", "1h"]));
    for action in ["create_namespace", "remove_namespace"] {
        let line = shown
            .lines()
            .find(|line| line.contains(action) && line.contains("audited"))
            .unwrap_or_else(|| panic!("{action}: {shown}"));
        let words: Vec<_> = line.split("  ").skip(1).collect();
        assert_eq!(words, ["admin", action, "*", "audited", "ok"], "{line}");
    }
    let verified = shared().cli(&["audit", "verify"]);
    assert!(verified.status.success(), "{}", err(&verified));
    let head = out(&verified)
        .lines()
        .find_map(|line| line.trim().strip_prefix("last  ").map(str::to_owned));
    let exported = out(&shared().cli(&["audit", "--export", "jsonl"]));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let check = |content: &str, more: &[&str]| {
        std::fs::write(&file, content).unwrap();
        shared().cli(&[&["audit", "verify", "--file", file.to_str().unwrap()], more].concat())
    };
    let whole = check(&exported, &["--head", &head.unwrap()]);
    assert!(whole.status.success(), "{}", err(&whole));
    let altered = check(&exported.replacen("\"admin\"", "\"nobody\"", 1), &[]);
    assert_eq!(altered.status.code(), Some(1));
    assert!(
        err(&altered).contains("the log was altered: entry"),
        "{}",
        err(&altered)
    );
    let (first, rest) = exported.split_once('\n').unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    let lacks = check(&format!("{first}\n{rest}"), &[]);
    assert!(err(&lacks).contains("follows entry"), "{}", err(&lacks));
}

#[test]
fn a_quota_is_set_shown_and_cleared_and_usage_is_told_for_programs() {
    assert!(shared().cli(&["namespace", "create", "limited"]).status.success());
    let set = shared().cli(&["quota", "set", "limited", "--memory", "1GiB", "--rate", "50"]);
    assert!(set.status.success(), "{}", err(&set));
    let told = out(&set);
    assert!(told.starts_with("limited: its own limits\n"), "{told}");
    let row = |told: &str, kind: &str| {
        let line = told.lines().find(|line| line.trim_start().starts_with(kind)).unwrap();
        line.split_whitespace().take(4).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row(&told, "memory"), ["memory", "1.0", "GiB", "0"]);
    let set = out(&shared().cli(&["quota", "set", "limited", "--rate", "none", "--builds", "2"]));
    assert_eq!(row(&set, "rate")[..2], ["rate", "none"]);
    assert_eq!(row(&set, "memory")[1], "1.0", "what is not named stays");
    let nothing = shared().cli(&["quota", "set", "limited"]);
    assert!(err(&nothing).contains("no limit is named"), "{}", err(&nothing));
    let cleared = out(&shared().cli(&["quota", "clear", "limited"]));
    assert!(cleared.starts_with("limited: no limits\n"), "{cleared}");

    shared().deploy(&Folder::python("used", "", QUIET));
    shared().get("used", "/").ok();
    let line = rekindle_e2e::until("usage is reported", std::time::Duration::from_secs(20), || {
        let csv = out(&shared().cli(&["usage", "used", "--since", "1d", "--csv"]));
        let (head, line) = csv.split_once('\n')?;
        assert!(head.starts_with("day,function,version,ok,errors,gb_ms_warm"), "{head}");
        line.lines().next().map(str::to_owned)
    });
    let fields: Vec<_> = line.split(',').collect();
    assert_eq!((fields[1], fields[3], fields[4]), ("used", "1", "0"), "{line}");
    let table = out(&shared().cli(&["usage", "used"]));
    assert!(
        table.trim_start().starts_with("DAY") && table.contains("used"),
        "{table}"
    );
}
