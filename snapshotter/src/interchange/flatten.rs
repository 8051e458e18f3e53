//! Turns any image directory into a plain one, without parents and compression. Blocking.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use rekindle_criu::images::{PE_LAZY, PE_PAYLOAD_ALIGNED, PE_PRESENT, StoredRun};

use super::chain::{Chain, directories};
use super::directory::{Directory, INVENTORY, Pair, image_names};
use super::error::{InterchangeError, image_at, io_at};
use crate::codec::PAGE_BYTES;

/// Decompressed bytes copied at once.
const COPY_BYTES: usize = 4 << 20;

/// Writes the images of `dir` into `out`, which must be empty.
pub(super) fn flatten(dir: &Path, out: &Path) -> Result<(), InterchangeError> {
    let dirs = directories(dir)?;
    let directory = Directory::read(dir)?;
    let taken = |name: &String| {
        let of_pair = |p: &Pair| p.pages == *name || p.pagemap == *name;
        name == INVENTORY || directory.pairs.iter().any(of_pair)
    };
    for name in image_names(dir)?.iter().filter(|n| !taken(n)) {
        let (from, to) = (dir.join(name), out.join(name));
        fs::copy(&from, &to).map_err(io_at("copy", &from))?;
    }
    let inventory = directory.inventory()?.encode_plain(false);
    let path = out.join(INVENTORY);
    fs::write(&path, inventory.map_err(image_at(&dir.join(INVENTORY)))?).map_err(io_at("write", &path))?;
    for pair in &directory.pairs {
        flatten_pair(&dirs, &directory, pair, out)?;
    }
    Ok(())
}

fn flatten_pair(dirs: &[PathBuf], directory: &Directory, pair: &Pair, out: &Path) -> Result<(), InterchangeError> {
    let mut chain = Chain::open(dirs, &pair.pagemap, directory.open(pair)?)?;
    let path = out.join(&pair.pages);
    let mut pages = BufWriter::with_capacity(1 << 20, File::create_new(&path).map_err(io_at("create", &path))?);
    let mut buffer = vec![0; COPY_BYTES];
    let mut runs: Vec<StoredRun> = Vec::with_capacity(pair.map.runs.len());
    let map_path = directory.path.join(&pair.pagemap);
    for run in &pair.map.runs {
        let mut address = run.address;
        let mut of_run = None;
        while address < run.end() {
            let piece = chain.find(address, (run.end() - address) / PAGE_BYTES as u64)?;
            let mut skip = 0;
            while skip < piece.pages {
                let now = (piece.pages - skip).min((COPY_BYTES / PAGE_BYTES) as u64);
                let bytes = &mut buffer[..now as usize * PAGE_BYTES];
                chain.read(&piece, skip, bytes)?;
                pages.write_all(bytes).map_err(io_at("write", &path))?;
                skip += now;
            }
            let next = if run.is_present() {
                run.stored_as(run.flags & !PE_PAYLOAD_ALIGNED, None)
            } else {
                // The level that has the pages says whether they may be lazy.
                let flags = PE_PRESENT | piece.flags & PE_LAZY;
                match of_run.take().filter(|last: &StoredRun| last.flags == flags) {
                    Some(last) => last.present_as(last.address, last.pages + piece.pages, flags),
                    None => run.present_as(address, piece.pages, flags),
                }
            };
            let next = next.map_err(image_at(&map_path))?;
            address += piece.pages * PAGE_BYTES as u64;
            if run.is_present() || runs.last().is_none_or(|last| last.address != next.address) {
                runs.push(next.clone());
            } else if let Some(last) = runs.last_mut() {
                *last = next.clone();
            }
            of_run = Some(next);
        }
    }
    pages.flush().map_err(io_at("write", &path))?;
    let path = out.join(&pair.pagemap);
    fs::write(&path, pair.map.with_runs(runs).encode()).map_err(io_at("write", &path))
}
