//! A directory as CRIU leaves it, of one process whose memory is a pattern. The tests check that real dumps are
//! accepted as well.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result};
use rekindle_criu::images::testing::{framed, varint};

use super::patterns::Pattern;

/// The file with the memory.
pub(super) const PAGES: &str = "pages-1.img";
/// Address of the memory: a multiple of the largest region, so that ours and the peer's blocks are the same.
pub(super) const ADDRESS: u64 = 1 << 32;

/// Writes the dump.
pub(super) fn write(dir: &Path, pattern: Pattern, bytes: u64) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let vma = [varint(1, ADDRESS), varint(2, ADDRESS + bytes), varint(7, 1)].concat();
    let mm = [vec![14 << 3 | 2, u8::try_from(vma.len())?], vma].concat();
    // Present, and lazy.
    let run = [varint(1, ADDRESS), varint(2, 0), varint(4, 6), varint(5, bytes / 4096)].concat();
    for (name, image) in [
        ("inventory.img", framed(0x5831_3116, &[varint(1, 2)])),
        ("pstree.img", framed(0x5027_3030, &[varint(1, 7)])),
        ("mm-7.img", framed(0x5749_2820, &[mm])),
        ("pagemap-7.img", framed(0x5608_4025, &[varint(1, 1), run])),
    ] {
        fs::write(dir.join(name), image).with_context(|| format!("{name} cannot be written"))?;
    }
    let path = dir.join(PAGES);
    let file = File::create(&path).with_context(|| format!("{}: cannot be made", path.display()))?;
    pattern
        .write(&file, bytes)
        .with_context(|| format!("{}: cannot be written", path.display()))
}
