//! The rules, one file per part of a process. In order: the processes, their privileges, what they have open, and its
//! contents.

mod credentials;
mod descriptors;
mod files;
mod inventory;
mod memory;
mod open_flags;
mod pagemaps;
mod paths;
mod queues;
mod registers;
mod remaps;
mod seccomp;
mod sockets;
mod task;
mod thread;
mod tree;

pub use paths::shown_process;
pub use task::processor_clock;

use std::collections::BTreeSet;

use crate::Images;
use crate::error::VerifyError;
use crate::expected::{Expected, PageLocation};
use crate::kinds::{FILES_MAX, Kind};
use crate::messages::ObjectIds;
use crate::verified::{OpenedPath, Verified};

use self::files::OpenFiles;
use self::tree::Tree;

/// End of the user address space.
const USER_END: u64 = 0x7fff_ffff_f000;
const PAGE: u64 = 4096;
const SIGNAL_MAX: u32 = 64;
const PERMISSIONS: u32 = 0o777;
const KIND_OF_MODE: u32 = libc::S_IFMT;

/// What most rules need.
#[derive(Clone, Copy)]
struct Context<'a> {
    images: &'a Images<'a>,
    expected: &'a Expected,
    tree: &'a Tree<'a>,
    /// The ids of CRIU itself: the sandbox's namespaces.
    own: &'a ObjectIds,
}

impl Context<'_> {
    /// Whether the pages that CRIU restores are in separate files per process.
    fn has_eager_pages(&self) -> bool {
        let travelling = self.expected.travelling.as_ref();
        travelling.is_some_and(|travelling| travelling.pages == PageLocation::Eager)
    }
}

/// Whether `start..start + length` is in user space. Address 0 means that there is no range.
fn in_user_space(start: u64, length: u64) -> bool {
    start.checked_add(length).is_some_and(|end| end <= USER_END)
}

pub(crate) fn check(images: &Images<'_>, expected: &Expected) -> Result<Verified, VerifyError> {
    if images.len() > FILES_MAX {
        return Err(VerifyError::TooMuch {
            image: "directory".to_owned(),
            what: "files",
            limit: FILES_MAX as u64,
        });
    }
    let kinds = images.keys().map(|name| Ok((*name, Kind::of(name)?)));
    let kinds: Vec<_> = kinds.collect::<Result<_, VerifyError>>()?;
    let (inventory, own) = inventory::check(images)?;
    let tree = Tree::read(images, expected)?;
    let context = Context {
        images,
        expected,
        tree: &tree,
        own: &own,
    };
    let mut processes = task::check(context)?;
    let (ids, clocks) = inventory::check_ids(context)?;
    let filters = seccomp::check(context, &processes)?;
    let mut opened = BTreeSet::new();
    let files = OpenFiles::read(context, &mut opened)?;
    descriptors::check(context, &files, &ids, &mut processes, &mut opened)?;
    let locks = descriptors::check_locks(context, &processes)?;
    memory::check(context, &files, &mut processes, &mut opened)?;
    let (pipes, named_pipes) = queues::check_pipes(context, &files)?;
    let queues = queues::check_packets(context, &files, &mut opened)?;
    let shared = pagemaps::check(context, &files, &processes)?;
    let tables: BTreeSet<u32> = ids.values().map(|ids| ids.files_id).collect();
    let known = |kind: &Kind| match kind {
        Kind::Core(tid) => tree.tids.contains(tid) || tree.dead.contains(tid),
        Kind::Ids(pid) | Kind::Mm(pid) | Kind::Pagemap(pid) | Kind::Fs(pid) => tree.is_living(*pid),
        Kind::SharedPagemap(id) => shared.contains(id),
        Kind::Eager(pid) => context.has_eager_pages() && tree.is_living(*pid),
        Kind::Descriptors(id) => tables.contains(id),
        Kind::Ghost(id) => files.ghosts.contains_key(id),
        Kind::Time(id) => clocks.contains_key(id),
        _ => true,
    };
    // CRIU might still read an image that belongs to nothing.
    if let Some((name, _)) = kinds.iter().find(|(_, kind)| !known(kind)) {
        return Err(VerifyError::Kind((*name).to_owned()));
    }
    Ok(Verified {
        inventory,
        processes,
        files: files.entries,
        memory_files: files.memory_files,
        ghosts: files.ghosts,
        remaps: files.remaps,
        locks,
        clocks,
        filters,
        pipes,
        named_pipes,
        queues,
        opened,
    })
}

/// Records a path that CRIU opens.
fn note(opened: &mut BTreeSet<OpenedPath>, path: OpenedPath) {
    opened.insert(path);
}
