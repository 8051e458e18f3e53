//! Files that had lost their names. They have them again until all processes have opened and mapped them.

use std::collections::BTreeMap;

use rekindle_restore_program::{Code, PAGE};
use rekindle_verify::messages::{GhostFile, RegularFile, Remap, TimeVal};
use rekindle_verify::{UnlinkedFile, Verified};

use crate::builder::Builder;
use crate::{Refusal, Source};

const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// How processes that have opened everything tell the first one, which then takes the names away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counter {
    /// The number of its descriptor.
    pub(crate) number: u32,
    /// How many processes there are beside the first.
    pub(crate) others: usize,
}

/// Gives the files their names.
pub(crate) fn give(b: &mut Builder, source: Source<'_>) -> Result<(), Refusal> {
    let images = source.images;
    let mut given: BTreeMap<&[u8], (Option<u32>, u32)> = BTreeMap::new();
    for remap in &images.remaps {
        let (name, what) = (
            &regular(images, remap.orig_id)?.name,
            (remap.remap_type, remap.remap_id),
        );
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
pub(crate) fn take(b: &mut Builder, source: Source<'_>, counter: Counter) -> Result<(), Refusal> {
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
            names.push(&regular(images, id)?.name);
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
pub(crate) fn count(b: &mut Builder, source: Source<'_>, counter: Counter) {
    if !source.images.remaps.is_empty() {
        let one = b.longs(&[1]);
        b.op(Code::Fill, counter.number, [one, 8]);
    }
}

fn regular(images: &Verified, id: u32) -> Result<&RegularFile, Refusal> {
    let file = images.files.get(&id).and_then(|file| file.reg.as_ref());
    file.ok_or(Refusal::Snapshot("a file that lost its name and is none"))
}
