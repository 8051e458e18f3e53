//! Detects processes that a checkpoint would miss. When a process's parent ends, the kernel makes it a child of init.
//! It is then no longer in the tree below the function's first process, which CRIU dumps, and every copy would lack it.
//! A process that starts a program by `vfork` waits in the kernel for its child, where CRIU cannot stop it.
//!
//! The check runs while all processes are frozen, so that its result is complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::protocol::FUNCTION_PID;

/// Why no checkpoint is possible.
#[derive(Debug, thiserror::Error)]
pub enum StrayError {
    /// A process would be missing.
    #[error("process {pid} ({name:?}) has outlived its parent, and no checkpoint would hold it")]
    Stray {
        /// Its process id inside.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// A process is starting a program, and will have done so in a moment.
    #[error("process {pid} ({name:?}) waits for a program that it starts to run")]
    Spawning {
        /// Its process id inside.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// The processes cannot be listed.
    #[error("look for processes in {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
}

/// A process, as described by the kernel's `stat`.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    name: String,
    parent: i32,
    /// A zombie has no threads. A process whose first thread is dead may have other threads alive.
    is_alive: bool,
}

/// Rejects a checkpoint if it would miss a process or if a process cannot be stopped. `proc` is the mount point of the
/// pid namespace's procfs. `known` are init's own children in it.
///
/// # Errors
/// The first such process found.
pub fn refuse(proc: &Path, known: &[i32]) -> Result<(), StrayError> {
    let failed = |e| StrayError::Read(proc.to_owned(), e);
    for entry in fs::read_dir(proc).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        let directory = proc.join(name);
        // A process that has just ended is not a stray.
        let stat = fs::read(directory.join("stat")).unwrap_or_default();
        let Some(process) = parse(pid, &String::from_utf8_lossy(&stat)).filter(|p| p.is_alive) else {
            continue;
        };
        let Process { name, parent, .. } = process;
        if parent == 1 && pid != FUNCTION_PID && !known.contains(&pid) {
            return Err(StrayError::Stray { pid, name });
        }
        if is_spawning(&directory) {
            return Err(StrayError::Spawning { pid, name });
        }
    }
    Ok(())
}

/// The name may contain anything, so it ends at the last parenthesis.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // The number of threads is the sixteenth field after the parent.
    let threads = fields.nth(15).and_then(|n| n.parse::<u32>().ok()).unwrap_or(1);
    Some(Process {
        pid,
        name: name.to_owned(),
        parent,
        is_alive: match state {
            "Z" | "X" => threads > 1,
            _ => true,
        },
    })
}

/// Whether a thread of this process waits for a child that still shares its memory.
fn is_spawning(directory: &Path) -> bool {
    let threads = fs::read_dir(directory.join("task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("syscall")).ok())
        .any(|call| {
            // The call's number and its first argument, or other words if the thread is in no call.
            let mut words = call.split_whitespace();
            let number = words.next().and_then(|n| n.parse::<i64>().ok());
            let flags = words
                .next()
                .and_then(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).ok());
            match number {
                Some(libc::SYS_vfork) => true,
                Some(libc::SYS_clone) => flags.is_some_and(|flags| flags & libc::CLONE_VFORK as u64 != 0),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's line for a process with this many threads.
    fn stat(pid: i32, name: &str, state: char, parent: i32, threads: u32) -> String {
        format!("{pid} ({name}) {state} {parent} 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 7 0")
    }

    fn add(proc: &Path, pid: i32, stat: &str) {
        let dir = proc.join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("stat"), stat).unwrap();
    }

    fn usual() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let processes = [
            (1, "init", 'S', 0, 1),
            (501, "python3", 't', 1, 4),
            (502, "child", 't', 501, 1),
            (3, "criu", 'R', 1, 1),
            (4, "helper", 'R', 3, 1),
            (600, "dead", 'Z', 1, 0),
        ];
        for (pid, name, state, parent, threads) in processes {
            add(proc.path(), pid, &stat(pid, name, state, parent, threads));
        }
        fs::create_dir(proc.path().join("sys")).unwrap();
        proc
    }

    #[test]
    fn only_a_living_child_of_init_that_nobody_knows_is_a_stray() {
        let proc = usual();
        refuse(proc.path(), &[3]).unwrap();
        add(proc.path(), 700, &stat(700, "a) S 9 (b", 'S', 1, 1));
        let told = refuse(proc.path(), &[3]).unwrap_err().to_string();
        assert!(told.contains("700") && told.contains("a) S 9 (b"), "{told}");
        let hostile = StrayError::Spawning {
            pid: 7,
            name: "\x1b]0;x\n ERROR forged".to_owned(),
        };
        let told = hostile.to_string();
        assert!(told.contains(r#"("\u{1b}]0;x\n ERROR forged")"#), "{told}");
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_alive_as_long_as_another_goes_on() {
        let proc = usual();
        add(proc.path(), 800, &stat(800, "hidden", 'Z', 1, 2));
        let told = refuse(proc.path(), &[3]).unwrap_err();
        assert!(matches!(told, StrayError::Stray { pid: 800, .. }), "{told}");
    }

    #[test]
    fn one_that_waits_for_a_child_with_its_memory_is_said_to_start_a_program() {
        for (call, waits) in [
            ("58 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f01", true),
            ("56 0x4111 0x7f00 0x0 0x0 0x0 0x0 0x7ffc 0x7f01", true),
            ("56 0x11 0x7f00 0x0 0x0 0x0 0x0 0x7ffc 0x7f01", false),
            ("232 0x3 0x7f00 0x4 0xffffffff 0x0 0x0 0x7ffc 0x7f01", false),
            ("-1 0x7ffc 0x7f01", false),
            ("running", false),
        ] {
            let proc = usual();
            let thread = proc.path().join("502/task/503");
            fs::create_dir_all(&thread).unwrap();
            fs::write(thread.join("syscall"), call).unwrap();
            let refused = refuse(proc.path(), &[3]);
            let spawning = matches!(refused, Err(StrayError::Spawning { pid: 502, .. }));
            assert_eq!(spawning, waits, "{call}: {refused:?}");
        }
    }
}
