//! A network of the tests' own: a namespace for the host, another for the world, and a link between them. Nothing in it
//! reaches the real network, and all of it ends with the test.
//!
//! ```text
//!  host                                             world
//!  198.51.100.1, 2001:db8::1 ───────────────────── 198.51.100.2, 2001:db8::2: echo, names; the default route
//!  203.0.113.1 (a second address)                  10.9.9.9, 100.64.9.9, 169.254.169.254, 172.16.9.9, 192.168.9.9,
//!  127.0.0.1: where the platform listens           fd00:9::9: private addresses that would answer if they were asked
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// Port of the world's echo, over TCP and UDP.
pub const ECHO: u16 = 7777;
/// The host's address towards the world.
pub const HOST: &str = "198.51.100.1";
/// Another of the host's addresses.
pub const HOST_OTHER: &str = "203.0.113.1";
/// The host's IPv6 address towards the world.
pub const HOST6: &str = "2001:db8::1";
/// The world's address.
pub const WORLD: &str = "198.51.100.2";
/// The world's IPv6 address.
pub const WORLD6: &str = "2001:db8::2";
/// Private addresses in the world.
pub const PRIVATE: [&str; 5] = ["10.9.9.9", "100.64.9.9", "169.254.169.254", "172.16.9.9", "192.168.9.9"];
/// A private IPv6 address in the world.
pub const PRIVATE6: &str = "fd00:9::9";

struct World {
    host: File,
    mounts: File,
    _resolv_conf: tempfile::NamedTempFile,
}

static WORLD_MADE: LazyLock<World> = LazyLock::new(make);

/// Puts the calling thread, and what it starts from now on, onto the host.
pub fn enter() {
    let world = &*WORLD_MADE;
    // A thread can enter a mount namespace only if it shares its directories with no other.
    unshare(CloneFlags::CLONE_FS).unwrap();
    setns(world.mounts.as_fd(), CloneFlags::CLONE_NEWNS).unwrap();
    setns(world.host.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
}

/// The output of a command on the host. It must succeed.
#[track_caller]
pub fn on_host(program: &str, arguments: &[&str]) -> String {
    output(Command::new(program).args(arguments))
}

/// The output of `ip` in the network namespace of this path.
pub fn interfaces(namespace: &str) -> String {
    let output = command_in(namespace, &["ip", "-o", "link"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn command_in(namespace: &str, command: &[&str]) -> Command {
    let mut entered = Command::new("nsenter");
    entered.arg(format!("--net={namespace}")).args(command);
    entered
}

/// The output of a command that runs as root in the network namespace of this path. It must succeed.
#[track_caller]
pub fn in_network(namespace: &str, command: &[&str]) -> String {
    output(&mut command_in(namespace, command))
}

#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn ip(line: &str) {
    output(Command::new("ip").args(line.split_whitespace()));
}

fn namespace(kind: &str) -> File {
    File::open(format!("/proc/thread-self/ns/{kind}")).unwrap()
}

fn make() -> World {
    // Threads of their own, which end in those namespaces.
    let world = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        namespace("net")
    });
    let world = world.join().unwrap();
    let far = world.try_clone().unwrap();
    let host = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let resolv_conf = tempfile::NamedTempFile::new().unwrap();
        fs::write(resolv_conf.path(), format!("nameserver {WORLD}\n")).unwrap();
        let over = fs::canonicalize("/etc/resolv.conf").unwrap();
        mount(Some(resolv_conf.path()), &over, none, MsFlags::MS_BIND, none).unwrap();
        ip("link set lo up");
        let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_raw_fd());
        ip(&format!("link add world type veth peer name eth0 netns {there}"));
        ip(&format!("addr add {HOST}/24 dev world"));
        ip(&format!("addr add {HOST_OTHER}/32 dev lo"));
        ip(&format!("addr add {HOST6}/64 dev world nodad"));
        ip("link set world up");
        // A host that forwards IPv6 already does so for functions too.
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        (namespace("net"), namespace("mnt"), resolv_conf)
    });
    let (host, mounts, resolv_conf) = host.join().unwrap();
    let inside = world.try_clone().unwrap();
    let furnished = thread::spawn(move || {
        setns(inside.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip(&format!("addr add {WORLD}/24 dev eth0"));
        ip(&format!("addr add {WORLD6}/64 dev eth0 nodad"));
        ip("link set eth0 up");
        for address in PRIVATE {
            ip(&format!("addr add {address}/32 dev lo"));
        }
        ip(&format!("addr add {PRIVATE6}/128 dev lo nodad"));
        serve();
    });
    furnished.join().unwrap();
    let routed = thread::spawn({
        let host = host.try_clone().unwrap();
        move || {
            setns(host.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
            // Only now: while the other end is down they would be refused.
            ip(&format!("route add default via {WORLD}"));
            ip(&format!("-6 route add default via {WORLD6}"));
        }
    });
    routed.join().unwrap();
    World {
        host,
        mounts,
        _resolv_conf: resolv_conf,
    }
}

/// Listens on the host, on every address. Ends with the test.
pub fn listen_on_host() -> u16 {
    enter();
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || echo(&listener));
    port
}

/// The world's servers: the echo, and names.
fn serve() {
    let any = Ipv6Addr::UNSPECIFIED;
    let listener = TcpListener::bind((any, ECHO)).unwrap();
    thread::spawn(move || echo(&listener));
    let datagrams = UdpSocket::bind((any, ECHO)).unwrap();
    thread::spawn(move || {
        let mut room = [0; 2048];
        while let Ok((length, from)) = datagrams.recv_from(&mut room) {
            let answer = [&room[..length], b" from ", canonical(from.ip()).as_bytes()].concat();
            let _gone = datagrams.send_to(&answer, from);
        }
    });
    let streams = TcpListener::bind((any, 53)).unwrap();
    thread::spawn(move || names_by_stream(&streams));
    let names = UdpSocket::bind((any, 53)).unwrap();
    thread::spawn(move || {
        let mut room = [0; 2048];
        while let Ok((length, from)) = names.recv_from(&mut room) {
            let _gone = names.send_to(&answer(&room[..length]), from);
        }
    });
}

/// One question each, preceded by its length.
fn names_by_stream(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        let answered = (|| -> io::Result<()> {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut question)?;
            let answer = answer(&question);
            let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
            stream.write_all(&[&length.to_be_bytes()[..], &answer].concat())
        })();
        drop(answered);
    }
}

fn canonical(address: std::net::IpAddr) -> String {
    address.to_canonical().to_string()
}

fn echo(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        thread::spawn(move || {
            let ended = (|| -> io::Result<()> {
                let from = canonical(stream.peer_addr()?.ip());
                let mut room = [0; 2048];
                loop {
                    let length = stream.read(&mut room)?;
                    if length == 0 {
                        return Ok(());
                    }
                    stream.write_all(&[&room[..length], b" from ", from.as_bytes()].concat())?;
                }
            })();
            drop(ended);
        });
    }
}

/// The world's name server resolves everything below `test` to the world, and nothing else.
fn answer(question: &[u8]) -> Vec<u8> {
    let mut labels = Vec::new();
    let mut at = 12;
    while question[at] != 0 {
        let length = usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..at + 1 + length]).into_owned());
        at += 1 + length;
    }
    let kind = question[at + 2];
    let end = at + 5;
    let data: Vec<u8> = match (labels.last().map(String::as_str), kind) {
        (Some("test"), 1) => vec![198, 51, 100, 2],
        (Some("test"), 28) => WORLD6.parse::<Ipv6Addr>().unwrap().octets().to_vec(),
        _ => Vec::new(),
    };
    let known = labels.last().is_some_and(|l| l == "test");
    let count = u8::from(!data.is_empty());
    let mut out = question[..2].to_vec();
    // An answer, recursion available; no error, or no such name.
    out.extend([0x81, if known { 0x80 } else { 0x83 }, 0, 1, 0, count, 0, 0, 0, 0]);
    out.extend(&question[12..end]);
    if !data.is_empty() {
        out.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
        out.extend(data);
    }
    out
}
