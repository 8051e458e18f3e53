//! The protocol of `criu restore --lazy-pages` on the stream socket `lazy-pages.socket`. For each task, CRIU sends its
//! process id (4 bytes, native order), then one byte with its userfaultfd attached. For a zombie it sends a negative id
//! without a descriptor. At the end it sends [`FINISHED`] in place of an id. Facts from CRIU's `uffd.c`.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};

/// Sent in place of a process id once every process is restored.
pub const FINISHED: u32 = 0x5253_5446;

/// The kernel's SCM_MAX_FD.
const DESCRIPTORS_MAX: usize = 253;

/// A message from CRIU.
#[derive(Debug)]
pub enum Greeting {
    /// A process and its userfaultfd.
    Process(i32, OwnedFd),
    /// All processes are restored.
    Finished,
    /// CRIU closed the socket.
    Closed,
}

/// Reads CRIU's next message. Blocks according to the settings of `stream`.
///
/// # Errors
/// If the socket fails, its time limit passes, or CRIU violates the protocol.
pub fn next(stream: &UnixStream) -> io::Result<Greeting> {
    loop {
        let mut word = [0_u8; 4];
        if !read_whole(stream, &mut word)? {
            return Ok(Greeting::Closed);
        }
        if u32::from_ne_bytes(word) == FINISHED {
            return Ok(Greeting::Finished);
        }
        let pid = i32::from_ne_bytes(word);
        if pid > 0 {
            return Ok(Greeting::Process(pid, descriptor(stream, pid)?));
        }
        // A zombie has no memory to serve.
    }
}

/// Whether the word was read. `false` at an end of stream before its first byte.
fn read_whole(mut stream: &UnixStream, word: &mut [u8]) -> io::Result<bool> {
    use std::io::Read;
    let first = stream.read(word)?;
    if first == 0 {
        return Ok(false);
    }
    stream.read_exact(&mut word[first..])?;
    Ok(true)
}

#[expect(
    unsafe_code,
    reason = "takes ownership of a descriptor the kernel has just made for this process"
)]
fn descriptor(stream: &UnixStream, pid: i32) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut parts = [IoSliceMut::new(&mut byte)];
    // Room for as many descriptors as the kernel allows in one message. Descriptors beyond a smaller buffer would be
    // neither kept nor closed.
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let received = recvmsg::<UnixAddr>(
        stream.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut first = None;
    for control in received.cmsgs()? {
        let ControlMessageOwned::ScmRights(fds) = control else {
            continue;
        };
        for fd in fds {
            // SAFETY: the kernel created this descriptor for this call, and nothing else owns it.
            let owned = unsafe { OwnedFd::from_raw_fd(fd) };
            // All descriptors except the first are closed here.
            first.get_or_insert(owned);
        }
    }
    first.ok_or_else(|| {
        let lack = format!("criu sent no userfaultfd for process {pid}");
        io::Error::new(io::ErrorKind::InvalidData, lack)
    })
}
