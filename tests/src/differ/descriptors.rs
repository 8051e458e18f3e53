//! What a process has open, by number: what it is, with which flags, and what the kernel says of each kind.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Mounts, Numbers, Picture, Seen};

/// A connection, as the kernel lists it.
const ESTABLISHED: &str = "01";
const USUAL_PORT: u16 = 8080;

pub(super) fn picture(
    seen: &Seen<'_>,
    mounts: &Mounts,
    picture: &mut Picture,
    numbers: &mut Numbers,
) -> io::Result<()> {
    let sockets = sockets(&seen.proc);
    let port = port(&seen.proc)?;
    let mut open: Vec<(u32, String)> = Vec::new();
    for entry in fs::read_dir(seen.proc.join("fd"))?.flatten() {
        let number = entry.file_name().to_string_lossy().parse();
        // One that is closed meanwhile does not count.
        if let (Ok(number), Ok(link)) = (number, entry.path().read_link()) {
            open.push((number, link.to_string_lossy().into_owned()));
        }
    }
    open.sort();
    // The platform's connections are new for each instance, and come and go.
    let platforms = |link: &String| sockets.get(link).is_some_and(|s| s.is_connection_to(&port));
    let (platforms, own): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, link)| platforms(link));
    let platforms: Vec<u32> = platforms.into_iter().map(|(number, _)| number).collect();
    for (number, link) in own {
        let fd = seen.proc.join("fd").join(number.to_string());
        let Ok(info) = fs::read_to_string(seen.proc.join("fdinfo").join(number.to_string())) else {
            continue;
        };
        // If the number was given to another file meanwhile, the facts are of two files.
        if !fd.read_link().is_ok_and(|now| now.to_string_lossy() == link) {
            continue;
        }
        let name = format!("{}/fd {number}", seen.inner);
        let target = match link.split_once(':') {
            Some(("pipe" | "socket", _)) => {
                picture.shared.insert(name.clone(), link.clone());
                let what = sockets.get(&link).map(|s| format!(", {}", s.told)).unwrap_or_default();
                format!("{}{what}", numbers.of(&link))
            }
            _ => link.clone(),
        };
        if link.starts_with('/') {
            picture.mounts.insert(name.clone(), mounts.by_id(&info));
        }
        picture.say(name.clone(), target);
        let access = fs::symlink_metadata(&fd).map(|m| m.mode() & 0o700).unwrap_or_default();
        picture.say(format!("{name} access"), format!("{access:o}"));
        facts(&name, &info, &platforms, picture);
    }
    Ok(())
}

/// The facts in `fdinfo`, without the kernel's numbers and transient values.
fn facts(name: &str, info: &str, platforms: &[u32], picture: &mut Picture) {
    let (mut watched, mut locks) = (Vec::new(), Vec::new());
    for line in info.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |key: &str| {
            let at = words
                .iter()
                .position(|w| w.trim_end_matches(':') == key.trim_end_matches(':'));
            at.and_then(|at| words.get(at + 1)).copied().unwrap_or_default()
        };
        match words.first().copied().unwrap_or_default() {
            "tfd:" => {
                let target: u32 = after("tfd").parse().unwrap_or_default();
                if !platforms.contains(&target) {
                    watched.push(format!("{target} events {} data {}", after("events"), after("data")));
                }
            }
            "inotify" => {
                let value = |key: &str| words.iter().find_map(|w| w.strip_prefix(key)).unwrap_or_default();
                watched.push(format!("{} mask {}", value("wd:"), value("mask:")));
            }
            // lock: 1: POSIX  ADVISORY  WRITE 4711 00:3a:5 0 EOF
            "lock:" if words.len() > 7 => locks.push(format!("{} {}", words[2..5].join(" "), words[7..].join(" "))),
            "it_value:" => {
                let armed = !line.contains("(0, 0)");
                picture.say(format!("{name} armed"), armed.to_string());
            }
            "mnt_id:" | "ino:" | "eventfd-id:" => {}
            // Of a pidfd: ids of the host.
            "Pid:" => {}
            key if !key.is_empty() => {
                let key = key.trim_end_matches(':');
                picture.say(format!("{name} {key}"), words[1..].join(" "));
            }
            _ => {}
        }
    }
    // The kernel lists them in the order of a tree of addresses.
    watched.sort();
    for (kind, all) in [("watches", watched), ("locks", locks)] {
        if !all.is_empty() {
            picture.say(format!("{name} {kind}"), all.join("; "));
        }
    }
}

struct Socket {
    told: String,
    local_port: Option<String>,
    connected: bool,
}

impl Socket {
    /// Whether it came in by this port, as four digits.
    fn is_connection_to(&self, port: &str) -> bool {
        self.connected && self.local_port.as_deref() == Some(port)
    }
}

/// The sockets of a process's network, by their links.
fn sockets(proc: &Path) -> BTreeMap<String, Socket> {
    let mut found = BTreeMap::new();
    let read = |name: &str| fs::read_to_string(proc.join("net").join(name)).unwrap_or_default();
    for kind in ["tcp", "tcp6", "udp", "udp6"] {
        for line in read(kind).lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, remote, state, inode) = (words[1], words[2], words[3], words[9]);
            let connected = kind.starts_with("tcp") && state == ESTABLISHED;
            let socket = Socket {
                told: format!("{kind} {local} to {remote} state {state}"),
                local_port: local.rsplit_once(':').map(|(_, port)| port.to_owned()),
                connected,
            };
            found.insert(format!("socket:[{inode}]"), socket);
        }
    }
    for line in read("unix").lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (flags, kind, state, inode) = (words[3], words[4], words[5], words[6]);
        let path = words.get(7).copied().unwrap_or_default();
        let socket = Socket {
            told: format!("unix {kind} flags {flags} state {state} {path}"),
            local_port: None,
            connected: false,
        };
        found.insert(format!("socket:[{inode}]"), socket);
    }
    found
}

/// The port on which a function serves, as `/proc/net/tcp` writes it. It is the usual one if the environment cannot be
/// read.
fn port(proc: &Path) -> io::Result<String> {
    let environment = fs::read(proc.join("environ"))?;
    let text = String::from_utf8_lossy(&environment).into_owned();
    let port = text
        .split('\0')
        .find_map(|v| v.strip_prefix("PORT=")?.parse::<u16>().ok());
    Ok(format!("{:04X}", port.unwrap_or(USUAL_PORT)))
}
