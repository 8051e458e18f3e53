//! The life cycle of init:
//!
//! ```text
//! pid 1 ── Begin (ahead) ──> serve: Furnish, then requests one by one, children reaped as they die
//!                                                     │
//!                                      control socket closed: exit, and the kernel kills the rest
//! ```

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::ancestor::Ancestor;
use crate::birth::{self, Birth};
use crate::causes::chain;
use crate::devices::USERFAULT;
use crate::files::Loaded;
use crate::protocol::{
    CRIU_PROBE_CACHE, Call, ExitCause, FUNCTION_PID, FUNCTION_UID, HELD_FD, Machine, Message, RESTORED_LAST_PID,
    ReceiveError, Reply, Request, Setup, receive, send,
};
use crate::strays::StrayError;
use crate::{
    ancestor, clocks, criu, descriptors, files, hollow, ipc, locks, machine, namespaces, rootfs, secrets, spawn, strays,
};

/// Maximum size of an accepted kernel probe result in bytes. A result is about 1 KiB.
const PROBE_MAX: usize = 64 * 1024;

/// Runs init to its end. Its working directory is the stage. Requests arrive on `control`, and `room` is the buffer for
/// messages. `has_groups` says whether it is in its own control groups.
///
/// # Errors
/// If the control socket breaks.
pub fn run(control: &OwnedFd, room: &mut [u8], has_groups: bool) -> io::Result<()> {
    // A separate mount without a parent, which no path reaches once the files are laid out. The host's mounts stay in
    // place even under another root, so a descriptor of one of their directories would lead to everything above it.
    let bundle = open_tree(
        CWD,
        "criu",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    // A host without it cannot restore memory lazily.
    let userfault = File::options().read(true).write(true).open(USERFAULT).ok();
    let sandbox = Sandbox {
        has_groups,
        machine: None,
        uncovered: None,
        ready: None,
        bundle,
        userfault: userfault.map(OwnedFd::from),
        last_pid: None,
        probe_is_shown: false,
        hollow: None,
        criu: Vec::new(),
        birth: None,
        held: Vec::new(),
        loaded: Loaded::default(),
    };
    serve(control.as_fd(), room, sandbox)
}

fn answer_with(control: BorrowedFd<'_>, number: u64, answer: Reply, beside: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<_> = beside.iter().map(AsFd::as_fd).collect();
    send(control, &Message::Reply(number, answer), &fds)
}

fn serve(control: BorrowedFd<'_>, room: &mut [u8], mut sandbox: Sandbox) -> io::Result<()> {
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block()?;
    let deaths = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    loop {
        let mut ready = [
            PollFd::new(control, PollFlags::POLLIN),
            PollFd::new(deaths.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Err(nix::Error::EINTR) => continue,
            other => other?,
        };
        let happened = |i: usize| ready[i].revents().is_some_and(|r| !r.is_empty());
        let (spoken, died) = (happened(0), happened(1));
        if died {
            while deaths.read_signal()?.is_some() {}
            reap(control, &mut sandbox)?;
        }
        if spoken {
            let (call, fds) = match receive::<Call>(control, room) {
                Ok(received) => received,
                Err(ReceiveError::Closed) => return Ok(()),
                Err(e) => return Err(io::Error::other(e)),
            };
            let (done, beside) = match call.request {
                Request::Ancestor => match make_ancestor(&mut sandbox) {
                    Ok(Ancestor { userfault, page }) => (Reply::Ancestor(page), vec![userfault]),
                    Err(why) => (Reply::Failed(why), Vec::new()),
                },
                Request::Userfaults(pids) => match make_userfaults(&sandbox, &pids) {
                    Ok(made) => (Reply::Done, made),
                    Err(why) => (Reply::Failed(why), Vec::new()),
                },
                other => (
                    perform(other, fds, &mut sandbox).unwrap_or_else(Reply::Failed),
                    Vec::new(),
                ),
            };
            answer_with(control, call.number, done, &beside)?;
        }
    }
}

/// Reaps dead children. Only the function's first process is reported to the worker, because others may be many.
fn reap(control: BorrowedFd<'_>, sandbox: &mut Sandbox) -> io::Result<()> {
    loop {
        let (pid, cause) = match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), ExitCause::Code(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), ExitCause::Signal(signal as i32)),
            Ok(WaitStatus::StillAlive) | Err(nix::Error::ECHILD) => return Ok(()),
            Ok(stopped @ (WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..))) => {
                // Processes that outlive their parents may become init's. The next checkpoint will say so.
                if let Err(e) = birth::stopped(&mut sandbox.birth, stopped) {
                    eprintln!("rekindle-init: have a process adopt orphans: {e}");
                }
                continue;
            }
            Ok(_) | Err(nix::Error::EINTR) => continue,
            Err(e) => return Err(e.into()),
        };
        sandbox.criu.retain(|criu| *criu != pid);
        sandbox.birth.take_if(|birth| birth.is_of(pid));
        if sandbox.hollow == Some(pid) {
            sandbox.hollow = None;
        } else if pid == FUNCTION_PID {
            send(control, &Message::Ended(cause), &[])?;
        }
    }
}

/// State of init between requests.
struct Sandbox {
    /// Whether it is in its own control groups.
    has_groups: bool,
    /// The machine that it appears to be, once it is furnished.
    machine: Option<Machine>,
    /// What it is furnished with, while files of `/etc` are yet to be covered.
    uncovered: Option<Setup>,
    bundle: OwnedFd,
    /// The device that creates userfaultfds.
    userfault: Option<OwnedFd>,
    /// The file that sets the last process id, from the work done ahead until the sandbox is furnished.
    ready: Option<File>,
    /// The same file, once the sandbox is furnished.
    last_pid: Option<File>,
    /// Whether CRIU sees its probe on the mount that covers the host's /run.
    probe_is_shown: bool,
    /// The process that waits for a restore program.
    hollow: Option<i32>,
    /// CRIU's processes that have not ended.
    criu: Vec<i32>,
    /// The CRIU that is about to make a first process which adopts orphans.
    birth: Option<Birth>,
    /// Descriptors that CRIU opens by number.
    held: Vec<OwnedFd>,
    /// Result of loading the private files.
    loaded: Loaded,
}

impl Sandbox {
    /// Covers files of `/etc`, if that was left for later.
    fn cover(&mut self) -> Result<(), String> {
        let covered = self.uncovered.take().map_or(Ok(()), |setup| rootfs::cover(&setup));
        covered.map_err(|e| chain(&e))
    }

    /// Keeps `fds` as [`HELD_FD`] and following.
    fn hold(&mut self, fds: impl Iterator<Item = OwnedFd>) -> io::Result<()> {
        self.held.clear();
        for (number, fd) in (HELD_FD..).zip(fds) {
            let placed = descriptors::duplicate(&fd, number)?;
            if placed.as_raw_fd() != number {
                return Err(io::Error::other(format!("descriptor {number} is in use")));
            }
            self.held.push(placed);
        }
        Ok(())
    }

    /// Ends the process that waits for a restore program: another gets its id.
    fn end_hollow(&mut self) {
        if let Some(waits) = self.hollow.take() {
            hollow::end(waits);
        }
    }

    /// Makes the next process get the first free id after `pid`.
    fn set_last_pid(&mut self, pid: i32) -> io::Result<()> {
        let file = self
            .last_pid
            .as_mut()
            .ok_or_else(|| io::Error::other("the sandbox is not furnished"))?;
        file.seek(io::SeekFrom::Start(0))?;
        file.write_all(pid.to_string().as_bytes())
    }
}

/// Reads at an offset rather than at the descriptor's position, which all sandboxes share.
fn read_probe(probe: OwnedFd) -> io::Result<Vec<u8>> {
    let mut content = vec![0; PROBE_MAX];
    let length = File::from(probe).read_at(&mut content, 0)?;
    content.truncate(length);
    Ok(content)
}

fn make_ancestor(sandbox: &mut Sandbox) -> Result<Ancestor, String> {
    if std::mem::take(&mut sandbox.probe_is_shown) {
        rootfs::hide_probe().map_err(|e| chain(&e))?;
    }
    let criu = *sandbox.criu.last().ok_or("no criu waits")?;
    ancestor::of(criu).map_err(|e| {
        if e == nix::Error::ESRCH {
            // It has been reaped.
            sandbox.criu.retain(|other| *other != criu);
        }
        format!("make criu's userfaultfd: {e}")
    })
}

fn make_userfaults(sandbox: &Sandbox, pids: &[i32]) -> Result<Vec<OwnedFd>, String> {
    let device = sandbox.userfault.as_ref().ok_or("the host has no /dev/userfaultfd")?;
    let of = |pid: &i32| {
        ancestor::userfault_of(*pid, device).map_err(|e| format!("make a userfaultfd of process {pid}: {e}"))
    };
    pids.iter().map(of).collect()
}

fn perform(request: Request, fds: Vec<OwnedFd>, sandbox: &mut Sandbox) -> Result<Reply, String> {
    let mut fds = fds.into_iter();
    let mut next = |what: &str| {
        fds.next()
            .ok_or_else(|| format!("{what}: the descriptor beside it is missing"))
    };
    let plain = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    // Before the sandbox is furnished, the root is the host's. The worker sends such requests without waiting for the
    // reply to the furnishing, which may have failed.
    let within = matches!(
        request,
        Request::Hold { .. }
            | Request::BeginProgram(_)
            | Request::FollowLinks
            | Request::TakeLocks(_)
            | Request::RefuseStrays
            | Request::SaveFiles
            | Request::LoadFiles
            | Request::SetSecrets(_)
            | Request::ReadProbe
            | Request::WriteProbe
    );
    if within && sandbox.last_pid.is_none() {
        return Err("the sandbox is not furnished".to_owned());
    }
    match request {
        Request::Prepare(_)
        | Request::Fork
        | Request::Make(_)
        | Request::Mount(_)
        | Request::Dumper { .. }
        | Request::GoInside { .. }
        | Request::Ancestor
        | Request::Userfaults(_) => Err("init does not do that".to_owned()),
        Request::Begin => {
            namespaces::prepare_network().map_err(|e| chain(&e))?;
            sandbox.ready = Some(rootfs::make_ready(sandbox.has_groups).map_err(|e| chain(&e))?);
            Ok(Reply::Done)
        }
        Request::Furnish(_) if sandbox.last_pid.is_some() => Err("the sandbox is furnished already".to_owned()),
        Request::Furnish(setup) => {
            let last_pid = sandbox.ready.take().ok_or("the sandbox is not made ready")?;
            rootfs::enter(&setup).map_err(|e| chain(&e))?;
            sandbox.last_pid = Some(last_pid);
            namespaces::name_host(&setup.hostname).map_err(|e| chain(&e))?;
            sandbox.machine = Some(setup.machine);
            match setup.root_bytes {
                None => rootfs::cover(&setup).map_err(|e| chain(&e))?,
                Some(_) => sandbox.uncovered = Some(setup),
            }
            Ok(Reply::Done)
        }
        Request::Spawn(order) => {
            let (stdout, stderr, group) = (next("stdout")?, next("stderr")?, next("control group")?);
            sandbox.end_hollow();
            sandbox.cover()?;
            sandbox
                .set_last_pid(FUNCTION_PID - 1)
                .map_err(plain("set the last process id"))?;
            rootfs::follow_links().map_err(|e| chain(&e))?;
            spawn::spawn(&order, &stdout, &stderr, &group)
                .map(Reply::Started)
                .map_err(|e| chain(&e))
        }
        Request::Criu { joins } => {
            let mut all: Vec<OwnedFd> = fds.collect();
            let group = joins
                .then(|| all.pop().ok_or("the control group is missing"))
                .transpose()?;
            let criu = criu::start(&sandbox.bundle, &all, group.as_ref(), sandbox.userfault.as_ref());
            let criu = criu.map_err(plain("start criu"))?;
            sandbox.criu.push(criu);
            Ok(Reply::Started(criu))
        }
        Request::Hollow => {
            let (control, group) = (next("control socket")?, next("control group")?);
            let device = sandbox.userfault.as_ref().ok_or("the host has no /dev/userfaultfd")?;
            let hollow = hollow::start(&control, device, &group).map_err(plain("start the hollow process"))?;
            sandbox.hollow = Some(hollow);
            Ok(Reply::Started(hollow))
        }
        Request::BeginProgram(clocks) => {
            sandbox.hollow.take().ok_or("no hollow process waits")?;
            sandbox
                .set_last_pid(RESTORED_LAST_PID)
                .map_err(plain("set the last process id"))?;
            if let Some(machine) = &sandbox.machine {
                machine::booted_before(machine, clocks.boottime.0).map_err(|e| chain(&e))?;
            }
            Ok(Reply::Done)
        }
        Request::Hold { clocks, adopts } => {
            sandbox.end_hollow();
            sandbox.hold(fds).map_err(plain("hold descriptors"))?;
            sandbox
                .set_last_pid(RESTORED_LAST_PID)
                .map_err(plain("set the last process id"))?;
            if let Some(clocks) = clocks {
                let criu = *sandbox.criu.last().ok_or("no criu waits")?;
                clocks::set(criu, &clocks).map_err(plain("set the clocks"))?;
                if let Some(machine) = &sandbox.machine {
                    machine::booted_before(machine, clocks.boottime.0).map_err(|e| chain(&e))?;
                }
            }
            if adopts {
                let criu = *sandbox.criu.last().ok_or("no criu waits")?;
                let birth = Birth::expect(criu).map_err(|e| format!("follow criu: {e}"))?;
                sandbox.birth = Some(birth);
            }
            Ok(Reply::Done)
        }
        Request::TakeLocks(locks) => {
            locks::take(&locks).map_err(plain("take locks"))?;
            Ok(Reply::Done)
        }
        Request::FollowLinks => {
            sandbox.loaded.settle().map_err(plain("set the times of directories"))?;
            rootfs::follow_links().map_err(|e| chain(&e))?;
            // CRIU has opened all of them.
            sandbox.held.clear();
            Ok(Reply::Done)
        }
        Request::RefuseStrays => match strays::refuse(Path::new("/proc"), &sandbox.criu) {
            Ok(()) => match ipc::refuse(Path::new("/proc")) {
                Ok(()) => Ok(Reply::Done),
                Err(e) if e.is_of_function() => Ok(Reply::Holds(chain(&e))),
                Err(e) => Err(chain(&e)),
            },
            Err(e @ StrayError::Spawning { .. }) => Ok(Reply::NotNow(chain(&e))),
            Err(e @ StrayError::Stray { .. }) => Ok(Reply::Orphan(chain(&e))),
            Err(e) => Err(chain(&e)),
        },
        Request::SaveFiles => {
            let archive = next("archive")?;
            files::save(Path::new("/"), archive)
                .map(Reply::Saved)
                .map_err(plain("save files"))
        }
        Request::LoadFiles => {
            let loaded = files::load(Path::new("/"), next("archive")?, FUNCTION_UID).map_err(plain("load files"))?;
            rootfs::look_again().map_err(|e| chain(&e))?;
            sandbox.cover()?;
            let renumbered = loaded.renumbered;
            sandbox.loaded = loaded;
            Ok(Reply::Loaded(renumbered))
        }
        Request::SetSecrets(all) => {
            let values = File::from(next("values")?);
            secrets::write(Path::new(secrets::DIRECTORY), &all, &values, FUNCTION_UID)
                .map(|()| Reply::Done)
                .map_err(plain("write secrets"))
        }
        Request::ReadProbe => std::fs::read(CRIU_PROBE_CACHE)
            .map(Reply::Bytes)
            .map_err(plain("read the probe")),
        Request::WriteProbe => read_probe(next("probe")?)
            .and_then(|probe| std::fs::write(CRIU_PROBE_CACHE, probe))
            .map(|()| Reply::Done)
            .map_err(plain("write the probe")),
        Request::ShowProbe if sandbox.last_pid.is_some() => Err("the sandbox is furnished already".to_owned()),
        Request::ShowProbe => {
            let probe = read_probe(next("probe")?).map_err(plain("read the probe"))?;
            rootfs::show_probe(&probe).map_err(|e| chain(&e))?;
            sandbox.probe_is_shown = true;
            Ok(Reply::Done)
        }
    }
}
