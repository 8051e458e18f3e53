//! `pagemap-PID.img`, `pagemap-shmem-N.img`: which pages there are. What is in them is the process's own affair.

use std::collections::BTreeSet;

use super::files::OpenFiles;
use super::memory::status::ANON_SHARED;
use super::{Context, PAGE, USER_END};
use crate::error::VerifyError;
use crate::frames::{Reader, magic};
use crate::messages::{PagemapHead, PagemapRun};
use crate::verified::Process;

/// CRIU may leave them to a pager; they are in the image.
const LAZY: u32 = 1 << 1;
const PRESENT: u32 = 1 << 2;

/// The numbers of shared memory that there may be pages of.
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
    for process in processes.iter().filter(|p| context.tree.is_living(p.tree.pid)) {
        let name = format!("pagemap-{}.img", process.tree.pid);
        if !check_pagemap(context, &name)? {
            return Err(VerifyError::Missing(name));
        }
    }
    for id in &shared {
        check_pagemap(context, &format!("pagemap-shmem-{id}.img"))?;
    }
    Ok(shared)
}

/// Whether it is there.
fn check_pagemap(context: Context<'_>, name: &str) -> Result<bool, VerifyError> {
    let Some(mut reader) = Reader::open(context.images, name, magic::PAGEMAP)? else {
        return Ok(false);
    };
    let missing = || VerifyError::Entries {
        image: name.to_owned(),
        found: 0,
    };
    let (at, PagemapHead { pages_id }) = reader.next()?.ok_or_else(missing)?;
    let pages = format!("pages-{pages_id}.img");
    at.hold(context.images.contains_key(pages.as_str()), "pages_id", pages_id)?;
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
        at.hold(flags.is_some_and(|flags| flags & !LAZY == PRESENT), "flags", flags)?;
        let after = nr_pages
            .filter(|pages| *pages > 0)
            .and_then(|pages| pages.checked_mul(PAGE)?.checked_add(vaddr));
        let after = after.filter(|after| *after <= USER_END && vaddr.is_multiple_of(PAGE) && vaddr >= end);
        end = after.ok_or_else(|| at.refuse("vaddr", (vaddr, nr_pages)))?;
    }
    Ok(true)
}
