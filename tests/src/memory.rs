//! All memory of a process, read from outside. A page that a pager has yet to bring is brought by reading it, as by the
//! process's own touch.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::host::{self, PAGE};

/// Pages read at once.
const BATCH_PAGES: usize = 256;
/// What the kernel maps for itself; its content depends on the machine.
const KERNELS: [&str; 4] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"];

/// Neighbouring mappings with the same access. How the kernel divides them is not part of the content: a restore may
/// map a file where there was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
    /// As in /proc/PID/maps, such as `rw-p`.
    pub access: String,
}

/// The areas of a process, by address.
pub fn areas(pid: i32) -> Vec<Area> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut found: Vec<Area> = Vec::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.get(5).is_some_and(|name| KERNELS.contains(name)) {
            continue;
        }
        let (start, end) = words[0].split_once('-').unwrap();
        let at = |text| usize::from_str_radix(text, 16).unwrap();
        match found.last_mut() {
            Some(last) if last.end == at(start) && last.access == words[1] => last.end = at(end),
            _ => found.push(Area {
                start: at(start),
                end: at(end),
                access: words[1].to_owned(),
            }),
        }
    }
    without_residue(found)
}

/// Leaves out what a restore program leaves behind: a page of code and its threads' frames, where nothing else is
/// placed by itself.
fn without_residue(mut areas: Vec<Area>) -> Vec<Area> {
    const PLACES: std::ops::Range<usize> = 1 << 40..0x5000_0000_0000;
    let is_residue = |pair: &[Area]| {
        let is_code =
            pair[0].access == "r-xp" && pair[0].end - pair[0].start == PAGE && PLACES.contains(&pair[0].start);
        is_code && pair[1].access == "rw-p" && pair[0].end == pair[1].start
    };
    if let Some(at) = areas.windows(2).position(is_residue) {
        areas.drain(at..at + 2);
    }
    areas
}

/// What two memories have in common, and where they differ.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Pages examined.
    pub pages: usize,
    /// Pages with anything but zeros in the first memory.
    pub filled: usize,
    /// Every difference, each on a line.
    pub differences: Vec<String>,
}

/// Compares all memory of two processes that they may read themselves, byte for byte. Neither may run meanwhile.
pub fn compare(one: i32, other: i32) -> Comparison {
    let mut result = Comparison::default();
    let (ours, theirs) = (areas(one), areas(other));
    if ours != theirs {
        let only = |a: &[Area], b: &[Area]| a.iter().filter(|x| !b.contains(x)).cloned().collect::<Vec<_>>();
        let (first, second) = (only(&ours, &theirs), only(&theirs, &ours));
        result
            .differences
            .push(format!("the mappings differ: {first:x?} against {second:x?}"));
        return result;
    }
    for area in ours.iter().filter(|a| a.access.starts_with('r')) {
        for start in (area.start..area.end).step_by(BATCH_PAGES * PAGE) {
            let end = area.end.min(start + BATCH_PAGES * PAGE);
            let (a, b) = (pages(one, start, end), pages(other, start, end));
            for ((a, b), address) in a.iter().zip(&b).zip((start..).step_by(PAGE)) {
                result.pages += 1;
                result.filled += usize::from(a.as_ref().is_some_and(|page| page.iter().any(|byte| *byte != 0)));
                if a != b {
                    result
                        .differences
                        .push(describe(address, &area.access, a.as_deref(), b.as_deref()));
                }
            }
        }
    }
    result
}

/// Pages, by address, with anything but zeros that a process may not read itself. A pager must not still have to serve
/// any of them: the kernel waits for a pager only on behalf of those who may read.
pub fn sealed(pid: i32) -> Vec<(usize, Vec<u8>)> {
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let areas = areas(pid).into_iter().filter(|a| !a.access.starts_with('r'));
    let addresses = areas.flat_map(|a| (a.start..a.end).step_by(PAGE));
    let filled = addresses.filter_map(|address| {
        let mut page = vec![0; PAGE];
        memory.read_exact_at(&mut page, address as u64).ok()?;
        page.iter().any(|byte| *byte != 0).then_some((address, page))
    });
    filled.collect()
}

/// Each page from `start` to `end`; `None` for one that does not exist, such as a file's beyond its end.
fn pages(pid: i32, start: usize, end: usize) -> Vec<Option<Vec<u8>>> {
    let mut found = Vec::new();
    while found.len() * PAGE < end - start {
        let base = start + found.len() * PAGE;
        let mut bytes = vec![0; end - base];
        let remote = [RemoteIoVec { base, len: end - base }];
        let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut bytes)], &remote).unwrap_or(0);
        found.extend(bytes[..read].chunks_exact(PAGE).map(|page| Some(page.to_vec())));
        if read < PAGE {
            found.push(None);
        }
    }
    found
}

fn describe(address: usize, access: &str, one: Option<&[u8]>, other: Option<&[u8]>) -> String {
    let (Some(one), Some(other)) = (one, other) else {
        return format!("{address:#x} ({access}): there in one only");
    };
    let differing: Vec<usize> = (0..PAGE).filter(|at| one[*at] != other[*at]).collect();
    let first = differing.first().copied().unwrap_or_default();
    format!(
        "{address:#x} ({access}): {} bytes differ, the first at {first:#x}: {:#04x} against {:#04x}",
        differing.len(),
        one[first],
        other[first]
    )
}

/// Adds one to a byte of a process's memory.
pub fn change_byte(pid: i32, address: usize) {
    let byte = host::read(pid, address, 1)[0];
    host::write(pid, address, &[byte.wrapping_add(1)]);
}
