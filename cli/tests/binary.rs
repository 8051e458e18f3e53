//! The built `fn` as a user meets it: exit codes, messages, and the proof of CRIU with a real one and with fakes.
#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

const PRIVATE_CRIU: &str = "/usr/local/lib/rekindle/criu/criu";

/// Runs `fn` away from any platform and key of this machine.
fn rekindle(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fn"))
        .args(words)
        .current_dir(dir)
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", dir)
        .env("TMPDIR", dir)
        .env("FN_DATA", dir.join("data"))
        .env("FN_CACHE", dir.join("cache"))
        .env("FN_RUN", dir.join("run"))
        // Port 9 is discard's: nobody answers there.
        .env("FN_URL", "http://127.0.0.1:9")
        .output()
        .unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_wrong_command_line_ends_with_two() {
    let dir = tempfile::tempdir().unwrap();
    for words in [
        &["nonsense"][..],
        &["invoke", "Not_A_Name"],
        &["init", "--runtime", "cobol"],
    ] {
        assert_eq!(rekindle(dir.path(), words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn an_unknown_command_suggests_none_that_is_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let said = |word: &str| err(&rekindle(dir.path(), &[word]));
    assert!(said("deplyo").contains("'deploy'"), "{}", said("deplyo"));
    for (word, hidden) in [("dem", "demo"), ("doctor-tar", "doctor-target")] {
        let said = said(word);
        assert!(said.contains("unrecognized") && !said.contains(hidden), "{said}");
    }
}

#[test]
fn settings_come_from_a_file_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rekindle.toml");
    fs::write(&file, "s3-bucket = \"all\"\n\n[worker]\nmemory = \"1GiB\"\n").unwrap();
    let file = file.to_str().unwrap();
    let shown = rekindle(
        dir.path(),
        &["config", "worker", "--changed", "--json", "--config", file],
    );
    assert!(shown.status.success(), "{}", err(&shown));
    let options: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let of = |name: &str| {
        let found = options.as_array().unwrap().iter().find(|o| o["option"] == name);
        found.map(|o| (o["value"].as_str().unwrap(), o["from"].as_str().unwrap()))
    };
    assert_eq!(of("memory"), Some(("1GiB", format!("{file} [worker]").as_str())));
    assert_eq!(of("s3-bucket"), Some(("all", file)));
    assert_eq!(of("cache").unwrap().1, "$FN_CACHE");

    fs::write(file, "[worker]\nmemory = \"much\"\n").unwrap();
    for words in [
        &["config", "worker", "--config", file][..],
        &["worker", "--config", file],
    ] {
        let refused = rekindle(dir.path(), words);
        let said = err(&refused);
        assert!(
            !refused.status.success() && said.contains("--memory"),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn without_a_platform_every_client_command_says_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    for words in [
        &["list"][..],
        &["status"],
        &["invoke", "a"],
        &["logs", "a"],
        &["delete", "a", "--yes"],
    ] {
        let output = rekindle(dir.path(), words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(
            err(&output).contains("start the platform with `fn up`"),
            "{}",
            err(&output)
        );
    }
}

#[test]
fn a_config_that_is_wrong_costs_no_upload() {
    let dir = tempfile::tempdir().unwrap();
    assert!(rekindle(dir.path(), &["init", "greet"]).status.success());
    let config = dir.path().join("greet/fn.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("colour = \"red\"\n{text}")).unwrap();
    let output = rekindle(dir.path(), &["deploy", "greet"]);
    assert_eq!(output.status.code(), Some(1));
    let told = err(&output);
    assert!(told.contains("error[invalid_config]:"), "{told}");
    assert!(told.contains("fn.toml, line 1:") && told.contains("colour"), "{told}");
    assert!(told.contains("see docs/reference/errors/invalid_config.md"), "{told}");
}

#[test]
fn what_is_not_running_is_down_already() {
    let dir = tempfile::tempdir().unwrap();
    let output = rekindle(dir.path(), &["down"]);
    assert!(output.status.success());
    assert_eq!(out(&output), "rekindle was not running\n");
}

#[test]
fn help_shows_examples_and_hides_what_is_not_for_users() {
    let dir = tempfile::tempdir().unwrap();
    let help = out(&rekindle(dir.path(), &["--help"]));
    assert!(help.contains("Examples:") && help.contains("fn deploy greet"), "{help}");
    assert!(!help.contains("doctor-target"), "{help}");
}

/// What `fn doctor --criu-only --json` says of each ability.
fn proof(dir: &Path, criu: &str) -> (bool, Vec<(String, bool, String)>) {
    let output = rekindle(dir, &["doctor", "--criu-only", "--json", "--criu", criu]);
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |c: &serde_json::Value| {
        let text = |key: &str| c[key].as_str().unwrap().to_owned();
        (text("ability"), c["ok"].as_bool().unwrap(), text("found"))
    };
    (
        output.status.success(),
        checks.as_array().unwrap().iter().map(row).collect(),
    )
}

/// A program that calls itself a CRIU.
fn fake(dir: &Path, name: &str, body: &str) -> String {
    let path = dir.join(name);
    let script = format!("#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'Version: 9.9'; exit 0; }}\n{body}\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn a_criu_that_only_claims_to_checkpoint_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    for (name, body, told) in [
        ("refuses", "echo no such kernel >&2; exit 1", "no such kernel"),
        ("does-nothing", "exit 0", "went on running"),
    ] {
        let (good, checks) = proof(dir.path(), &fake(dir.path(), name, body));
        assert!(!good, "{name} passed: {checks:?}");
        let (ability, ok, found) = checks.last().unwrap();
        assert_eq!((ability.as_str(), *ok), ("checkpoint", false));
        assert!(found.contains(told), "{found}");
    }
}

#[test]
fn a_criu_that_dumps_but_does_not_restore_is_found_out() {
    let Some(criu) = real_criu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let body = format!("[ \"$1\" = dump ] && exec {criu} \"$@\"\nexit 0");
    let (good, checks) = proof(dir.path(), &fake(dir.path(), "half", &body));
    assert!(!good);
    let by_name = |name: &str| checks.iter().find(|c| c.0 == name).unwrap().1;
    assert!(by_name("checkpoint"));
    assert!(!by_name("eager restore"));
    assert!(!by_name("lazy restore"));
    assert_eq!(left_behind(dir.path()), Vec::<String>::new());
}

#[test]
fn the_installed_criu_restores_eagerly_and_through_the_pager() {
    let Some(criu) = real_criu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (good, checks) = proof(dir.path(), &criu);
    assert!(good, "{checks:?}");
    let abilities: Vec<&str> = checks.iter().map(|c| c.0.as_str()).collect();
    assert_eq!(abilities, ["CRIU", "checkpoint", "eager restore", "lazy restore"]);
    // 16 MiB of which every eighth page is zero, and what else the process has.
    let told = &checks.last().unwrap().2;
    let pages = told.split("; ").nth(1).and_then(|t| t.split(' ').next()).unwrap();
    assert!(pages.parse::<u64>().unwrap() >= 4096 / 8 * 7, "{told}");
    assert_eq!(left_behind(dir.path()), Vec::<String>::new());
}

/// Proves a CRIU that does `lazily` instead of a lazy restore, and everything else as the real one does. The lazy
/// restore must be what fails; what is said of it.
fn lazy_failure(criu: &str, name: &str, lazily: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let body = format!("case \" $* \" in *\" --lazy-pages \"*) {lazily};; esac\nexec {criu} \"$@\"");
    let (good, checks) = proof(dir.path(), &fake(dir.path(), name, &body));
    assert!(!good, "{name} passed: {checks:?}");
    let verdicts: Vec<_> = checks.iter().map(|(ability, ok, _)| (ability.as_str(), *ok)).collect();
    let expected = [
        ("CRIU", true),
        ("checkpoint", true),
        ("eager restore", true),
        ("lazy restore", false),
    ];
    assert_eq!(verdicts, expected, "{checks:?}");
    assert_eq!(left_behind(dir.path()), Vec::<String>::new());
    checks.last().unwrap().2.clone()
}

#[test]
fn a_pager_that_gives_wrong_bytes_is_found_out() {
    let Some(criu) = real_criu() else { return };
    let dir = tempfile::tempdir().unwrap();
    // After the eager restore, a byte in the middle of the pages image that the pager reads is another.
    let body = format!(
        "{criu} \"$@\" || exit\n[ \"$1\" = restore ] || exit 0\n\
         printf X | dd of=\"$3/pages-1.img\" bs=1 seek=8000000 conv=notrunc status=none"
    );
    let (good, checks) = proof(dir.path(), &fake(dir.path(), "flips", &body));
    assert!(!good, "{checks:?}");
    let (ability, ok, found) = checks.last().unwrap();
    assert_eq!((ability.as_str(), *ok), ("lazy restore", false), "{checks:?}");
    assert!(found.contains("the restored process has other memory"), "{found}");
    assert!(checks[2].1, "the eager restore came before: {checks:?}");
    assert_eq!(left_behind(dir.path()), Vec::<String>::new());
}

#[test]
fn memory_that_did_not_come_through_the_pager_is_found_out() {
    let Some(criu) = real_criu() else { return };
    // It answers as it should, from the whole images: only the pager can tell.
    let alone = format!(
        "dir=${{3%/eager-images}}; exec {criu} restore --images-dir \"$dir/images\" --work-dir \"$dir\" \
         --network-lock=skip --manage-cgroups=ignore --restore-detached"
    );
    let told = lazy_failure(&criu, "alone", &alone);
    assert!(
        told.contains("only 0 of at least 3584 pages came through the pager"),
        "{told}"
    );
}

#[test]
fn a_criu_that_takes_no_lazy_pages_is_found_out_with_its_own_words() {
    let Some(criu) = real_criu() else { return };
    let told = lazy_failure(&criu, "cannot", "echo lazy-pages not supported >&2; exit 1");
    assert!(told.contains("through the pager came 0 pages"), "{told}");
    assert!(told.contains("lazy-pages not supported"), "{told}");
}

/// Processes whose command line names the test's directory.
fn left_behind(dir: &Path) -> Vec<String> {
    let own = dir.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|p| fs::read(p.path().join("cmdline")).ok());
    lines
        .map(|l| String::from_utf8_lossy(&l).replace('\0', " "))
        .filter(|l| l.contains(&own))
        .collect()
}

/// The CRIU that set-up installed. Without it the test is skipped, aloud; in CI that is a failure.
fn real_criu() -> Option<String> {
    let root = nix::unistd::geteuid().is_root();
    if root && Path::new(PRIVATE_CRIU).exists() {
        return Some(PRIVATE_CRIU.to_owned());
    }
    let reason = if root {
        "no CRIU at its place: run scripts/setup.sh host"
    } else {
        "not root"
    };
    assert!(std::env::var_os("REKINDLE_REQUIRE_ALL").is_none(), "skipped: {reason}");
    eprintln!("skipped: {reason}");
    None
}
