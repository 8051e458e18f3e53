//! Descriptors, by what `/proc` says of them.

use std::fs;
use std::io;

use rekindle_verify::shown_process;
use rekindle_wire::api::{Fate, KernelObject};

use super::room::InspectionBudget;
use super::sockets::Sockets;
use super::{Process, Verdict};

/// The largest file without a name that a snapshot holds, in bytes.
const UNLINKED_MAX: u64 = 16 << 20;
/// Devices that every sandbox has.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Returns a process's descriptors, as far as there is room. Its sockets are added to `sockets`.
pub(super) fn of(
    process: &Process,
    sockets: &mut Sockets,
    room: &mut InspectionBudget,
) -> io::Result<Vec<KernelObject>> {
    let root = format!("/proc/{}", process.host);
    let (mut found, mut seen) = (Vec::new(), 0);
    for entry in fs::read_dir(format!("{root}/fd"))?.flatten() {
        if !room.take() {
            // The directory's size is their number, from Linux 6.2 on.
            let all = fs::metadata(format!("{root}/fd")).map_or(0, |directory| directory.len());
            room.leave_out(all.saturating_sub(seen).max(1));
            break;
        }
        seen += 1;
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        if target.starts_with("socket:[") {
            sockets.add(process, number);
            continue;
        }
        let about = fs::read_to_string(format!("{root}/fdinfo/{number}")).unwrap_or_default();
        // Follows the link to the open file, whatever lies at its path. It is not opened.
        let size = fs::metadata(entry.path()).map_or(0, |file| file.len());
        let verdict = verdict(&target, &about, size, process.pid);
        found.push(process.object(format!("descriptor {number}"), 1, verdict));
    }
    Ok(found)
}

/// Says what becomes of a descriptor, by its link, its `fdinfo`, its size in bytes, and the id of its process.
fn verdict(target: &str, about: &str, size: u64, pid: u32) -> Verdict {
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .unwrap_or(0);
    if target.starts_with("pipe:[") {
        if flags & libc::O_DIRECT == 0 {
            return Verdict::kept("a pipe");
        }
        let fix = "make it without O_DIRECT, or use a UNIX socket of kind SOCK_SEQPACKET";
        return Verdict::of(
            Fate::Refused,
            "a pipe in packet mode",
            "no snapshot holds what is in it",
            Some(fix),
        );
    }
    if let Some(kind) = target.strip_prefix("anon_inode:") {
        return anonymous(kind.trim_matches(['[', ']']), about);
    }
    if target.starts_with("/dev/pts/") || target == "/dev/ptmx" || target == "/dev/tty" {
        return Verdict::refused(format!("a terminal, {target}"), "close it before the snapshot");
    }
    if target.starts_with("/dev/") && !target.starts_with("/dev/shm/") && !DEVICES.contains(&target) {
        return Verdict::refused(format!("the device {target}"), "close it before the snapshot");
    }
    if shown_process(target.as_bytes()) == Some(pid) {
        return Verdict::kept(format!("a file about itself, {target}"));
    }
    if target.starts_with("/proc/") || target.starts_with("/sys/") || target == "/proc" || target == "/sys" {
        let fix = "close it after reading; one that is open for a moment does no harm";
        return Verdict::refused(format!("a file of the kernel's, {target}"), fix);
    }
    if about
        .lines()
        .any(|line| line.starts_with("lock:") && line.contains("LEASE"))
    {
        return Verdict::refused(format!("a lease on {target}"), "give it up before the snapshot");
    }
    if target.starts_with("/memfd:") {
        return Verdict::kept(format!("a memory file, {}", target.trim_end_matches(" (deleted)")));
    }
    match target.strip_suffix(" (deleted)") {
        Some(path) if size > UNLINKED_MAX => {
            let fix = "close it before the snapshot, or keep its name: without one, at most 16 MiB are held";
            Verdict::refused(format!("a file without a name, once {path}"), fix)
        }
        Some(path) => Verdict::kept(format!("a file without a name, once {path}")),
        None if target.starts_with('/') => Verdict::kept(target),
        None => Verdict::refused(target, "close it before the snapshot"),
    }
}

/// Says what becomes of what has no file: `kind` is the kernel's word for it.
fn anonymous(kind: &str, about: &str) -> Verdict {
    match kind {
        "eventfd" if about.lines().any(|line| line == "eventfd-semaphore: 1") => Verdict::refused(
            "an eventfd with EFD_SEMAPHORE",
            "make it in an after-restore hook, or use a pipe or a POSIX semaphore",
        ),
        "inotify" => Verdict::of(Fate::Kept, "inotify", "events that were not read are lost", None),
        "eventfd" | "eventpoll" | "timerfd" | "signalfd" | "pidfd" => Verdict::kept(kind),
        _ => Verdict::refused(kind, "close it before the snapshot"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_descriptor_has_what_the_contract_says() {
        let of = |target: &str, about: &str, size| {
            let verdict = verdict(target, about, size, 501);
            assert_eq!(verdict.fix.is_some(), verdict.fate != Fate::Kept, "{target}");
            verdict.fate
        };
        let plain = "pos:\t0\nflags:\t02\n";
        for target in [
            "pipe:[1]",
            "anon_inode:[eventpoll]",
            "anon_inode:inotify",
            "anon_inode:[eventfd]",
            "/dev/null",
            "/dev/shm/queue",
            "/tmp/file",
            "/tmp/file (deleted)",
            "/memfd:kept (deleted)",
            "/proc/501/statm",
        ] {
            assert_eq!(of(target, plain, 1 << 20), Fate::Kept, "{target}");
        }
        for (target, about, size) in [
            ("pipe:[1]", "flags:\t040001\n", 0),
            ("anon_inode:[eventfd]", "eventfd-count: 1\neventfd-semaphore: 1\n", 0),
            ("anon_inode:[io_uring]", plain, 0),
            ("anon_inode:[userfaultfd]", plain, 0),
            ("/dev/pts/0", plain, 0),
            ("/dev/fuse", plain, 0),
            ("/proc/1/stat", plain, 0),
            ("/proc/501/maps", plain, 0),
            ("/tmp/file (deleted)", plain, 17 << 20),
            ("/tmp/file", "lock:\t1: LEASE  ACTIVE    READ 12 00:1 0 EOF\n", 0),
            ("net:[4026531840]", plain, 0),
        ] {
            assert_eq!(of(target, about, size), Fate::Refused, "{target}");
        }
    }

    #[test]
    fn descriptors_without_room_or_time_are_counted_and_not_looked_at() {
        let process = Process {
            pid: 2,
            host: std::process::id().cast_signed(),
            program: "test".to_owned(),
        };
        let _open: Vec<_> = (0..5).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let limit = std::time::Duration::from_secs(60);
        for (objects, limit) in [(2, limit), (1_000, std::time::Duration::ZERO)] {
            let mut room = InspectionBudget::of(objects, limit);
            let found = of(&process, &mut Sockets::default(), &mut room).unwrap();
            assert!(found.len() <= 2, "{found:?}");
            assert!(room.left_out() > 0);
        }
    }

    #[test]
    fn a_name_cannot_forge_a_line() {
        let verdict = verdict("/tmp/a\nb\u{1b}[0m", "", 0, 501);
        assert_eq!(verdict.what, "/tmp/a?b?[0m");
    }
}
