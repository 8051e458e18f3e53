//! Tracks which addresses of a restored process still belong to its snapshot. Pure.
//!
//! At the restore, every address belongs to the snapshot's page at the same address. Later changes to the mappings move
//! or end that: freed ranges read back as zero, and moved ranges keep their contents at a new address.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The contents of an address, as long as the process has not written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The snapshot's contents at this page number.
    Snapshot(u64),
    /// The contents of the file that the snapshot's process had mapped at this page number.
    File(u64),
    /// Zero.
    Zero,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Span {
    /// Page numbers of the snapshot are higher than those of the process by this much (wrapping).
    Shifted(u64),
    /// Like `Shifted`, for pages that were freed and are backed by a file.
    File(u64),
    Zero,
}

/// An interval map over page numbers. A page in no interval is the snapshot's page with the same number.
#[derive(Debug, Clone, Default)]
pub struct AddressMap {
    /// Start page → (end page, contents). Disjoint.
    spans: BTreeMap<u64, (u64, Span)>,
    /// Page numbers of the snapshot that are backed by a file, by address.
    backed: Arc<[Range<u64>]>,
}

impl AddressMap {
    /// A map in which every page is the snapshot's page with the same number. The pages in `backed`, sorted by address,
    /// are backed by a file.
    pub fn new(backed: Arc<[Range<u64>]>) -> Self {
        let spans = BTreeMap::new();
        Self { spans, backed }
    }

    /// Differences from a map in which every page is the snapshot's page with the same number. Each item has a range of
    /// pages, by address, and the origin of its first page.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<u64>, Origin)> {
        let all = self.spans.iter();
        all.map(|(start, (end, _))| (*start..*end, self.origin(*start)))
    }

    /// Sets the origin of the first page to `origin`, and of the following pages to what follows it.
    pub fn set(&mut self, pages: Range<u64>, origin: Origin) {
        let span = match origin {
            Origin::Zero => Span::Zero,
            Origin::Snapshot(source) => Span::Shifted(source.wrapping_sub(pages.start)),
            Origin::File(source) => Span::File(source.wrapping_sub(pages.start)),
        };
        self.put(pages.start, pages.end, span);
    }

    /// The origin of page `page`.
    pub fn origin(&self, page: u64) -> Origin {
        match self.span_at(page) {
            Some((_, _, Span::Zero)) => Origin::Zero,
            Some((_, _, Span::Shifted(by))) => Origin::Snapshot(page.wrapping_add(by)),
            Some((_, _, Span::File(by))) => Origin::File(page.wrapping_add(by)),
            None => Origin::Snapshot(page),
        }
    }

    /// Number of pages from `page` on whose origin continues that of `page`, at most `limit`.
    pub fn run(&self, page: u64, limit: u64) -> u64 {
        let end = match self.span_at(page) {
            Some((_, end, _)) => end,
            None => self.spans.range(page..).next().map_or(u64::MAX, |(start, _)| *start),
        };
        (end - page).min(limit)
    }

    fn span_at(&self, page: u64) -> Option<(u64, u64, Span)> {
        let (start, (end, span)) = self.spans.range(..=page).next_back()?;
        (page < *end).then_some((*start, *end, *span))
    }

    /// Records that the pages `start..end` were freed and are still mapped. They read back as their backing file, or as
    /// zero.
    pub fn free(&mut self, start: u64, end: u64) {
        let mut kept = Vec::new();
        let mut page = start;
        while page < end && !self.backed.is_empty() {
            let length = self.run(page, end - page);
            if let Origin::Snapshot(source) | Origin::File(source) = self.origin(page) {
                let last = source.saturating_add(length);
                let from = self.backed.partition_point(|b| b.end <= source);
                let backed = self.backed[from..].iter().take_while(|b| b.start < last);
                kept.extend(backed.map(|b| {
                    let (first, last) = (b.start.max(source), b.end.min(last));
                    (
                        page + (first - source),
                        page + (last - source),
                        source.wrapping_sub(page),
                    )
                }));
            }
            page += length;
        }
        self.remove(start, end);
        for (start, end, by) in kept {
            self.put(start, end, Span::File(by));
        }
    }

    /// Records that the pages `start..end` were unmapped. Later mappings there are zero.
    pub fn remove(&mut self, start: u64, end: u64) {
        self.put(start, end, Span::Zero);
    }

    /// Records that `count` pages moved from `from` to `to`. The previous contents at `to` are gone, and nothing of the
    /// snapshot is left at `from`.
    pub fn remap(&mut self, from: u64, to: u64, count: u64) {
        let Some(from_end) = from.checked_add(count) else {
            return;
        };
        let mut moved = Vec::new();
        let mut page = from;
        while page < from_end {
            let length = self.run(page, from_end - page);
            let span = match self.origin(page) {
                Origin::Zero => Span::Zero,
                Origin::Snapshot(source) => Span::Shifted(source.wrapping_sub(to.wrapping_add(page - from))),
                Origin::File(source) => Span::File(source.wrapping_sub(to.wrapping_add(page - from))),
            };
            moved.push((to.wrapping_add(page - from), length, span));
            page += length;
        }
        self.remove(from, from_end);
        for (start, length, span) in moved {
            self.put(start, start.saturating_add(length), span);
        }
    }

    fn put(&mut self, start: u64, end: u64, span: Span) {
        if start >= end {
            return;
        }
        if let Some((s, e, before)) = self.span_at(start)
            && s < start
        {
            self.spans.insert(s, (start, before));
            if e > end {
                self.spans.insert(end, (e, before));
            }
        }
        let inside: Vec<u64> = self.spans.range(start..end).map(|(s, _)| *s).collect();
        for s in inside {
            if let Some((e, before)) = self.spans.remove(&s)
                && e > end
            {
                self.spans.insert(end, (e, before));
            }
        }
        self.insert_merged(start, end, span);
    }

    /// Inserts into a gap and merges with equal neighbours, so that a process that frees for hours does not fill the
    /// map.
    fn insert_merged(&mut self, mut start: u64, mut end: u64, span: Span) {
        if let Some((s, (e, before))) = self.spans.range(..start).next_back().map(|(s, v)| (*s, *v))
            && e == start
            && before == span
        {
            self.spans.remove(&s);
            start = s;
        }
        if let Some((e, after)) = self.spans.get(&end).copied()
            && after == span
        {
            self.spans.remove(&end);
            end = e;
        }
        if span != Span::Shifted(0) {
            self.spans.insert(start, (end, span));
        }
    }

    /// Number of intervals in the map.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether every page is still the snapshot's page with the same number.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u64 = 64;
    const BACKED: [Range<u64>; 2] = [7..19, 30..31];

    #[derive(Debug, Clone)]
    enum Step {
        Free(u64, u64),
        Remove(u64, u64),
        Remap(u64, u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let run = || (0..PAGES, 1..16_u64).prop_map(|(s, n)| (s, (s + n).min(PAGES)));
        let free = run().prop_map(|(s, e)| Step::Free(s, e));
        let remove = run().prop_map(|(s, e)| Step::Remove(s, e));
        let remap = (0..PAGES, 0..PAGES, 1..16_u64)
            .prop_filter("the kernel refuses to move onto itself", |(f, t, n)| {
                f + n <= PAGES && t + n <= PAGES && (f + n <= *t || t + n <= *f)
            })
            .prop_map(|(f, t, n)| Step::Remap(f, t, n));
        prop_oneof![free, remove, remap]
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_array(steps in prop::collection::vec(step(), 0..60)) {
            let mut map = AddressMap::new(BACKED.into());
            let mut model: Vec<Origin> = (0..PAGES).map(Origin::Snapshot).collect();
            for step in steps {
                match step {
                    Step::Free(s, e) => {
                        map.free(s, e);
                        for origin in &mut model[s as usize..e as usize] {
                            *origin = match *origin {
                                Origin::Snapshot(p) | Origin::File(p) if BACKED.iter().any(|b| b.contains(&p)) => {
                                    Origin::File(p)
                                }
                                _ => Origin::Zero,
                            };
                        }
                    }
                    Step::Remove(s, e) => {
                        map.remove(s, e);
                        model[s as usize..e as usize].fill(Origin::Zero);
                    }
                    Step::Remap(f, t, n) => {
                        map.remap(f, t, n);
                        let moved = model[f as usize..(f + n) as usize].to_vec();
                        model[f as usize..(f + n) as usize].fill(Origin::Zero);
                        model[t as usize..(t + n) as usize].copy_from_slice(&moved);
                    }
                }
                for (page, origin) in model.iter().enumerate() {
                    prop_assert_eq!(map.origin(page as u64), *origin);
                }
            }
            let mut again = AddressMap::new(BACKED.into());
            for (pages, origin) in map.pieces() {
                again.set(pages, origin);
            }
            prop_assert_eq!(&again.spans, &map.spans);
            for page in 0..PAGES {
                let run = map.run(page, PAGES - page);
                prop_assert!(run >= 1);
                for next in 1..run {
                    let expected = match map.origin(page) {
                        Origin::Zero => Origin::Zero,
                        Origin::Snapshot(p) => Origin::Snapshot(p + next),
                        Origin::File(p) => Origin::File(p + next),
                    };
                    prop_assert_eq!(map.origin(page + next), expected);
                }
            }
        }
    }

    #[test]
    fn freeing_piece_by_piece_keeps_one_interval() {
        let mut map = AddressMap::default();
        for page in 0..10_000 {
            map.remove(page, page + 1);
        }
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn moving_there_and_back_leaves_only_what_was_vacated() {
        let mut map = AddressMap::default();
        map.remap(10, 100, 5);
        map.remap(100, 10, 5);
        assert_eq!(map.origin(12), Origin::Snapshot(12));
        assert_eq!(map.origin(102), Origin::Zero);
    }
}
