//! Finds HTTP/2's frames in the bytes of one direction of a connection (RFC 9113, 4.1). `h2` handles their contents.
//!
//! ```text
//! a client's bytes: PREFACE ──┐
//! a server's bytes:           └─> HEAD (9 bytes) ──> PAYLOAD (its length) ──> HEAD ──> …
//! ```

const HEAD_BYTES: usize = 9;
const END_HEADERS: u8 = 4;

/// What a client sends before its first frame.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame's type, as far as limits tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A part of a body.
    Data,
    /// The start of a header section.
    Headers,
    /// A further part of a header section.
    Continuation,
    /// A ping, or its acknowledgement.
    Ping,
    /// More room for data.
    WindowUpdate,
    /// All others: priorities, resets, settings, pushes, shutdowns, extensions.
    Other,
}

impl FrameKind {
    fn of(code: u8) -> Self {
        match code {
            0 => Self::Data,
            1 => Self::Headers,
            6 => Self::Ping,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => Self::Other,
        }
    }
}

/// A frame's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Its type.
    pub kind: FrameKind,
    /// Length of its payload in bytes.
    pub length: u32,
    flags: u8,
}

impl FrameHead {
    fn of([a, b, c, kind, flags, ..]: [u8; HEAD_BYTES]) -> Self {
        Self {
            kind: FrameKind::of(kind),
            length: u32::from_be_bytes([0, a, b, c]),
            flags,
        }
    }

    /// Whether the frame has a part of a message: of its header section or its body.
    pub fn has_part_of_message(&self) -> bool {
        match self.kind {
            FrameKind::Headers | FrameKind::Continuation => true,
            FrameKind::Data => self.length > 0,
            FrameKind::Ping | FrameKind::WindowUpdate | FrameKind::Other => false,
        }
    }

    /// Whether more frames of the same header section must follow this one.
    pub fn leaves_headers_open(&self) -> bool {
        matches!(self.kind, FrameKind::Headers | FrameKind::Continuation) && self.flags & END_HEADERS == 0
    }
}

/// What bytes completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameEvent {
    /// The client's preface.
    Preface,
    /// A frame's head.
    Head(FrameHead),
    /// A frame's payload, with which the frame ends. A payload without bytes is complete with the head.
    Payload,
}

/// Position in the sequence of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramePosition {
    /// Within the client's preface.
    Preface,
    /// After one frame, or the preface, and before the next.
    Between,
    /// Within a frame's head.
    Head,
    /// Within the payload of a frame of this type.
    Payload(FrameKind),
}

/// Reads frames from bytes, however they are cut. Keeps at most one frame's head.
#[derive(Debug)]
pub struct FrameReader(ReaderState);

#[derive(Debug)]
enum ReaderState {
    Preface { left: usize },
    Head { have: usize, bytes: [u8; HEAD_BYTES] },
    Payload { left: usize, kind: FrameKind },
}

const NEXT_FRAME: ReaderState = ReaderState::Head {
    have: 0,
    bytes: [0; HEAD_BYTES],
};

impl FrameReader {
    /// For what a client sends: the preface comes first.
    pub fn of_client() -> Self {
        Self(ReaderState::Preface { left: PREFACE.len() })
    }

    /// For what a server sends.
    pub fn of_server() -> Self {
        Self(NEXT_FRAME)
    }

    /// Takes bytes from the start of `bytes` up to the next event. Returns `None` once all are taken.
    pub fn next_event(&mut self, bytes: &mut &[u8]) -> Option<FrameEvent> {
        loop {
            let wanted = match &self.0 {
                ReaderState::Preface { left } | ReaderState::Payload { left, .. } => *left,
                ReaderState::Head { have, .. } => HEAD_BYTES - *have,
            };
            if bytes.is_empty() && wanted > 0 {
                return None;
            }
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted));
            *bytes = rest;
            if let Some(event) = self.take(taken) {
                return Some(event);
            }
        }
    }

    /// Consumes bytes of the part that is being read, at most as many as it still has.
    fn take(&mut self, bytes: &[u8]) -> Option<FrameEvent> {
        match &mut self.0 {
            ReaderState::Preface { left } => {
                *left -= bytes.len();
                (*left == 0).then(|| self.next_frame(FrameEvent::Preface))
            }
            ReaderState::Payload { left, .. } => {
                *left -= bytes.len();
                (*left == 0).then(|| self.next_frame(FrameEvent::Payload))
            }
            ReaderState::Head { have, bytes: head } => {
                head[*have..*have + bytes.len()].copy_from_slice(bytes);
                *have += bytes.len();
                if *have < HEAD_BYTES {
                    return None;
                }
                let head = FrameHead::of(*head);
                self.0 = ReaderState::Payload {
                    left: head.length as usize,
                    kind: head.kind,
                };
                Some(FrameEvent::Head(head))
            }
        }
    }

    fn next_frame(&mut self, event: FrameEvent) -> FrameEvent {
        self.0 = NEXT_FRAME;
        event
    }

    /// Where the bytes so far have ended. A payload without bytes counts as ended once its event was taken.
    pub fn position(&self) -> FramePosition {
        match self.0 {
            ReaderState::Preface { .. } => FramePosition::Preface,
            ReaderState::Head { have: 0, .. } => FramePosition::Between,
            ReaderState::Head { .. } => FramePosition::Head,
            ReaderState::Payload { kind, .. } => FramePosition::Payload(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        bytes.extend(std::iter::repeat_n(7, length.into()));
        bytes
    }

    fn events(reader: &mut FrameReader, mut bytes: &[u8]) -> Vec<FrameEvent> {
        let events = std::iter::from_fn(|| reader.next_event(&mut bytes)).collect();
        assert!(bytes.is_empty(), "all is taken");
        events
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let all = [
            PREFACE.to_vec(),
            frame(4, 0, 6),
            frame(1, 0, 200),
            frame(9, END_HEADERS, 0),
            frame(0, 1, 100),
            frame(0, 1, 0),
            frame(6, 0, 8),
            frame(8, 0, 4),
        ]
        .concat();
        let mut wanted = vec![FrameEvent::Preface];
        for (kind, flags, length) in [
            (FrameKind::Other, 0, 6),
            (FrameKind::Headers, 0, 200),
            (FrameKind::Continuation, END_HEADERS, 0),
            (FrameKind::Data, 1, 100),
            (FrameKind::Data, 1, 0),
            (FrameKind::Ping, 0, 8),
            (FrameKind::WindowUpdate, 0, 4),
        ] {
            wanted.push(FrameEvent::Head(FrameHead { kind, length, flags }));
            wanted.push(FrameEvent::Payload);
        }
        for piece in 1..=all.len() {
            let mut reader = FrameReader::of_client();
            let found: Vec<_> = all.chunks(piece).flat_map(|part| events(&mut reader, part)).collect();
            assert_eq!(found, wanted, "in pieces of {piece}");
            assert_eq!(reader.position(), FramePosition::Between);
        }
    }

    #[test]
    fn the_position_is_where_the_bytes_end() {
        let mut reader = FrameReader::of_client();
        assert_eq!(reader.position(), FramePosition::Preface);
        events(&mut reader, &PREFACE[..23]);
        assert_eq!(reader.position(), FramePosition::Preface);
        events(&mut reader, &PREFACE[23..]);
        assert_eq!(reader.position(), FramePosition::Between);
        let data = frame(0, 0, 2);
        for (cut, position) in [
            (1, FramePosition::Head),
            (8, FramePosition::Head),
            (9, FramePosition::Payload(FrameKind::Data)),
            (10, FramePosition::Payload(FrameKind::Data)),
            (11, FramePosition::Between),
        ] {
            let mut reader = FrameReader::of_server();
            events(&mut reader, &data[..cut]);
            assert_eq!(reader.position(), position, "after {cut} bytes");
        }
    }

    #[test]
    fn a_frame_brings_something_if_it_has_a_part_of_a_message() {
        let head = |kind, length, flags| FrameHead { kind, length, flags };
        assert!(head(FrameKind::Headers, 0, 0).has_part_of_message());
        assert!(head(FrameKind::Continuation, 0, 0).has_part_of_message());
        assert!(head(FrameKind::Data, 1, 0).has_part_of_message());
        assert!(!head(FrameKind::Data, 0, 1).has_part_of_message());
        assert!(!head(FrameKind::Ping, 8, 0).has_part_of_message());
        assert!(head(FrameKind::Headers, 0, 0).leaves_headers_open());
        assert!(!head(FrameKind::Continuation, 0, END_HEADERS).leaves_headers_open());
        assert!(!head(FrameKind::Data, 1, 0).leaves_headers_open());
    }
}
