//! `pagemap-PID.img`, `pagemap-shmem-N.img`: which pages exist. Their contents are not checked.

use std::collections::BTreeSet;

use super::files::OpenFiles;
use super::memory::status::ANON_SHARED;
use super::{Context, PAGE, USER_END};
use crate::error::{EntryLocation, VerifyError};
use crate::frames::{Reader, magic};
use crate::kinds::EAGER_PREFIX;
use crate::messages::{PagemapHead, PagemapRun};
use crate::verified::Process;

/// The pages are in an earlier dump. For a migrating instance, they are in its processes.
const PARENT: u32 = 1 << 0;
/// CRIU may leave the pages to a pager. They are in the image.
const LAZY: u32 = 1 << 1;
const PRESENT: u32 = 1 << 2;

/// Returns the numbers of shared memory that may have pages.
pub(super) fn check(
    context: Context<'_>,
    files: &OpenFiles,
    processes: &[Process],
) -> Result<BTreeSet<u64>, VerifyError> {
    let vmas = processes
        .iter()
        .filter_map(|p| p.memory.as_ref())
        .flat_map(|mm| &mm.vmas);
    let anonymous = vmas.filter(|vma| vma.status & ANON_SHARED != 0).map(|vma| vma.shmid);
    let named = files.memory_files.values().map(|file| u64::from(file.shmid));
    let shared: BTreeSet<u64> = anonymous.chain(named).collect();
    let mut numbers = BTreeSet::new();
    for process in processes.iter().filter(|p| context.tree.is_living(p.tree.pid)) {
        let (pid, name) = (process.tree.pid, format!("pagemap-{}.img", process.tree.pid));
        let Some((at, number)) = check_pagemap(context, &name, context.expected.travelling.is_some())? else {
            return Err(VerifyError::Missing(name));
        };
        let pages = format!("pages-{number}.img");
        if context.has_eager_pages() {
            // The image will be built from this file only.
            let free = !context.images.contains_key(pages.as_str()) && numbers.insert(number);
            at.hold(free, "pages_id", number)?;
            let eager = format!("{EAGER_PREFIX}{pid}");
            if !context.images.contains_key(eager.as_str()) {
                return Err(VerifyError::Missing(eager));
            }
        } else {
            at.hold(context.images.contains_key(pages.as_str()), "pages_id", number)?;
        }
    }
    for id in &shared {
        if let Some((at, number)) = check_pagemap(context, &format!("pagemap-shmem-{id}.img"), false)? {
            let pages = format!("pages-{number}.img");
            at.hold(context.images.contains_key(pages.as_str()), "pages_id", number)?;
        }
    }
    Ok(shared)
}

/// The number of its pages image, and the place that states it. `None` if the pagemap does not exist.
fn check_pagemap<'a>(
    context: Context<'a>,
    name: &str,
    may_travel: bool,
) -> Result<Option<(EntryLocation<'a>, u32)>, VerifyError> {
    let Some(mut reader) = Reader::open(context.images, name, magic::PAGEMAP)? else {
        return Ok(None);
    };
    let missing = || VerifyError::Entries {
        image: name.to_owned(),
        found: 0,
    };
    let (head, PagemapHead { pages_id }) = reader.next()?.ok_or_else(missing)?;
    let mut end = 0;
    while let Some((at, run)) = reader.next::<PagemapRun>()? {
        let PagemapRun {
            vaddr,
            compat_nr_pages,
            in_parent,
            flags,
            nr_pages,
        } = run;
        at.hold(compat_nr_pages == 0, "compat_nr_pages", compat_nr_pages)?;
        at.hold(in_parent.is_none(), "in_parent", in_parent)?;
        let known = |flags: u32| flags & !LAZY == PRESENT || (may_travel && flags == PARENT);
        at.hold(flags.is_some_and(known), "flags", flags)?;
        let after = nr_pages
            .filter(|pages| *pages > 0)
            .and_then(|pages| pages.checked_mul(PAGE)?.checked_add(vaddr));
        let after = after.filter(|after| *after <= USER_END && vaddr.is_multiple_of(PAGE) && vaddr >= end);
        end = after.ok_or_else(|| at.refuse("vaddr", (vaddr, nr_pages)))?;
    }
    Ok(Some((head, pages_id)))
}
