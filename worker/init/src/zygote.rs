//! The first process of this program, started by the worker. It creates all others by forking itself. Starting a new
//! program with its libraries for each sandbox would cost half as much as the kernel's part of a sandbox.
//!
//! Forks share the program's memory layout with each other. A function is another program, and cannot read an init's
//! layout.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::causes::chain;
use crate::protocol::{CONTROL_FD, CONTROL_FLOOR, Call, Message, ReceiveError, Reply, Request, receive, room, send};
use crate::{descriptors, dumper, namespaces, outside};

/// Forks inits until the worker closes the control socket. In each fork, runs the init to its end.
///
/// # Errors
/// If a control socket breaks, or a sandbox cannot be created.
pub fn run() -> io::Result<()> {
    let control = control()?;
    let mut room = room();
    loop {
        let (call, fds) = match receive::<Call>(control.as_fd(), &mut room) {
            Ok(received) => received,
            Err(ReceiveError::Closed) => return Ok(()),
            Err(e) => return Err(io::Error::other(e)),
        };
        let answer = match (call.request, <[OwnedFd; 1]>::try_from(fds)) {
            (Request::Prepare(common), _) => match outside::prepare(&common) {
                Ok(()) => Reply::Done,
                Err(e) => Reply::Failed(chain(&e)),
            },
            (Request::Fork, Ok([of_the_new])) => match namespaces::fork_beside() {
                Ok(None) => {
                    drop(control);
                    return forked(out_of_the_way(of_the_new)?, &mut room);
                }
                Ok(Some(pid)) => Reply::Started(pid.as_raw()),
                Err(e) => Reply::Failed(format!("fork: {e}")),
            },
            _ => {
                Reply::Failed("a zygote only forks, and needs the new init's end of a control socket for it".to_owned())
            }
        };
        send(control.as_fd(), &Message::Reply(call.number, answer), &[])?;
    }
}

/// Runs a fork, whose first request determines its role.
fn forked(control: OwnedFd, room: &mut [u8]) -> io::Result<()> {
    let (Call { number, request }, fds) = match receive::<Call>(control.as_fd(), room) {
        Ok(first) => first,
        Err(ReceiveError::Closed) => return Ok(()),
        Err(e) => return Err(io::Error::other(e)),
    };
    let said = match request {
        Request::Make(order) => match <[OwnedFd; 1]>::try_from(fds) {
            Ok([inside]) => return outside::run(control, room, number, &order, out_of_the_way(inside)?),
            Err(_) => "init's end of a control socket is missing",
        },
        Request::Dumper { cgroup_procs } => return dumper::run(&control, room, number, &cgroup_procs, fds),
        _ => "the first request is neither to make a sandbox nor to dump one",
    };
    send(
        control.as_fd(),
        &Message::Reply(number, Reply::Failed(said.to_owned())),
        &[],
    )
}

/// The control socket that this program was started with.
#[expect(unsafe_code, reason = "takes ownership of the control socket it was started with")]
fn control() -> io::Result<OwnedFd> {
    // SAFETY: the worker starts this program with the control socket there. Nothing else in this process owns it.
    let given = unsafe { OwnedFd::from_raw_fd(CONTROL_FD) };
    let high = descriptors::duplicate(&given, CONTROL_FLOOR)?;
    // CRIU needs a standard input. Otherwise it would take the first file it opens for one.
    nix::unistd::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    // Its number now belongs to /dev/null and stays open.
    std::mem::forget(given);
    Ok(high)
}

/// The same descriptor with a high number.
fn out_of_the_way(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() >= CONTROL_FLOOR {
        return Ok(fd);
    }
    descriptors::duplicate(&fd, CONTROL_FLOOR)
}
