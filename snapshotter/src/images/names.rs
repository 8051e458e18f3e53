//! `files.img`: the paths of regular files, by id. Only read, for people.

use std::collections::HashMap;

use prost::Message as _;

use super::{ImageError, framing};

const KIND: &str = "files";
const FILES_MAGIC: u32 = 0x5630_3138;

#[derive(Clone, PartialEq, prost::Message)]
struct FileEntry {
    #[prost(uint32, optional, tag = "2")]
    id: Option<u32>,
    #[prost(message, optional, tag = "3")]
    regular: Option<RegularFile>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RegularFile {
    #[prost(bytes = "vec", optional, tag = "6")]
    name: Option<Vec<u8>>,
}

/// The paths in a files image; those that are not UTF-8 are shown as well as they can be.
pub fn file_names(image: &[u8]) -> Result<HashMap<u32, String>, ImageError> {
    let entries = framing::entries(image, FILES_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let mut names = HashMap::new();
    for (entry, message) in entries.iter().enumerate() {
        let file = FileEntry::decode(*message).map_err(|cause| ImageError::Message {
            kind: KIND,
            entry,
            cause,
        })?;
        if let (Some(id), Some(name)) = (file.id, file.regular.and_then(|r| r.name)) {
            names.insert(id, String::from_utf8_lossy(&name).into_owned());
        }
    }
    Ok(names)
}
