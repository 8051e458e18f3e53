//! The confined process, from its start as root to its end as nobody. Single-threaded.
#![expect(unsafe_code, reason = "fork has no safe wrapper")]

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, execve, fork, getppid, pipe2, sethostname};

use crate::order::{ORDER, Order, Program, Report, SET_UP_FAILED, Work};
use crate::{files, image, layer, rights, upload};

/// Target of unpacking, as the process sees it.
const ROOT: &str = "/";

/// A failed step and its cause.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failed(&'static str, #[source] Box<dyn std::error::Error>);

fn failed<E: Into<Box<dyn std::error::Error>>>(what: &'static str) -> impl FnOnce(E) -> Failed {
    move |e| Failed(what, e.into())
}

/// Executes the order in the environment. `filter` is the filter of functions, an array of `struct sock_filter`.
#[must_use]
pub fn run(filter: &[u8]) -> ExitCode {
    match outside(filter) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            eprintln!("cannot confine: {text}");
            ExitCode::from(SET_UP_FAILED as u8)
        }
    }
}

/// The part that stays outside and waits.
fn outside(filter: &[u8]) -> Result<u8, Failed> {
    let order = std::env::var(ORDER).map_err(failed("read the order"))?;
    let order: Order = serde_json::from_str(&order).map_err(failed("read the order"))?;
    // The worker's thread that started this process waits for it, so the signal means that the worker is dead.
    set_pdeathsig(Signal::SIGKILL).map_err(failed("tie it to the worker"))?;
    if getppid().as_raw() != order.worker {
        return Err(failed("go on")("the worker is gone"));
    }
    let filter = rights::filter(&order.work, filter).map_err(failed("make the filter"))?;
    let pattern = fs::read("/proc/sys/kernel/core_pattern").map_err(failed("read kernel.core_pattern"))?;
    let crashes_go_to_a_file = !matches!(pattern.first(), Some(b'|' | b'@'));
    for procs in &order.cgroup_procs {
        fs::write(procs, "0").map_err(failed("join the control group"))?;
    }
    // The mount namespace is created in the child: this process needs its /proc to map the child's user.
    let mut apart =
        CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWCGROUP;
    match &order.network {
        None => apart |= CloneFlags::CLONE_NEWNET,
        Some(path) => {
            let network = File::open(path).map_err(failed("open the network"))?;
            setns(network.as_fd(), CloneFlags::CLONE_NEWNET).map_err(failed("enter the network"))?;
        }
    }
    unshare(apart).map_err(failed("leave the host's namespaces"))?;
    let (left, has_left) = pipe2(OFlag::O_CLOEXEC).map_err(failed("make a pipe"))?;
    let (mapped, map_is_there) = pipe2(OFlag::O_CLOEXEC).map_err(failed("make a pipe"))?;
    // SAFETY: the process is single-threaded, so the child may keep using everything.
    match unsafe { fork() }.map_err(failed("fork"))? {
        ForkResult::Child => {
            drop((left, map_is_there));
            match inside(&order, &filter, crashes_go_to_a_file, has_left, mapped) {
                Ok(never) => match never {},
                Err(error) => Err(error),
            }
        }
        ForkResult::Parent { child } => {
            drop((has_left, mapped));
            // Nothing arrives if the child has failed. Its exit code reports that.
            if File::from(left).read(&mut [0]).is_ok_and(|n| n == 1) {
                rights::map(child, &order).map_err(failed("map the user"))?;
                let _ = File::from(map_is_there.try_clone().map_err(failed("copy a pipe"))?).write_all(b"1");
            }
            end_of(child).map_err(failed("wait"))
        }
    }
}

/// Pid 1 of the sandbox.
fn inside(
    order: &Order,
    filter: &seccompiler::BpfProgram,
    crashes_go_to_a_file: bool,
    has_left: OwnedFd,
    mapped: OwnedFd,
) -> Result<Infallible, Failed> {
    // It is outside the root that this process is about to have.
    let layout = match &order.work {
        Work::Image { layout, .. } => Some(File::open(layout).map_err(failed("open the image"))?),
        _ => None,
    };
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("leave the host's mounts"))?;
    files::enter(order).map_err(failed("lay out the files"))?;
    sethostname("build").map_err(failed("name the host"))?;
    rights::limit(&order.work, crashes_go_to_a_file).map_err(failed("set limits"))?;
    umask(Mode::from_bits_truncate(0o022));
    rights::leave_users().map_err(failed("enter a user namespace"))?;
    let mut mapped = File::from(mapped);
    let told = File::from(has_left).write_all(b"1");
    told.and_then(|()| mapped.read_exact(&mut [0]))
        .map_err(failed("wait for the user"))?;
    rights::become_user().map_err(failed("give up rights"))?;
    // After the change of user, which clears it.
    set_pdeathsig(Signal::SIGKILL).map_err(failed("tie it to the worker"))?;
    if is_closed(&mapped).map_err(failed("look for the worker"))? {
        return Err(failed("go on")("the worker is gone"));
    }
    let program = match &order.work {
        Work::Program(program) => Some(PreparedProgram::of(program).map_err(failed("prepare the program"))?),
        _ => None,
    };
    rights::apply(filter).map_err(failed("apply the filter"))?;
    let code = match (&order.work, program) {
        (Work::Program(_), Some(program)) => program.run_to_end()?,
        (Work::Upload { limits, .. }, _) => {
            report(&Report::Upload(upload::unpack(io::stdin(), Path::new(ROOT), limits)))?
        }
        (Work::Image { limits, .. }, _) => match layout {
            Some(layout) => report(&Report::Image(image::unpack(layout.into(), Path::new(ROOT), limits)))?,
            None => SET_UP_FAILED as u8,
        },
        (Work::Layer { name, .. }, _) => report(&Report::Layer(layer::unpack(io::stdin(), Path::new(ROOT), name)))?,
        (Work::Program(_), None) => SET_UP_FAILED as u8,
    };
    std::process::exit(code.into())
}

/// Whether the other end of the pipe is closed.
fn is_closed(pipe: &File) -> io::Result<bool> {
    let mut seen = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut seen, PollTimeout::ZERO)?;
    Ok(seen[0].revents().is_some_and(|e| e.contains(PollFlags::POLLHUP)))
}

fn report(report: &Report) -> Result<u8, Failed> {
    let report = serde_json::to_vec(report).map_err(failed("report"))?;
    io::stdout().write_all(&report).map_err(failed("report"))?;
    io::stdout().flush().map_err(failed("report"))?;
    Ok(0)
}

/// A program with everything needed for exec.
struct PreparedProgram {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl PreparedProgram {
    fn of(program: &Program) -> io::Result<Self> {
        let c_strings = |texts: &[String]| texts.iter().map(|t| CString::new(t.as_str())).collect::<Result<_, _>>();
        chdir(program.cwd.as_str())?;
        Ok(Self {
            path: CString::new(program.path.as_str())?,
            arguments: c_strings(&program.arguments)?,
            environment: c_strings(&program.environment)?,
        })
    }

    /// Starts the program and reaps dead children. When the program ends, so does this process, and as pid 1 it takes
    /// all others with it.
    fn run_to_end(self) -> Result<u8, Failed> {
        // SAFETY: as above.
        match unsafe { fork() }.map_err(failed("fork"))? {
            ForkResult::Child => {
                let Err(e) = execve(&self.path, &self.arguments, &self.environment);
                eprintln!("run {}: {e}", self.path.to_string_lossy());
                std::process::exit(127);
            }
            ForkResult::Parent { child } => reap_until(child).map_err(failed("wait")),
        }
    }
}

fn reap_until(child: Pid) -> io::Result<u8> {
    loop {
        match waitpid(None, None) {
            Ok(status) if status.pid() == Some(child) => return Ok(code(status)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn end_of(child: Pid) -> io::Result<u8> {
    loop {
        match waitpid(child, None) {
            Ok(status) => return Ok(code(status)),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The exit code that a shell would report.
fn code(status: WaitStatus) -> u8 {
    match status {
        WaitStatus::Exited(_, code) => code as u8,
        WaitStatus::Signaled(_, signal, _) => 128 + signal as u8,
        _ => SET_UP_FAILED as u8,
    }
}
