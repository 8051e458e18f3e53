//! A process's mappings, by `/proc/PID/maps` and `smaps`.

use std::io;
use std::ops::Range;

use crate::error::{Unfit, kernel};
use crate::tracee::{Caller, Tracee};

/// Calls that are made to put mappings back.
const CALLS_MAX: usize = 256;

/// A mapping of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Addresses.
    pub(crate) range: Range<u64>,
    /// `PROT_READ` and so on.
    pub(crate) protection: i32,
    /// Whether it is of a file.
    is_of_file: bool,
    /// Whether it is the heap that `brk` moves.
    is_heap: bool,
    /// Whether the kernel has made it.
    is_kernels: bool,
}

impl Mapping {
    /// Whether what nobody has written in it is zero.
    pub(crate) fn is_zero_at_first(&self) -> bool {
        !self.is_of_file && !self.is_kernels
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.protection & libc::PROT_WRITE != 0
    }
}

/// Mappings by address, and the text that they were read from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mappings {
    pub(crate) text: Vec<u8>,
    pub(crate) all: Vec<Mapping>,
}

impl Mappings {
    /// Reads the text of `/proc/PID/maps`.
    pub(crate) fn parse(text: Vec<u8>) -> Result<Self, Unfit> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let all = lines.map(|line| {
            let line = std::str::from_utf8(line).ok()?;
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let flags = words.next()?.as_bytes();
            let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
            let name = words.next().unwrap_or_default();
            let bit = |at: usize, is: u8, bit| if flags.get(at) == Some(&is) { bit } else { 0 };
            Some(Mapping {
                range: address(start)?..address(end)?,
                protection: bit(0, b'r', libc::PROT_READ)
                    | bit(1, b'w', libc::PROT_WRITE)
                    | bit(2, b'x', libc::PROT_EXEC),
                is_of_file: inode != "0",
                is_heap: name == "[heap]",
                is_kernels: name.starts_with("[v") || name == "[uprobes]",
            })
        });
        let all = all.collect::<Option<_>>();
        let all = all.ok_or_else(|| Unfit::Memory("its mappings cannot be read".to_owned()))?;
        Ok(Self { text, all })
    }

    /// The mapping with this address.
    pub(crate) fn at(&self, address: u64) -> Option<&Mapping> {
        let after = self.all.partition_point(|mapping| mapping.range.end <= address);
        self.all.get(after).filter(|mapping| mapping.range.start <= address)
    }

    /// Turns the mappings `now` into these, as far as calls of the process do that.
    pub(crate) fn put_back(&self, now: &Self, program_break: u64, caller: &Caller<'_>) -> Result<(), Unfit> {
        let heap = |all: &[Mapping]| all.iter().rfind(|mapping| mapping.is_heap).map(|heap| heap.range.end);
        if heap(&self.all) != heap(&now.all) {
            caller.call("put the end of the heap back", libc::SYS_brk, &[program_break])?;
        }
        let mut calls = 0;
        let mut call = |what, number, arguments: &[u64]| {
            calls += 1;
            match calls <= CALLS_MAX {
                true => caller.call(what, number, arguments).map(drop),
                false => Err(Unfit::Memory("its mappings have changed in too many places".to_owned())),
            }
        };
        for extra in now.beyond(self) {
            let arguments = [extra.start, extra.end - extra.start];
            call("unmap what was mapped", libc::SYS_munmap, &arguments)?;
        }
        for mapping in self.all.iter().filter(|mapping| !mapping.is_kernels) {
            let at = now.all.partition_point(|other| other.range.end <= mapping.range.start);
            let mut inside = now.all[at..]
                .iter()
                .take_while(|other| other.range.start < mapping.range.end);
            if inside.any(|other| other.protection != mapping.protection) {
                let length = mapping.range.end - mapping.range.start;
                let protection = u64::from(mapping.protection.cast_unsigned());
                let arguments = [mapping.range.start, length, protection];
                call("protect a mapping as before", libc::SYS_mprotect, &arguments)?;
            }
        }
        Ok(())
    }

    /// The addresses that are mapped here and not there. Those of the heap are `brk`'s to unmap.
    fn beyond(&self, there: &Self) -> Vec<Range<u64>> {
        let mut beyond: Vec<Range<u64>> = Vec::new();
        let mut add = |range: Range<u64>| match beyond.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => beyond.push(range),
        };
        for mapping in self.all.iter().filter(|mapping| !mapping.is_heap) {
            let mut from = mapping.range.start;
            let at = there.all.partition_point(|other| other.range.end <= from);
            for other in there.all[at..]
                .iter()
                .take_while(|other| other.range.start < mapping.range.end)
            {
                if from < other.range.start {
                    add(from..other.range.start);
                }
                from = other.range.end;
            }
            if from < mapping.range.end {
                add(from..mapping.range.end);
            }
        }
        beyond
    }
}

/// Memory that must be empty in a copy: keys lie there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wiped {
    /// What a fork empties (`MADV_WIPEONFORK`).
    by_fork: Vec<Range<u64>>,
    /// What the kernel may drop (`MAP_DROPPABLE`).
    by_kernel: Vec<Range<u64>>,
}

impl Wiped {
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.by_fork
            .iter()
            .chain(&self.by_kernel)
            .any(|range| range.contains(&address))
    }

    /// Has forks empty it, also if it was mapped anew, which nothing shows.
    pub(crate) fn mark(&self, tracee: &Tracee, caller: &Caller<'_>) -> Result<(), Unfit> {
        if self.by_fork.is_empty() {
            return Ok(());
        }
        tracee.suspend_filters(true)?;
        for range in &self.by_fork {
            let arguments = [range.start, range.end - range.start, libc::MADV_WIPEONFORK as u64];
            caller.call("have forks empty it", libc::SYS_madvise, &arguments)?;
        }
        tracee.suspend_filters(false)
    }
}

/// Looks for memory that a fork would empty, and that the kernel may drop.
///
/// # Errors
/// Returns an error for memory that is shared and can be written, for locked memory, and for huge pages.
pub(crate) fn wiped(smaps: &str) -> Result<Wiped, Unfit> {
    let (mut wiped, mut range) = (Wiped::default(), 0..0);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag| flags.split_ascii_whitespace().any(|has| has == flag);
            if has("sh") && has("mw") {
                return Err(Unfit::Memory(format!(
                    "{:#x} is shared and can be written",
                    range.start
                )));
            }
            if has("ht") {
                return Err(Unfit::Memory(format!("{:#x} has huge pages of a pool", range.start)));
            }
            if has("lo") {
                return Err(Unfit::Memory(format!("{:#x} is locked", range.start)));
            }
            if has("wf") {
                wiped.by_fork.push(range.clone());
            }
            if has("dp") {
                wiped.by_kernel.push(range.clone());
            }
        } else if let Some((start, end)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-'))
            && let (Some(start), Some(end)) = (address(start), address(end))
        {
            range = start..end;
        }
    }
    Ok(wiped)
}

fn address(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// Reads a file of `/proc` anew, from its beginning.
pub(crate) fn read_again(file: &std::fs::File, what: &'static str) -> Result<Vec<u8>, Unfit> {
    use std::os::unix::fs::FileExt as _;
    let mut text = Vec::with_capacity(32 << 10);
    let mut part = [0; 32 << 10];
    loop {
        match file.read_at(&mut part, text.len() as u64) {
            Ok(0) => return Ok(text),
            Ok(read) => text.extend_from_slice(&part[..read]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(kernel(what)(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 r-xp 00000000 08:01 42 /usr/bin/it\n\
                        5000-6000 rw-p 00000000 00:00 0 [heap]\n\
                        8000-9000 rw-p 00000000 00:00 0\n\
                        a000-b000 r-xp 00000000 00:00 0 [vdso]\n";

    fn mappings(text: &str) -> Mappings {
        Mappings::parse(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn mappings_are_found_by_address() {
        let mappings = mappings(MAPS);
        assert_eq!(mappings.at(0x0fff), None);
        let code = mappings.at(0x1000).unwrap();
        assert!(code.is_of_file && !code.is_writable());
        assert!(mappings.at(0x5fff).unwrap().is_heap);
        assert_eq!(mappings.at(0x6000), None);
        assert!(mappings.at(0xa800).unwrap().is_kernels);
        assert!(Mappings::parse(b"nonsense\n".to_vec()).is_err());
    }

    #[test]
    fn what_is_mapped_in_addition_is_found() {
        let then = mappings(MAPS);
        let now = mappings(
            "0-4000 r-xp 00000000 08:01 42 /usr/bin/it\n\
             5000-7000 rw-p 00000000 00:00 0 [heap]\n\
             7800-9800 rw-p 00000000 00:00 0\n\
             c000-d000 rw-p 00000000 00:00 0\n",
        );
        let beyond = now.beyond(&then);
        assert_eq!(
            beyond,
            [
                0..0x1000,
                0x3000..0x4000,
                0x7800..0x8000,
                0x9000..0x9800,
                0xc000..0xd000
            ]
        );
        assert!(then.beyond(&then).is_empty());
    }

    #[test]
    fn memory_that_is_wiped_is_found_and_shared_memory_refused() {
        let smaps = "1000-2000 rw-p 00000000 00:00 0 \nSize: 4 kB\nVmFlags: rd wr mr mw me wf \n\
                     2000-3000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me \n\
                     3000-4000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me dp \n";
        let wiped_here = wiped(smaps).unwrap();
        assert!([0x1000, 0x3fff].into_iter().all(|at| wiped_here.contains(at)) && !wiped_here.contains(0x2000));
        assert!(wiped("1000-2000 rw-p 00000000 00:00 0\nVmFlags: rd wr mr mw me lo\n").is_err());
        assert!(wiped("1000-2000 rw-s 00000000 00:01 5 /dev/shm/x\nVmFlags: rd wr sh mr mw me\n").is_err());
        assert!(wiped("1000-2000 r--s 00000000 00:01 5 /usr/lib/x\nVmFlags: rd sh mr me\n").is_ok());
    }
}
