//! UNIX sockets in `files.img` that are bound to files.

use std::collections::HashMap;

use prost::Message as _;

use super::files::{FILES_MAGIC, KIND, entries};
use super::{ImageError, framing, wire};

/// Field numbers of [`FileEntry::socket`], and of fields of a socket.
const FIELD_SOCKET: u64 = 16;
const FIELD_NAME: u64 = 11;
const FIELD_PERMISSIONS: u64 = 13;
const FIELD_DIRECTORY: u64 = 14;
const FIELD_DELETED: u64 = 15;

/// A file, as far as it is a UNIX socket.
#[derive(Clone, PartialEq, prost::Message)]
struct FileEntry {
    #[prost(uint32, required, tag = "2")]
    id: u32,
    #[prost(bytes = "vec", optional, tag = "16")]
    socket: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Socket {
    #[prost(uint32, required, tag = "2")]
    inode: u32,
    #[prost(bytes = "vec", required, tag = "11")]
    name: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "14")]
    directory: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "15")]
    deleted: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Permissions {
    #[prost(uint32, required, tag = "1")]
    mode: u32,
    #[prost(uint32, required, tag = "2")]
    user: u32,
    #[prost(uint32, required, tag = "3")]
    group: u32,
}

/// A socket that was bound to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundSocket {
    /// The number of its file.
    pub id: u32,
    /// Its inode number, which is not that of the file that it is bound to.
    pub inode: u32,
    /// The path that it was bound to. A relative one begins at the directory that CRIU found.
    pub path: Vec<u8>,
    /// CRIU did not find it at that path.
    pub is_lost: bool,
}

/// What a socket's file is like in truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketFile {
    /// Its path. `None` if it has none any more.
    pub path: Option<Vec<u8>>,
    /// Its kind and permissions.
    pub mode: u32,
    /// Its user and group.
    pub owner: u32,
}

/// Gives the UNIX sockets with these ids these paths as their names, in place of relative ones.
///
/// # Errors
/// If the image does not parse.
pub fn name_unix_sockets(image: &[u8], paths: &HashMap<u32, Vec<u8>>) -> Result<Vec<u8>, ImageError> {
    edit(image, |id, socket| match paths.get(&id) {
        Some(path) => named(socket, path).map(Some),
        None => Ok(None),
    })
}

/// Says of the UNIX sockets with these ids what their files are like.
///
/// # Errors
/// If the image does not parse.
pub fn place_unix_sockets(image: &[u8], files: &HashMap<u32, SocketFile>) -> Result<Vec<u8>, ImageError> {
    edit(image, |id, socket| {
        let Some(file) = files.get(&id) else { return Ok(None) };
        let permissions = Permissions {
            mode: file.mode,
            user: file.owner,
            group: file.owner,
        };
        let socket = wire::with_bytes(socket, FIELD_PERMISSIONS, &permissions.encode_to_vec())?;
        let placed = match &file.path {
            Some(path) => named(&wire::without(&socket, FIELD_DELETED)?, path)?,
            None => wire::with_varint(&socket, FIELD_DELETED, 1)?,
        };
        Ok(Some(placed))
    })
}

/// Returns the sockets that were bound to files.
///
/// # Errors
/// If the image does not parse.
pub fn bound_sockets(image: &[u8]) -> Result<Vec<BoundSocket>, ImageError> {
    let mut found = Vec::new();
    for (entry, message) in entries(image)?.into_iter().enumerate() {
        let malformed = |cause| ImageError::Message {
            kind: KIND,
            entry,
            cause,
        };
        let file = FileEntry::decode(message).map_err(malformed)?;
        let Some(socket) = file.socket else { continue };
        let socket = Socket::decode(socket.as_slice()).map_err(malformed)?;
        // An abstract name begins with a zero.
        if socket.name.first().is_some_and(|first| *first != 0) {
            found.push(BoundSocket {
                id: file.id,
                inode: socket.inode,
                path: path(&socket),
                is_lost: socket.deleted == Some(true),
            });
        }
    }
    Ok(found)
}

fn path(socket: &Socket) -> Vec<u8> {
    let name = socket.name.strip_suffix(&[0]).unwrap_or(&socket.name);
    match &socket.directory {
        None => name.to_vec(),
        Some(directory) => [directory.as_slice(), name].join(&b'/'),
    }
}

/// Gives a socket a whole path.
fn named(socket: &[u8], path: &[u8]) -> Result<Vec<u8>, wire::WireError> {
    let name = [path, &[0]].concat();
    wire::with_bytes(&wire::without(socket, FIELD_DIRECTORY)?, FIELD_NAME, &name)
}

/// Replaces the UNIX sockets, by the ids of their files, for which there are others. All else stays as it is.
fn edit(
    image: &[u8],
    replace: impl Fn(u32, &[u8]) -> Result<Option<Vec<u8>>, wire::WireError>,
) -> Result<Vec<u8>, ImageError> {
    let messages = entries(image)?;
    let mut out = Vec::with_capacity(messages.len());
    for (entry, message) in messages.iter().enumerate() {
        let file = FileEntry::decode(*message).map_err(|cause| ImageError::Message {
            kind: KIND,
            entry,
            cause,
        })?;
        let refused = |cause| ImageError::Wire { kind: KIND, cause };
        let replaced = match &file.socket {
            Some(socket) => replace(file.id, socket).map_err(refused)?,
            None => None,
        };
        out.push(match replaced {
            Some(socket) => wire::with_bytes(message, FIELD_SOCKET, &socket).map_err(refused)?,
            None => message.to_vec(),
        });
    }
    Ok(framing::image(FILES_MAGIC, out.iter().map(Vec::as_slice)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its inode, its name, a field unknown here, and its directory.
    fn socket(name: &[u8], directory: &[u8]) -> Vec<u8> {
        let plain = wire::with_bytes(&[0x10, 70, 0x5a, 0, 0x60, 3], FIELD_NAME, name).unwrap();
        match directory {
            b"" => plain,
            directory => wire::with_bytes(&plain, FIELD_DIRECTORY, directory).unwrap(),
        }
    }

    fn entry(id: u32, socket: Option<Vec<u8>>) -> Vec<u8> {
        wire::with_varint(&FileEntry { id, socket }.encode_to_vec(), 1, 7).unwrap()
    }

    fn image(messages: &[Vec<u8>]) -> Vec<u8> {
        framing::image(FILES_MAGIC, messages.iter().map(Vec::as_slice))
    }

    #[test]
    fn sockets_with_relative_names_get_their_whole_paths_and_nothing_else_changes() {
        let file = entry(9, None);
        let other = entry(2, Some(socket(b"/tmp/other\0", b"")));
        let before = image(&[entry(1, Some(socket(b"near\0", b"/tmp"))), file.clone(), other.clone()]);
        let named = name_unix_sockets(&before, &HashMap::from([(1, b"/tmp/near".to_vec())])).unwrap();
        let near = entry(1, Some(socket(b"/tmp/near\0", b"")));
        assert_eq!(named, image(&[near, file, other]));
        assert!(name_unix_sockets(b"none", &HashMap::new()).is_err());
    }

    #[test]
    fn sockets_are_placed_where_their_files_are() {
        let abstract_one = entry(3, Some(socket(b"\0abstract", b"")));
        let lost = wire::with_varint(&socket(b"/tmp/a\0", b""), FIELD_DELETED, 1).unwrap();
        let before = image(&[
            entry(1, Some(lost)),
            entry(2, Some(socket(b"near\0", b"/tmp"))),
            abstract_one.clone(),
            entry(9, None),
        ]);
        let found = |image: &[u8]| {
            let sockets = bound_sockets(image).unwrap().into_iter();
            sockets
                .map(|socket| (socket.id, socket.inode, socket.path, socket.is_lost))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found(&before),
            [(1, 70, b"/tmp/a".to_vec(), true), (2, 70, b"/tmp/near".to_vec(), false)]
        );
        let file = |path: Option<&[u8]>| SocketFile {
            path: path.map(<[u8]>::to_vec),
            mode: 0o140_700,
            owner: 1000,
        };
        let placed = HashMap::from([(1, file(Some(b"/tmp/b"))), (2, file(None))]);
        let after = place_unix_sockets(&before, &placed).unwrap();
        assert_eq!(
            found(&after),
            [(1, 70, b"/tmp/b".to_vec(), false), (2, 70, b"/tmp/near".to_vec(), true)]
        );
        let messages = entries(&after).unwrap();
        assert_eq!(messages[2..], [abstract_one, entry(9, None)]);
        let socket = FileEntry::decode(messages[0]).unwrap().socket.unwrap();
        let permissions = [0x08, 0xc0, 0x83, 0x03, 0x10, 0xe8, 0x07, 0x18, 0xe8, 0x07];
        assert!(socket.windows(permissions.len()).any(|bytes| bytes == permissions));
        assert!(bound_sockets(b"none").is_err());
    }
}
