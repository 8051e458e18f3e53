//! The hollow process that waits in an empty sandbox for a restore program: what the worker has of it, and the
//! conversation with it. Everything here blocks.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr,
    UnixCredentials, recvmsg, send, sendmsg, setsockopt, shutdown, socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use rekindle_pager::StoppedProcess;
use rekindle_restore_program::message::{HollowOrder, HollowReport};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How long it may take for each step. All of them together take about a millisecond.
const LIMIT: Duration = Duration::from_secs(15);

/// Why it did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum HollowError {
    /// The socket to it fails.
    #[error("talk to the hollow process")]
    Socket(#[source] io::Error),
    /// It has ended.
    #[error("the hollow process has ended")]
    Ended,
    /// It says something else than it should.
    #[error("the hollow process is not understood")]
    Strange,
    /// An operation of the program failed.
    #[error("operation {number} of the restore program failed")]
    Operation {
        /// Its number, from 1 on. 0 if a child could not make its userfaultfd.
        number: u32,
        /// The process that ran it, by its id in the sandbox, if that is known.
        pid: Option<u32>,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// A hollow process that waits. It ends on drop.
#[derive(Debug)]
pub struct Hollow {
    socket: OwnedFd,
    userfault: OwnedFd,
    /// Its process id on the host.
    host: i32,
}

/// A hollow process that was given a program.
#[derive(Debug)]
pub struct OrderedHollow(Hollow);

/// Tells a hollow process that its private files are there, and that the restore begins. Dropping it makes the process
/// give up.
#[derive(Debug)]
pub struct StartSignal(Option<OwnedFd>);

/// A hollow process that runs a program.
#[derive(Debug)]
pub struct RunningHollow {
    socket: OwnedFd,
    processes: usize,
    /// Whether the first has everything that is made ahead.
    has_begun: bool,
    /// Processes that have everything.
    ready: usize,
    /// Readable once a process has ended. Only of several processes, since those that go on keep the socket open.
    ends: Vec<OwnedFd>,
    /// Process ids on the host, by those in the sandbox.
    pub hosts: HashMap<u32, i32>,
}

/// Returns a connected pair: the worker's end and the process's.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let limit = TimeVal::seconds(LIMIT.as_secs().cast_signed());
    setsockopt(&ours, sockopt::ReceiveTimeout, &limit)?;
    setsockopt(&ours, sockopt::SendTimeout, &limit)?;
    // The kernel says who sent a message.
    setsockopt(&ours, sockopt::PassCred, &true)?;
    Ok((ours, theirs))
}

impl Hollow {
    /// Waits until the process at the other end of `socket` has made its userfaultfd.
    ///
    /// # Errors
    /// Returns an error when it has ended or says something else.
    pub(super) fn accept(socket: OwnedFd) -> Result<Self, HollowError> {
        let (report, userfault, host) = receive_report(&socket)?;
        match (report, userfault) {
            (HollowReport::Hollow(0), Some(userfault)) => Ok(Self {
                socket,
                userfault,
                host,
            }),
            _ => Err(HollowError::Strange),
        }
    }

    /// Gives it a program, with the descriptors of a [`HollowOrder`]. Also returns what tells it to go on.
    ///
    /// # Errors
    /// Returns an error when it is gone.
    pub fn order(
        self,
        order: HollowOrder,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(OrderedHollow, StartSignal), HollowError> {
        let files = self.socket.try_clone().map_err(HollowError::Socket)?;
        let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let bytes = order.to_bytes();
        let part = [IoSlice::new(&bytes)];
        sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &part, &rights, MsgFlags::MSG_NOSIGNAL, None)
            .map_err(|e| HollowError::Socket(e.into()))?;
        Ok((OrderedHollow(self), StartSignal(Some(files))))
    }
}

impl OrderedHollow {
    /// Waits until the program's processes, which have these ids, have all mappings that the pager registers. Returns
    /// their memory.
    ///
    /// # Errors
    /// Returns an error when an operation fails. Nothing of the processes has run then.
    pub fn mapped(self, pids: &[u32]) -> Result<(RunningHollow, Vec<StoppedProcess>), HollowError> {
        let Hollow {
            socket,
            userfault,
            host,
        } = self.0;
        let first = *pids.first().ok_or(HollowError::Strange)?;
        let mut filling = RunningHollow {
            socket,
            processes: pids.len(),
            has_begun: false,
            ready: 0,
            ends: Vec::new(),
            hosts: HashMap::from([(first, host)]),
        };
        if pids.len() > 1 {
            filling.ends.push(end_of(host)?);
        }
        let given = |pid: u32, userfault| StoppedProcess {
            pid: pid.cast_signed(),
            userfault,
        };
        let mut memory = vec![given(first, userfault)];
        let mut mapped = 0;
        while mapped < pids.len() {
            let (report, userfault, host) = filling.next_report()?;
            match (report, userfault) {
                (HollowReport::Hollow(pid), Some(userfault)) if pids.contains(&pid) => {
                    memory.push(given(pid, userfault));
                    filling.hosts.insert(pid, host);
                    filling.ends.push(end_of(host)?);
                }
                (HollowReport::Mapped, None) => mapped += 1,
                (HollowReport::Begun, None) => filling.has_begun = true,
                // One of several is further than another.
                (HollowReport::Ready, None) => filling.ready += 1,
                (report, _) => return Err(failure(report, host, &filling.hosts)),
            }
        }
        if memory.len() != pids.len() {
            return Err(HollowError::Strange);
        }
        Ok((filling, memory))
    }
}

impl StartSignal {
    /// Tells it that its private files are there.
    pub fn files_are_there(&self) {
        if let Some(socket) = &self.0 {
            // If it is gone, whoever waits for it is told.
            let _sent = go_on(socket);
        }
    }

    /// Tells it that the restore begins. It knows by then that its private files are there.
    pub fn start(mut self) {
        if let Some(socket) = self.0.take() {
            let _sent = go_on(&socket);
        }
    }
}

impl Drop for StartSignal {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            // Whoever waits at either end gets nothing more. It may be gone already.
            let _ended = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }
}

fn go_on(socket: &OwnedFd) -> Result<(), HollowError> {
    let sent = send(socket.as_raw_fd(), &[0], MsgFlags::MSG_NOSIGNAL);
    sent.map(drop).map_err(|e| HollowError::Socket(e.into()))
}

/// A descriptor that is readable once the process with this id on the host has ended.
fn end_of(host: i32) -> Result<OwnedFd, HollowError> {
    let pid = Pid::from_raw(host).ok_or(HollowError::Strange)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => Err(HollowError::Ended),
        opened => opened.map_err(|e| HollowError::Socket(e.into())),
    }
}

impl RunningHollow {
    /// Receives the next message. Returns an error as soon as one of several processes has ended without one.
    fn next_report(&self) -> Result<(HollowReport, Option<OwnedFd>, i32), HollowError> {
        if self.ends.is_empty() {
            return receive_report(&self.socket);
        }
        let all = std::iter::once(&self.socket).chain(&self.ends);
        let mut polled: Vec<_> = all.map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        let limit = PollTimeout::try_from(LIMIT).unwrap_or(PollTimeout::MAX);
        if poll(&mut polled, limit).map_err(|e| HollowError::Socket(e.into()))? == 0 {
            return Err(HollowError::Socket(io::ErrorKind::TimedOut.into()));
        }
        // What a process has said before its end comes first.
        match polled[0].any() {
            Some(true) => receive_report(&self.socket),
            _ => Err(HollowError::Ended),
        }
    }

    /// Waits until the first process has everything that is made ahead.
    ///
    /// # Errors
    /// Returns an error when an operation fails.
    pub fn begun(&mut self) -> Result<(), HollowError> {
        while !self.has_begun {
            match self.next_report()? {
                (HollowReport::Begun, None, _) => self.has_begun = true,
                (report, _, host) => return Err(failure(report, host, &self.hosts)),
            }
        }
        Ok(())
    }

    /// Waits until the processes have everything.
    ///
    /// # Errors
    /// Returns an error when an operation fails. Nothing of the processes has run then.
    pub fn ready(&mut self) -> Result<(), HollowError> {
        self.begun()?;
        (self.ready..self.processes).try_for_each(|_| match self.next_report()? {
            (HollowReport::Ready, None, _) => Ok(()),
            (report, _, host) => Err(failure(report, host, &self.hosts)),
        })
    }

    /// Lets the processes run.
    ///
    /// # Errors
    /// Returns an error when all of them are gone. Nothing of them has run then.
    pub fn go(self) -> Result<(), HollowError> {
        go_on(&self.socket)?;
        for _ in 1..self.processes {
            // From here on the end of any of them is the function's: restored again, it would run twice.
            let _told = go_on(&self.socket);
        }
        Ok(())
    }
}

/// What a report of the process with the id `sender` on the host means, where another one was awaited.
fn failure(report: HollowReport, sender: i32, hosts: &HashMap<u32, i32>) -> HollowError {
    match report {
        HollowReport::Failed(number, error) => HollowError::Operation {
            number,
            pid: hosts.iter().find(|(_, host)| **host == sender).map(|(pid, _)| *pid),
            source: io::Error::from_raw_os_error(error),
        },
        _ => HollowError::Strange,
    }
}

/// Receives one message, with its descriptor and the sender's process id on the host.
#[expect(
    unsafe_code,
    reason = "takes ownership of a descriptor the kernel has just made for this process"
)]
fn receive_report(socket: &OwnedFd) -> Result<(HollowReport, Option<OwnedFd>, i32), HollowError> {
    let mut bytes = [0; HollowReport::BYTES];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([RawFd; 1], UnixCredentials);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<UnixAddr>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut space), flags);
    let received = received.map_err(|e| HollowError::Socket(e.into()))?;
    let (mut descriptor, mut sender) = (None, None);
    for control in received.cmsgs().map_err(|e| HollowError::Socket(e.into()))? {
        match control {
            ControlMessageOwned::ScmRights(raw) => {
                for fd in raw {
                    // SAFETY: the kernel created this descriptor for this call, and nothing else owns it.
                    descriptor = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            ControlMessageOwned::ScmCredentials(credentials) => sender = Some(credentials.pid()),
            _ => {}
        }
    }
    match (received.bytes, sender) {
        (0, _) => Err(HollowError::Ended),
        (HollowReport::BYTES, Some(sender)) => HollowReport::from_bytes(bytes)
            .map(|report| (report, descriptor, sender))
            .ok_or(HollowError::Strange),
        _ => Err(HollowError::Strange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_report(socket: &OwnedFd, report: HollowReport, descriptor: Option<&OwnedFd>) {
        let numbers: Vec<RawFd> = descriptor.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control: &[ControlMessage<'_>] = if numbers.is_empty() { &[] } else { &rights };
        let bytes = report.to_bytes();
        sendmsg::<UnixAddr>(
            socket.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            control,
            MsgFlags::empty(),
            None,
        )
        .unwrap();
    }

    #[test]
    fn what_a_hollow_process_says_in_another_order_is_refused() {
        let run = |hollow: Hollow, pids: &[u32]| {
            let (ordered, files) = hollow.order(HollowOrder::default(), &[])?;
            files.files_are_there();
            files.start();
            ordered.mapped(pids)
        };
        let met = || {
            let (ours, theirs) = pair().unwrap();
            let (pipe, _) = nix::unistd::pipe().unwrap();
            send_report(&theirs, HollowReport::Hollow(0), Some(&pipe));
            (Hollow::accept(ours).unwrap(), theirs, pipe)
        };
        let (hollow, theirs, pipe) = met();
        send_report(&theirs, HollowReport::Hollow(502), Some(&pipe));
        for report in [
            HollowReport::Mapped,
            HollowReport::Begun,
            HollowReport::Ready,
            HollowReport::Mapped,
            HollowReport::Ready,
        ] {
            send_report(&theirs, report, None);
        }
        let (mut filling, memory) = run(hollow, &[501, 502]).unwrap();
        assert_eq!(memory.iter().map(|given| given.pid).collect::<Vec<_>>(), [501, 502]);
        let own = std::process::id().cast_signed();
        assert_eq!(filling.hosts, HashMap::from([(501, own), (502, own)]));
        filling.ready().unwrap();
        filling.go().unwrap();

        let (hollow, theirs, pipe) = met();
        send_report(&theirs, HollowReport::Hollow(7), Some(&pipe));
        let error = run(hollow, &[501]).unwrap_err();
        assert!(matches!(error, HollowError::Strange));

        let (hollow, theirs, _) = met();
        send_report(&theirs, HollowReport::Failed(12, libc::EACCES), None);
        let error = run(hollow, &[501]).unwrap_err();
        let is_told = |number, pid| number == 12 && pid == Some(501);
        assert!(
            matches!(error, HollowError::Operation { number, pid, .. } if is_told(number, pid)),
            "{error}"
        );

        let (hollow, theirs, _) = met();
        drop(theirs);
        assert!(run(hollow, &[501]).is_err());
    }

    #[test]
    fn a_process_of_several_that_ends_without_a_word_is_not_waited_for() {
        let (ours, theirs) = pair().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut running = RunningHollow {
            socket: ours,
            processes: 2,
            has_begun: true,
            ready: 0,
            ends: vec![end_of(child.id().cast_signed()).unwrap()],
            hosts: HashMap::new(),
        };
        // Others have the socket open.
        assert!(matches!(running.ready(), Err(HollowError::Ended)));
        send_report(&theirs, HollowReport::Failed(3, libc::EPERM), None);
        let error = running.ready().unwrap_err();
        assert!(matches!(error, HollowError::Operation { number: 3, .. }), "{error}");
        child.wait().unwrap();
    }

    #[test]
    fn whoever_waits_ends_when_the_files_do_not_come() {
        let (ours, theirs) = pair().unwrap();
        let (pipe, _) = nix::unistd::pipe().unwrap();
        send_report(&theirs, HollowReport::Hollow(0), Some(&pipe));
        let hollow = Hollow::accept(ours).unwrap();
        let (ordered, files) = hollow.order(HollowOrder::default(), &[]).unwrap();
        drop(files);
        let error = ordered.mapped(&[501]).unwrap_err();
        assert!(matches!(error, HollowError::Ended), "{error}");
    }
}
