//! Messages to the kernel about links, addresses and routes, and to its packet filter. Several go in one system call,
//! each acknowledged.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr};

/// `NLMSG_ERROR`: an acknowledgement, positive or negative.
const ERROR: u16 = 2;
/// Size of a message's header, in bytes.
const HEADER: usize = 16;
/// Buffer size for the kernel's replies to one batch.
const ANSWERS: usize = 64 * 1024;

/// Why the kernel did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket cannot be opened.
    #[error("open a netlink socket")]
    Open(#[source] io::Error),
    /// The messages were not sent, or not answered.
    #[error("talk to the kernel's networking")]
    Talk(#[source] io::Error),
    /// The kernel refused one message.
    #[error("{what}")]
    Refused {
        /// The request.
        what: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl NetlinkError {
    /// Returns whether the object to create exists already.
    pub fn exists(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.raw_os_error() == Some(libc::EEXIST))
    }
}

/// Opens a netlink socket with this protocol number, in the calling thread's network namespace.
///
/// # Errors
/// Returns an error when the kernel refuses.
pub(super) fn open(protocol: isize) -> Result<Socket, NetlinkError> {
    let opened = Socket::new(protocol).and_then(|mut socket| {
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(socket)
    });
    opened.map_err(NetlinkError::Open)
}

/// Messages that are sent together. The kernel takes each by itself and continues after one that it refuses. Messages
/// of the packet filter are the exception: it takes all or none.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// The requests, by sequence number from 1 on.
    asked: Vec<&'static str>,
}

impl Batch {
    /// Adds a message about links, addresses or routes.
    pub(super) fn route(&mut self, what: &'static str, flags: u16, message: RouteNetlinkMessage) {
        self.asked.push(what);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = u32::try_from(self.asked.len()).unwrap_or(u32::MAX);
        let mut whole = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        whole.finalize();
        self.append(&whole);
    }

    /// Adds a message whose header is built here. Sending waits for the `acknowledged` ones.
    pub(super) fn raw(&mut self, what: &'static str, kind: u16, flags: u16, body: &[u8], acknowledged: bool) {
        let mut number = 0;
        let mut all = NLM_F_REQUEST | flags;
        if acknowledged {
            self.asked.push(what);
            number = u32::try_from(self.asked.len()).unwrap_or(u32::MAX);
            all |= NLM_F_ACK;
        }
        let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(all.to_ne_bytes());
        self.bytes.extend(number.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(body);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn append<T: NetlinkSerializable>(&mut self, message: &NetlinkMessage<T>) {
        let start = self.bytes.len();
        self.bytes.resize(start + message.buffer_len(), 0);
        message.serialize(&mut self.bytes[start..]);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Sends all messages and reads the replies. The kernel has given them by the time it has taken the messages.
    ///
    /// # Errors
    /// Returns the first message that was refused.
    pub(super) fn send(&self, socket: &Socket) -> Result<(), NetlinkError> {
        socket.send(&self.bytes, 0).map_err(NetlinkError::Talk)?;
        let mut missing = self.asked.len();
        let mut refused = None;
        let mut room = Vec::with_capacity(ANSWERS);
        while missing > 0 {
            room.clear();
            let length = match socket.recv(&mut room, libc::MSG_DONTWAIT) {
                // The kernel refused the batch as a whole, and sends nothing more.
                Err(e) if refused.is_some() && e.kind() == io::ErrorKind::WouldBlock => break,
                other => other.map_err(NetlinkError::Talk)?,
            };
            for (number, code) in answers(&room[..length.min(room.len())]) {
                missing = missing.saturating_sub(1);
                if code != 0 {
                    let at = usize::try_from(number).unwrap_or(0).wrapping_sub(1);
                    let what = self.asked.get(at).copied().unwrap_or("begin or end a batch of rules");
                    let source = io::Error::from_raw_os_error(-code);
                    refused.get_or_insert(NetlinkError::Refused { what, source });
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

/// Sends one request to the kernel and reads its reply.
///
/// # Errors
/// Returns an error when the kernel refuses, or replies with something other than a message.
pub(super) fn ask(
    socket: &Socket,
    what: &'static str,
    question: RouteNetlinkMessage,
) -> Result<RouteNetlinkMessage, NetlinkError> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut whole = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
    whole.finalize();
    let mut bytes = vec![0; whole.buffer_len()];
    whole.serialize(&mut bytes);
    socket.send(&bytes, 0).map_err(NetlinkError::Talk)?;
    let mut room = Vec::with_capacity(ANSWERS);
    let length = socket.recv(&mut room, libc::MSG_DONTWAIT).map_err(NetlinkError::Talk)?;
    let answer = NetlinkMessage::deserialize(&room[..length.min(room.len())]);
    let refused = |source| NetlinkError::Refused { what, source };
    match answer.map_err(|e| refused(io::Error::other(e)))?.payload {
        NetlinkPayload::InnerMessage(answer) => Ok(answer),
        NetlinkPayload::Error(error) => Err(refused(error.to_io())),
        _ => Err(refused(io::Error::other("the kernel answers something else"))),
    }
}

/// Returns the sequence number and code of each acknowledgement.
fn answers(mut bytes: &[u8]) -> impl Iterator<Item = (u32, i32)> {
    std::iter::from_fn(move || {
        loop {
            let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok();
            let length = usize::try_from(u32::from_ne_bytes(word(0)?)).ok()?;
            let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
            let number = u32::from_ne_bytes(word(8)?);
            let code = word(HEADER).map(i32::from_ne_bytes);
            if length < HEADER {
                return None;
            }
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            if kind == ERROR {
                return Some((number, code?));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_read_one_after_the_other_and_cut_off_ones_are_none() {
        let mut bytes = Vec::new();
        for (number, code) in [(1_u32, 0_i32), (2, -17)] {
            bytes.extend(36_u32.to_ne_bytes());
            bytes.extend(ERROR.to_ne_bytes());
            bytes.extend(0_u16.to_ne_bytes());
            bytes.extend(number.to_ne_bytes());
            bytes.extend(0_u32.to_ne_bytes());
            bytes.extend(code.to_ne_bytes());
            bytes.extend([0; 16]);
        }
        assert_eq!(answers(&bytes).collect::<Vec<_>>(), [(1, 0), (2, -17)]);
        assert_eq!(answers(&bytes[..36 + 17]).collect::<Vec<_>>(), [(1, 0)]);
        assert_eq!(answers(&[0; 40]).count(), 0);
    }
}
