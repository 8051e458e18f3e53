//! Checks a bundle apart from its images, which have checks of their own. Pure. The source may be compromised, so
//! nothing that it sends is trusted.

use std::collections::HashSet;

use rekindle_criu::descriptors::{OUTPUT_STREAMS, external_file, pipe_key, pipe_number};
use rekindle_pager::PAGE;
use rekindle_verify::EAGER_PREFIX;

use super::WRITTEN;
use super::header::{Header, PageSpan, SpanOrigin, eager_name};
use super::page_numbering::PageNumbering;
use crate::instance::device_numbers::FOUND_MAX;
use crate::snapshots::connections::{ConnectionNote, UNREAD_MAX};
use crate::snapshots::expected::PIDS;
use crate::snapshots::{FILES_ARCHIVE, PipeNote};

/// End of user space, in pages.
const USER_PAGES: u64 = 0x7_ffff_ffff;
/// Maximum number of processes with known memory, including those that have ended.
const PROCESSES_MAX: usize = 65_536;
/// Maximum number of files in a bundle: as many as in a directory of images.
const FILES_MAX: usize = 100_000;
/// How many times its function's memory limit a process can have: once in memory, and for a moment in swap.
const MEMORIES: u64 = 2;
/// Maximum size of images apart from memory and files, in bytes: mappings and descriptors.
const DESCRIPTION_MAX: u64 = 256 << 20;
/// Maximum number of processes that share one memory and each hold all of it.
const SHARERS_MAX: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(super) enum RefusedError {
    /// The output does not exist, or is named twice.
    #[error("{stream:?} is no output called {key:?}")]
    Output {
        stream: String,
        /// The pipe's name in the images.
        key: String,
    },
    /// It is larger than anything that such an instance can have.
    #[error("its files have {bytes} bytes, more than {max}")]
    Size {
        /// All files, in bytes.
        bytes: u64,
        /// The most that is accepted, in bytes.
        max: u64,
    },
    /// Each template must have one name, because templates are identified by their order.
    #[error("it names {named} templates of {there}")]
    Templates {
        /// The number in the bundle.
        named: usize,
        /// The number in the snapshot.
        there: usize,
    },
    /// CRIU gives no file this name, or it gives two files this name.
    #[error("{0:?} is no name of a template")]
    Template(String),
    /// More than a function can have.
    #[error("it has {found} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The number found.
        found: u64,
    },
    /// A function has no process with this id, or the process comes twice.
    #[error("{0} is no process of a function")]
    Process(i32),
    /// The pages are not addresses, or not in order of address.
    #[error("process {pid} has no pages {piece:?}")]
    Pages { pid: i32, piece: PageSpan },
    /// No such file is part of a bundle, or the file comes twice.
    #[error("{0:?} is no file that travels")]
    File(String),
    /// The number of eager pages differs from what the images say.
    #[error("{file} has {found} bytes instead of {wanted}")]
    Eager {
        file: String,
        /// Its size, in bytes.
        found: u64,
        /// The size according to the images, in bytes.
        wanted: u64,
    },
}

/// Checks that the bundle is no larger than an instance with this much memory, in bytes, can have it. That is all of
/// the memory in files and eager pages, and what describes them.
pub(super) fn check_size(header: &Header, memory: u64) -> Result<(), RefusedError> {
    let max = memory.saturating_mul(MEMORIES).saturating_add(DESCRIPTION_MAX);
    let bytes = header
        .files
        .iter()
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    match bytes <= max {
        true => Ok(()),
        false => Err(RefusedError::Size { bytes, max }),
    }
}

/// Checks the header of an instance whose snapshot has this number of `templates`.
pub(super) fn check_header(header: &Header, templates: usize) -> Result<(), RefusedError> {
    let Header {
        pipes,
        templates: names,
        connections,
        file_numbers,
        maps,
        files,
    } = header;
    check_outputs(pipes)?;
    if names.len() != templates {
        let (named, there) = (names.len(), templates);
        return Err(RefusedError::Templates { named, there });
    }
    let mut seen = HashSet::new();
    if let Some(name) = names.iter().find(|name| !is_external(name) || !seen.insert(*name)) {
        return Err(RefusedError::Template(name.clone()));
    }
    let unread = connections.iter().map(ConnectionNote::bytes).sum();
    within("bytes in its connections", unread, UNREAD_MAX)?;
    within("device numbers", file_numbers.count(), FOUND_MAX)?;
    within("processes", maps.len(), PROCESSES_MAX)?;
    let mut seen = HashSet::new();
    for (pid, pieces) in maps {
        if !u32::try_from(*pid).is_ok_and(|pid| PIDS.contains(&pid)) || !seen.insert(*pid) {
            return Err(RefusedError::Process(*pid));
        }
        check_pieces(*pid, pieces)?;
    }
    within("files", files.len(), FILES_MAX)?;
    let mut seen = HashSet::new();
    let mut names = files.iter().map(|(name, _)| name);
    match names.find(|name| !travels(name) || !seen.insert(*name)) {
        Some(name) => Err(RefusedError::File(name.clone())),
        None => Ok(()),
    }
}

/// Checks what the images say of the memory of an instance that may use `memory` bytes. `eager` returns the bytes of
/// eager pages that came for a process.
pub(super) fn check_pages(
    numbering: &PageNumbering,
    memory: u64,
    eager: impl Fn(i32) -> u64,
) -> Result<(), RefusedError> {
    let most = (memory / PAGE).saturating_mul(MEMORIES);
    let sharers = numbering.processes.len().min(SHARERS_MAX) as u64;
    if numbering.pages > most.saturating_mul(sharers) {
        let (what, found) = ("written pages", numbering.pages);
        return Err(RefusedError::TooMany { what, found });
    }
    for process in &numbering.processes {
        let pages: u64 = process.memory.eager().map(|run| run.pages).sum();
        let (found, wanted) = (eager(process.pid), pages.saturating_mul(PAGE));
        if found != wanted {
            let file = eager_name(process.pid);
            return Err(RefusedError::Eager { file, found, wanted });
        }
    }
    Ok(())
}

fn within(what: &'static str, found: usize, most: usize) -> Result<(), RefusedError> {
    let found = found as u64;
    if found > most as u64 {
        return Err(RefusedError::TooMany { what, found });
    }
    Ok(())
}

/// Checks that each output comes once, with a pipe of its own.
fn check_outputs(pipes: &[PipeNote]) -> Result<(), RefusedError> {
    let (mut streams, mut keys) = (HashSet::new(), HashSet::new());
    for PipeNote { key, stream } in pipes {
        let plain = pipe_number(key).is_some_and(|number| pipe_key(number) == *key);
        if !plain || !OUTPUT_STREAMS.contains(&stream.as_str()) || !streams.insert(stream) || !keys.insert(key) {
            let (stream, key) = (stream.clone(), key.clone());
            return Err(RefusedError::Output { stream, key });
        }
    }
    Ok(())
}

/// Returns whether CRIU gives an external file this name.
fn is_external(name: &str) -> bool {
    let numbers = name.strip_prefix("file[").and_then(|rest| rest.strip_suffix(']'));
    let Some((mount, inode)) = numbers.and_then(|numbers| numbers.split_once(':')) else {
        return false;
    };
    let number = |text| u64::from_str_radix(text, 16);
    // Only one spelling is valid.
    matches!((number(mount), number(inode)), (Ok(mount), Ok(inode)) if external_file(mount, inode) == name)
}

/// Returns whether a bundle may contain this file: an image, eager pages or private files. The images' contents have
/// their own checks.
fn travels(name: &str) -> bool {
    let plain = name
        .bytes()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_'));
    plain && (name.ends_with(".img") || name.starts_with(EAGER_PREFIX) || name == FILES_ARCHIVE)
}

/// Checks that pages are in order of address and in user space, as is what they belong to. Where the snapshot has no
/// page, zeroes are read.
fn check_pieces(pid: i32, pieces: &[PageSpan]) -> Result<(), RefusedError> {
    let mut end = 0;
    for piece in pieces {
        let is_run = piece.start >= end && piece.start < piece.end && piece.end <= USER_PAGES;
        let is_there = |first: u64| {
            let last = (first & !WRITTEN).checked_add(piece.end.wrapping_sub(piece.start));
            last.is_some_and(|last| last <= USER_PAGES)
        };
        let of = match piece.of {
            SpanOrigin::Snapshot(first) | SpanOrigin::File(first) => is_there(first),
            SpanOrigin::Zero => true,
        };
        if !is_run || !of {
            return Err(RefusedError::Pages { pid, piece: *piece });
        }
        end = piece.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::own_mounts::OwnMount;
    use crate::snapshots::{DeviceNumbers, FileNumbers, RootFile};

    /// The expected error and the change that causes it.
    type Case = (&'static str, fn(&mut Header));

    fn note(stream: &str, key: &str) -> PipeNote {
        PipeNote {
            key: key.to_owned(),
            stream: stream.to_owned(),
        }
    }

    fn piece(start: u64, end: u64, of: SpanOrigin) -> PageSpan {
        PageSpan { start, end, of }
    }

    fn good() -> Header {
        Header {
            pipes: vec![note("stdout", "pipe:[7]"), note("stderr", "pipe:[8]")],
            templates: vec!["file[1a:2b]".to_owned()],
            connections: Vec::new(),
            file_numbers: FileNumbers::default(),
            maps: vec![(
                501,
                vec![
                    piece(1, 5, SpanOrigin::Snapshot(9)),
                    piece(5, 6, SpanOrigin::Snapshot(7 | WRITTEN)),
                    piece(9, USER_PAGES, SpanOrigin::Zero),
                ],
            )],
            files: ["core-501.img", "eager-501", FILES_ARCHIVE]
                .map(|name| (name.to_owned(), 1))
                .to_vec(),
        }
    }

    #[test]
    fn a_header_that_says_what_no_source_says_is_refused() {
        check_header(&good(), 1).unwrap();
        let cases: [Case; 23] = [
            ("no output", |h| h.pipes[0].stream = "stdin".to_owned()),
            ("no output", |h| h.pipes[1].stream = "stdout".to_owned()),
            ("no output", |h| h.pipes[1].key = "pipe:[7]".to_owned()),
            ("no output", |h| h.pipes[1].key = "pipe:[08]".to_owned()),
            ("no output", |h| h.pipes[1].key = "/app/x".to_owned()),
            ("no output", |h| h.pipes[1].key = "pipe:[4294967296]".to_owned()),
            ("2 templates of 1", |h| h.templates.push("file[1:2]".to_owned())),
            ("no name of a template", |h| h.templates[0] = "file[1A:2b]".to_owned()),
            ("no name of a template", |h| h.templates[0] = "/etc/shadow".to_owned()),
            ("no name of a template", |h| h.templates[0] = "file[01:2]".to_owned()),
            ("bytes in its connections", |h| {
                h.connections.push(ConnectionNote {
                    sockets: [1, 2],
                    unread: [Vec::new(), vec![0; UNREAD_MAX + 1]],
                });
            }),
            ("device numbers", |h| {
                h.file_numbers.device_numbers.push(DeviceNumbers {
                    pid: 501,
                    mount: OwnMount::Tmp,
                    addresses: vec![8; FOUND_MAX + 1],
                });
            }),
            ("device numbers", |h| {
                h.file_numbers.root_files.push(RootFile {
                    pid: 501,
                    descriptor: 3,
                    addresses: vec![8; FOUND_MAX + 1],
                });
            }),
            ("1 is no process", |h| h.maps[0].0 = 1),
            ("501 is no process", |h| h.maps.push((501, Vec::new()))),
            ("has no pages", |h| h.maps[0].1[0].end = 1),
            ("has no pages", |h| h.maps[0].1[1].start = 4),
            ("has no pages", |h| h.maps[0].1[2].end = USER_PAGES + 1),
            ("has no pages", |h| h.maps[0].1[0].of = SpanOrigin::File(u64::MAX)),
            ("has no pages", |h| {
                h.maps[0].1[0].of = SpanOrigin::Snapshot(USER_PAGES - 3)
            }),
            ("no file that travels", |h| h.files[0].0 = "../core-501.img".to_owned()),
            ("no file that travels", |h| h.files[0].0 = "restore.log".to_owned()),
            ("no file that travels", |h| h.files.push(h.files[0].clone())),
        ];
        for (why, change) in cases {
            let mut header = good();
            change(&mut header);
            let error = check_header(&header, 1).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
