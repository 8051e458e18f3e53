//! Has the first process that CRIU makes adopt orphans from its birth on. CRIU sets that last of all. Before, it makes
//! processes that lead the sessions of leaders that are gone, and end: without this, their children would become
//! init's, and the next checkpoint would miss them.
//!
//! ```text
//! init ──traces──> CRIU ──clone──> first process, stopped before its first instruction
//!   │── prctl in its place ───────────>│
//!   │── lets both go ──>│              │──> makes its children
//! ```

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;

use crate::in_place;
use crate::protocol::FUNCTION_PID;

/// A CRIU that is about to make the first process.
#[derive(Debug)]
pub(crate) struct Birth {
    criu: Pid,
    /// Whether the first process has been told.
    is_born: bool,
    /// Whether CRIU is followed no more.
    is_let_go: bool,
}

impl Birth {
    /// Follows this CRIU, which is our child.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn expect(criu: i32) -> Result<Self, Errno> {
        let criu = Pid::from_raw(criu);
        let forks = Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE;
        ptrace::seize(criu, forks | Options::PTRACE_O_TRACESYSGOOD)?;
        Ok(Self {
            criu,
            is_born: false,
            is_let_go: false,
        })
    }

    /// Whether it is that of this CRIU.
    pub(crate) fn is_of(&self, criu: i32) -> bool {
        self.criu.as_raw() == criu
    }

    /// A traced process has stopped at this event. Returns whether all is done.
    ///
    /// # Errors
    /// If the kernel refuses a step. CRIU and its children go on in any case.
    fn stopped(&mut self, pid: Pid, event: i32) -> Result<bool, Errno> {
        const FORKS: [i32; 3] = [
            libc::PTRACE_EVENT_FORK,
            libc::PTRACE_EVENT_VFORK,
            libc::PTRACE_EVENT_CLONE,
        ];
        let is_first = |pid: i64| pid == i64::from(FUNCTION_PID);
        if pid != self.criu {
            // A child of CRIU's, before its first instruction.
            let told = if is_first(pid.as_raw().into()) {
                self.is_born = true;
                adopt(pid)
            } else {
                Ok(())
            };
            ptrace::detach(pid, None)?;
            told?;
        } else {
            let made = match FORKS.contains(&event) {
                true => ptrace::getevent(pid),
                false => Ok(0),
            };
            if made.is_ok_and(is_first) {
                self.is_let_go = true;
                ptrace::detach(pid, None)?;
            } else {
                go_on(pid, None)?;
            }
            made?;
        }
        Ok(self.is_born && self.is_let_go)
    }
}

/// A process that was traced for a birth has stopped. Once there is no birth to wait for, it is let go: CRIU may have
/// made others before the first process that report their first stop only now.
///
/// # Errors
/// If the kernel refuses a step. The process goes on in any case.
pub(crate) fn stopped(birth: &mut Option<Birth>, status: WaitStatus) -> Result<(), Errno> {
    match (status, &mut *birth) {
        (WaitStatus::PtraceEvent(pid, _, event), Some(expected)) => {
            if expected.stopped(pid, event)? {
                *birth = None;
            }
            Ok(())
        }
        (WaitStatus::Stopped(pid, signal), Some(_)) => go_on(pid, Some(signal)),
        (WaitStatus::PtraceEvent(pid, ..), None) => let_go(pid, None),
        (WaitStatus::Stopped(pid, signal), None) => let_go(pid, Some(signal)),
        _ => Ok(()),
    }
}

fn let_go(pid: Pid, signal: Option<Signal>) -> Result<(), Errno> {
    match ptrace::detach(pid, signal) {
        // It has been killed.
        Err(Errno::ESRCH) => Ok(()),
        other => other,
    }
}

/// Lets a traced process go on, with the signal at which it has stopped.
///
/// # Errors
/// If the kernel refuses.
fn go_on(pid: Pid, signal: Option<Signal>) -> Result<(), Errno> {
    match ptrace::cont(pid, signal) {
        // It has been killed.
        Err(Errno::ESRCH) => Ok(()),
        other => other,
    }
}

/// Has a process that is born adopt orphans.
fn adopt(pid: Pid) -> Result<(), Errno> {
    let option = libc::PR_SET_CHILD_SUBREAPER as u64;
    in_place::at_birth(pid, |call| call((libc::SYS_prctl, [option, 1, 0, 0, 0, 0])).map(drop))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

    use super::*;

    /// Makes a child as CRIU makes the first process, whose id here is another.
    #[test]
    #[expect(clippy::zombie_processes, reason = "the loop waits for it, as its tracer")]
    fn a_process_adopts_orphans_from_its_birth_on_and_goes_on_as_if_nothing_was() {
        let wait = |pid: Pid| waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
        // It forks once it is told to. Its child makes an orphan, and exits with 7 if that is its own.
        let script = "read _; (bash -c 'sleep 60 & echo $! > '$1; ended=8; \
                      grep -q \"PPid:.$BASHPID\" /proc/$(cat $1)/status && ended=7; kill $(cat $1); exit $ended); \
                      exit $?";
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut maker = Command::new("bash")
            .args(["-c", script, "maker"])
            .arg(file.path())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(maker.id().cast_signed());
        let expected = Birth::expect(pid.as_raw()).unwrap();
        drop(maker.stdin.take());
        let mut born = None;
        let code = loop {
            match wait(pid) {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_CLONE) => {
                    let child = Pid::from_raw(ptrace::getevent(pid).unwrap() as i32);
                    assert!(matches!(wait(child), WaitStatus::PtraceEvent(..)));
                    adopt(child).unwrap();
                    ptrace::detach(child, None).unwrap();
                    born = Some(child);
                    go_on(pid, None).unwrap();
                }
                WaitStatus::Stopped(_, signal) => go_on(pid, Some(signal)).unwrap(),
                WaitStatus::Exited(_, code) => break code,
                other => panic!("{other:?}"),
            }
        };
        assert!(born.is_some() && !expected.is_born);
        assert_eq!(code, 7);
    }

    /// What CRIU made before the first process may report its first stop, and get signals, after the birth.
    #[test]
    #[expect(clippy::zombie_processes, reason = "the loop waits for it, as its tracer")]
    fn a_process_that_stops_after_the_birth_is_let_go() {
        let script = "read _; (trap 'exit 7' USR1; kill -USR1 $BASHPID; exit 8); exit $?";
        let mut maker = Command::new("bash")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(maker.id().cast_signed());
        let mut birth = Some(Birth::expect(pid.as_raw()).unwrap());
        drop(maker.stdin.take());
        let until = Instant::now() + Duration::from_secs(20);
        let mut child = None;
        let code = loop {
            assert!(Instant::now() < until, "{child:?} stays stopped");
            // Not any child of this process: others are other tests'.
            let waited = [Some(pid), child].into_iter().flatten().find_map(|pid| {
                let status = waitpid(pid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
                status.ok().filter(|status| *status != WaitStatus::StillAlive)
            });
            match waited {
                Some(WaitStatus::Exited(of, code)) if of == pid => break code,
                Some(WaitStatus::PtraceEvent(of, _, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_CLONE)) => {
                    child = Some(Pid::from_raw(ptrace::getevent(of).unwrap() as i32));
                    ptrace::detach(of, None).unwrap();
                    birth = None;
                }
                Some(status) => stopped(&mut birth, status).unwrap(),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        assert!(child.is_some());
        assert_eq!(code, 7);
    }
}
