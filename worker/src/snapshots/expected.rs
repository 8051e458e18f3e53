//! What images may contain for a function: exactly what this worker gives a function.

use std::path::Path;
use std::sync::LazyLock;

use rekindle_criu::DUMP_LOG;
use rekindle_criu::descriptors::pipe_number;
use rekindle_init::seccomp;
use rekindle_init::spawn::{CORE_PATTERN, MEMLOCK, MESSAGE_QUEUES, crashes_go_to_a_file};
use rekindle_verify::{Expected, Limit, MigrationImages, PageLocation, RESOURCES};

use crate::snapshots::{FILES_ARCHIVE, NOTES_FILE, PipeNote};

/// Maximum number of open files of a function's processes.
pub(crate) const OPEN_FILES: u64 = 1024;
/// Process ids that CRIU may choose: above those of init, CRIU and their children.
pub(crate) const PIDS: std::ops::RangeInclusive<u32> = 300..=4_194_304;
/// The kernel's numbers of resource limits.
const CORE: usize = 4;
const NOFILE: usize = 7;
const MEMLOCK_LIMIT: usize = 8;
const MSGQUEUE: usize = 12;
const NICE: usize = 13;
const RTPRIO: usize = 14;

/// BLAKE3 hashes of the filters that a function may run under: this worker's filter and the filters of older snapshots.
static FILTERS: LazyLock<Vec<[u8; 32]>> = LazyLock::new(|| {
    let earlier = seccomp::EARLIER
        .iter()
        .filter_map(|hex| blake3::Hash::from_hex(hex).ok());
    let known = earlier.chain([blake3::hash(&seccomp::program())]);
    known.map(|hash| *hash.as_bytes()).collect()
});

/// Describes processes of the user `uid` whose outputs are `pipes`. `writes_root` says that the root filesystem is a
/// container image's.
#[must_use]
pub fn expected(uid: u32, pipes: &[PipeNote], writes_root: bool) -> Expected {
    let mut limits = [Limit::AtMost(u64::MAX); RESOURCES];
    limits[CORE] = core_limit();
    limits[NOFILE] = Limit::AtMost(OPEN_FILES);
    limits[MEMLOCK_LIMIT] = Limit::AtMost(MEMLOCK);
    limits[MSGQUEUE] = Limit::AtMost(MESSAGE_QUEUES);
    limits[NICE] = Limit::AtMost(0);
    limits[RTPRIO] = Limit::AtMost(0);
    Expected {
        uid,
        gid: uid,
        groups: Vec::new(),
        filters: FILTERS.clone(),
        limits,
        oom_score_adj_min: 0,
        pids: PIDS,
        writes_root,
        output_pipes: pipes.iter().filter_map(|note| pipe_number(&note.key)).collect(),
        other_files: [NOTES_FILE, FILES_ARCHIVE, DUMP_LOG].map(str::to_owned).to_vec(),
        travelling: None,
    }
}

/// Like `expected`, for an instance that migrates. `templates` are the names of its templates, and `pages` says where
/// its pages are.
pub(crate) fn expected_to_travel(
    uid: u32,
    pipes: &[PipeNote],
    writes_root: bool,
    templates: &[String],
    pages: PageLocation,
) -> Expected {
    let other_files = match pages {
        PageLocation::Dump => vec![FILES_ARCHIVE.to_owned(), DUMP_LOG.to_owned()],
        PageLocation::Eager => vec![FILES_ARCHIVE.to_owned()],
    };
    Expected {
        other_files,
        travelling: Some(MigrationImages {
            templates: templates.to_vec(),
            pages,
        }),
        ..expected(uid, pipes, writes_root)
    }
}

/// At limit 0 the kernel still starts a program for a crash; at 1 it does not. If the core pattern cannot be read, such
/// a program is assumed to exist.
fn core_limit() -> Limit {
    match crashes_go_to_a_file(Path::new(CORE_PATTERN)) {
        Ok(true) => Limit::AtMost(1),
        _ => Limit::Exactly(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_worker_s_filter_and_every_listed_one_are_known() {
        assert_eq!(FILTERS.len(), seccomp::EARLIER.len() + 1);
    }
}
