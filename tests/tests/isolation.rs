//! A function that tries to get out cannot: not to the host, not to another function, booted or restored.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rekindle_e2e::restorer::by_program;
use rekindle_e2e::{Folder, host, shared};

#[test]
fn every_attempt_of_the_hostile_function_is_refused() {
    // With a way out it sees its own link, and packets leave for the world: `network.rs` tries where to. All else
    // holds.
    for (network, granted) in [("none", &[][..]), ("egress", &["see-interfaces", "connect-outside"])] {
        let name = format!("hostile-{network}");
        let folder = Folder::sample("hostile-python", |config| {
            config
                .replace("name = \"hostile\"", &format!("name = \"{name}\""))
                .replace("network = \"none\"", &format!("network = \"{network}\""))
        });
        by_program(shared().deploy(&folder));
        for start in ["booted", "restored"] {
            let answer = shared().fresh(start, &name, "/all").ok();
            assert_eq!(answer.start(), start);
            let attempts = answer.json();
            let attempts = attempts.as_array().unwrap();
            assert!(attempts.len() > 80, "{}", attempts.len());
            let allowed = attempts.iter().filter(|a| a["outcome"] != "refused");
            let beyond: Vec<_> = allowed
                .filter(|a| !granted.contains(&a["attempt"].as_str().unwrap()))
                .collect();
            assert!(beyond.is_empty(), "{network}, {start}: {beyond:#?}");
        }
        // Still its usual self afterwards.
        shared().get(&name, "/").ok();
    }
}

/// Leaves what another function might find.
const KEEPER: &str = r#"
import os, socket, threading
SECRET = "the-keeper-s-secret-" + "x" * 20
for path in ("/tmp/secret", "/dev/shm/secret"):
    open(path, "w").write(SECRET)
    os.chmod(path, 0o777)
quiet = socket.socket(socket.AF_UNIX)
quiet.bind("\0keeper")
quiet.listen()
loud = socket.socket()
loud.bind(("127.0.0.1", 9123))
loud.listen()

def handler(event, context):
    return {"secret": SECRET, "uid": os.getuid(), "pid": os.getpid(), "host": socket.gethostname()}
"#;

/// Looks for it, and for what is the host's.
const SEEKER: &str = r#"
import glob, os, socket

def connects(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(address) == 0

def handler(event, context):
    gateway, outside = (int(part) for part in event["rawPath"].split("/")[1:3])
    texts = {}
    for path in glob.glob("/tmp/**", recursive=True) + glob.glob("/dev/shm/*") + glob.glob("/app/**", recursive=True):
        if os.path.isfile(path):
            texts[path] = open(path, errors="replace").read()
    commands = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            commands[pid] = open(f"/proc/{pid}/cmdline").read().replace("\0", " ").strip()
            commands[pid] += open(f"/proc/{pid}/environ", errors="replace").read()
        except OSError as error:
            commands[pid] = str(error)
    kills = []
    for pid in range(2, 3000):
        if not os.path.exists(f"/proc/self/task/{pid}") and str(pid) not in commands:
            try:
                os.kill(pid, 0)
                kills.append(pid)
            except OSError:
                pass
    return {"files": texts, "commands": commands, "kills": kills, "uid": os.getuid(), "host": socket.gethostname(),
            "abstract": connects(socket.AF_UNIX, "\0keeper"), "loopback": connects(socket.AF_INET, ("127.0.0.1", 9123)),
            "gateway": connects(socket.AF_INET, ("127.0.0.1", gateway)),
            "outside": connects(socket.AF_INET, ("127.0.0.1", outside)),
            "addresses": open("/proc/net/fib_trie").read(), "root": sorted(os.listdir("/"))}
"#;

#[test]
fn a_function_sees_nothing_of_another_or_of_the_host() {
    let marker = "a-process-of-the-host";
    let mut stranger = Command::new("sleep").arg0(marker).arg("600").spawn().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let outside = listener.local_addr().unwrap().port();
    let host_file = tempfile::Builder::new().prefix("host-secret").tempfile().unwrap();
    fs::write(host_file.path(), "the host's secret").unwrap();

    shared().deploy(&Folder::python("keeper", "", KEEPER));
    shared().deploy(&Folder::python("seeker", "", SEEKER));
    for start in ["booted", "restored"] {
        let keeper = shared().fresh(start, "keeper", "/").ok();
        let secret = keeper.json()["secret"].as_str().unwrap().to_owned();
        let path = format!("/{}/{outside}", shared().port());
        let answer = shared().fresh(start, "seeker", &path).ok();
        assert_eq!(answer.start(), start);
        assert!(!answer.text().contains(&secret), "the other's secret is readable");
        let seen = answer.json();
        for way in ["abstract", "loopback", "gateway", "outside"] {
            assert_eq!(seen[way], false, "{way}");
        }
        assert_eq!(seen["kills"].as_array().unwrap().len(), 0, "{}", seen["kills"]);
        let commands = seen["commands"].as_object().unwrap();
        assert!(commands.len() <= 2, "its own and init: {commands:?}");
        assert!(!answer.text().contains("host-secret") && !answer.text().contains(marker));
        let users = [&keeper, &answer].map(|a| host::users(shared(), a.instance()));
        assert!(users[0].is_disjoint(&users[1]), "{users:?}");
        assert_eq!(seen["uid"], 1000, "whatever it is on the host");
        assert_eq!(seen["host"], "seeker");
        let own: Vec<String> = fs::read_to_string("/proc/net/fib_trie")
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        let foreign = own
            .iter()
            .filter_map(|l| l.trim().strip_prefix("|-- "))
            .filter(|a| !a.starts_with("127.") && !a.starts_with('0'));
        for address in foreign {
            assert!(
                !seen["addresses"].as_str().unwrap().contains(address),
                "the host's address {address}"
            );
        }
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn two_instances_of_one_function_share_nothing_that_can_be_written() {
    let code = "import os\ndef handler(event, context):\n    \
        names = sorted(os.listdir('/tmp') + os.listdir('/dev/shm'))\n    \
        for folder in ('/tmp', '/dev/shm'):\n        open(folder + '/' + context.aws_request_id, 'w').write('x')\n    \
        return names\n";
    shared().deploy(&Folder::python("apart", "", code));
    for _ in 0..2 {
        let answer = shared().fresh("restored", "apart", "/").ok();
        assert_eq!(answer.text(), "[]");
    }
}

#[test]
fn a_function_s_process_has_no_privileges_seen_from_the_host() {
    shared().deploy(&Folder::python(
        "plain",
        "",
        "def handler(event, context):\n    return 1\n",
    ));
    for start in ["booted", "restored"] {
        let answer = shared().fresh(start, "plain", "/").ok();
        let processes = host::processes(shared(), answer.instance());
        assert!(!processes.is_empty());
        for pid in processes.values() {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let value = |key: &str| {
                status
                    .lines()
                    .find_map(|l| l.strip_prefix(key))
                    .unwrap()
                    .trim()
                    .to_owned()
            };
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
                assert_eq!(value(set), "0000000000000000", "{start} {set}");
            }
            assert_eq!(
                (value("NoNewPrivs:").as_str(), value("Seccomp:").as_str()),
                ("1", "2"),
                "{start}"
            );
            // The platform's filter and no other.
            assert_eq!(value("Seccomp_filters:"), "1", "{start}");
            // At 1 the kernel starts no program for a crash; at 0 it may.
            let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let cores = limits.lines().find(|l| l.starts_with("Max core file size")).unwrap();
            let cores: Vec<_> = cores.split_whitespace().skip(4).take(2).collect();
            assert_eq!(cores, ["1", "1"], "{start}");
            for ids in ["Uid:", "Gid:"] {
                let own = value(ids);
                // Of a range that no user of the host has.
                let far = |id: &str| id.parse::<u32>().unwrap() > 1 << 28;
                assert!(own.split_whitespace().all(far), "{start}: {own}");
            }
            assert_eq!(value("Groups:"), "", "{start}");
            for namespace in ["user", "pid", "mnt", "net", "uts", "ipc"] {
                let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
                assert_ne!(of(&pid.to_string()), of("self"), "{start} {namespace}");
            }
        }
    }
}
