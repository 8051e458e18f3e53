//! What functions reach of the network: the world and its names, and neither the host nor anything private. On a host
//! and in a world of the test's own.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::LazyLock;

use rekindle_e2e::world::{self, ECHO, HOST, HOST_OTHER, HOST6, PRIVATE, PRIVATE6, WORLD, WORLD6};
use rekindle_e2e::{Client, Folder, Options, Platform, Reply, host, shared};
use serde_json::{Value, json};

/// Does what it is asked for, and tells what came of it.
pub(crate) const PROBE: &str = r#"
import errno, json, os, socket, struct, time
held, opened = [], None
if "OPENS" in os.environ:
    # Before the snapshot.
    opened = socket.create_connection((os.environ["OPENS"], 7777), timeout=5)
    opened.sendall(b"before")
    opened.recv(100)

def attempt(step):
    kind, host, port = step["kind"], step.get("host"), step.get("port")
    if kind == "names":
        return sorted({a[4][0] for a in socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)})
    if kind == "interfaces":
        return sorted(name for _, name in socket.if_nameindex())
    if kind == "names-by-tcp":
        labels = b"".join(bytes([len(label)]) + label.encode() for label in host.split("."))
        question = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
        with socket.create_connection(("198.18.0.1", 53), timeout=10) as sock:
            sock.sendall(struct.pack(">H", len(question)) + question)
            answer = sock.recv(600)
        return socket.inet_ntoa(answer[-4:])
    if kind == "spoof":
        # An address that is not the sandbox's: the kernel lets anybody bind to one who says so.
        six = ":" in host
        with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(2)
            sock.setsockopt(socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP, 78 if six else 15, 1)
            sock.bind((step["as"], 0))
            sock.sendto(b"ping", (host, port))
            return sock.recv(100).decode()
    if kind == "flood":
        sent, got = step["bytes"], 0
        with socket.create_connection((host, port), timeout=60) as sock:
            import threading
            threading.Thread(target=sock.sendall, args=(b"x" * sent,), daemon=True).start()
            while got < sent:
                got += len(sock.recv(65536))
        return "all"
    if kind == "opened":
        opened.settimeout(5)
        opened.sendall(b"again")
        return opened.recv(100).decode()
    if kind == "opened-reads":
        opened.settimeout(5)
        return opened.recv(100).decode()
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET,
                         socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    sock.settimeout(step.get("timeout", 10))
    try:
        sock.connect((host, port))
        sock.sendall(b"ping")
        got = sock.recv(100).decode()
        if kind == "hold":
            held.append(sock)
        return got
    finally:
        if kind != "hold":
            sock.close()

def handler(event, context):
    out = []
    for step in json.loads(event["body"]):
        started = time.monotonic()
        try:
            result = {"got": attempt(step)}
        except socket.gaierror as error:
            result = {"error": f"name: {error}"}
        except TimeoutError:
            result = {"error": "timeout"}
        except OSError as error:
            result = {"error": errno.errorcode.get(error.errno, str(error))}
        out.append(result | {"s": time.monotonic() - started})
        if step.get("last") and "error" in result:
            break
    return out
"#;

/// The errors by which a program learns at once that it may not.
const AT_ONCE: [&str; 4] = ["ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "EACCES"];

static DEPLOYED: LazyLock<()> = LazyLock::new(|| {
    shared().deploy(&Folder::python("probe", "", PROBE));
    shared().deploy(&Folder::python("closed", "network = \"none\"", PROBE));
});

fn deployed() -> &'static Platform {
    world::enter();
    LazyLock::force(&DEPLOYED);
    shared()
}

#[track_caller]
pub(crate) fn ask(client: &Client, start: &str, function: &str, steps: &[Value]) -> (Reply, Vec<Value>) {
    let answer = client
        .admin("POST", &format!("/function/{function}/"))
        .header("x-fn-force-start", start)
        .header("content-type", "application/json")
        .body(Value::from(steps).to_string())
        .send()
        .ok();
    assert_eq!(answer.start(), start);
    let all = answer.json().as_array().unwrap().clone();
    (answer, all)
}

pub(crate) fn tcp(host: &str, port: u16) -> Value {
    json!({"kind": "tcp", "host": host, "port": port})
}

pub(crate) fn udp(host: &str, port: u16) -> Value {
    json!({"kind": "udp", "host": host, "port": port})
}

#[test]
fn a_function_reaches_the_world_and_its_names_booted_or_restored() {
    let platform = deployed();
    let steps = [
        tcp(WORLD, ECHO),
        udp(WORLD, ECHO),
        tcp(WORLD6, ECHO),
        udp(WORLD6, ECHO),
        json!({"kind": "names", "host": "a.name.test"}),
        json!({"kind": "names", "host": "a.name.nowhere"}),
        tcp("a.name.test", ECHO),
        json!({"kind": "names-by-tcp", "host": "a.name.test"}),
    ];
    for start in ["booted", "restored"] {
        let (_, got) = ask(platform, start, "probe", &steps);
        for (step, host) in [(0, HOST), (1, HOST), (2, HOST6), (3, HOST6)] {
            // The host's address: the sandbox's own goes no further than the router.
            assert_eq!(got[step]["got"], format!("ping from {host}"), "{start} {}", got[step]);
        }
        assert_eq!(got[4]["got"], json!([WORLD, WORLD6]), "{start} {}", got[4]);
        assert!(got[5]["error"].as_str().unwrap().starts_with("name: "), "{}", got[5]);
        assert_eq!(got[6]["got"], format!("ping from {HOST}"));
        assert_eq!(got[7]["got"], WORLD, "{start} {}", got[7]);
    }
}

#[test]
fn nobody_sends_under_another_s_address() {
    let platform = deployed();
    // By a socket bound to an address of nobody's, or of the host's: refused, or sent under the host's own address like
    // all else.
    let spoof = |host, source| json!({"kind": "spoof", "host": host, "port": ECHO, "as": source});
    let steps = [
        spoof(WORLD, "198.18.1.250"),
        spoof(WORLD, "203.0.113.77"),
        spoof(WORLD, HOST_OTHER),
        spoof(WORLD6, "2001:db8::77"),
        spoof(WORLD6, "fd00::1"),
    ];
    let (answer, got) = ask(platform, "restored", "probe", &steps);
    for (step, got) in steps.iter().zip(&got) {
        let own = [HOST, HOST6].iter().any(|h| got["got"] == format!("ping from {h}"));
        assert!(own || got["error"].is_string(), "{step}: {got}");
    }
    // Even root there, with no packet filter of the sandbox's own left: the router knows who sends.
    let inside = network_of(platform, answer.instance());
    let own = &*router_address(&inside);
    world::in_network(&inside, &["nft", "delete", "table", "inet", "rekindle"]);
    let other = if own == "198.18.1.250" {
        "198.18.1.251"
    } else {
        "198.18.1.250"
    };
    for address in [own, other, "203.0.113.77", HOST_OTHER] {
        world::in_network(&inside, &["ip", "addr", "add", &format!("{address}/32"), "dev", "eth0"]);
    }
    let answered = |address: &str| {
        let code = format!(
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(3)\n\
             s.bind(('{address}', 0))\n\
             s.sendto(b'ping', ('{WORLD}', {ECHO}))\ntry:\n    print(s.recv(99).decode())\nexcept TimeoutError:\n    \
             print('nothing')\n"
        );
        world::in_network(&inside, &["python3", "-c", &code]).trim().to_owned()
    };
    // Its own is let through: so it is the address that is refused.
    assert_eq!(answered(own), format!("ping from {HOST}"));
    for address in [other, "203.0.113.77", HOST_OTHER] {
        assert_eq!(answered(address), "nothing", "{address}");
    }
}

#[test]
fn neither_the_host_nor_anything_private_is_reached_and_the_refusal_comes_at_once() {
    let platform = deployed();
    let open = world::listen_on_host();
    let uplink = uplink_address();
    let mut steps = Vec::new();
    // Every address the host has, with a service that listens on all of them, and the platform's own port.
    for host in [HOST, HOST_OTHER, HOST6, &uplink] {
        for port in [open, platform.port()] {
            steps.extend([tcp(host, port), udp(host, port)]);
        }
    }
    // Private networks, metadata, multicast, broadcast; those in the world would answer.
    for host in PRIVATE.iter().chain(&[PRIVATE6]) {
        steps.extend([tcp(host, ECHO), udp(host, ECHO)]);
    }
    for host in ["240.0.0.1", "::ffff:10.9.9.9", "2002:a09:909::1", "64:ff9b::a09:909"] {
        steps.push(udp(host, ECHO));
    }
    // The kernel sends no errors about what is for many: it is dropped, and nothing comes back.
    for host in ["224.0.0.1", "198.51.100.255", "ff02::1", "fe80::1%eth0"] {
        steps.push(json!({"kind": "udp", "host": host, "port": ECHO, "timeout": 0.3}));
    }
    // The gateway has nothing but names, and functions of the same namespace (`function_calls.rs`).
    steps.extend([tcp("198.18.0.1", 81), udp("198.18.0.1", 80), udp("198.18.0.1", ECHO)]);
    for start in ["booted", "restored"] {
        let (_, got) = ask(platform, start, "probe", &steps);
        for (step, got) in steps.iter().zip(&got) {
            let error = got["error"].as_str().unwrap_or_else(|| panic!("{start} {step}: {got}"));
            let for_many = step.get("timeout").is_some() && ["timeout", "EACCES", "EINVAL"].contains(&error);
            let quick = AT_ONCE.contains(&error) || for_many;
            assert!(quick, "{start} {step}: {got}");
        }
    }
}

/// Answers whoever comes, on every address that its sandbox has.
const LISTENER: &str = r#"
import socket, threading
def answer(sock):
    while True:
        peer, _ = sock.accept()
        peer.recv(4)
        peer.sendall(b"neighbour")
        peer.close()
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("0.0.0.0", 9124))
sock.listen()
threading.Thread(target=answer, args=(sock,), daemon=True).start()
def handler(event, context):
    return 1
"#;

#[test]
fn a_neighbour_is_not_reached_though_it_listens_and_it_is_the_router_s_rule_that_sees_to_it() {
    world::enter();
    let platform = Platform::start();
    platform.deploy(&Folder::python("neighbour", "", LISTENER));
    platform.deploy(&Folder::python("probe", "", PROBE));
    let neighbour = platform.fresh("restored", "neighbour", "/").ok();
    let inside = network_of(&platform, neighbour.instance());
    let address = router_address(&inside);
    // It is to be nobody's fault but the router's: the sandbox itself would take what is for this address.
    world::in_network(&inside, &["ip", "addr", "add", &format!("{address}/32"), "dev", "eth0"]);
    let steps = [tcp(&address, 9124)];
    for start in ["booted", "restored"] {
        let (_, got) = ask(&platform, start, "probe", &steps);
        let error = got[0]["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{start}: {}", got[0]));
        assert!(AT_ONCE.contains(&error), "{start}: {}", got[0]);
    }
    let (router, _) = router_of(platform.pid());
    world::in_network(
        &router,
        &["nft", "insert", "rule", "inet", "rekindle", "through", "accept"],
    );
    let (_, got) = ask(&platform, "restored", "probe", &steps);
    assert_eq!(got[0]["got"], "neighbour", "{}", got[0]);
}

/// The network namespace of an instance.
fn network_of(platform: &Platform, instance: &str) -> String {
    let processes = host::processes(platform, instance);
    format!("/proc/{}/ns/net", processes.values().next().unwrap())
}

/// The address by which the router knows the sandbox with this network namespace.
fn router_address(inside: &str) -> String {
    let rules = world::in_network(inside, &["nft", "list", "table", "inet", "rekindle"]);
    let after = rules.split("snat ip to ").nth(1).unwrap();
    after.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn without_a_network_there_is_a_loopback_and_nothing_else() {
    let platform = deployed();
    let steps = [
        tcp(WORLD, ECHO),
        udp(WORLD6, ECHO),
        udp("198.18.0.1", 53),
        json!({"kind": "names", "host": "a.name.test"}),
        json!({"kind": "interfaces"}),
    ];
    for start in ["booted", "restored"] {
        let (_, got) = ask(platform, start, "closed", &steps);
        for got in &got[..3] {
            assert_eq!(got["error"], "ENETUNREACH", "{start}: {got}");
        }
        assert!(got[3]["error"].as_str().unwrap().starts_with("name: "), "{}", got[3]);
        assert_eq!(got[4]["got"], json!(["lo"]));
    }
}

#[test]
fn a_connection_that_was_open_at_the_snapshot_is_closed_in_its_copies_and_stays_in_the_original() {
    let platform = deployed();
    let env = format!("[env]\nOPENS = \"{WORLD}\"");
    platform.deploy(&Folder::python("holder", &env, PROBE));
    // It reads the end at once, and cannot write; what it opens anew works.
    let steps = [
        json!({"kind": "opened-reads"}),
        json!({"kind": "opened"}),
        tcp(WORLD, ECHO),
    ];
    let (_, got) = ask(platform, "restored", "holder", &steps);
    assert_eq!(got[0]["got"], "", "{got:?}");
    assert_eq!(got[1]["error"], "EPIPE", "{got:?}");
    assert_eq!(got[2]["got"], format!("ping from {HOST}"));
    let (_, got) = ask(platform, "booted", "holder", &[json!({"kind": "opened"})]);
    assert_eq!(got[0]["got"], format!("again from {HOST}"));
}

#[test]
fn what_an_instance_opens_is_limited_and_another_s_share_is_not() {
    world::enter();
    let mut options = Options::default();
    let limits = [
        "--egress-connections",
        "30",
        "--egress-new-connections",
        "40",
        "--egress-allow",
        "10.9.9.0/24",
        "--egress-mbits",
        "8",
    ];
    options.args.extend(limits.map(str::to_owned));
    let platform = Platform::start_with(options);
    platform.deploy(&Folder::python("probe", "concurrency = 1", PROBE));
    let hold = json!({"kind": "hold", "host": WORLD, "port": ECHO});
    let (first, got) = ask(&platform, "restored", "probe", &vec![hold.clone(); 60]);
    let open = got.iter().filter(|g| g["got"] == format!("ping from {HOST}")).count();
    assert_eq!(open, 30, "{got:?}");
    assert!(got[30..].iter().all(|g| g["error"] == "ECONNREFUSED"), "{got:?}");
    // Its neighbour has a share of its own; of many a second, some are refused.
    let (second, got) = ask(&platform, "restored", "probe", &vec![udp(WORLD, ECHO); 29]);
    assert_ne!(first.instance(), second.instance());
    assert!(got.iter().all(|g| g["got"] == format!("ping from {HOST}")), "{got:?}");
    let (_, got) = ask(&platform, "restored", "probe", &vec![tcp(WORLD, ECHO); 600]);
    assert!(
        got.iter().any(|g| g["error"] == "ECONNREFUSED"),
        "600 connections at once: none was refused"
    );
    assert!(got.iter().any(|g| g["got"] == format!("ping from {HOST}")));
    // Eight million bits a second each way: of 2 MB there and back the 256 KiB that may go at once are only a part.
    let flood = json!({"kind": "flood", "host": WORLD, "port": ECHO, "bytes": 2_000_000});
    let (_, got) = ask(&platform, "restored", "probe", &[flood]);
    assert_eq!(got[0]["got"], "all", "{got:?}");
    let seconds = got[0]["s"].as_f64().unwrap();
    assert!(seconds > 1.0, "2 MB went in {seconds} s, at 1 MB a second");
    // What the operator allows is reached, and nothing beside it.
    let steps = [
        tcp("10.9.9.9", ECHO),
        tcp("192.168.9.9", ECHO),
        tcp(HOST, platform.port()),
    ];
    let (_, got) = ask(&platform, "restored", "probe", &steps);
    assert_eq!(got[0]["got"], format!("ping from {HOST}"), "{got:?}");
    assert_eq!(
        (&got[1]["error"], &got[2]["error"]),
        (&json!("ECONNREFUSED"), &json!("ECONNREFUSED"))
    );
}

/// An address that the host has on a link to a router.
fn uplink_address() -> String {
    let addresses = world::on_host("ip", &["-o", "-4", "addr"]);
    let line = addresses.lines().find(|l| l.contains(": rk")).unwrap();
    let address = line.split_whitespace().nth(3).unwrap();
    address.split('/').next().unwrap().to_owned()
}

/// How many links to sandboxes the router of the platform with this process has.
pub(crate) fn router_links(pid: i32) -> usize {
    router_of(pid).1
}

/// The router's network namespace, and how many links to sandboxes it has.
fn router_of(pid: i32) -> (String, usize) {
    let mut most = (String::new(), 0);
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let is_network = std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("net:["));
        if is_network {
            let path = entry.path().to_str().unwrap().to_owned();
            let links = world::interfaces(&path);
            let count = links.lines().filter(|l| l.contains(": s")).count();
            if links.contains(": out@") && (most.0.is_empty() || count > most.1) {
                most = (path, count);
            }
        }
    }
    most
}
