//! The memory of an arriving instance, as its pager needs to know it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rekindle_pager::address_map::AddressMap;
use rekindle_pager::{AheadPage, Layout, PageRange, PageRef};
use rekindle_wire::ApiError;
use tokio::runtime::Handle;

use super::super::header::set_pieces;
use super::super::peer::SourcePeer;
use super::super::written::WrittenPages;
use super::images::ImagesOnDisk;
use super::transfer::AHEAD;
use crate::errors::unavailable;
use crate::host::poll_until;
use crate::snapshots::OpenSnapshot;

/// How long the first written pages are waited for before the processes run. Each page that comes later costs a fault.
const FIRST_WAIT: Duration = Duration::from_millis(3);
const FIRST_PAUSE: Duration = Duration::from_micros(100);

/// The memory of an arriving instance.
pub(super) struct ArrivingMemory {
    pub(super) written: Arc<WrittenPages>,
    pub(super) layout: Layout,
    pub(super) maps: HashMap<i32, AddressMap>,
}

impl ArrivingMemory {
    /// Reads what the images say of it. Pages that were written come from `source`.
    ///
    /// # Errors
    /// Returns an error when there is no memory for the written pages.
    pub(super) fn of(
        base: Option<&OpenSnapshot>,
        on_disk: &ImagesOnDisk,
        source: SourcePeer,
    ) -> Result<Self, ApiError> {
        let template = base.map(|b| Arc::clone(&b.template));
        let mut layout = Layout {
            backed: template.as_ref().map_or_else(Vec::new, |t| t.folded()),
            ..Layout::default()
        };
        let mut under = HashMap::new();
        for (pid, pieces) in &on_disk.header.maps {
            let mut map = AddressMap::new(layout.backed_of(*pid));
            set_pieces(&mut map, pieces);
            under.insert(*pid, map);
        }
        for process in &on_disk.numbering.processes {
            let range = |page, pages| PageRange {
                first: PageRef { pid: process.pid, page },
                pages,
            };
            let mapped = process
                .memory
                .mapped
                .iter()
                .map(|(area, _)| range(area.first.0, area.pages));
            layout.mapped.extend(mapped);
            let holds_any = |first: u64, pages: u64| {
                let below = template
                    .as_ref()
                    .is_some_and(|t| t.holds_any(process.pid, first, pages));
                let moved = under.get(&process.pid).is_some_and(|map| map.run(first, pages) < pages);
                let written = process.runs.iter();
                let mut written =
                    written.filter(|(run, _)| run.first.0 < first + pages && first < run.first.0 + run.pages);
                below || moved || written.next().is_some()
            };
            let lazy = process.memory.lazy.iter();
            let full = lazy
                .map(|(first, pages)| range(first.0, *pages))
                .filter(|range| holds_any(range.first.page, range.pages));
            layout.anonymous.extend(full);
        }
        let written = WrittenPages::new(template, &on_disk.numbering, under, source, Handle::current());
        let written = written.map_err(|e| unavailable("make room for what was written", &e))?;
        let maps = written.maps(&mut layout);
        Ok(Self {
            written: Arc::new(written),
            layout,
            maps,
        })
    }
}

/// Returns the pages to fill before the processes run: those that have arrived, and those that restores of the snapshot
/// want. Blocks for some milliseconds, until the first have arrived.
pub(super) fn ahead(written: &WrittenPages, base: Option<&OpenSnapshot>) -> Arc<[AheadPage]> {
    let first = written.pages().min(AHEAD);
    poll_until(FIRST_WAIT, FIRST_PAUSE, || written.ready_run(0, first) == first);
    // Pages that it wrote long ago come with the migration.
    let wanted = base.map(|base| base.begin().1);
    let mut pages: Vec<PageRef> = wanted.iter().flat_map(|ahead| ahead.iter().map(|a| a.page)).collect();
    for (range, number) in written.runs().take_while(|(_, number)| *number < AHEAD) {
        let ready = written.ready_run(number, range.pages.min(AHEAD - number));
        let page = |n| PageRef {
            page: range.first.page + n,
            ..range.first
        };
        pages.extend((0..ready).map(page));
    }
    pages.sort_unstable();
    pages.dedup();
    let pages = pages.into_iter().map(|page| AheadPage { page, written: false });
    pages.collect()
}
