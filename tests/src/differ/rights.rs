//! What a function may never have, whatever it was before its checkpoint: judged from one picture alone.

use std::fs;
use std::path::{Component, Path};

use super::{Picture, Source};

/// The bounds of a copy's rights.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The function's user and group.
    pub user: String,
    /// Its core limit, soft and hard: 1 if the platform can set it.
    pub cores: String,
}

/// The sandbox's mounts of which a function may have files.
const MOUNTS: [&str; 5] = ["/", "/app", "/tmp", "/dev/shm", "/dev"];
/// The directories of its root that hold programs and their data.
const OF_ROOT: [&str; 8] = ["usr", "lib", "lib64", "bin", "sbin", "etc", "opt", "app"];
/// Entries of a process's directory in `/proc`.
const OF_PROC: [&str; 9] = [
    "oom_score_adj",
    "comm",
    "coredump_filter",
    "timerslack_ns",
    "clear_refs",
    "autogroup",
    "current",
    "timens_offsets",
    "uid_map",
];
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// The kernel's own files that a function creates without asking for a right.
const KERNELS: [&str; 6] = [
    "anon_inode:[eventpoll]",
    "anon_inode:[eventfd]",
    "anon_inode:[timerfd]",
    "anon_inode:[signalfd]",
    "anon_inode:[pidfd]",
    "anon_inode:inotify",
];
/// Memory with a name, or shared without one.
const MEMORY: [&str; 3] = ["/memfd:", "/dev/zero (deleted)", "/SYSV"];
const NO_CAPABILITIES: &str = "0000000000000000";

/// Everything in a picture that is beyond the bounds, each on a line.
pub fn beyond(picture: &Picture, bounds: &Bounds) -> Vec<String> {
    let mut found = Vec::new();
    let ids = [bounds.user.as_str(); 4].join(" ");
    let mut exactly = |suffix: &str, wanted: &str| {
        let mut seen = 0;
        for (name, value) in picture.all(suffix).filter(|(name, _)| !name.starts_with("file/")) {
            seen += 1;
            if value != wanted {
                found.push(format!("{name}: {value}, not {wanted}"));
            }
        }
        if seen == 0 {
            found.push(format!("{suffix}: seen of nobody"));
        }
    };
    for name in [" Uid", " Gid"] {
        exactly(name, &ids);
    }
    for set in [" CapInh", " CapPrm", " CapEff", " CapBnd", " CapAmb"] {
        exactly(set, NO_CAPABILITIES);
    }
    exactly(" Groups", "");
    exactly(" NoNewPrivs", "1");
    exactly(" Seccomp", "2");
    exactly(" Seccomp_filters", "1");
    exactly(" TracerPid", "0");
    exactly("/limit Max core file size", &bounds.cores);
    exactly("/root", "/");
    for kind in ["user", "pid", "mnt", "net", "uts", "ipc", "cgroup"] {
        let suffix = format!("/namespace {kind}");
        let hosts = picture.all(&suffix).filter(|(_, value)| *value == "the host's");
        found.extend(hosts.map(|(name, value)| format!("{name}: {value}")));
    }
    let hosts = picture
        .all("/users")
        .filter(|(_, value)| value.starts_with("the host's"));
    found.extend(hosts.map(|(name, value)| format!("{name}: {value}")));
    for (name, target) in &picture.facts {
        let held = name.ends_with("/cwd") || name.ends_with("/exe") || is_descriptor(name);
        let mount = picture.mounts.get(name).and_then(Option::as_deref);
        if held && let Err(why) = allowed(target, mount) {
            found.push(format!("{name}: {target}: {why}"));
        }
    }
    for (pid, mapped) in &picture.mappings {
        for mapping in mapped {
            let name = format!("{pid}/map {:x}-{:x}", mapping.start, mapping.end);
            let mount = picture.mounts.get(&name).and_then(Option::as_deref);
            let told = match &mapping.source {
                Source::File(path, _) => allowed(path, mount).err(),
                Source::Template if !mapping.access.ends_with('p') => Some("a template that is not private".to_owned()),
                Source::Template if mount.is_some() => Some("a template that a path leads to".to_owned()),
                Source::Template | Source::Anonymous | Source::Shared(_) | Source::Kernel(_) => None,
            };
            found.extend(told.map(|why| format!("{name}: {} of {:?}: {why}", mapping.access, mapping.source)));
        }
    }
    found.extend(strangers(picture));
    found
}

/// `501/fd 7`, not `501/fd 7 flags`.
fn is_descriptor(name: &str) -> bool {
    let number = name.split_once("/fd ").map(|(_, number)| number);
    number.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a function may have what this link leads to. `mount` is its mount point, among the mounts that the function
/// sees.
fn allowed(link: &str, mount: Option<&str>) -> Result<(), String> {
    let of_no_mount = KERNELS.contains(&link) || MEMORY.iter().any(|m| link.starts_with(m));
    if of_no_mount {
        return match mount {
            None => Ok(()),
            Some(at) => Err(format!("in the mount at {at}")),
        };
    }
    if ["pipe ", "socket "].iter().any(|kind| link.starts_with(kind)) {
        return Ok(());
    }
    let Some(mount) = mount else {
        return Err("in no mount of the sandbox".to_owned());
    };
    let path = Path::new(link.trim_end_matches(" (deleted)"));
    let names: Vec<&str> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    // What it may write of its own processes, while it does, and what it lists. Nothing of init, nothing that leads
    // further, no memory.
    if mount == "/proc" {
        let own = match names.as_slice() {
            ["proc"] => true,
            ["proc", pid, rest @ ..] => {
                pid.parse::<i32>().is_ok_and(|pid| pid > 1) && rest.last().is_some_and(|name| OF_PROC.contains(name))
            }
            _ => false,
        };
        return if own {
            Ok(())
        } else {
            Err("not a setting of its own processes".to_owned())
        };
    }
    let fits = MOUNTS.contains(&mount)
        && match (mount, names.as_slice()) {
            ("/", [first, ..]) => OF_ROOT.contains(first),
            ("/", []) => true,
            ("/dev", ["dev", name]) => DEVICES.contains(name),
            ("/dev", ["dev"]) => true,
            ("/app" | "/tmp" | "/dev/shm", _) => path.starts_with(mount),
            _ => false,
        };
    if fits {
        Ok(())
    } else {
        Err(format!("in the mount at {mount}"))
    }
}

/// Pipes and sockets of the function that a process outside its sandbox has as well; its outputs go to the worker.
fn strangers(picture: &Picture) -> Vec<String> {
    let Some(inside) = picture.namespace.as_ref() else {
        return vec!["no namespace".to_owned()];
    };
    let outputs = |name: &str| name.ends_with("/fd 1") || name.ends_with("/fd 2");
    let outputs: Vec<&String> = picture
        .shared
        .iter()
        .filter(|(name, _)| outputs(name))
        .map(|(_, link)| link)
        .collect();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let namespace = entry.path().join("ns/pid").read_link();
        if namespace.map_or(true, |own| own == *inside) {
            continue;
        }
        for open in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
            let Ok(link) = open.path().read_link() else { continue };
            let link = link.to_string_lossy().into_owned();
            let ours = picture
                .shared
                .iter()
                .filter(|(_, own)| **own == link && !outputs.contains(own));
            found.extend(
                ours.map(|(name, _)| format!("{name}: process {} of the host has it too", entry.file_name().display())),
            );
        }
    }
    found
}
