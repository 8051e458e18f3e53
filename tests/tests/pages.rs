//! What README and tutorial tell a new user to type works as it is written there, line by line, in one shell.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;
use std::process::Command;

use rekindle_e2e::{binaries, shared};

/// What the pages call the platform.
const THERE: &str = "127.0.0.1:8080";
/// Lines that follow something until they are interrupted, and how long they are let do so.
const FOLLOW: [&str; 2] = ["fn top", " -f"];
const FOLLOW_SECONDS: u8 = 2;
/// Lines that the platform of a test has behind it.
const DONE: [&str; 2] = ["make ", "export PATH="];

/// The script that a reader of a page types: its shell lines, and its files where it says which to replace.
fn script_of(page: &str, until: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page)).unwrap();
    let told = text
        .split_once(until)
        .unwrap_or_else(|| panic!("{page} has no {until}"))
        .0;
    let mut script = String::from("set -euxo pipefail\n");
    let (mut block, mut replaced) = (None, None);
    for line in told.lines() {
        match (block, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                block = Some(kind);
                if let ("python" | "js", Some(file)) = (kind, &replaced) {
                    script += &format!("cat > {file} <<'END OF FILE'\n");
                }
            }
            (Some("python" | "js"), Some(_)) if replaced.take().is_some() => {
                script += "END OF FILE\n";
                block = None;
            }
            (Some(_), Some(_)) => block = None,
            (Some("sh"), None) => script += &typed(line),
            (Some("python" | "js"), None) if replaced.is_some() => script += &format!("{line}\n"),
            (Some(_), None) => {}
            (None, None) => {
                if let Some(file) = line.strip_prefix("Replace `") {
                    replaced = Some(file.split('`').next().unwrap().to_owned());
                }
            }
        }
    }
    script
}

fn typed(line: &str) -> String {
    let command = line.split(" #").next().unwrap().trim();
    if command.is_empty() || DONE.iter().any(|done| command.starts_with(done)) {
        return String::new();
    }
    if FOLLOW.iter().any(|end| command.ends_with(end)) {
        // 124: it was interrupted. `script` has a terminal for it.
        return format!("timeout -s INT {FOLLOW_SECONDS} script -qec '{command}' /dev/null || [ $? = 124 ]\n");
    }
    format!("{command} < /dev/null\n")
}

/// Runs a page's script as a new user, and returns what it printed.
#[track_caller]
fn run(page: &str, until: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let url = shared().url();
    let script = script_of(page, until).replace(THERE, url.strip_prefix("http://").unwrap());
    let path = format!("{}:{}", binaries::directory().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(home.path());
    shell.envs([("FN_URL", &url), ("FN_KEY", &shared().key()), ("PATH", &path)]);
    shell.env("HOME", home.path());
    let output = shell.output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b).into_owned());
    assert!(
        output.status.success(),
        "{page}: {}\n{out}\n{err}\n{script}",
        output.status
    );
    out
}

#[test]
fn what_readme_and_tutorial_tell_to_type_works() {
    let out = run("README.md", "## How fast");
    assert!(out.contains("greet"), "{out}");
    let out = run("docs/tutorial/first-functions.md", "## Add a second worker");
    assert!(out.contains(r#""visits":2"#) && out.contains("Ada"), "{out}");
}
