//! Files that had lost their names. They have them again until all processes have opened and mapped them. Where
//! another file has the name now, as after a rename over one that is open, they have one that is free.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_restore_program::{Code, PAGE};
use rekindle_verify::messages::{GhostFile, RegularFile, Remap, TimeVal};
use rekindle_verify::{UnlinkedFile, Verified};

use crate::builder::Builder;
use crate::memory_files::SET_IDS;
use crate::{CompilerInput, Refusal};

const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// Begins free names, which a number follows.
const LOST: &[u8] = b".rekindle-lost-";

/// Names by the numbers of files.
pub type OtherNames = BTreeMap<u32, Vec<u8>>;

/// Names in place of those that files had lost and other files have: `taken` on the file systems, or those of other
/// open files.
pub fn other_names(images: &Verified, taken: &BTreeSet<Vec<u8>>) -> OtherNames {
    let mut names = OtherNames::new();
    if images.remaps.is_empty() {
        return names;
    }
    let mut lost: BTreeSet<u32> = images.remaps.iter().map(|remap| remap.orig_id).collect();
    // Those that CRIU has given are there.
    lost.retain(|id| !images.remaps.iter().any(|remap| remap.link() == Some(*id)));
    let name_of = |id: &u32| Some(&images.files.get(id)?.reg.as_ref()?.name);
    let kept = images.files.iter().filter(|(id, _)| !lost.contains(id));
    let kept = kept.filter_map(|(_, file)| {
        let unix = file.usk.as_ref().map(|socket| socket.name.as_slice());
        let unix = unix.map(|name| name.strip_suffix(&[0]).unwrap_or(name));
        file.reg.as_ref().map(|file| file.name.as_slice()).or(unix)
    });
    let mut used: BTreeSet<&[u8]> = kept.chain(taken.iter().map(Vec::as_slice)).collect();
    let mut given: BTreeMap<(Option<u32>, u32), Vec<u8>> = BTreeMap::new();
    let (mut free, mut number) = (BTreeSet::new(), 0_u64);
    for remap in images.remaps.iter().filter(|remap| lost.contains(&remap.orig_id)) {
        let Some(name) = name_of(&remap.orig_id) else { continue };
        let what = (remap.remap_type, remap.remap_id);
        let own = given.entry(what).or_insert_with(|| {
            if used.insert(name) {
                return name.clone();
            }
            let directory = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
            loop {
                let wanted = [&name[..directory], LOST, number.to_string().as_bytes()].concat();
                number += 1;
                if !used.contains(wanted.as_slice()) && free.insert(wanted.clone()) {
                    return wanted;
                }
            }
        });
        if own != name {
            names.insert(remap.orig_id, own.clone());
        }
    }
    names
}

/// How processes that have opened everything tell the first one, which then takes the names away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenCounter {
    pub(crate) number: u32,
    /// How many processes there are beside the first.
    pub(crate) others: usize,
}

/// Gives the files their names.
pub(crate) fn give(b: &mut Builder, source: CompilerInput<'_>) -> Result<(), Refusal> {
    let images = source.images;
    let mut given: BTreeMap<&[u8], (Option<u32>, u32)> = BTreeMap::new();
    for remap in &images.remaps {
        let name = source.name(remap.orig_id, regular(images, remap.orig_id)?);
        let what = (remap.remap_type, remap.remap_id);
        match given.insert(name, what) {
            None => {}
            // Opened more than once.
            Some(same) if same == what => continue,
            Some(_) => return Err(Refusal::Snapshot("several files that lost the same name")),
        }
        match remap.remap_type {
            Some(Remap::LINKED) => {
                let link = regular(images, remap.remap_id)?;
                let from = b.text(&link.name);
                let to = b.text(name);
                b.op(Code::Link, 0, [from.0, from.1, to.0, to.1]);
            }
            Some(Remap::GHOST) => {
                let missing = Refusal::Snapshot("an unlinked file that is not in its images");
                create(b, name, images.ghosts.get(&remap.remap_id).ok_or(missing)?)?;
            }
            _ => return Err(Refusal::Snapshot("files of processes that have ended")),
        }
    }
    Ok(())
}

fn create(b: &mut Builder, name: &[u8], ghost: &UnlinkedFile) -> Result<(), Refusal> {
    let GhostFile { mode, atim, mtim, .. } = &ghost.file;
    if mode & KIND != REGULAR {
        return Err(Refusal::Snapshot("an unlinked directory or named pipe"));
    }
    // The kernel takes them back when the file is written to.
    if mode & SET_IDS != 0 {
        return Err(Refusal::Snapshot("an unlinked file that sets ids"));
    }
    let large = Refusal::Snapshot("an unlinked file of more than 64 KiB");
    let content = ghost.content.as_ref().ok_or(large)?;
    let (at, length) = b.text(name);
    b.op(Code::Create, mode & !KIND, [at, length, ghost.size]);
    for (offset, bytes) in content.iter().flat_map(|(offset, bytes)| pages(*offset, bytes)) {
        // Nothing is written where there was nothing.
        if bytes.iter().any(|byte| *byte != 0) {
            let at = b.data(bytes);
            b.op(Code::Write, 0, [offset, at, bytes.len() as u64]);
        }
    }
    if let (Some(access), Some(change)) = (atim, mtim) {
        let time = |time: &TimeVal| [time.tv_sec, time.tv_usec * 1_000];
        let at = b.longs(&[time(access), time(change)].concat());
        b.op(Code::Times, 0, [at]);
    }
    b.op(Code::Close, 0, []);
    Ok(())
}

/// The pages of a file's part that begins at this offset.
fn pages(mut offset: u64, mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut pages = Vec::new();
    while !bytes.is_empty() {
        let left = (PAGE - offset % PAGE) as usize;
        let (page, rest) = bytes.split_at(left.min(bytes.len()));
        pages.push((offset, page));
        (offset, bytes) = (offset + page.len() as u64, rest);
    }
    pages
}

/// Takes the names away again, in the first process, once all others have counted.
pub(crate) fn take(b: &mut Builder, source: CompilerInput<'_>, counter: OpenCounter) -> Result<(), Refusal> {
    let images = source.images;
    if images.remaps.is_empty() {
        return Ok(());
    }
    if counter.others > 0 {
        b.op(Code::Gather, counter.number, [counter.others as u64]);
    }
    let mut names: Vec<&[u8]> = Vec::new();
    for remap in &images.remaps {
        for id in [Some(remap.orig_id), remap.link()].into_iter().flatten() {
            names.push(source.name(id, regular(images, id)?));
        }
    }
    names.sort_unstable();
    names.dedup();
    for name in names {
        b.path(Code::Unlink, 0, name);
    }
    Ok(())
}

/// Counts that a process which is not the first has opened everything.
pub(crate) fn count(b: &mut Builder, source: CompilerInput<'_>, counter: OpenCounter) {
    if !source.images.remaps.is_empty() {
        let one = b.longs(&[1]);
        b.op(Code::Fill, counter.number, [one, 8]);
    }
}

fn regular(images: &Verified, id: u32) -> Result<&RegularFile, Refusal> {
    let file = images.files.get(&id).and_then(|file| file.reg.as_ref());
    file.ok_or(Refusal::Snapshot("a file that lost its name and is none"))
}
