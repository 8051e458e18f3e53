//! Tar records that extend the header of the entry after them: long names, in GNU's and pax's formats.

use std::io::Read;

use tar::{Entry, EntryType};

use super::{UnpackError, malformed};
use crate::attributes::{self, Attribute};
use crate::pax::Records;

/// Maximum bytes of a long name or of a block of extended attributes.
pub const EXTENSION_MAX: u64 = 64 * 1024;

/// Contents of extension records about the next entry of an archive that is read raw.
#[derive(Debug, Default)]
pub struct Extension {
    /// Its path, if the header is too short for it.
    pub path: Option<Vec<u8>>,
    /// Its link's target, if the header is too short for it.
    pub link: Option<Vec<u8>>,
    /// Those that a file of an image may have.
    pub(crate) attributes: Vec<Attribute>,
}

impl Extension {
    /// Reads the entry if it is an extension record. Returns whether it is one.
    ///
    /// # Errors
    /// [`UnpackError::Malformed`] if the record is longer than [`EXTENSION_MAX`], cannot be read, or gives the entry
    /// another size.
    pub fn read<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<bool, UnpackError> {
        let kind = entry.header().entry_type();
        let known = matches!(
            kind,
            EntryType::XHeader | EntryType::XGlobalHeader | EntryType::GNULongName | EntryType::GNULongLink
        );
        if !known {
            return Ok(false);
        }
        let size = entry.header().entry_size().map_err(malformed)?;
        if size > EXTENSION_MAX {
            return Err(malformed("an extension record is too long"));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(malformed)?;
        match kind {
            EntryType::GNULongName => self.path = Some(without_nul(bytes)),
            EntryType::GNULongLink => self.link = Some(without_nul(bytes)),
            EntryType::XHeader => self.pax(&bytes)?,
            // A comment, as git writes it, or defaults that do not matter here.
            _ => {}
        }
        Ok(true)
    }

    fn pax(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        for record in Records(bytes) {
            let (key, value) = record.map_err(malformed)?;
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                // Another size would shift everything after it. Nothing within the limits needs one.
                b"size" => return Err(malformed("it has a pax size record")),
                key if key.starts_with(b"GNU.sparse.") => return Err(malformed("it has a sparse file")),
                key => attributes::add(&mut self.attributes, attributes::of_image(key, value)),
            }
        }
        Ok(())
    }
}

fn without_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(end);
    }
    bytes
}
