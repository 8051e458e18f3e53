//! The framing of an image and its messages, which must equal our own encoding byte for byte.
//!
//! ```text
//! 0x54564319:u32 kind:u32 { length:u32 message[length] data[…] }*       little-endian; few kinds have data
//! kind:u32 { length:u32 message[length] }*                              inventory
//! ```
//!
//! Encoding a decoded message again gives other bytes if it has an unknown field, a duplicate or misplaced field, or an
//! overlong number. A reader that treats these unlike CRIU would check another message than CRIU restores.

use prost::Message;

use crate::Images;
use crate::error::{EntryLocation, VerifyError};

const COMMON_MAGIC: u32 = 0x5456_4319;
/// Maximum size of a message in bytes: that of a process with as many mappings as the kernel allows. Decoded, it takes
/// at most fifty times as much.
const MESSAGE_MAX: usize = 6 << 20;
/// Maximum number of messages in an image, where all are kept.
const MESSAGES_MAX: usize = 131_072;

/// Magic numbers of the kinds.
pub(crate) mod magic {
    pub(crate) const INVENTORY: u32 = 0x5831_3116;
    pub(crate) const PSTREE: u32 = 0x5027_3030;
    pub(crate) const CORE: u32 = 0x5505_3847;
    pub(crate) const IDS: u32 = 0x5443_2030;
    pub(crate) const MM: u32 = 0x5749_2820;
    pub(crate) const PAGEMAP: u32 = 0x5608_4025;
    pub(crate) const FS: u32 = 0x5140_3912;
    pub(crate) const DESCRIPTORS: u32 = 0x5621_3732;
    pub(crate) const FILES: u32 = 0x5630_3138;
    pub(crate) const MEMFD: u32 = 0x4845_3499;
    pub(crate) const PIPES_DATA: u32 = 0x5645_3709;
    pub(crate) const FIFO_DATA: u32 = 0x5933_3054;
    pub(crate) const SOCKET_QUEUES: u32 = 0x5626_4026;
    pub(crate) const GHOST: u32 = 0x5258_3605;
    pub(crate) const REMAPS: u32 = 0x5913_3954;
    pub(crate) const LOCKS: u32 = 0x5432_3616;
    pub(crate) const SECCOMP: u32 = 0x6441_3049;
    pub(crate) const TIME: u32 = 0x4311_4433;
}

/// The unread part of an image.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    image: &'a str,
    rest: &'a [u8],
    entry: usize,
}

impl<'a> Reader<'a> {
    /// The image `name`, after its magic numbers. `None` if it does not exist.
    pub(crate) fn open(images: &Images<'a>, name: &str, kind: u32) -> Result<Option<Self>, VerifyError> {
        let Some((image, bytes)) = images.get_key_value(name) else {
            return Ok(None);
        };
        let head = if kind == magic::INVENTORY {
            Some(*bytes)
        } else {
            word(bytes).and_then(|(found, rest)| (found == COMMON_MAGIC).then_some(rest))
        };
        let rest = head
            .and_then(word)
            .and_then(|(found, rest)| (found == kind).then_some(rest))
            .ok_or_else(|| VerifyError::Magic(name.to_owned()))?;
        Ok(Some(Self { image, rest, entry: 0 }))
    }

    /// The next message and its place. `None` at the end.
    pub(crate) fn next<M: Message + Default>(&mut self) -> Result<Option<(EntryLocation<'a>, M)>, VerifyError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let place = EntryLocation {
            image: self.image,
            entry: self.entry,
        };
        let cut = || VerifyError::Cut {
            image: self.image.to_owned(),
            entry: self.entry,
        };
        let (length, after) = word(self.rest).ok_or_else(cut)?;
        let length = usize::try_from(length).map_err(|_| cut())?;
        let (bytes, after) = after.split_at_checked(length).ok_or_else(cut)?;
        if length > MESSAGE_MAX {
            return Err(too_much(self.image, "bytes in a message", MESSAGE_MAX));
        }
        let message = M::decode(bytes).map_err(|source| VerifyError::Decode {
            image: self.image.to_owned(),
            entry: self.entry,
            source,
        })?;
        if message.encode_to_vec() != bytes {
            return Err(VerifyError::NotCanonical {
                image: self.image.to_owned(),
                entry: self.entry,
            });
        }
        self.rest = after;
        self.entry += 1;
        Ok(Some((place, message)))
    }

    /// The data after the last message.
    pub(crate) fn data(&mut self, length: u64) -> Result<&'a [u8], VerifyError> {
        let cut = || VerifyError::Cut {
            image: self.image.to_owned(),
            entry: self.entry.saturating_sub(1),
        };
        let length = usize::try_from(length).map_err(|_| cut())?;
        let (data, rest) = self.rest.split_at_checked(length).ok_or_else(cut)?;
        self.rest = rest;
        Ok(data)
    }

    /// Everything that is left.
    pub(crate) fn remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// All messages of an image of one kind, with their places. Empty if it does not exist.
pub(crate) fn all<'a, M: Message + Default>(
    images: &Images<'a>,
    name: &str,
    kind: u32,
) -> Result<Vec<(EntryLocation<'a>, M)>, VerifyError> {
    let (mut found, mut reader) = (Vec::new(), Reader::open(images, name, kind)?);
    while let Some(next) = reader.as_mut().map_or(Ok(None), Reader::next)? {
        if found.len() == MESSAGES_MAX {
            return Err(too_much(name, "messages", MESSAGES_MAX));
        }
        found.push(next);
    }
    Ok(found)
}

/// The only message of an image. `None` if the image does not exist.
pub(crate) fn only<'a, M: Message + Default>(
    images: &Images<'a>,
    name: &str,
    kind: u32,
) -> Result<Option<(EntryLocation<'a>, M)>, VerifyError> {
    if !images.contains_key(name) {
        return Ok(None);
    }
    let mut found = all(images, name, kind)?;
    match (found.pop(), found.len()) {
        (Some(only), 0) => Ok(Some(only)),
        (last, more) => Err(VerifyError::Entries {
            image: name.to_owned(),
            found: more + usize::from(last.is_some()),
        }),
    }
}

/// The only message of a required image.
pub(crate) fn required<'a, M: Message + Default>(
    images: &Images<'a>,
    name: &str,
    kind: u32,
) -> Result<(EntryLocation<'a>, M), VerifyError> {
    only(images, name, kind)?.ok_or_else(|| VerifyError::Missing(name.to_owned()))
}

fn too_much(image: &str, what: &'static str, limit: usize) -> VerifyError {
    VerifyError::TooMuch {
        image: image.to_owned(),
        what,
        limit: limit as u64,
    }
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*head), rest))
}

/// An image of these messages, each with the data that follows it.
#[cfg(test)]
pub(crate) fn image(kind: u32, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut out = match kind {
        magic::INVENTORY => Vec::new(),
        _ => COMMON_MAGIC.to_le_bytes().to_vec(),
    };
    out.extend_from_slice(&kind.to_le_bytes());
    for message in messages {
        out.extend_from_slice(&u32::try_from(message.len()).unwrap().to_le_bytes());
        out.extend_from_slice(message);
    }
    out
}
