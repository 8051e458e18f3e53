//! Compares a working set with its snapshot. Otherwise anyone who may write working sets could write to every copy's
//! memory. Pure.
//!
//! Each page must match the page map, by the digest of the page's region. The region's hash tree is rebuilt from the
//! set's pages of that region and the siblings that come with them. A single wrong page makes the whole set invalid.

use super::{PackError, UncheckedWorkingSet, WorkingSetPack, WorkingSetPage, number_of};
use crate::hash_tree::{self, Node};
use crate::pagemap::{Payload, Region};
use crate::snapshot::Process;

impl UncheckedWorkingSet {
    /// Returns the set if all its pages match the snapshot with these processes. Takes about a microsecond per page on
    /// the calling thread.
    pub fn check(self, processes: &[Process]) -> Result<WorkingSetPack, PackError> {
        let pages = &self.pack.pages;
        let mut sorted: Vec<&WorkingSetPage> = pages.iter().collect();
        sorted.sort_unstable_by_key(|page| (page.pid, page.page));
        if sorted
            .windows(2)
            .any(|two| (two[0].pid, two[0].page) == (two[1].pid, two[1].page))
        {
            return Err(PackError::Malformed);
        }
        let mut siblings = &self.siblings[..];
        for of_process in sorted.chunk_by(|a, b| a.pid == b.pid) {
            let pid = of_process[0].pid;
            let process = processes.iter().find(|process| process.pid == pid);
            let process = process.ok_or(PackError::Process(pid))?;
            let mut rest = of_process;
            while let Some(first) = rest.first() {
                let Some((region, payload)) = process.page_map.lookup(first.page).and_then(holding) else {
                    if first.content.is_some() {
                        return Err(PackError::NotZero { pid, page: first.page });
                    }
                    rest = &rest[1..];
                    continue;
                };
                let (own, behind) = rest.split_at(rest.partition_point(|page| page.page < region.end()));
                check_region(region, payload, own, &mut siblings).ok_or_else(|| PackError::Forged {
                    pid,
                    region: Box::new(*region),
                })?;
                rest = behind;
            }
        }
        if siblings.is_empty() {
            Ok(self.pack)
        } else {
            Err(PackError::Malformed)
        }
    }
}

/// The region and its payload, unless it is all zero.
pub(super) fn holding(region: &Region) -> Option<(&Region, &Payload)> {
    region.payload.as_ref().map(|payload| (region, payload))
}

fn check_region(region: &Region, payload: &Payload, pages: &[&WorkingSetPage], siblings: &mut &[Node]) -> Option<()> {
    let known = pages.iter().map(|page| (number_of(region, page.page), page.bytes()));
    let known: Vec<_> = known.collect();
    let found = hash_tree::digest(usize::from(region.pages), &known, siblings)?;
    (found == payload.hash).then_some(())
}
