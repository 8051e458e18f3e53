//! `files.img`: the open and mapped files of all processes. Entries can be added. Of the existing ones, only pipes
//! are renamed here, and [UNIX sockets](super::unix).

use std::collections::HashMap;

use prost::Message as _;

use super::{ImageError, framing, wire};

pub(super) const KIND: &str = "files";
pub(super) const FILES_MAGIC: u32 = 0x5630_3138;
/// `REG` of CRIU's `fd_types`.
const TYPE_REGULAR: i32 = 1;

#[derive(Clone, PartialEq, prost::Message)]
struct FileEntry {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(uint32, required, tag = "2")]
    id: u32,
    #[prost(message, optional, tag = "3")]
    regular: Option<RegularFile>,
    /// A [`PipeEntry`].
    #[prost(bytes = "vec", optional, tag = "18")]
    pipe: Option<Vec<u8>>,
}

/// Field numbers of [`FileEntry::pipe`], and of [`PipeEntry::pipe_id`] in it.
const FIELD_PIPE: u64 = 18;
const FIELD_PIPE_ID: u64 = 2;

#[derive(Clone, PartialEq, prost::Message)]
struct PipeEntry {
    /// The inode, by which CRIU identifies the pipe.
    #[prost(uint32, required, tag = "2")]
    pipe_id: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RegularFile {
    #[prost(uint32, required, tag = "1")]
    id: u32,
    #[prost(uint32, required, tag = "2")]
    flags: u32,
    #[prost(uint64, required, tag = "3")]
    pos: u64,
    #[prost(message, required, tag = "5")]
    owner: Owner,
    /// Bytes, because a path need not be UTF-8.
    #[prost(bytes = "vec", required, tag = "6")]
    name: Vec<u8>,
}

/// The owner that gets a file's signals: nobody.
#[derive(Clone, PartialEq, prost::Message)]
struct Owner {
    #[prost(uint32, required, tag = "1")]
    uid: u32,
    #[prost(uint32, required, tag = "2")]
    euid: u32,
    #[prost(uint32, required, tag = "3")]
    signal: u32,
    #[prost(uint32, required, tag = "4")]
    pid_type: u32,
    #[prost(uint32, required, tag = "5")]
    pid: u32,
}

pub(super) fn entries(image: &[u8]) -> Result<Vec<&[u8]>, ImageError> {
    framing::entries(image, FILES_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })
}

/// The regular file at `path`, opened for reading.
fn regular_file(id: u32, path: &str) -> FileEntry {
    let regular = RegularFile {
        id,
        name: path.as_bytes().to_vec(),
        ..RegularFile::default()
    };
    FileEntry {
        kind: TYPE_REGULAR,
        id,
        regular: Some(regular),
        pipe: None,
    }
}

/// A files image to which entries can be added.
pub(super) struct FilesImage<'a> {
    messages: Vec<&'a [u8]>,
    added: Vec<Vec<u8>>,
    names: HashMap<u32, Vec<u8>>,
    last_id: u32,
}

impl<'a> FilesImage<'a> {
    pub(super) fn parse(image: &'a [u8]) -> Result<Self, ImageError> {
        let messages = entries(image)?;
        let (mut names, mut last_id) = (HashMap::new(), 0);
        for (entry, message) in messages.iter().enumerate() {
            let file = FileEntry::decode(*message).map_err(|cause| ImageError::Message {
                kind: KIND,
                entry,
                cause,
            })?;
            last_id = last_id.max(file.id);
            names.extend(file.regular.map(|regular| (file.id, regular.name)));
        }
        Ok(Self {
            messages,
            added: Vec::new(),
            names,
            last_id,
        })
    }

    /// The path of regular file `id` as the processes saw it, if it is UTF-8.
    pub(super) fn name(&self, id: u32) -> Option<&str> {
        std::str::from_utf8(self.names.get(&id)?).ok()
    }

    /// Adds the regular file at `path`. Returns its id, or `None` if ids have run out.
    pub(super) fn add(&mut self, path: &str) -> Option<u32> {
        let id = self.last_id.checked_add(1)?;
        self.last_id = id;
        self.added.push(regular_file(id, path).encode_to_vec());
        Some(id)
    }

    /// The files with this name.
    pub(super) fn ids_of(&self, name: &str) -> impl Iterator<Item = u32> {
        let all = self.names.iter();
        all.filter_map(move |(id, known)| (known == name.as_bytes()).then_some(*id))
    }

    /// Encodes the image, with other paths for some regular files.
    pub(super) fn encode_placed(&self, paths: &HashMap<u32, &str>) -> Result<Vec<u8>, ImageError> {
        let mut messages = Vec::with_capacity(self.messages.len());
        for (entry, message) in self.messages.iter().enumerate() {
            let file = FileEntry::decode(*message).map_err(|cause| ImageError::Message {
                kind: KIND,
                entry,
                cause,
            })?;
            let placed = paths
                .get(&file.id)
                .map(|path| regular_file(file.id, path).encode_to_vec());
            messages.push(placed.unwrap_or_else(|| message.to_vec()));
        }
        Ok(framing::image(FILES_MAGIC, messages.iter().map(Vec::as_slice)))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let added = self.added.iter().map(Vec::as_slice);
        framing::image(FILES_MAGIC, self.messages.iter().copied().chain(added))
    }
}

/// Renumbers the pipes of a files image, from old to new numbers. `None` if another pipe already has one of the new
/// numbers. CRIU does not find a pipe's saved data by its new number, and need not: an inherited pipe has its own data.
///
/// # Errors
/// If the image does not parse.
pub fn renumber_pipes(image: &[u8], numbers: &HashMap<u32, u32>) -> Result<Option<Vec<u8>>, ImageError> {
    let messages = entries(image)?;
    let mut out = Vec::with_capacity(messages.len());
    for (entry, message) in messages.iter().enumerate() {
        let malformed = |cause| ImageError::Message {
            kind: KIND,
            entry,
            cause,
        };
        let file = FileEntry::decode(*message).map_err(malformed)?;
        let Some(pipe) = file.pipe else {
            out.push(message.to_vec());
            continue;
        };
        let PipeEntry { pipe_id } = PipeEntry::decode(pipe.as_slice()).map_err(malformed)?;
        match numbers.get(&pipe_id) {
            Some(number) => {
                let renumbered = wire::with_varint(&pipe, FIELD_PIPE_ID, u64::from(*number))
                    .and_then(|pipe| wire::with_bytes(message, FIELD_PIPE, &pipe));
                out.push(renumbered.map_err(|cause| ImageError::Wire { kind: KIND, cause })?);
            }
            None if numbers.values().any(|taken| *taken == pipe_id) => return Ok(None),
            None => out.push(message.to_vec()),
        }
    }
    Ok(Some(framing::image(FILES_MAGIC, out.iter().map(Vec::as_slice))))
}

/// The paths of regular files, by id. Paths that are not UTF-8 are converted lossily.
pub fn file_names(image: &[u8]) -> Result<HashMap<u32, String>, ImageError> {
    let names = FilesImage::parse(image)?.names.into_iter();
    Ok(names
        .map(|(id, name)| (id, String::from_utf8_lossy(&name).into_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe(id: u32, number: u32) -> Vec<u8> {
        // Between the two numbers is a field unknown here: the flags.
        let entry = [0x08, 5, 0x10, number as u8, 0x18, 1];
        let file = FileEntry {
            kind: 2,
            id,
            regular: None,
            pipe: Some(entry.to_vec()),
        };
        file.encode_to_vec()
    }

    #[test]
    fn pipes_get_their_new_numbers_and_nothing_else_changes() {
        let file = regular_file(9, "/lib.so").encode_to_vec();
        let image = |messages: &[Vec<u8>]| framing::image(FILES_MAGIC, messages.iter().map(Vec::as_slice));
        let before = image(&[pipe(1, 70), file.clone(), pipe(2, 71), pipe(3, 70)]);
        let after = renumber_pipes(&before, &HashMap::from([(70, 90)])).unwrap();
        assert_eq!(after, Some(image(&[pipe(1, 90), file, pipe(2, 71), pipe(3, 90)])));
        let taken = renumber_pipes(&before, &HashMap::from([(70, 71)])).unwrap();
        assert_eq!(taken, None, "two pipes would be one");
    }

    #[test]
    fn a_file_that_has_several_ids_is_placed_by_all_of_them() {
        let image = |names: [&str; 3]| {
            let messages = std::iter::zip(1.., names).map(|(id, name)| regular_file(id, name).encode_to_vec());
            let messages: Vec<_> = messages.collect();
            framing::image(FILES_MAGIC, messages.iter().map(Vec::as_slice))
        };
        let before = image(["file[1:2]", "/lib.so", "file[1:2]"]);
        let names = [("file[1:2]", "/held"), ("file[1:3]", "/other")];
        let (after, mut ids) = super::super::place_external(&before, &names).unwrap();
        ids.sort_unstable();
        assert_eq!((after, ids), (image(["/held", "/lib.so", "/held"]), vec![1, 3]));
    }
}
