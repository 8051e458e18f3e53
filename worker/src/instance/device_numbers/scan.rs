//! Finds device numbers in memory. Pure.
//!
//! One is taken for such where memory proves it. It stands before the inode number of a file that the process has open,
//! and a pointer leads to it that stands before that file's descriptor. SQLite has both, in all versions:
//!
//! ```text
//! unixFile       methods:ptr vfs:ptr inode:ptr ──┐ descriptor:i32 …
//! unixInodeInfo                     device:u64 <─┘ inode:u64 …
//! ```
//!
//! A pair alone proves nothing: numbers of tmpfs inodes are as small as those of its devices. Hash tables by device and
//! inode, such as the JDK's of its locks, have no such pointer, and must be left alone. A key that is written to is no
//! longer found.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::criu::open_files::OpenFile;

/// Maximum number of candidates.
const PAIRS_MAX: usize = 1 << 14;

/// Finds the device numbers of these files: a descriptor of the file and the address of each. An address in `known`
/// needs no pointer that leads to it. `each_run` calls what it is given for each run of memory, in order of address; an
/// address is a multiple of 8. It is called again if there are candidates.
///
/// # Errors
/// Returns what `each_run` returns.
pub(super) fn find<E>(
    files: &[OpenFile],
    known: &BTreeSet<u64>,
    mut each_run: impl FnMut(&mut dyn FnMut(u64, &[u8])) -> Result<(), E>,
) -> Result<Vec<(OpenFile, u64)>, E> {
    // A function chooses how many files it has open and what its memory holds: no search for each word.
    let by_number: HashMap<_, _> = files.iter().map(|file| ((file.device, file.inode), file)).collect();
    let opened = |file: &OpenFile| (file.device, file.inode, u64::from(file.descriptor));
    let opened: HashSet<_> = files.iter().map(opened).collect();
    let mut devices: Vec<u64> = files.iter().map(|file| file.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut pairs = BTreeMap::new();
    let mut found = BTreeMap::new();
    let mut words = WordPairs::default();
    each_run(&mut |start, bytes| {
        words.each(start, bytes, |address, device, inode| {
            if !devices.contains(&device) || pairs.len() + found.len() >= PAIRS_MAX {
                return;
            }
            let Some(file) = by_number.get(&(device, inode)) else {
                return;
            };
            if known.contains(&address) {
                found.insert(address, **file);
            } else {
                pairs.insert(address, *file);
            }
        });
    })?;
    let ends = (pairs.first_key_value(), pairs.last_key_value());
    if let (Some((first, _)), Some((last, _))) = ends {
        let range = *first..=*last;
        let mut words = WordPairs::default();
        each_run(&mut |start, bytes| {
            words.each(start, bytes, |_, pointer, next| {
                if !range.contains(&pointer) {
                    return;
                }
                let Some(pair) = pairs.get(&pointer) else { return };
                let descriptor = next & u64::from(u32::MAX);
                if opened.contains(&(pair.device, pair.inode, descriptor)) {
                    found.insert(pointer, **pair);
                }
            });
        })?;
    }
    Ok(found.into_iter().map(|(address, file)| (file, address)).collect())
}

/// Passes over each two words that follow each other, also where one ends a run and the other begins the next.
#[derive(Default)]
struct WordPairs {
    /// The last word so far, and the address behind it.
    last: Option<(u64, u64)>,
}

impl WordPairs {
    /// Calls `look` with the address of the first word, and both.
    fn each(&mut self, start: u64, bytes: &[u8], mut look: impl FnMut(u64, u64, u64)) {
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut behind = start;
        let mut before = match self.last.filter(|(_, end)| *end == start) {
            Some((word, _)) => word,
            None => match words.next() {
                Some(word) => {
                    behind += 8;
                    word
                }
                None => return,
            },
        };
        for word in words {
            look(behind - 8, before, word);
            before = word;
            behind += 8;
        }
        self.last = Some((before, behind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::own_mounts::OwnMount;

    const DEVICE: u64 = 0x2f;
    const INODE: u64 = 12;

    fn file(descriptor: u32) -> OpenFile {
        OpenFile {
            mount: Some(OwnMount::Tmp),
            device: DEVICE,
            inode: INODE,
            descriptor,
        }
    }

    /// What is found in runs of words at these addresses.
    fn found(runs: &[(u64, &[u64])], known: &[u64]) -> Vec<u64> {
        let runs: Vec<_> = runs
            .iter()
            .map(|(start, words)| {
                (
                    *start,
                    words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>(),
                )
            })
            .collect();
        let known = known.iter().copied().collect();
        let found = find::<()>(&[file(7), file(9)], &known, |look| {
            runs.iter().for_each(|(start, bytes)| look(*start, bytes));
            Ok(())
        });
        found.unwrap().into_iter().map(|(_, address)| address).collect()
    }

    /// A `unixFile` from `address` on.
    fn open_file(inode: u64, descriptor: u64) -> [u64; 5] {
        [0x7f00_0000, 0x7f00_1000, inode, descriptor | 4 << 32, 0]
    }

    #[test]
    fn a_device_number_is_found_where_an_open_file_leads_to_it() {
        let info = [1, DEVICE, INODE, 0, 1];
        assert_eq!(
            found(&[(0x1000, &info), (0x8000, &open_file(0x1008, 9))], &[]),
            [0x1008]
        );
        assert_eq!(
            found(&[(0x1000, &open_file(0x8008, 7)), (0x8000, &info)], &[]),
            [0x8008]
        );
    }

    #[test]
    fn a_pair_without_a_pointer_or_with_another_descriptor_is_a_coincidence() {
        let info = [1, DEVICE, INODE, 0, 1];
        assert!(found(&[(0x1000, &info)], &[]).is_empty());
        assert!(found(&[(0x1000, &info), (0x8000, &open_file(0x1008, 8))], &[]).is_empty());
        assert!(found(&[(0x1000, &info), (0x8000, &open_file(0x1010, 9))], &[]).is_empty());
        let other_inode = [1, DEVICE, INODE + 1, 0, 1];
        assert!(found(&[(0x1000, &other_inode), (0x8000, &open_file(0x1008, 9))], &[]).is_empty());
    }

    #[test]
    fn one_that_was_written_before_is_found_again_without_its_pointer() {
        let info = [1, DEVICE, INODE, 0, 1];
        assert_eq!(found(&[(0x1000, &info)], &[0x1008]), [0x1008]);
        assert!(found(&[(0x1000, &info)], &[0x1000, 0x2008]).is_empty());
    }

    #[test]
    fn a_pair_may_span_two_runs_if_they_are_adjacent() {
        let (head, tail): (&[u64], &[u64]) = (&[0, DEVICE], &[INODE, 0]);
        let open_file = open_file(0x1008, 7);
        assert_eq!(
            found(&[(0x1000, head), (0x1010, tail), (0x8000, &open_file)], &[]),
            [0x1008]
        );
        assert!(found(&[(0x1000, head), (0x2000, tail), (0x8000, &open_file)], &[]).is_empty());
    }
}
