//! Extended attributes of an image's files. The layers of images have them as pax records with the keys of star and GNU
//! tar (`SCHILY.xattr.NAME`, with the value as it is). Ours have those of libarchive (`LIBARCHIVE.xattr.NAME`, with the
//! name percent-encoded and the value in base64), which every reader of tars can skip.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;
use tar::Entry;

const IMAGE_RECORD: &[u8] = b"SCHILY.xattr.";
const OWN_RECORD: &str = "LIBARCHIVE.xattr.";
/// Maximum bytes of a file's attributes, names included. ext4 keeps them in one block of 4 KiB.
pub const ATTRIBUTES_MAX: usize = 3 << 10;
/// Begins the name of an attribute that anybody may set who may write to the file.
const USER: &str = "user.";
/// Begins the name of one by which an overlay of a user other than root marks its own files.
const OVERLAY: &str = "user.overlay.";
const NAME_MAX: usize = 255;
/// Maximum bytes of all names of a file's attributes, and of a value: the kernel's own limits.
const KERNEL_MAX: usize = 64 << 10;

/// Name and value.
pub type Attribute = (String, Vec<u8>);

/// Whether a file of an image may have an attribute of this name. Others belong to the kernel or root, or mean
/// something to the overlay that the function's root is.
#[must_use]
pub fn is_kept(name: &str) -> bool {
    let is_name = name.len() > USER.len() && name.len() <= NAME_MAX && !name.contains('\0');
    is_name && name.starts_with(USER) && !name.starts_with(OVERLAY)
}

/// Returns the number of bytes that they take on a disk, about.
#[must_use]
pub fn bytes(attributes: &[Attribute]) -> usize {
    attributes.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Returns the attribute in a pax record of an image, if it is one that files may have.
pub(crate) fn of_image(key: &[u8], value: &[u8]) -> Option<Attribute> {
    let name = str::from_utf8(key.strip_prefix(IMAGE_RECORD)?).ok()?;
    is_kept(name).then(|| (name.to_owned(), value.to_vec()))
}

/// Adds an attribute. The last of a name counts.
pub(crate) fn add(to: &mut Vec<Attribute>, attribute: Option<Attribute>) {
    if let Some(attribute) = attribute {
        to.retain(|(name, _)| *name != attribute.0);
        to.push(attribute);
    }
}

/// Returns the attribute's pax record in a layer of ours: its key and value.
#[must_use]
pub fn record((name, value): &Attribute) -> (String, String) {
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    (format!("{OWN_RECORD}{name}"), STANDARD_NO_PAD.encode(value))
}

/// Returns the attributes that a layer of ours has for the entry.
///
/// # Errors
/// If its records are malformed.
pub(crate) fn of_entry(entry: &mut Entry<'_, impl Read>) -> io::Result<Vec<Attribute>> {
    let mut found = Vec::new();
    for record in entry.pax_extensions()?.into_iter().flatten() {
        let record = record?;
        let (Ok(key), Ok(value)) = (record.key(), record.value()) else {
            continue;
        };
        let Some(name) = key.strip_prefix(OWN_RECORD) else {
            continue;
        };
        let name = percent_decode_str(name).decode_utf8().map_err(io::Error::other)?;
        let value = STANDARD_NO_PAD.decode(value).map_err(io::Error::other)?;
        add(&mut found, is_kept(&name).then(|| (name.into_owned(), value)));
    }
    Ok(found)
}

/// Returns the attributes of a file or directory, ordered by name.
///
/// # Errors
/// If they cannot be read.
pub fn of_file(path: &Path) -> io::Result<Vec<Attribute>> {
    let mut room = vec![0_u8; KERNEL_MAX];
    let mut found = Vec::new();
    for name in names(path)? {
        let length = lgetxattr(path, name.as_str(), room.as_mut_slice())?;
        found.push((name, room[..length].to_vec()));
    }
    found.sort();
    Ok(found)
}

/// Gives a file or directory these attributes, and no others of those that it may have.
///
/// # Errors
/// If the disk does not keep them.
pub fn replace(path: &Path, attributes: &[Attribute]) -> io::Result<()> {
    for name in names(path)? {
        if attributes.iter().all(|(kept, _)| *kept != name) {
            lremovexattr(path, name.as_str())?;
        }
    }
    for (name, value) in attributes {
        lsetxattr(path, name.as_str(), value, XattrFlags::empty())?;
    }
    Ok(())
}

/// Names of the attributes that a file has and may have. None on a file system without attributes.
fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut room = vec![0_u8; KERNEL_MAX];
    let length = match llistxattr(path, room.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => 0,
        listed => listed?,
    };
    let names = room[..length].split(|byte| *byte == 0).map(OsStr::from_bytes);
    let names = names.filter_map(|name| name.to_str().filter(|name| is_kept(name)));
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_users_are_kept_and_none_that_means_something_to_the_kernel_or_the_overlay() {
        for name in ["user.a", "user.com.example.colour", "user.overlayed"] {
            assert!(is_kept(name), "{name}");
        }
        for name in [
            "",
            "user.",
            "colour",
            "security.capability",
            "trusted.overlay.opaque",
            "system.posix_acl_access",
            "user.overlay.opaque",
            "user.a\0b",
            &format!("user.{}", "a".repeat(251)),
        ] {
            assert!(!is_kept(name), "{name}");
        }
    }

    #[test]
    fn a_file_has_the_attributes_that_it_was_given_last() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let attribute = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
        let first = [attribute("user.b", b"\0\xff"), attribute("user.a", b"")];
        replace(&path, &first).unwrap();
        assert_eq!(of_file(&path).unwrap(), [first[1].clone(), first[0].clone()]);
        let then = [attribute("user.b", b"other")];
        replace(&path, &then).unwrap();
        assert_eq!(of_file(&path).unwrap(), then);
    }
}
