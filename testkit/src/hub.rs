//! Hosts of the tests' own: a network namespace each, all linked to one in the middle, the hub. The tests themselves
//! and the object stores are in the hub. Nothing in it reaches the real network or changes its rules. All of it ends
//! with the test binary, however that ends.
//!
//! ```text
//!   host A                          hub                           host B
//!   10.0.1.1 eth0 ───────────── a1  10.255.255.9  b1 ──────────── eth0 10.0.1.2
//!                                   routes, and drops what is from or to a host that is cut off
//! ```

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

/// The address at which the tests themselves serve.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 9);
/// The table of the hub's rules, and the set of links that it drops.
const TABLE: &str = "
table inet cut {
    set links { type ifname; }
    chain in { type filter hook input priority 0; iifname @links drop; }
    chain through { type filter hook forward priority 0; iifname @links drop; oifname @links drop; }
    chain out { type filter hook output priority 0; oifname @links drop; }
}";

static HUB: LazyLock<File> = LazyLock::new(|| {
    in_new_namespace(|| {
        ip("link set lo up");
        ip(&format!("addr add {ADDRESS}/32 dev lo"));
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        run(Command::new("nft").arg(TABLE));
    })
});
static LINKS: AtomicU32 = AtomicU32::new(0);
static SUBNETS: AtomicU32 = AtomicU32::new(0);

/// Puts the calling thread, and what it starts from now on, into the hub. To be called before anything else in a test:
/// the harness's own threads are started when they are first used.
pub fn enter() {
    setns(HUB.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
    LazyLock::force(&crate::RUNTIME);
}

/// The first three parts of addresses that no other hosts of this binary have, such as `10.0.1`.
pub fn subnet() -> String {
    format!("10.0.{}", SUBNETS.fetch_add(1, Ordering::Relaxed))
}

/// A host. What was started on it survives when it is dropped; its link ends with the last of that.
#[derive(Debug)]
pub struct Host {
    namespace: File,
    link: String,
    address: Ipv4Addr,
}

impl Host {
    /// A host with this address and nothing on it.
    pub fn new(address: Ipv4Addr) -> Self {
        let link = format!("h{}", LINKS.fetch_add(1, Ordering::Relaxed));
        let namespace = in_new_namespace(|| ip("link set lo up"));
        let there = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        within(&HUB, || {
            ip(&format!("link add {link} type veth peer name eth0 netns {there}"));
            ip(&format!("link set {link} up"));
        });
        within(&namespace, || {
            ip(&format!("addr add {address}/32 dev eth0"));
            ip("link set eth0 up");
            ip(&format!("route add {ADDRESS}/32 dev eth0"));
            ip(&format!("route add default via {ADDRESS} dev eth0"));
        });
        within(&HUB, || ip(&format!("route add {address}/32 dev {link}")));
        Self {
            namespace,
            link,
            address,
        }
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its network namespace, to start something there.
    pub(crate) fn namespace(&self) -> File {
        self.namespace.try_clone().unwrap()
    }

    /// Drops every packet from and to it, as behind a broken switch: no error is reported.
    pub fn cut(&self) {
        self.nft("add");
    }

    /// Undoes a cut.
    pub fn mend(&self) {
        self.nft("delete");
    }

    /// Limits what it sends to `megabits` a second from now on.
    pub fn slow(&self, megabits: u32) {
        let line = format!("qdisc replace dev eth0 root tbf rate {megabits}mbit burst 64kb latency 400ms");
        within(
            &self.namespace,
            || run(Command::new("tc").args(line.split_whitespace())),
        );
    }

    fn nft(&self, action: &str) {
        let rule = format!("{action} element inet cut links {{ \"{}\" }}", self.link);
        within(&HUB, || run(Command::new("nft").arg(rule)));
    }

    /// Runs `work` on this host, on a thread of its own.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        within(&self.namespace, work)
    }
}

/// Runs `work` in a namespace, on a thread of its own that ends there.
fn within<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        there.join().unwrap()
    })
}

fn in_new_namespace(furnish: impl FnOnce() + Send) -> File {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            furnish();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        there.join().unwrap()
    })
}

fn ip(line: &str) {
    run(Command::new("ip").args(line.split_whitespace()));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
}
