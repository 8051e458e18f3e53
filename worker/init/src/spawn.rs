//! Starts the function: a child with a chosen process id that drops every privilege by which it could harm others, then
//! runs the program.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use caps::CapSet;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::{
    Gid, Uid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, setgroups, setresgid, setresuid, setsid,
};

use crate::protocol::{FUNCTION_PID, FUNCTION_UID, Spawn};
use crate::seccomp::{Filter, UnknownFilter};
use crate::secrets;

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program does not exist or is not executable.
    #[error("program \"{0}\" is not an executable file in the function's filesystem")]
    NotFound(String),
    /// An argument or variable contains a NUL character.
    #[error("argument or environment variable contains a NUL character")]
    Nul,
    /// The requested system call filter is not kept.
    #[error("the system call filter that was ordered")]
    Filter(#[from] UnknownFilter),
    /// The kernel refused.
    #[error("{0}")]
    Call(&'static str, #[source] io::Error),
}

pub use rekindle_confined::{MEMLOCK, MESSAGE_QUEUES};

/// Maximum number of signals that wait for a function's processes, and of its timers. CRIU looks through all that wait
/// for each that it reads: 60,000 take it a minute.
const SIGNALS: u64 = 1_024;

/// Where a program is looked up if the environment has no `PATH`.
const SEARCH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The path of `program` as the function will see it. A name is looked up in `PATH`. Relative paths start at `cwd`.
fn locate(program: &str, cwd: &str, env: &[String]) -> Result<String, SpawnError> {
    let at = |path: &Path| Path::new(cwd).join(path).to_string_lossy().into_owned();
    let candidates: Vec<String> = if program.contains('/') {
        vec![at(Path::new(program))]
    } else {
        let path = env.iter().rev().find_map(|variable| variable.strip_prefix("PATH="));
        let directories = path.unwrap_or(SEARCH).split(':');
        directories.map(|d| at(&Path::new(d).join(program))).collect()
    };
    let executable = |path: &String| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    candidates
        .into_iter()
        .find(executable)
        .ok_or_else(|| SpawnError::NotFound(program.to_owned()))
}

fn c_strings<'a>(texts: impl Iterator<Item = &'a String>) -> Result<Vec<CString>, SpawnError> {
    texts
        .map(|t| CString::new(t.as_bytes()).map_err(|_| SpawnError::Nul))
        .collect()
}

/// Forks a child with the process id `pid` in this pid namespace. Returns twice, like fork.
#[expect(unsafe_code, reason = "clone3 with set_tid has no safe wrapper")]
pub(crate) fn fork_as(pid: Option<i32>) -> io::Result<i32> {
    let wanted = [pid.unwrap_or(0)];
    // SAFETY: an all-zero clone_args is a valid value of this plain C struct.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if pid.is_some() {
        args.set_tid = wanted.as_ptr() as u64;
        args.set_tid_size = 1;
    }
    // SAFETY: without CLONE_VM this is a fork. Init is single-threaded, so the child may keep using everything. `args`
    // and `wanted` live until the call returns.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match child {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid as i32),
    }
}

/// Starts the function. Returns its process id in the sandbox.
///
/// # Errors
/// If the program cannot be found or the kernel refuses the fork. A failure in the child after the fork is written to
/// its standard error and appears as exit code 127.
pub fn spawn(order: &Spawn, stdout: &OwnedFd, stderr: &OwnedFd, group: &OwnedFd) -> Result<i32, SpawnError> {
    let first = order.argv.first().ok_or_else(|| SpawnError::NotFound(String::new()))?;
    let located = locate(first, &order.cwd, &order.env)?;
    // The reaper's arguments are its name and what it runs.
    let (program, before) = match &order.reaper {
        Some(reaper) => (locate(reaper, &order.cwd, &order.env)?, vec![reaper.clone(), located]),
        None => (located, Vec::new()),
    };
    let program = CString::new(program).map_err(|_| SpawnError::Nul)?;
    let argv = c_strings(before.iter().chain(&order.argv))?;
    let secrets = match order.secrets {
        true => secrets::variables(Path::new(secrets::DIRECTORY)).map_err(|e| SpawnError::Call("read secrets", e))?,
        false => Vec::new(),
    };
    let env = c_strings(order.env.iter().chain(&secrets))?;
    // Before the fork: the child only makes system calls.
    let filter = Filter::chosen(order.filter.as_deref())?;
    let null = std::fs::File::open("/dev/null").map_err(|e| SpawnError::Call("open /dev/null", e))?;
    match fork_as(Some(FUNCTION_PID)).map_err(|e| SpawnError::Call("fork the function", e))? {
        0 => {
            let joined = join_group(group).and_then(|()| become_function(order, &filter, &null, stdout, stderr));
            let failed = match joined {
                Ok(()) => match execve(&program, &argv, &env) {
                    Ok(never) => match never {},
                    Err(e) => format!("run {}: {e}", program.to_string_lossy()),
                },
                Err(e) => format!("prepare the process: {e}"),
            };
            eprintln!("rekindle: {failed}");
            std::process::exit(127);
        }
        pid => Ok(pid),
    }
}

/// Moves this process to the control group with this `cgroup.procs` file. The host has opened the file, so it is
/// invisible inside.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn join_group(procs: &OwnedFd) -> io::Result<()> {
    Ok(nix::unistd::write(procs, b"0").map(drop)?)
}

/// Runs in the child. The order matters: dropping the bounding set needs a capability that setresuid takes away, and
/// the filter comes last since it forbids much of what precedes it.
fn become_function(
    order: &Spawn,
    filter: &Filter,
    stdin: &std::fs::File,
    stdout: &OwnedFd,
    stderr: &OwnedFd,
) -> io::Result<()> {
    setsid()?;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    close_range(3, i32::MAX)?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    default_sigpipe()?;
    lower_limit(Resource::RLIMIT_NOFILE, order.open_files)?;
    forbid_core_dumps(Path::new(CORE_PATTERN))?;
    lower_limit(Resource::RLIMIT_MEMLOCK, MEMLOCK)?;
    lower_limit(Resource::RLIMIT_MSGQUEUE, MESSAGE_QUEUES)?;
    lower_limit(Resource::RLIMIT_SIGPENDING, SIGNALS)?;
    // A privileged worker must not pass its privileges to the function.
    lower_limit(Resource::RLIMIT_NICE, 0)?;
    lower_limit(Resource::RLIMIT_RTPRIO, 0)?;
    chdir(order.cwd.as_str())
        .map_err(|e| io::Error::other(format!("the working directory {} cannot be entered: {e}", order.cwd)))?;
    caps::clear(None, CapSet::Bounding).map_err(io::Error::other)?;
    caps::clear(None, CapSet::Ambient).map_err(io::Error::other)?;
    caps::clear(None, CapSet::Inheritable).map_err(io::Error::other)?;
    setgroups(&[])?;
    let (uid, gid) = (Uid::from_raw(FUNCTION_UID), Gid::from_raw(FUNCTION_UID));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    nix::sys::prctl::set_no_new_privs()?;
    filter.apply().map_err(io::Error::other)
}

/// Rust's runtime ignores the signal, and a program that is executed inherits that.
#[expect(unsafe_code, reason = "sets a signal's default action")]
fn default_sigpipe() -> io::Result<()> {
    // SAFETY: no handler is set or replaced.
    Ok(unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.map(drop)?)
}

fn lower_limit(resource: Resource, limit: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    let limit = limit.min(hard);
    Ok(setrlimit(resource, limit, limit)?)
}

/// Where crashes go: a file, or a program or socket of the host if the pattern starts with `|` or `@`.
pub const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// Sets the core limit to 1, soft and hard, at which the kernel neither writes a file for a crash nor starts a program.
/// At 0 it writes no file, but still starts the program of `core_pattern`. That program runs as root, outside the
/// sandbox, and could read the function's memory. The system call filter preserves the limit.
///
/// # Errors
/// If the hard limit is 0 and cannot be raised, and a crash would go to a program.
fn forbid_core_dumps(core_pattern: &Path) -> io::Result<()> {
    match setrlimit(Resource::RLIMIT_CORE, 1, 1) {
        Err(Errno::EPERM) if crashes_go_to_a_file(core_pattern)? => Ok(()),
        Err(Errno::EPERM) => Err(io::Error::other(
            "the limit of core dumps is 0, at which the program of kernel.core_pattern would be started for each \
             crash, and may not be raised to 1: give the worker LimitCORE=1 or more, or CAP_SYS_RESOURCE",
        )),
        other => Ok(other?),
    }
}

/// Whether a crash starts no program and reaches no socket of the host, whatever the core limit.
///
/// # Errors
/// If the kernel's file cannot be read.
pub fn crashes_go_to_a_file(core_pattern: &Path) -> io::Result<bool> {
    Ok(names_a_file(&std::fs::read(core_pattern)?))
}

fn names_a_file(core_pattern: &[u8]) -> bool {
    !matches!(core_pattern.first(), Some(b'|' | b'@'))
}

/// Closes every descriptor from `first` to `last`.
#[expect(unsafe_code, reason = "close_range has no safe wrapper in nix")]
fn close_range(first: i32, last: i32) -> io::Result<()> {
    // SAFETY: called between fork and exec. Nothing that owns these descriptors runs afterwards.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Places each of `fds` at its target number, from 3 on, and closes all others above 2. For a child that is about to
/// exec.
#[expect(unsafe_code, reason = "dup2 onto chosen numbers takes no ownership")]
pub(crate) fn place_fds(fds: &[(BorrowedFd<'_>, i32)]) -> io::Result<()> {
    // First moves them out of the way of the targets, then down onto them.
    let floor = fds.iter().map(|(_, target)| target + 1).max().unwrap_or(3);
    let mut high = Vec::new();
    for (fd, _) in fds {
        // SAFETY: F_DUPFD creates a new descriptor and touches no memory.
        let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, floor) };
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        high.push(copy);
    }
    close_range(3, floor - 1)?;
    for ((_, target), copy) in fds.iter().zip(&high) {
        // SAFETY: nothing uses the target's number any more.
        if unsafe { libc::dup2(*copy, *target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    close_range(floor, i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_in_the_function_s_path() {
        let directory = tempfile::tempdir().unwrap();
        let cwd = directory.path().to_str().unwrap();
        let program = directory.path().join("bin/serve");
        std::fs::create_dir(directory.path().join("bin")).unwrap();
        std::fs::write(&program, "").unwrap();
        let found = |program: &str, path: &str| locate(program, cwd, &[path.to_owned()]).ok();
        let expected = program.to_str().map(str::to_owned);
        assert_eq!(found("serve", "PATH=bin"), None, "it is not executable");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(found("serve", &format!("PATH=/nowhere:{cwd}/bin")), expected);
        assert_eq!(found("serve", "PATH=bin"), expected);
        assert_eq!(found("bin/serve", "PATH="), expected);
        assert_eq!(found("serve", "HOME=/tmp"), None);
        assert!(found("sh", "HOME=/tmp").is_some());
    }

    #[test]
    fn crashes_start_no_program_and_the_limit_holds_for_children() {
        // The limits of a child, since the hard limit cannot be raised again.
        let mut child = std::process::Command::new("cat");
        child.arg("/proc/self/limits");
        #[expect(unsafe_code, reason = "runs between fork and exec")]
        // SAFETY: only makes system calls, and opens a file at most.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut child, || forbid_core_dumps(Path::new(CORE_PATTERN)));
        }
        let text = String::from_utf8(child.output().unwrap().stdout).unwrap();
        let line = text.lines().find(|l| l.starts_with("Max core file size")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[4..6], ["1", "1"]);
    }

    #[test]
    fn a_core_limit_that_may_not_be_raised_is_an_error_only_where_crashes_go_to_a_program() {
        assert!(names_a_file(b"core\n"));
        assert!(names_a_file(b"/var/crash/core.%p\n"));
        assert!(names_a_file(b"\n"));
        assert!(!names_a_file(b"|/usr/lib/systemd/systemd-coredump %P\n"));
        assert!(!names_a_file(b"@/run/coredump.socket\n"));
    }
}
