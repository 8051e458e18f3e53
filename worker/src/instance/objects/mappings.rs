//! Mappings, by what `/proc` says of them. Plain ones are counted.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};

use rekindle_wire::api::KernelObject;

use super::room::InspectionBudget;
use super::{Process, Verdict};

/// Maximum number of mappings of a process that are looked at: the kernel's default limit.
const MAPPINGS_MAX: usize = 65_536;

/// Returns a process's mappings that are not plain, and the number of the others, as far as there is room.
pub(super) fn of(process: &Process, room: &mut InspectionBudget) -> io::Result<Vec<KernelObject>> {
    let maps = BufReader::new(File::open(format!("/proc/{}/maps", process.host))?);
    let (mut found, mut plain) = (Vec::new(), 0);
    for line in maps.split(b'\n').take(MAPPINGS_MAX) {
        let line = line?;
        if room.is_over() {
            // How many there are is not known.
            room.leave_out(1);
            break;
        }
        let line = String::from_utf8_lossy(&line);
        // Address, rights, offset, device, inode, path.
        let mut fields = line.splitn(6, ' ');
        let (range, path) = (fields.next().unwrap_or_default(), fields.nth(4).unwrap_or_default());
        match verdict(path.trim_start()) {
            None => plain += 1,
            Some(_) if !room.take() => room.leave_out(1),
            Some(verdict) => {
                let start = range.split('-').next().unwrap_or_default();
                found.push(process.object(format!("memory at {start}"), 1, verdict));
            }
        }
    }
    if plain > 0 {
        found.push(process.object(
            "memory".to_owned(),
            plain,
            Verdict::kept("mappings of memory and of files"),
        ));
    }
    Ok(found)
}

/// Says what becomes of a mapping of this path. `None` for a plain one.
fn verdict(path: &str) -> Option<Verdict> {
    if path.starts_with("/SYSV") {
        let fix = "use memory that is shared by mmap, such as a file in /dev/shm (shm_open)";
        return Some(Verdict::refused(format!("System V shared memory, {path}"), fix));
    }
    if path.starts_with("anon_inode:") {
        let kind = path.trim_start_matches("anon_inode:").trim_matches(['[', ']']);
        return Some(Verdict::refused(kind, "unmap it before the snapshot"));
    }
    let is_shared = path.starts_with("/dev/zero") || path.starts_with("/dev/shm/");
    if path.starts_with("/dev/") && !is_shared {
        let fix = "unmap it before the snapshot";
        return Some(Verdict::refused(format!("memory of the device {path}"), fix));
    }
    None
}

#[cfg(test)]
mod tests {
    use rekindle_wire::api::Fate;

    use super::*;

    #[test]
    fn what_no_snapshot_holds_is_named() {
        for path in ["/SYSV00000000 (deleted)", "anon_inode:[io_uring]", "/dev/mem"] {
            assert_eq!(verdict(path).map(|v| v.fate), Some(Fate::Refused), "{path}");
        }
        for path in [
            "",
            "[heap]",
            "/usr/lib/x.so",
            "/dev/zero (deleted)",
            "/dev/shm/x",
            "/memfd:x (deleted)",
        ] {
            assert_eq!(verdict(path), None, "{path}");
        }
    }

    #[test]
    fn this_process_s_own_mappings_are_counted() {
        let process = Process {
            pid: 1,
            host: std::process::id().cast_signed(),
            program: "test".to_owned(),
        };
        let found = of(&process, &mut InspectionBudget::new()).unwrap();
        assert!(found.iter().any(|object| object.count > 10), "{found:?}");
    }
}
