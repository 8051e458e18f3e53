//! Archives for tests, including those of the worker.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

/// A tar of raw headers, so that names can be such as no honest tool writes.
#[derive(Default)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn entry(mut self, name: &str, kind: EntryType, link: &str, mode: u32, content: &[u8]) -> Self {
        self.header(name, kind, link, mode, content.len() as u64);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn header(&mut self, name: &str, kind: EntryType, link: &str, mode: u32, size: u64) {
        let mut header = Header::new_gnu();
        let raw = header.as_gnu_mut().unwrap();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(1_000);
        header.set_gid(1_000);
        header.set_mtime(1_700_000_000);
        header.set_size(size);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
    }

    pub(crate) fn file(self, name: &str, content: &str) -> Self {
        self.entry(name, EntryType::Regular, "", 0o600, content.as_bytes())
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Self {
        self.entry(name, EntryType::Symlink, target, 0o777, b"")
    }

    pub(crate) fn write(mut self, path: &Path) {
        self.0.extend_from_slice(&[0; 1_024]);
        let mut gz = GzEncoder::new(fs::File::create(path).unwrap(), Compression::fast());
        gz.write_all(&self.0).unwrap();
        gz.finish().unwrap();
    }
}
