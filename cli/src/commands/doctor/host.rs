//! Checks of the host for what sandboxes need: privileges, kernel, namespaces, cgroups, tmpfs, seccomp. Everything is
//! read from `/proc` and `/sys`, or tried in a thread that ends.

use std::fs;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use nix::sys::utsname::uname;
use nix::unistd::geteuid;

use super::Check;

/// The oldest kernel with `/dev/userfaultfd`. Through it a sandbox's root, which is nobody on the host, lets its memory
/// be served.
const KERNEL_MIN: (u32, u32) = (6, 1);
const USERFAULT: &str = "/dev/userfaultfd";
/// Maximum number of user namespaces.
const USER_NAMESPACES: &str = "/proc/sys/user/max_user_namespaces";
/// One for each sandbox that a worker may have, and as many for builds: with fewer, starts fail at some point.
const USER_NAMESPACES_MIN: u64 = 1_000;
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Capabilities that the worker uses, with their bits (linux/capability.h).
const CAPABILITIES: [(&str, u32); 10] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_KILL", 5),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_NET_ADMIN", 12),
    ("CAP_SYS_CHROOT", 18),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_MKNOD", 27),
];

pub(super) fn checks() -> Vec<Check> {
    vec![
        root(),
        capabilities(),
        kernel(),
        namespaces(),
        user_namespaces(),
        userfault_device(),
        time_namespace(),
        cgroups(),
        tmpfs(),
        criu_cache(),
        seccomp(),
        kvm(),
        egress(),
    ]
}

fn root() -> Check {
    if geteuid().is_root() {
        Check::ok("root", "uid 0")
    } else {
        Check::lack(
            "root",
            format!("uid {}", geteuid()),
            "run fn up as root: sandboxes and CRIU need it",
        )
    }
}

fn capabilities() -> Check {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = effective_capabilities(&status).unwrap_or(0);
    let lacking: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(_, bit)| effective >> bit & 1 == 0)
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        Check::ok("capabilities", format!("all {} that a worker uses", CAPABILITIES.len()))
    } else {
        Check::lack(
            "capabilities",
            format!("without {}", lacking.join(", ")),
            "start it as real root, or give the container these capabilities",
        )
    }
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn kernel() -> Check {
    let Ok(name) = uname() else {
        return Check::lack("kernel", "uname does not answer", "run it on Linux");
    };
    let release = name.release().to_string_lossy().into_owned();
    let (major, minor) = KERNEL_MIN;
    let wanted = format!("Linux {major}.{minor} or later on x86_64 is needed");
    if name.machine() != "x86_64" {
        return Check::lack(
            "kernel",
            format!("{release} on {}", name.machine().to_string_lossy()),
            wanted,
        );
    }
    match version(&release) {
        Some(found) if found >= KERNEL_MIN => Check::ok("kernel", release),
        _ => Check::lack("kernel", release, wanted),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether a thread of ours can enter a new namespace of this kind. The thread ends, and the namespace with it.
fn can_enter(kind: CloneFlags) -> bool {
    thread::spawn(move || unshare(kind).is_ok()).join().unwrap_or(false)
}

/// Each sandbox has a user namespace, in which its root is nobody on the host.
fn user_namespaces() -> Check {
    const ABILITY: &str = "user namespaces";
    let fix = "build the kernel with CONFIG_USER_NS, and allow them: sysctl -w user.max_user_namespaces=63000";
    let text = fs::read_to_string(USER_NAMESPACES);
    match text.map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(most)) if most >= USER_NAMESPACES_MIN => Check::ok(ABILITY, format!("{most} at most")),
        Ok(Ok(most)) => Check::lack(ABILITY, format!("{most} at most"), fix),
        Ok(Err(_)) | Err(_) => Check::lack(ABILITY, format!("{USER_NAMESPACES} cannot be read"), fix),
    }
}

fn userfault_device() -> Check {
    const ABILITY: &str = "/dev/userfaultfd";
    match fs::File::options().read(true).write(true).open(USERFAULT) {
        Ok(_) => Check::ok(ABILITY, "can be opened"),
        Err(e) => Check::lack(
            ABILITY,
            format!("cannot be opened: {e}"),
            "use Linux 6.1 or later with CONFIG_USERFAULTFD; in a container or a systemd unit allow the device \
             (DeviceAllow=/dev/userfaultfd rwm)",
        ),
    }
}

fn namespaces() -> Check {
    let kinds = [
        ("pid", CloneFlags::CLONE_NEWPID),
        ("mnt", CloneFlags::CLONE_NEWNS),
        ("net", CloneFlags::CLONE_NEWNET),
        ("uts", CloneFlags::CLONE_NEWUTS),
        ("ipc", CloneFlags::CLONE_NEWIPC),
    ];
    let lacking: Vec<&str> = kinds
        .iter()
        .filter(|(_, kind)| !can_enter(*kind))
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        Check::ok("namespaces", "pid, mnt, net, uts, ipc")
    } else {
        Check::lack(
            "namespaces",
            format!("{} cannot be made", lacking.join(", ")),
            "run it as root, outside of containers that forbid unshare(2)",
        )
    }
}

fn time_namespace() -> Check {
    if can_enter(CloneFlags::from_bits_retain(libc::CLONE_NEWTIME)) {
        Check::ok(
            "time namespace",
            "clocks of a restored function go on from its snapshot",
        )
    } else {
        Check::weaker(
            "time namespace",
            "not in this kernel",
            "monotonic clocks jump at a restore; use a kernel with CONFIG_TIME_NS",
        )
    }
}

fn cgroups() -> Check {
    let fix =
        "mount cgroup2 on /sys/fs/cgroup with the cpu, memory and pids controllers, writable, or the same as cgroup v1";
    let root = Path::new(CGROUP_ROOT);
    let layout = match statfs(root) {
        Ok(fs) if fs.filesystem_type() == CGROUP2_SUPER_MAGIC => {
            let text = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            Layout::v2(root, &text)
        }
        Ok(_) => Layout::v1(root),
        Err(e) => return Check::lack("cgroups", format!("{CGROUP_ROOT}: {e}"), fix),
    };
    if !layout.lacking.is_empty() {
        let found = format!("{} without {}", layout.version, layout.lacking.join(", "));
        return Check::lack("cgroups", found, fix);
    }
    for folder in &layout.writable {
        let probe = folder.join(format!("rekindle-doctor-{}", std::process::id()));
        if let Err(e) = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
            return Check::lack("cgroups", format!("{}: {e}", folder.display()), fix);
        }
    }
    Check::ok("cgroups", format!("{}: {}", layout.version, CONTROLLERS.join(", ")))
}

/// The controllers of a host, and where groups would be made.
#[derive(Debug, PartialEq)]
struct Layout {
    version: &'static str,
    lacking: Vec<&'static str>,
    writable: Vec<std::path::PathBuf>,
}

impl Layout {
    fn v2(root: &Path, controllers: &str) -> Self {
        let have: Vec<&str> = controllers.split_whitespace().collect();
        Self {
            version: "v2",
            lacking: CONTROLLERS.into_iter().filter(|c| !have.contains(c)).collect(),
            writable: vec![root.to_owned()],
        }
    }

    fn v1(root: &Path) -> Self {
        let (have, lacking): (Vec<&str>, Vec<&str>) = CONTROLLERS
            .into_iter()
            .partition(|c| root.join(c).join("cgroup.procs").exists());
        Self {
            version: "v1",
            lacking,
            writable: have.into_iter().map(|c| root.join(c)).collect(),
        }
    }
}

fn tmpfs() -> Check {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|l| l.trim_start_matches("nodev").trim() == "tmpfs") {
        Check::ok("tmpfs", "for /tmp of functions and snapshots in use")
    } else {
        Check::lack("tmpfs", "not in this kernel", "use a kernel with CONFIG_TMPFS")
    }
}

/// CRIU caches what it learned of the kernel in `/run/criu.kdat`, but only on a tmpfs.
fn criu_cache() -> Check {
    match statfs("/run") {
        Ok(fs) if fs.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC => Check::ok("CRIU's cache", "/run is a tmpfs"),
        _ => Check::weaker(
            "CRIU's cache",
            "/run is not a tmpfs",
            "none needed for sandboxes, which have a tmpfs of their own; elsewhere CRIU probes the kernel at each \
             start (15 ms)",
        ),
    }
}

fn seccomp() -> Check {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let lacking: Vec<&str> = ["errno", "kill_process"]
        .into_iter()
        .filter(|a| !actions.split_whitespace().any(|have| have == *a))
        .collect();
    if lacking.is_empty() {
        Check::ok("seccomp", "filters with errno and kill_process")
    } else {
        Check::lack(
            "seccomp",
            format!("without {}", lacking.join(", ")),
            "use a kernel with CONFIG_SECCOMP_FILTER",
        )
    }
}

/// Makes a link, routes and rules for real, in namespaces that end with the attempt.
fn egress() -> Check {
    match rekindle_worker::host::network::prove() {
        Ok(()) => Check::ok("way out of functions", "veth, nftables, NAT"),
        Err(e) => Check::weaker(
            "way out of functions",
            format!("{:#}", anyhow::Error::new(e)),
            "install the package nftables (a kernel with CONFIG_VETH, CONFIG_NF_TABLES, CONFIG_NFT_NAT, \
             CONFIG_NFT_MASQ, CONFIG_NFT_FIB_INET, CONFIG_NFT_CONNLIMIT), or start the worker with --egress off: \
             functions then reach nothing",
        ),
    }
}

fn kvm() -> Check {
    let found = if Path::new("/dev/kvm").exists() {
        "there"
    } else {
        "not there"
    };
    Check::ok("/dev/kvm", format!("{found}; not needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version("5.9-rc1"), Some((5, 9)));
        assert!(version("5.9").unwrap() < KERNEL_MIN);
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn effective_capabilities_are_read_from_the_status() {
        assert_eq!(
            effective_capabilities("CapPrm:\t0\nCapEff:\t00000000a80425fb\n"),
            Some(0xa804_25fb)
        );
        assert_eq!(effective_capabilities(""), None);
    }

    #[test]
    fn a_missing_controller_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Layout::v2(dir.path(), "cpuset cpu io memory\n").lacking, ["pids"]);
        for name in ["cpu", "pids"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("cgroup.procs"), "").unwrap();
        }
        assert_eq!(Layout::v1(dir.path()).lacking, ["memory"]);
    }
}
