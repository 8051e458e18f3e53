//! What goes to the target before the processes are restored there: CRIU's images, private files, and the pager's maps.
//!
//! ```text
//! header_len:u32 header:json { file bytes }*          little-endian; the header names the files and their lengths
//! ```

use std::path::{Path, PathBuf};

use rekindle_pager::address_map::{AddressMap, Origin};
use serde::{Deserialize, Serialize};

use super::checks::RefusedError;
use crate::snapshots::PipeNote;

/// Maximum size of the header.
const HEADER_MAX: usize = 256 << 20;

/// Why a bundle cannot be packed or unpacked.
#[derive(Debug, thiserror::Error)]
pub(super) enum BundleError {
    /// A file cannot be read or written.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// The bundle is cut off or too long.
    #[error("the bundle is cut off")]
    Cut,
    /// The header is not what this version writes.
    #[error("the bundle's header is not understood")]
    Header(#[source] serde_json::Error),
    /// The header contains something that no source sends.
    #[error("the bundle's header is refused")]
    Refused(#[source] RefusedError),
}

/// The bundle's content apart from its files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Header {
    /// Names of the outputs in the images.
    pub(super) pipes: Vec<PipeNote>,
    /// Names of the templates in the images, in order.
    pub(super) templates: Vec<String>,
    /// What the addresses of each process belong to, where that is not the snapshot's page of the same number.
    pub(super) maps: Vec<(i32, Vec<PageSpan>)>,
    /// Names and lengths of the files that follow, in order.
    pub(super) files: Vec<(String, u64)>,
}

/// The pages `start..end`, and what the first of them belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PageSpan {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) of: SpanOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SpanOrigin {
    #[serde(rename = "s")]
    Snapshot(u64),
    #[serde(rename = "f")]
    File(u64),
    #[serde(rename = "z")]
    Zero,
}

pub(super) fn pieces(map: &AddressMap) -> Vec<PageSpan> {
    let piece = |(pages, origin): (std::ops::Range<u64>, Origin)| PageSpan {
        start: pages.start,
        end: pages.end,
        of: match origin {
            Origin::Snapshot(source) => SpanOrigin::Snapshot(source),
            Origin::File(source) => SpanOrigin::File(source),
            Origin::Zero => SpanOrigin::Zero,
        },
    };
    map.pieces().map(piece).collect()
}

/// Sets the spans of `pieces` in `map`.
pub(super) fn set_pieces(map: &mut AddressMap, pieces: &[PageSpan]) {
    for piece in pieces {
        let origin = match piece.of {
            SpanOrigin::Snapshot(source) => Origin::Snapshot(source),
            SpanOrigin::File(source) => Origin::File(source),
            SpanOrigin::Zero => Origin::Zero,
        };
        map.set(piece.start..piece.end, origin);
    }
}

/// Packs the files of `dir` whose names `wanted` accepts, followed by the files of `more`. Blocks.
pub(super) fn pack(
    mut header: Header,
    dir: &Path,
    wanted: impl Fn(&str) -> bool,
    more: Vec<(String, Vec<u8>)>,
) -> Result<Vec<u8>, BundleError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |e| BundleError::File(path, e)
    };
    let mut files = more;
    for entry in std::fs::read_dir(dir).map_err(failed(dir))? {
        let entry = entry.map_err(failed(dir))?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if wanted(&name) {
            let bytes = std::fs::read(entry.path()).map_err(failed(&entry.path()))?;
            files.push((name, bytes));
        }
    }
    header.files = files
        .iter()
        .map(|(name, bytes)| (name.clone(), bytes.len() as u64))
        .collect();
    let encoded = serde_json::to_vec(&header).map_err(BundleError::Header)?;
    let length = u32::try_from(encoded.len()).map_err(|_| BundleError::Cut)?;
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let mut bundle = Vec::with_capacity(4 + encoded.len() + total);
    bundle.extend_from_slice(&length.to_le_bytes());
    bundle.extend_from_slice(&encoded);
    for (_, bytes) in &files {
        bundle.extend_from_slice(bytes);
    }
    Ok(bundle)
}

/// Writes the files of a bundle into `dir`, if its header passes `check`. Blocks.
pub(super) fn unpack(
    bundle: &[u8],
    dir: &Path,
    check: impl FnOnce(&Header) -> Result<(), RefusedError>,
) -> Result<Header, BundleError> {
    let (length, rest) = bundle.split_first_chunk::<4>().ok_or(BundleError::Cut)?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > HEADER_MAX {
        return Err(BundleError::Cut);
    }
    let (header, mut rest) = rest.split_at_checked(length).ok_or(BundleError::Cut)?;
    let header: Header = serde_json::from_slice(header).map_err(BundleError::Header)?;
    check(&header).map_err(BundleError::Refused)?;
    for (name, length) in &header.files {
        let length = usize::try_from(*length).map_err(|_| BundleError::Cut)?;
        let (bytes, behind) = rest.split_at_checked(length).ok_or(BundleError::Cut)?;
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|e| BundleError::File(path, e))?;
        rest = behind;
    }
    match rest.is_empty() {
        true => Ok(header),
        false => Err(BundleError::Cut),
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::check_header;
    use super::*;

    #[test]
    fn a_parcel_is_opened_as_it_was_packed_and_a_damaged_one_is_refused() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("core-1.img"), "core").unwrap();
        std::fs::write(from.path().join("dump.log"), "log").unwrap();
        let mut map = AddressMap::default();
        map.remap(10, 100, 5);
        let header = Header {
            templates: vec!["file[1:2]".to_owned()],
            maps: vec![(501, pieces(&map))],
            ..Header::default()
        };
        let more = vec![("eager-501".to_owned(), vec![1, 2, 3])];
        let bundle = pack(header, from.path(), |name| name.ends_with(".img"), more).unwrap();
        let opened = unpack(&bundle, to.path(), |header| check_header(header, 1)).unwrap();
        assert_eq!(opened.templates, ["file[1:2]"]);
        let mut again = AddressMap::default();
        set_pieces(&mut again, &opened.maps[0].1);
        assert_eq!(again.origin(102), Origin::Snapshot(12));
        assert_eq!(again.origin(12), Origin::Zero);
        assert_eq!(std::fs::read(to.path().join("core-1.img")).unwrap(), b"core");
        assert_eq!(std::fs::read(to.path().join("eager-501")).unwrap(), [1, 2, 3]);
        assert!(!to.path().join("dump.log").exists());
        assert!(matches!(
            unpack(&bundle[..bundle.len() - 1], to.path(), |_| Ok(())),
            Err(BundleError::Cut)
        ));
        assert!(matches!(
            unpack(&[0xff; 9], to.path(), |_| Ok(())),
            Err(BundleError::Cut)
        ));
        let out = pack(
            Header::default(),
            to.path(),
            |_| false,
            vec![("../x".to_owned(), Vec::new())],
        )
        .unwrap();
        let refused = unpack(&out, to.path(), |header| check_header(header, 0));
        assert!(matches!(refused, Err(BundleError::Refused(_))));
        assert!(!to.path().join("../x").exists());
    }
}
