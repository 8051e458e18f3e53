//! What of FUSE's protocol a file system needs that is only read (`linux/fuse.h`, versions 7.36 and later). Pure.

/// Largest request that the kernel sends such a file system, and then some. It demands at least 8 KiB.
pub(super) const REQUEST_MAX: usize = 64 << 10;
/// Maximum number of bytes read with one request.
pub(super) const READ_MAX: u32 = 1 << 20;

const HEADER: usize = 40;
const ANSWER_HEADER: usize = 16;
const MINOR_LEAST: u32 = 36;
/// How long the kernel may keep what it is told, in seconds: nothing here ever changes.
const FOREVER: u64 = 1 << 30;

const ASYNC_READ: u64 = 1;
const NO_OPEN: u64 = 1 << 17;
const PARALLEL_LOOKUPS: u64 = 1 << 18;
const MAX_PAGES: u64 = 1 << 22;
const CACHE_SYMLINKS: u64 = 1 << 23;
const NO_OPENDIR: u64 = 1 << 24;
const EXTENDED: u64 = 1 << 30;
/// Since Linux 6.12: mounts of it can map users.
const ALLOW_IDMAP: u64 = 1 << 40;

/// What the kernel asks. Node 1 is the root.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FuseOperation<'a> {
    /// Which node has this name in this directory.
    Lookup(u64, &'a [u8]),
    /// What a node is.
    Attributes(u64),
    /// Where a symbolic link leads.
    Target(u64),
    /// Bytes of a file, from an offset on.
    Read(u64, u64, u32),
    /// Names in a directory, after those before.
    List(u64, u64, u32),
    /// An extended attribute of a node, in at most that many bytes; for 0, its length.
    Extended(u64, &'a [u8], u32),
    /// The names of a node's extended attributes, likewise.
    ExtendedNames(u64, u32),
    /// How large the file system is.
    Size,
    /// It needs no answer.
    Nothing,
    /// All else: the kernel does without.
    Unknown,
}

#[derive(Debug)]
pub(super) struct FuseRequest<'a> {
    /// By which it is answered.
    pub(super) unique: u64,
    pub(super) ask: FuseOperation<'a>,
}

/// Parses a request of the kernel. `None` if it is none.
pub(super) fn parse(bytes: &[u8]) -> Option<FuseRequest<'_>> {
    let (header, body) = bytes.split_at_checked(HEADER)?;
    let (unique, node) = (u64_at(header, 8)?, u64_at(header, 16)?);
    let ask = match u32_at(header, 4)? {
        1 => FuseOperation::Lookup(node, body.split(|b| *b == 0).next()?),
        3 => FuseOperation::Attributes(node),
        5 => FuseOperation::Target(node),
        15 => FuseOperation::Read(node, u64_at(body, 8)?, u32_at(body, 16)?.min(READ_MAX)),
        28 => FuseOperation::List(node, u64_at(body, 8)?, u32_at(body, 16)?.min(READ_MAX)),
        22 => FuseOperation::Extended(node, body.get(8..)?.split(|b| *b == 0).next()?, u32_at(body, 0)?),
        23 => FuseOperation::ExtendedNames(node, u32_at(body, 0)?),
        17 => FuseOperation::Size,
        // Forgetting: nodes are never forgotten here. Interrupts: every answer has a limit of time.
        2 | 36 | 42 => FuseOperation::Nothing,
        _ => FuseOperation::Unknown,
    };
    Some(FuseRequest { unique, ask })
}

/// Answers the first request of a kernel. `None` if that cannot map users of such a mount: older than Linux 6.12.
pub(super) fn welcome(bytes: &[u8]) -> Option<Vec<u8>> {
    let (header, body) = bytes.split_at_checked(HEADER)?;
    if u32_at(header, 4)? != 26 || u32_at(body, 0)? != 7 || u32_at(body, 4)? < MINOR_LEAST {
        return None;
    }
    let offered = u64::from(u32_at(body, 12)?) | u64::from(u32_at(body, 16)?) << 32;
    if offered & (ALLOW_IDMAP | EXTENDED) != ALLOW_IDMAP | EXTENDED {
        return None;
    }
    let wanted =
        ASYNC_READ | NO_OPEN | PARALLEL_LOOKUPS | MAX_PAGES | CACHE_SYMLINKS | NO_OPENDIR | EXTENDED | ALLOW_IDMAP;
    let flags = offered & wanted;
    let mut out = Vec::with_capacity(64);
    for number in [7, MINOR_LEAST, u32_at(body, 8)?, flags as u32] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    // Requests in the background, and of these before the kernel holds back.
    out.extend_from_slice(&64u16.to_le_bytes());
    out.extend_from_slice(&48u16.to_le_bytes());
    // The largest write, and the unit of times in nanoseconds.
    out.extend_from_slice(&4096u32.to_le_bytes());
    out.extend_from_slice(&1_000_000_000u32.to_le_bytes());
    out.extend_from_slice(&((READ_MAX / 4096) as u16).to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&((flags >> 32) as u32).to_le_bytes());
    out.resize(64, 0);
    Some(answer(u64_at(header, 8)?, &out))
}

pub(super) fn answer(unique: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = head(unique, body.len(), 0);
    bytes.extend_from_slice(body);
    bytes
}

/// An answer with `length` bytes, which are written after its first [`answer_head`] ones.
pub(super) fn room(unique: u64, length: usize) -> Vec<u8> {
    let mut bytes = head(unique, length, 0);
    bytes.resize(ANSWER_HEADER + length, 0);
    bytes
}

/// Size of an answer before its own bytes.
pub(super) const fn answer_head() -> usize {
    ANSWER_HEADER
}

/// An answer with this error number.
pub(super) fn refusal(unique: u64, errno: i32) -> Vec<u8> {
    head(unique, 0, errno)
}

fn head(unique: u64, length: usize, errno: i32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ANSWER_HEADER + length);
    bytes.extend_from_slice(&((ANSWER_HEADER + length) as u32).to_le_bytes());
    bytes.extend_from_slice(&(-errno).to_le_bytes());
    bytes.extend_from_slice(&unique.to_le_bytes());
    bytes
}

/// What a node is, for the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    pub(super) node: u64,
    pub(super) size: u64,
    /// With the kind of file.
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) owner: u32,
    /// Time of all changes.
    pub(super) time_unix_s: u64,
}

impl Attributes {
    fn put(&self, out: &mut Vec<u8>) {
        let blocks = self.size.div_ceil(512);
        for number in [
            self.node,
            self.size,
            blocks,
            self.time_unix_s,
            self.time_unix_s,
            self.time_unix_s,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [0, 0, 0, self.mode, self.links, self.owner, self.owner, 0, 4096, 0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// The answer to [`FuseOperation::Attributes`].
    pub(super) fn answer(&self, unique: u64) -> Vec<u8> {
        let mut out = FOREVER.to_le_bytes().to_vec();
        out.extend_from_slice(&[0; 8]);
        self.put(&mut out);
        answer(unique, &out)
    }

    /// The answer to [`FuseOperation::Lookup`].
    pub(super) fn found(&self, unique: u64) -> Vec<u8> {
        let mut out = entry(self.node);
        self.put(&mut out);
        answer(unique, &out)
    }
}

fn entry(node: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    for number in [node, 0, FOREVER, FOREVER, 0] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out
}

/// The answer to a lookup of a name that does not exist, which the kernel may remember.
pub(super) fn missing(unique: u64) -> Vec<u8> {
    let mut out = entry(0);
    out.resize(128, 0);
    answer(unique, &out)
}

/// Adds a name to a listing, unless that would exceed `most` bytes. `next` is the offset behind it.
pub(super) fn list(out: &mut Vec<u8>, most: usize, node: u64, next: u64, mode: u32, name: &[u8]) -> bool {
    let length = (24 + name.len()).next_multiple_of(8);
    if out.len() + length > most {
        return false;
    }
    let end = out.len() + length;
    out.extend_from_slice(&node.to_le_bytes());
    out.extend_from_slice(&next.to_le_bytes());
    out.extend_from_slice(&(name.len() as u32).to_le_bytes());
    out.extend_from_slice(&(mode >> 12).to_le_bytes());
    out.extend_from_slice(name);
    out.resize(end, 0);
    true
}

/// The answer to [`FuseOperation::Extended`] and [`FuseOperation::ExtendedNames`].
pub(super) fn extended(unique: u64, bytes: &[u8], most: u32) -> Vec<u8> {
    if most == 0 {
        let length = u64::from(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        return answer(unique, &length.to_le_bytes());
    }
    match bytes.len() > most as usize {
        true => refusal(unique, libc::ERANGE),
        false => answer(unique, bytes),
    }
}

/// The answer to [`FuseOperation::Size`].
pub(super) fn size(unique: u64, bytes: u64, files: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(80);
    for number in [bytes.div_ceil(4096), 0, 0, files, 0] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for number in [4096u32, 255, 4096] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.resize(80, 0);
    answer(unique, &out)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[4..8].copy_from_slice(&operation.to_le_bytes());
        bytes[8..16].copy_from_slice(&9u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&node.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn requests_are_understood_and_cut_ones_are_none() {
        let lookup = request(1, 3, b"name\0");
        assert_eq!(parse(&lookup).unwrap().ask, FuseOperation::Lookup(3, b"name"));
        let mut body = [0; 40];
        body[8] = 5;
        body[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        let read = request(15, 4, &body);
        assert_eq!(parse(&read).unwrap().ask, FuseOperation::Read(4, 5, READ_MAX));
        assert_eq!(parse(&read).unwrap().unique, 9);
        assert_eq!(parse(&request(16, 4, &body)).unwrap().ask, FuseOperation::Unknown);
        assert!(parse(&read[..HEADER + 19]).is_none() && parse(&read[..HEADER - 1]).is_none());
        let named = request(22, 4, b"\x07\0\0\0\0\0\0\0user.a\0");
        assert_eq!(parse(&named).unwrap().ask, FuseOperation::Extended(4, b"user.a", 7));
        assert_eq!(
            parse(&request(23, 4, &[0; 8])).unwrap().ask,
            FuseOperation::ExtendedNames(4, 0)
        );
        assert!(parse(&request(22, 4, &[0; 7])).is_none());
    }

    #[test]
    fn an_attribute_is_sent_measured_or_said_to_be_too_long() {
        assert_eq!(extended(1, b"value", 5)[ANSWER_HEADER..], *b"value");
        assert_eq!(extended(1, b"value", 0)[ANSWER_HEADER..], 5_u64.to_le_bytes());
        assert_eq!(extended(1, b"value", 4), refusal(1, libc::ERANGE));
    }

    #[test]
    fn a_kernel_that_maps_no_users_is_told_apart() {
        let hello = |minor: u32, flags: u64| {
            let mut body = vec![];
            for number in [7, minor, 131_072, flags as u32, (flags >> 32) as u32] {
                body.extend_from_slice(&number.to_le_bytes());
            }
            request(26, 0, &body)
        };
        let welcomed = welcome(&hello(45, ALLOW_IDMAP | EXTENDED | ASYNC_READ)).unwrap();
        assert_eq!(welcomed.len(), ANSWER_HEADER + 64);
        assert_eq!(
            u32_at(&welcomed, ANSWER_HEADER + 12),
            Some((EXTENDED | ASYNC_READ) as u32)
        );
        assert_eq!(u32_at(&welcomed, ANSWER_HEADER + 32), Some((ALLOW_IDMAP >> 32) as u32));
        assert!(welcome(&hello(45, EXTENDED | ASYNC_READ)).is_none());
        assert!(welcome(&hello(31, ALLOW_IDMAP | EXTENDED)).is_none());
    }
}
