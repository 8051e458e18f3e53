//! `irmap-cache`: paths by inode, which a dump reads and no restore does. CRIU takes the path of a watched file from
//! it where the file cannot be opened by its handle. It looks whether the path still leads to that inode.

use super::framing;

/// The image's name.
pub const KNOWN_PATHS: &str = "irmap-cache";

/// First word of images that only dumps read.
const SERVICE_MAGIC: u32 = 0x5510_5940;
const KNOWN_PATHS_MAGIC: u32 = 0x5700_4059;

/// A file's path.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KnownPath {
    /// Its device number in the kernel's form: 12 bits and 20.
    #[prost(uint32, required, tag = "1")]
    pub device: u32,
    /// Its inode number.
    #[prost(uint64, required, tag = "2")]
    pub inode: u64,
    /// Its path from the root of the processes, in bytes because it need not be UTF-8.
    #[prost(bytes = "vec", required, tag = "3")]
    pub path: Vec<u8>,
}

/// Encodes the image.
pub fn known_paths(paths: &[KnownPath]) -> Vec<u8> {
    let messages: Vec<_> = paths.iter().map(prost::Message::encode_to_vec).collect();
    let rest = framing::bare_image(KNOWN_PATHS_MAGIC, messages.iter().map(Vec::as_slice));
    [&SERVICE_MAGIC.to_le_bytes(), rest.as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_as_criu_writes_it() {
        let path = KnownPath {
            device: 0x2a,
            inode: 300,
            path: b"/etc".to_vec(),
        };
        let expected = [
            0x40, 0x59, 0x10, 0x55, 0x59, 0x40, 0x00, 0x57, 11, 0, 0, 0, 8, 0x2a, 16, 0xac, 2, 26, 4, b'/', b'e', b't',
            b'c',
        ];
        assert_eq!(known_paths(&[path]), expected);
    }
}
