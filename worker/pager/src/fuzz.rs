//! The handshake as a function of bytes, for the fuzz target in `fuzz/` and for `tests/hostile.rs`.

use std::io::{IoSlice, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use crate::handshake::{Greeting, next};

/// More greetings than an input of some kilobytes contains.
const GREETINGS_MAX: usize = 10_000;

/// Input as from a malfunctioning CRIU. Each byte of the input's first half gives the number of descriptors sent with a
/// piece of the rest, and the length of the piece. The handshake must end, whatever the input, and must not leak a
/// descriptor. Returns whether it ended as CRIU ends it, which a seed must.
pub fn handshake(bytes: &[u8]) -> bool {
    let (plan, mut said) = bytes.split_at(bytes.len().min(8) / 2);
    // The socket pair's buffers hold this much without a reader.
    said = &said[..said.len().min(64 << 10)];
    let Ok((ours, mut theirs)) = UnixStream::pair() else {
        return false;
    };
    let limit = Some(Duration::from_secs(1));
    if ours.set_read_timeout(limit).is_err() || theirs.set_write_timeout(limit).is_err() {
        return false;
    }
    for step in plan {
        let (piece, rest) = said.split_at(said.len().min(usize::from(step >> 2)));
        said = rest;
        let fds: Vec<RawFd> = (0..step & 3).map(|_| theirs.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &rights[..0] } else { &rights[..] };
        if !piece.is_empty() {
            let _ = sendmsg::<UnixAddr>(
                theirs.as_raw_fd(),
                &[IoSlice::new(piece)],
                rights,
                MsgFlags::empty(),
                None,
            );
        }
    }
    drop(theirs.write_all(said));
    drop(theirs.shutdown(Shutdown::Both));
    drop(theirs);
    for _ in 0..GREETINGS_MAX {
        match next(&ours) {
            Ok(Greeting::Process(..)) => {}
            Ok(Greeting::Finished) => return true,
            Ok(Greeting::Closed) | Err(_) => return false,
        }
    }
    false
}
