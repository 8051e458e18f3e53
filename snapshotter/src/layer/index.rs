//! The index of a container image's layer: the last file of its tar, which says where each other file is. With it a
//! host can mount the layer before it has the files. Pure.
//!
//! ```text
//! tar:    …, header of INDEX, index, zero blocks
//! index:  entry, entry, …, attribute, attribute, …, zeros, [entries' bytes u64] [index's bytes u64] [MAGIC]
//! entry:  kind u8, mode u16, path's length u16, target's length u16, offset u64, size u64, path, target
//! attribute:  number of its entry u32, from 1 on, name's length u16, value's length u32, name, value
//! ```
//!
//! Numbers are little-endian. The index is part of the tar, so the layer's digest covers it. Builds from before there
//! were attributes overlook them.

use rekindle_confined::attributes::Attribute;

/// The path of the index in its layer.
pub const INDEX: &str = ".rekindle/index";
/// The time of every file of a layer: 1980-01-01, the oldest that zip archives made by a function can hold.
pub const MTIME_UNIX_S: u64 = 315_532_800;
/// Maximum size of an index in bytes: some 500,000 files.
pub const INDEX_MAX: u64 = 64 << 20;
/// Maximum distance between the index and the end of the tar: the two blocks that end a tar, and zeros for other names.
pub const BEHIND_MAX: usize = 32 * BLOCK;

const MAGIC: &[u8; 8] = b"RKINDEX1";
const BLOCK: usize = 512;
const TRAILER: usize = 24;
const ENTRY: usize = 23;
const ATTRIBUTE: usize = 10;
/// Field of a tar header with the name, and the one with the size in octal digits.
const NAME_BYTES: usize = 100;
const SIZE_FIELD: std::ops::Range<usize> = 124..135;

/// Why there is no usable index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It is cut off.
    #[error("the index of files is cut off")]
    Short,
    /// It is not one.
    #[error("the index of files is malformed: {0}")]
    Malformed(&'static str),
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory {
        /// Its permission bits.
        mode: u16,
    },
    /// A regular file.
    File {
        /// Where its bytes are in the tar.
        offset: u64,
        /// Their number.
        size: u64,
        /// Its permission bits.
        mode: u16,
    },
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// One more name of the file with this path.
    Link(Vec<u8>),
}

/// A file of the layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path, relative to the layer's root, without a final slash. Those of directories come before those in them.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Its extended attributes.
    pub attributes: Vec<Attribute>,
}

/// The bytes that an entry takes in an index.
#[must_use]
pub fn encoded_bytes(entry: &Entry) -> usize {
    let target = match &entry.kind {
        Kind::Directory { .. } | Kind::File { .. } => 0,
        Kind::Symlink(target) | Kind::Link(target) => target.len(),
    };
    let attribute = |(name, value): &Attribute| ATTRIBUTE + name.len() + value.len();
    ENTRY + entry.path.len() + target + entry.attributes.iter().map(attribute).sum::<usize>()
}

/// Encodes an index. Its length is a multiple of a tar block's. Names longer than the kernel takes are an error.
///
/// # Errors
/// Returns an error when a path, target or attribute is too long.
pub fn encode(entries: &[Entry]) -> Result<Vec<u8>, IndexError> {
    let too_long = |_| IndexError::Malformed("a path or an attribute is too long");
    let length = |name: &[u8]| u16::try_from(name.len()).map_err(too_long);
    let mut bytes = Vec::new();
    for entry in entries {
        let none: &[u8] = &[];
        let (kind, mode, offset, size, target) = match &entry.kind {
            Kind::Directory { mode } => (0, *mode, 0, 0, none),
            Kind::File { offset, size, mode } => (1, *mode, *offset, *size, none),
            Kind::Symlink(target) => (2, 0, 0, 0, &target[..]),
            Kind::Link(target) => (3, 0, 0, 0, &target[..]),
        };
        bytes.push(kind);
        bytes.extend_from_slice(&mode.to_le_bytes());
        bytes.extend_from_slice(&length(&entry.path)?.to_le_bytes());
        bytes.extend_from_slice(&length(target)?.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(&entry.path);
        bytes.extend_from_slice(target);
    }
    let entries_bytes = bytes.len() as u64;
    for (number, entry) in (1..).zip(entries) {
        for (name, value) in &entry.attributes {
            let number: u32 = number;
            bytes.extend_from_slice(&number.to_le_bytes());
            bytes.extend_from_slice(&length(name.as_bytes())?.to_le_bytes());
            bytes.extend_from_slice(&u32::try_from(value.len()).map_err(too_long)?.to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(value);
        }
    }
    bytes.resize((bytes.len() + TRAILER).next_multiple_of(BLOCK) - TRAILER, 0);
    let length = (bytes.len() + TRAILER) as u64;
    bytes.extend_from_slice(&entries_bytes.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(MAGIC);
    Ok(bytes)
}

/// Returns how many bytes before the end of a tar its index begins, and the index's length. `end` holds the tar's last
/// bytes, at least [`BEHIND_MAX`] of them. `None` if the tar has no index.
#[must_use]
pub fn locate(end: &[u8]) -> Option<(u64, u64)> {
    let zero_blocks = end
        .rchunks(BLOCK)
        .take_while(|block| block.iter().all(|b| *b == 0))
        .count();
    let behind = zero_blocks * BLOCK;
    let last = end.get(..end.len().checked_sub(behind)?)?;
    let trailer = last.get(last.len().checked_sub(TRAILER)?..)?;
    let length = number(trailer, 8)?;
    let is_one = trailer.ends_with(MAGIC) && length % BLOCK as u64 == 0 && (1..=INDEX_MAX).contains(&length);
    is_one.then_some((length + behind as u64, length))
}

/// Returns the entries of an index. `bytes` are the header before it in the tar, and the index.
///
/// # Errors
/// Returns an error when the header is another file's, or the index is malformed.
pub fn decode(bytes: &[u8]) -> Result<Vec<Entry>, IndexError> {
    let (header, index) = bytes.split_at_checked(BLOCK).ok_or(IndexError::Short)?;
    let name = header[..NAME_BYTES].split(|b| *b == 0).next().unwrap_or_default();
    let size = std::str::from_utf8(&header[SIZE_FIELD]).ok();
    let size = size.and_then(|digits| usize::from_str_radix(digits.trim(), 8).ok());
    if name != INDEX.as_bytes() || size != Some(index.len()) || !index.ends_with(MAGIC) {
        return Err(IndexError::Malformed("it is another file"));
    }
    let content = index.len().checked_sub(TRAILER).ok_or(IndexError::Short)?;
    let (content, trailer) = index.split_at(content);
    let length = number(trailer, 0).and_then(|length| usize::try_from(length).ok());
    let parts = length.and_then(|length| content.split_at_checked(length));
    let (mut rest, behind) = parts.ok_or(IndexError::Short)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (head, names) = rest.split_at_checked(ENTRY).ok_or(IndexError::Short)?;
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let mode = short(1);
        let (path, names) = names.split_at_checked(short(3).into()).ok_or(IndexError::Short)?;
        let (target, names) = names.split_at_checked(short(5).into()).ok_or(IndexError::Short)?;
        rest = names;
        let (offset, size) = (number(head, 7), number(head, 15));
        let (offset, size) = offset.zip(size).ok_or(IndexError::Short)?;
        let kind = match head[0] {
            0 => Kind::Directory { mode },
            1 => Kind::File { offset, size, mode },
            2 => Kind::Symlink(target.to_vec()),
            3 => Kind::Link(target.to_vec()),
            _ => return Err(IndexError::Malformed("an entry is of no known kind")),
        };
        entries.push(Entry {
            path: path.to_vec(),
            kind,
            attributes: Vec::new(),
        });
    }
    decode_attributes(behind, &mut entries)?;
    Ok(entries)
}

/// Reads the attributes behind the entries, and gives each its own.
fn decode_attributes(mut rest: &[u8], entries: &mut [Entry]) -> Result<(), IndexError> {
    while let Some((head, more)) = rest.split_at_checked(ATTRIBUTE) {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let Some(place) = (word(0) as usize).checked_sub(1) else {
            break;
        };
        let name = more.split_at_checked(u16::from_le_bytes([head[4], head[5]]).into());
        let (name, more) = name.ok_or(IndexError::Short)?;
        let (value, more) = more.split_at_checked(word(6) as usize).ok_or(IndexError::Short)?;
        rest = more;
        let name = str::from_utf8(name).map_err(|_| IndexError::Malformed("an attribute's name is not UTF-8"))?;
        let entry = entries.get_mut(place);
        let entry = entry.ok_or(IndexError::Malformed("an attribute is of no entry"))?;
        entry.attributes.push((name.to_owned(), value.to_vec()));
    }
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn in_tar(index: &[u8], behind: usize) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_size(index.len() as u64);
        let mut builder = tar::Builder::new(vec![]);
        builder.append_data(&mut header, INDEX, index).unwrap();
        let mut tar = builder.into_inner().unwrap();
        tar.resize(tar.len() + behind * BLOCK, 0);
        tar
    }

    fn entry() -> impl Strategy<Value = Entry> {
        let kind = prop_oneof![
            any::<u16>().prop_map(|mode| Kind::Directory { mode }),
            (any::<u64>(), any::<u64>(), any::<u16>()).prop_map(|(offset, size, mode)| Kind::File {
                offset,
                size,
                mode
            }),
            any::<Vec<u8>>().prop_map(Kind::Symlink),
            any::<Vec<u8>>().prop_map(Kind::Link),
        ];
        let attributes = prop::collection::vec((".{0,9}", any::<Vec<u8>>()), 0..3);
        let parts = (any::<Vec<u8>>(), kind, attributes);
        parts.prop_map(|(path, kind, attributes)| Entry { path, kind, attributes })
    }

    proptest! {
        #[test]
        fn an_index_is_found_at_the_end_of_its_tar_and_reads_back(
            entries in prop::collection::vec(entry(), 0..40), behind in 0usize..16,
        ) {
            let tar = in_tar(&encode(&entries).unwrap(), behind);
            let (before_end, length) = locate(&tar[tar.len().saturating_sub(BEHIND_MAX)..]).unwrap();
            let begins = tar.len() - usize::try_from(before_end).unwrap();
            let end = begins + usize::try_from(length).unwrap();
            prop_assert_eq!(decode(&tar[begins - BLOCK..end]).unwrap(), entries);
        }

        #[test]
        fn any_bytes_are_an_error_at_most(
            bytes in any::<Vec<u8>>(), at in any::<prop::sample::Index>(), to in any::<u8>(),
        ) {
            let _ = (locate(&bytes), decode(&bytes));
            let kind = Kind::Directory { mode: 0o755 };
            let attributes = vec![("user.a".to_owned(), b"b".to_vec())];
            let entry = Entry { path: b"a".to_vec(), kind, attributes };
            let mut tar = in_tar(&encode(&[entry]).unwrap(), 0);
            let at = at.index(tar.len());
            tar[at] = to;
            let _ = (locate(&tar), decode(&tar[..tar.len() - 1024]));
        }
    }

    #[test]
    fn a_file_of_the_image_is_not_taken_for_the_index() {
        let index = encode(&[]).unwrap();
        let mut tar = in_tar(&index, 0);
        tar[0] = b'x';
        assert!(decode(&tar[..BLOCK + index.len()]).is_err());
    }
}
