//! What a process maps, and whether a copy maps the same.
//!
//! A copy has private memory from its template, a file `/s-…` on a tmpfs that is mounted nowhere. It is there where
//! the original has anonymous memory, and where it has written to a library's data. So a template may stand for any
//! private memory, but its access, and what that may become, must be the same.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

/// What the kernel maps for itself: its addresses depend on the machine.
const KERNELS: [&str; 4] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"];
/// Flags of the kernel's bookkeeping: watched by a userfaultfd (`um`, `uw`, `ui`), accounted for (`ac`), soft-dirty
/// (`sd`), perhaps with guard pages (`gu`), which cannot be read. They are no rights.
const BOOKKEEPING: [&str; 6] = ["um", "uw", "ui", "ac", "sd", "gu"];
const SHARED: [&str; 2] = ["/dev/zero (deleted)", "/memfd:/dev/zero (deleted)"];
const TEMPLATE: &str = "/s-";
/// Where a restore program leaves its residue: a page of code that ends each thread's restore, and their frames after
/// it. Nothing else is placed there by itself.
const RESIDUES: Range<u64> = 1 << 40..0x5000_0000_0000;
const RESIDUE_BYTES: u64 = 0x8_0000;
const PAGE: u64 = 4096;
/// What glibc reserves for the heap of a thread, bytes.
const HEAP: u64 = 64 << 20;

/// A range of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// As in /proc/PID/maps, such as `rw-p`.
    pub access: String,
    /// As in `VmFlags` of /proc/PID/smaps, without bookkeeping: includes what its access may become.
    pub flags: String,
    /// What is mapped.
    pub source: Source,
}

/// What is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Anonymous private memory: a heap, a stack.
    Anonymous,
    /// Anonymous shared memory, by the address of its first byte. In a copy it has a name, but cannot be found by it.
    Shared(u64),
    /// The template of a snapshot.
    Template,
    /// The kernel's own.
    Kernel(String),
    /// A file, whose first byte would be at this address.
    File(String, u64),
}

impl Mapping {
    /// Whether it is of a file that has a mount.
    pub(super) fn of_file(&self) -> bool {
        matches!(self.source, Source::File(..) | Source::Template)
    }
}

pub(super) fn of(proc: &Path) -> io::Result<Vec<Mapping>> {
    let text = fs::read_to_string(proc.join("smaps"))?;
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags: ") {
            let kept: BTreeSet<&str> = flags.split_whitespace().filter(|f| !BOOKKEEPING.contains(f)).collect();
            if let Some(last) = found.last_mut() {
                last.flags = kept.into_iter().collect::<Vec<_>>().join(" ");
            }
        } else if let Some(mapping) = header(line) {
            found.push(mapping);
        }
    }
    Ok(found)
}

/// The line that begins a mapping: `00400000-0041f000 r--p 00000000 fe:00 1007  /usr/bin/python3.11`.
fn header(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut words = Vec::new();
    while words.len() < 5 {
        let (word, more) = rest.split_once(' ')?;
        rest = more.trim_start();
        words.push(word);
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = words[0].split_once('-')?;
    let (start, end) = (number(start)?, number(end)?);
    let source = match rest {
        _ if KERNELS.contains(&rest) => Source::Kernel(rest.to_owned()),
        _ if rest.starts_with(TEMPLATE) => Source::Template,
        _ if SHARED.contains(&rest) => Source::Shared(start.wrapping_sub(number(words[2])?)),
        _ if words[4] != "0" => Source::File(rest.to_owned(), start.wrapping_sub(number(words[2])?)),
        _ => Source::Anonymous,
    };
    Some(Mapping {
        start,
        end,
        access: words[1].to_owned(),
        flags: String::new(),
        source,
    })
}

/// A difference of one range of addresses.
pub(super) struct Difference {
    pub(super) told: String,
    /// Bytes of private, non-executable memory that only the copy has; `None` for any other difference.
    pub(super) added: Option<u64>,
}

/// Where a copy's mappings differ from the original's. How the kernel divides them does not matter.
pub(super) fn compare(before: &[Mapping], after: &[Mapping]) -> Vec<Difference> {
    let own = |m: &&Mapping| !matches!(m.source, Source::Kernel(_));
    let left = residue(before, after);
    let is_left = |m: &&Mapping| left.as_ref().is_some_and(|left| left.contains(&m.start));
    let before: Vec<_> = before.iter().filter(own).collect();
    let after: Vec<_> = after.iter().filter(own).filter(|m| !is_left(m)).collect();
    let cuts: BTreeSet<u64> = before.iter().chain(&after).flat_map(|m| [m.start, m.end]).collect();
    let cuts: Vec<u64> = cuts.into_iter().collect();
    // Each difference with its range, so that neighbours with the same one are merged.
    let mut found: Vec<(u64, u64, String, bool)> = Vec::new();
    for range in cuts.windows(2) {
        let at = |all: &[&Mapping]| {
            all.iter()
                .find(|m| m.start <= range[0] && range[0] < m.end)
                .map(|m| (*m).clone())
        };
        let (one, other) = (at(&before), at(&after));
        let Some(told) = difference(one.as_ref(), other.as_ref()) else {
            continue;
        };
        if one
            .as_ref()
            .zip(other.as_ref())
            .is_some_and(|(one, other)| has_grown(&before, range[0], one, other))
        {
            continue;
        }
        let harmless =
            |m: &Mapping| m.source == Source::Anonymous && m.access.ends_with('p') && !m.access.contains('x');
        let added = one.is_none() && other.as_ref().is_some_and(harmless);
        match found.last_mut() {
            Some((_, end, last, _)) if *end == range[0] && *last == told => *end = range[1],
            _ => found.push((range[0], range[1], told, added)),
        }
    }
    let ranges = found.into_iter().map(|(start, end, told, added)| Difference {
        told: format!("{start:x}-{end:x}: {told}"),
        added: added.then_some(end - start),
    });
    ranges.collect()
}

/// The residue of the copy's own restore. That of an earlier one is the original's as well.
fn residue(before: &[Mapping], after: &[Mapping]) -> Option<Range<u64>> {
    let is = |m: &Mapping, access| m.source == Source::Anonymous && m.access == access;
    let pairs = after.windows(2).filter(|pair| {
        let (code, frames) = (&pair[0], &pair[1]);
        let is_code = is(code, "r-xp") && code.end - code.start == PAGE && RESIDUES.contains(&code.start);
        is_code && is(frames, "rw-p") && frames.start == code.end && frames.end - code.start <= RESIDUE_BYTES
    });
    let mut new = pairs.filter(|pair| before.iter().all(|m| m.start != pair[0].start));
    new.next().map(|pair| pair[0].start..pair[1].end)
}

/// Whether an allocator of the C library has taken more of its reserved memory. A thread's heap is in a piece of 64 MiB
/// that begins at a multiple of that; it is in use from there on, and the rest is inaccessible.
fn has_grown(before: &[&Mapping], at: u64, one: &Mapping, other: &Mapping) -> bool {
    let base = at / HEAP * HEAP;
    let is_heap = |m: &&Mapping| m.start == base && m.end == one.start && m.access == "rw-p";
    let is = |m: &Mapping, access| m.source == Source::Anonymous && m.access == access;
    is(one, "---p") && is(other, "rw-p") && before.iter().any(is_heap)
}

fn difference(before: Option<&Mapping>, after: Option<&Mapping>) -> Option<String> {
    let told = |m: &Mapping| format!("{} ({}) of {:x?}", m.access, m.flags, m.source);
    match (before, after) {
        (None, None) => None,
        (Some(one), None) => Some(format!("{} is gone", told(one))),
        (None, Some(other)) => Some(format!("{} is new", told(other))),
        (Some(one), Some(other)) => {
            // A template has code only if that was made at run time.
            let stands_for = other.source == Source::Template
                && one.access.ends_with('p')
                && (one.source == Source::Anonymous || !one.access.contains('x'));
            let same =
                one.access == other.access && one.flags == other.flags && (one.source == other.source || stands_for);
            (!same).then(|| format!("{} became {}", told(one), told(other)))
        }
    }
}
