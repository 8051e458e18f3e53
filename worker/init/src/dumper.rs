//! A CRIU that dumps. The kernel shows a process's filters, and the files behind its mappings, only to the host's user
//! namespace. So this CRIU is root on the host, with few capabilities, and runs only host programs.
//!
//! ```text
//! worker        dumper           CRIU
//!   │── Dumper ───>│── fork, run ─>│  in the sandbox's pid namespace
//!   │        (the function is frozen)
//!   │── GoInside ─>│── setns, … ──>│  by ptrace, into the sandbox's mounts, network, …
//! ```
//!
//! It exits with the control socket, and CRIU exits with it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::chdir;

use crate::causes::chain;
use crate::criu;
use crate::in_place::{self, Caller};
use crate::namespaces::join_cgroups;
use crate::protocol::{Call, DUMP_IMAGES_FD, Message, ReceiveError, Reply, Request, receive, send};
use crate::spawn::{fork_as, place_fds};

/// The sandbox's namespaces that CRIU joins, by their names in `/proc/PID/ns`: the pid namespace from the start, then
/// those that it enters later.
pub const NAMESPACES: [(&str, CloneFlags); 6] = [
    ("pid", CloneFlags::CLONE_NEWPID),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("net", CloneFlags::CLONE_NEWNET),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];
/// Preceded by its socket, its images and the freezer.
const FIRST_NAMESPACE_FD: u64 = 6;
/// CRIU's capabilities. `SYS_CHROOT` is for entering the sandbox.
const CAPABILITIES: [Capability; 7] = [
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_SYS_PTRACE,
];
/// Its probe is in the directory of the images, which is its working directory. When CRIU looks for plugins, nothing
/// there could be one.
const ENVIRONMENT: [&CStr; 4] = [c"PATH=/", c"LD_BIND_NOW=1", c"XDG_RUNTIME_DIR=.", c"CRIU_LIBS_DIR=."];

/// Starts a CRIU with the descriptors attached to the request, and serves it until the worker no longer needs it.
///
/// # Errors
/// If the control socket breaks.
pub fn run(
    control: &OwnedFd,
    room: &mut [u8],
    number: u64,
    cgroup_procs: &[PathBuf],
    fds: Vec<OwnedFd>,
) -> io::Result<()> {
    let say = |number, answer| send(control.as_fd(), &Message::Reply(number, answer), &[]);
    let criu = match start(cgroup_procs, fds) {
        Ok(criu) => criu,
        Err(e) => return say(number, Reply::Failed(e)),
    };
    say(number, Reply::Started(criu))?;
    loop {
        let (call, _) = match receive::<Call>(control.as_fd(), room) {
            Ok(received) => received,
            Err(ReceiveError::Closed) => return Ok(()),
            Err(e) => return Err(io::Error::other(e)),
        };
        let answer = match call.request {
            Request::GoInside { real_uid } => match in_place::of(criu, |call| go_inside(call, real_uid)) {
                Ok(()) => Reply::Done,
                Err(e) => Reply::Failed(format!("have criu go into the sandbox: {e}")),
            },
            _ => Reply::Failed("a dumper has its criu go inside, and nothing else".to_owned()),
        };
        say(call.number, answer)?;
    }
}

fn start(cgroup_procs: &[PathBuf], mut fds: Vec<OwnedFd>) -> Result<i32, String> {
    join_cgroups(cgroup_procs).map_err(|e| chain(&e))?;
    if fds.len() > NAMESPACES.len() {
        // Separated from the others: this descriptor is not passed to CRIU.
        let processes = fds.remove(fds.len() - NAMESPACES.len());
        setns(processes, CloneFlags::CLONE_NEWPID).map_err(|e| format!("enter the sandbox's process ids: {e}"))?;
    }
    match fork_as(None).map_err(|e| format!("fork criu: {e}"))? {
        0 => {
            let Err(failed) = become_criu(&fds);
            eprintln!("rekindle-init: run criu outside: {failed}");
            std::process::exit(127);
        }
        pid => Ok(pid),
    }
}

fn become_criu(fds: &[OwnedFd]) -> io::Result<std::convert::Infallible> {
    set_pdeathsig(Signal::SIGKILL)?;
    let others = caps::all()
        .into_iter()
        .filter(|capability| !CAPABILITIES.contains(capability));
    for capability in others {
        // A capability unknown to the kernel does not exist.
        if caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false) {
            caps::drop(None, CapSet::Bounding, capability).map_err(io::Error::other)?;
        }
    }
    // The fork starts on the stage.
    chdir("criu")?;
    let placed: Vec<(BorrowedFd<'_>, i32)> = fds.iter().map(AsFd::as_fd).zip(3..).collect();
    place_fds(&placed)?;
    criu::run(&ENVIRONMENT)
}

fn go_inside(call: Caller<'_>, real_uid: u32) -> Result<(), Errno> {
    for ((_, namespace), fd) in NAMESPACES[1..].iter().zip(FIRST_NAMESPACE_FD..) {
        call((libc::SYS_setns, [fd, namespace.bits() as u64, 0, 0, 0, 0]))?;
    }
    let last = FIRST_NAMESPACE_FD + NAMESPACES.len() as u64 - 2;
    call((libc::SYS_close_range, [FIRST_NAMESPACE_FD, last, 0, 0, 0, 0]))?;
    call((libc::SYS_fchdir, [DUMP_IMAGES_FD as u64, 0, 0, 0, 0, 0]))?;
    let (real, same) = (u64::from(real_uid), u64::from(u32::MAX));
    call((libc::SYS_setresgid, [real, same, same, 0, 0, 0]))?;
    call((libc::SYS_setresuid, [real, same, same, 0, 0, 0]))?;
    Ok(())
}
