//! Pages of code that CRIU touches in the processes that it has seized. It writes its system calls to the first one.
//! From inside, it looks at the start of each mapping of code that is of no file with a name: for a marked vdso.

use std::fs;
use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::host::cgroup::Cgroup;
use crate::host::host_pids;

/// Memory that CRIU's look would end a process at.
#[derive(Debug, thiserror::Error)]
#[error(
    "process {pid} has executable memory at {start:#x} whose first page cannot be read: a guard page \
     (MADV_GUARD_INSTALL), or one beyond the end of its file, which no snapshot keeps; make it in an after-restore \
     hook, protect it with PROT_NONE instead, or set snapshot = false in fn.toml"
)]
pub struct UnreadableCodeError {
    /// The process's id in its pid namespace.
    pid: u32,
    start: usize,
}

/// Has the pager fill these pages: CRIU's writing does not wait for page faults, and fails where the page is absent
/// (EIO, since Linux 6.5). CRIU has seized the processes, and done nothing else. Blocks.
///
/// # Errors
/// Returns an error when CRIU could not read one of them either.
pub(super) fn fill(cgroup: &Cgroup) -> Result<(), UnreadableCodeError> {
    for pid in cgroup.pids().unwrap_or_default() {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for (number, code) in maps.lines().filter_map(Code::of).enumerate() {
            if number > 0 && !code.is_nameless {
                continue;
            }
            let page = [RemoteIoVec {
                base: code.start,
                len: 1,
            }];
            // What else cannot be read, CRIU will name.
            let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut [0])], &page);
            if code.is_nameless && read == Err(Errno::EFAULT) {
                let (pid, start) = (host_pids::inner_pid(pid).unwrap_or_default(), code.start);
                return Err(UnreadableCodeError { pid, start });
            }
        }
    }
    Ok(())
}

/// How names of shared memory begin.
const SHARED_MEMORY: [&str; 4] = ["/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV"];

/// A mapping of code that may be read.
#[derive(Debug, PartialEq, Eq)]
struct Code {
    start: usize,
    /// Whether it is of no file with a name, and none of the kernel's own.
    is_nameless: bool,
}

impl Code {
    /// Of a line of a process's maps.
    fn of(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, _) = fields.next()?.split_once('-')?;
        let [b'r', _, b'x', _] = fields.next()?.as_bytes() else {
            return None;
        };
        let (inode, name) = (fields.nth(2)?, fields.next().unwrap_or_default());
        let is_kernels = name.starts_with("[v") || name.starts_with("[uprobes");
        let is_shared_memory = SHARED_MEMORY.iter().any(|start| name.starts_with(start));
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            is_nameless: inode == "0" && !is_kernels || is_shared_memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_in_the_maps_of_a_process() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let found = maps.lines().find_map(Code::of).unwrap();
        let line = maps.lines().find(|line| line.contains(" r-xp ")).unwrap();
        assert!(line.starts_with(&format!("{:x}-", found.start)), "{line}");
        for (line, wanted) in [
            ("7f00-7f01 rw-p 00000000 00:00 0", None),
            ("7f00-7f01 --xp 00000000 00:00 0", None),
            ("7f00-7f01 r-xp 00000000 00:00 0 ", Some(true)),
            ("7f00-7f01 rwxp 00000000 00:00 0          [anon:jit]", Some(true)),
            ("7f00-7f01 r-xp 00000000 00:00 0          [vdso]", Some(false)),
            ("7f00-7f01 r-xp 00002000 fe:00 1234       /usr/bin/a b", Some(false)),
            (
                "7f00-7f01 r-xs 00000000 00:01 77         /memfd:jit (deleted)",
                Some(true),
            ),
        ] {
            let code = Code::of(line);
            assert_eq!(code.as_ref().map(|code| code.is_nameless), wanted, "{line}");
            assert!(code.is_none_or(|code| code.start == 0x7f00));
        }
    }
}
