//! Somebody who has become root in a sandbox, by a defect of CRIU or of the kernel, reaches nothing of the host and
//! nothing of another sandbox. The program is given that: `nsenter` puts it into every namespace of a running
//! instance, as root there with all capabilities.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rekindle_e2e::collector::hex;
use rekindle_e2e::{Folder, Platform, host, shared};
use serde_json::{Value, json};

const SECRET: &str = "what only the other may know";
/// Leaves what another sandbox might find.
const KEEPER: &str = "import socket
open('/tmp/secret', 'w').write('what only the other may know')
listener = socket.create_server(('0.0.0.0', 9123))

def handler(event, context):
    return 1
";
const PLAIN: &str = "def handler(event, context):\n    return 1\n";

/// The init of an instance, an id of the host.
fn init_of(platform: &Platform, instance: &str) -> i32 {
    let processes = host::processes(platform, instance);
    let status = fs::read_to_string(format!("/proc/{}/status", processes[&501])).unwrap();
    let parent = status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap();
    parent.trim().parse().unwrap()
}

/// What the host's kernel is set to, but for what goes by itself.
fn settings() -> BTreeMap<String, String> {
    fn look(directory: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let moves = ["random", "ns_last_pid", "pty", "-state", "-nr", "nr_", "neigh", "quota"];
            if moves
                .iter()
                .any(|part| entry.file_name().to_string_lossy().contains(part))
            {
                continue;
            }
            match path.is_dir() {
                true => look(&path, found),
                // Those of the network are its namespace's.
                false if path.starts_with("/proc/sys/net") => {}
                false => drop(found.insert(
                    path.display().to_string(),
                    fs::read_to_string(&path).unwrap_or_default(),
                )),
            }
        }
    }
    let mut found = BTreeMap::new();
    look(Path::new("/proc/sys"), &mut found);
    assert!(found.len() > 100, "{}", found.len());
    found
}

/// Runs the hostile program in the sandbox of `init`. What it got, by attempt.
fn attack(init: i32, told: &Value) -> Vec<Value> {
    let program = include_str!("root_inside.py");
    let child = Command::new("timeout")
        .args(["120", "nsenter", "--target", &init.to_string()])
        .args(["--user", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"])
        .args(["/usr/bin/python3", "-c", program, &told.to_string()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = (child.stdout, String::from_utf8_lossy(&child.stderr).into_owned());
    serde_json::from_slice(&out).unwrap_or_else(|e| panic!("{e}: {}\n{err}", String::from_utf8_lossy(&out)))
}

#[test]
fn root_of_a_sandbox_reaches_nothing_of_the_host_and_of_no_other() {
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    // Anybody on the host may read it.
    let hosts = tempfile::Builder::new()
        .prefix("host-secret")
        .tempdir_in("/tmp")
        .unwrap();
    fs::set_permissions(hosts.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let marker = hosts.path().join("marker");
    fs::write(&marker, "the host's secret").unwrap();
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let disk = fs::metadata("/").unwrap().dev();

    let platform = shared();
    for network in ["egress", "none"] {
        let [keeper, rooted] = ["keeper", "rooted"].map(|name| format!("{name}-{network}"));
        let settings_of = format!("network = \"{network}\"");
        platform.deploy(&Folder::python(&keeper, &settings_of, KEEPER));
        platform.deploy(&Folder::python(&rooted, &settings_of, PLAIN));
        for start in ["booted", "restored"] {
            let other = platform.fresh(start, &keeper, "/").ok();
            let answer = platform.fresh(start, &rooted, "/").ok();
            let (keeper_init, init) = (
                init_of(platform, other.instance()),
                init_of(platform, answer.instance()),
            );
            for filtered in [false, true] {
                let filter = filtered.then(|| hex(&rekindle_init::seccomp::program()));
                let told = json!({
                    "filter": filter,
                    "marker": marker,
                    "disk": [libc::major(disk), libc::minor(disk)],
                    "stranger": stranger.id(),
                    "ports": [platform.port(), listener.local_addr().unwrap().port()],
                    "addresses": addresses(keeper_init),
                });
                let before = settings();
                let attempts = attack(init, &told);
                let what = format!("{network}, {start}, filtered: {filtered}");
                assert!(attempts.len() > 60, "{what}: {}", attempts.len());
                let got: Vec<_> = attempts.iter().filter(|a| a["outcome"] != "refused").collect();
                assert!(got.is_empty(), "{what}: {got:#?}");
                assert!(!attempts.iter().any(|a| a.to_string().contains(SECRET)), "{what}");
                let after = settings();
                let changed: Vec<_> = before
                    .iter()
                    .filter(|(name, value)| after.get(*name) != Some(value))
                    .collect();
                assert!(changed.is_empty(), "{what}: {changed:?}");
                assert!(
                    host::runs(stranger.id().cast_signed()) && host::runs(keeper_init),
                    "{what}"
                );
            }
            // The other is its usual self.
            platform.get(&keeper, "/").ok();
        }
    }
    assert_eq!(fs::read_dir(hosts.path()).unwrap().count(), 1, "it wrote on the host");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// The addresses of a sandbox, and of the host.
fn addresses(init: i32) -> Vec<String> {
    let list = |namespace: &[&str]| {
        let mut command = Command::new("nsenter");
        command
            .args(namespace)
            .args(["ip", "-o", "-4", "address", "show", "scope", "global"]);
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let address = |line: &str| Some(line.split_whitespace().nth(3)?.split('/').next()?.to_owned());
        text.lines().filter_map(address).collect::<Vec<_>>()
    };
    let network = format!("--net=/proc/{init}/ns/net");
    list(&[&network])
        .into_iter()
        .chain(list(&["--net=/proc/self/ns/net"]))
        .collect()
}
