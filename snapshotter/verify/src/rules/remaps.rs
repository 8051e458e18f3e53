//! Files that had lost their name. CRIU creates them from the images, or links those that it had named at the
//! checkpoint. It then opens and unlinks them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, KIND_OF_MODE, PERMISSIONS, note, paths};
use crate::error::{EntryLocation, VerifyError};
use crate::frames::{Reader, all, magic};
use crate::messages::{FileEntry, GhostChunk, GhostFile, Remap};
use crate::verified::{ImageMode, OpenedPath, Purpose, UnlinkedFile};

/// Maximum size in bytes of a file in the images: the limit of a dump.
const GHOST_BYTES_MAX: u64 = 16 << 20;
/// Maximum size in bytes of content that is kept.
const CONTENT_MAX: u64 = 64 << 10;
/// Prefix of the names that CRIU gives.
const LINK_PREFIX: &[u8] = b"link_remap.";
/// Set-user-id, set-group-id, sticky.
const SPECIAL_BITS: u32 = 0o7000;
const MICROSECONDS: u64 = 1_000_000;

/// Whether this is a name that CRIU gives.
pub(super) fn is_link_name(path: &[u8], writes_root: bool) -> bool {
    let name = path.rsplit(|c| *c == b'/').next().unwrap_or_default();
    paths::is_below_writable(path, writes_root) && name.starts_with(LINK_PREFIX)
}

pub(super) fn check(
    context: Context<'_>,
    entries: &BTreeMap<u32, FileEntry>,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(BTreeMap<u32, UnlinkedFile>, Vec<Remap>), VerifyError> {
    let (mut ghosts, mut remaps, mut seen) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
    let writes_root = context.expected.writes_root;
    for (at, remap) in all::<Remap>(context.images, "remap-fpath.img", magic::REMAPS)? {
        let regular = |id: u32| entries.get(&id).and_then(|entry| entry.reg.as_ref());
        let original = regular(remap.orig_id).filter(|file| paths::is_below_writable(&file.name, writes_root));
        let original = original.ok_or_else(|| at.refuse("orig_id", remap.orig_id))?;
        at.hold(seen.insert(remap.orig_id), "orig_id", remap.orig_id)?;
        match remap.remap_type {
            Some(Remap::LINKED) => {
                let link = regular(remap.remap_id).filter(|file| is_link_name(&file.name, writes_root));
                let link = link.ok_or_else(|| at.refuse("remap_id", remap.remap_id))?;
                note(opened, OpenedPath::plain(link.name.clone(), Purpose::Link));
            }
            Some(Remap::GHOST) => {
                let ghost = match ghosts.get(&remap.remap_id) {
                    Some(ghost) => ghost,
                    None => {
                        let ghost = read_ghost(context, at, remap.remap_id)?;
                        ghosts.entry(remap.remap_id).or_insert(ghost)
                    }
                };
                note(
                    opened,
                    OpenedPath {
                        path: original.name.clone(),
                        purpose: Purpose::Ghost,
                        flags: 0,
                        size: original.size,
                        mode: Some(ImageMode(ghost.file.mode)),
                    },
                );
            }
            // A file of a dead process in /proc.
            _ => return Err(at.refuse("remap_type", remap.remap_type)),
        }
        remaps.push(remap);
    }
    Ok((ghosts, remaps))
}

fn read_ghost(context: Context<'_>, from: EntryLocation<'_>, id: u32) -> Result<UnlinkedFile, VerifyError> {
    let name = format!("ghost-file-{id:x}.img");
    let missing = || from.refuse("remap_id", id);
    let mut reader = Reader::open(context.images, &name, magic::GHOST)?.ok_or_else(missing)?;
    let (at, ghost) = reader.next::<GhostFile>()?.ok_or_else(missing)?;
    let GhostFile {
        uid,
        gid,
        mode,
        dev: _,
        ino: _,
        rdev,
        atim,
        mtim,
        chunks,
        size,
    } = &ghost;
    at.hold(*uid == context.expected.uid, "uid", uid)?;
    at.hold(*gid == context.expected.gid, "gid", gid)?;
    let kind = mode & KIND_OF_MODE;
    let special = mode & SPECIAL_BITS;
    if special != 0 && mode & !(KIND_OF_MODE | PERMISSIONS) == special {
        return Err(VerifyError::SpecialBits {
            image: name.clone(),
            mode: mode & (PERMISSIONS | SPECIAL_BITS),
        });
    }
    let plain =
        matches!(kind, libc::S_IFREG | libc::S_IFDIR | libc::S_IFIFO) && mode & !(KIND_OF_MODE | PERMISSIONS) == 0;
    at.hold(plain, "mode", mode)?;
    at.hold(rdev.is_none(), "rdev", rdev)?;
    at.hold(atim.is_some() == mtim.is_some(), "mtim", mtim)?;
    for time in [atim, mtim].into_iter().flatten() {
        at.hold(
            time.tv_usec < MICROSECONDS && i64::try_from(time.tv_sec).is_ok(),
            "atim",
            time,
        )?;
    }
    at.hold(size.is_none_or(|size| size <= GHOST_BYTES_MAX), "size", size)?;
    let (size, parts) = if *chunks == Some(true) {
        read_chunks(at, &mut reader, *size)?
    } else {
        let data = reader.remaining();
        let bytes = data.len() as u64;
        let fits = bytes <= GHOST_BYTES_MAX && (bytes == 0 || kind == libc::S_IFREG);
        at.hold(fits, "data", bytes)?;
        (bytes, if data.is_empty() { Vec::new() } else { vec![(0, data)] })
    };
    let own = |(at, data): (u64, &[u8])| (at, data.to_vec());
    let content = (size <= CONTENT_MAX).then(|| parts.into_iter().map(own).collect());
    Ok(UnlinkedFile {
        file: ghost,
        size,
        content,
    })
}

/// Offsets and bytes of a file, in order.
type DataChunks<'a> = Vec<(u64, &'a [u8])>;

/// Reads a sparse file's size and data.
fn read_chunks<'a>(
    at: EntryLocation<'_>,
    reader: &mut Reader<'a>,
    size: Option<u64>,
) -> Result<(u64, DataChunks<'a>), VerifyError> {
    let size = size.ok_or_else(|| at.refuse("size", size))?;
    let (mut end, mut parts) = (0, Vec::new());
    while let Some((at, GhostChunk { len, off })) = reader.next::<GhostChunk>()? {
        let after = off
            .checked_add(len)
            .filter(|after| *after <= size && off >= end && len > 0);
        end = after.ok_or_else(|| at.refuse("off", (off, len)))?;
        parts.push((off, reader.data(len)?));
    }
    Ok((size, parts))
}
