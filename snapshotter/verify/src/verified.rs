//! What images say, once they are believed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::messages::{
    Core, Descriptor, FileEntry, FileLock, Fs, GhostFile, Inventory, MemFdInode, Mm, ObjectIds, Remap, TimeOffsets,
    TreeEntry,
};

/// Checked images.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// The directory's inventory.
    pub inventory: Inventory,
    /// The processes; parents come before their children.
    pub processes: Vec<Process>,
    /// Open and mapped files, by id.
    pub files: BTreeMap<u32, FileEntry>,
    /// Memory files, by inode.
    pub memory_files: BTreeMap<u64, MemFdInode>,
    /// Unlinked files that the images have, by number.
    pub ghosts: BTreeMap<u32, GhostFile>,
    /// Files that had lost their name.
    pub remaps: Vec<Remap>,
    /// Locks of files.
    pub locks: Vec<FileLock>,
    /// The clocks, by number of their image.
    pub clocks: BTreeMap<u32, TimeOffsets>,
    /// BLAKE3 of the filters that threads are under.
    pub filters: BTreeSet<[u8; 32]>,
    pub(crate) opened: BTreeSet<OpenedPath>,
}

/// A process.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its place in the tree.
    pub tree: TreeEntry,
    /// What it shares with others.
    pub ids: Option<ObjectIds>,
    /// Its threads, itself first. One that has ended and waits for its parent has no more than a core.
    pub threads: Vec<Thread>,
    /// Its memory; `None` if it has ended.
    pub memory: Option<Mm>,
    /// Its directories; `None` if it has ended.
    pub directories: Option<Fs>,
    /// Its open files, by number; processes may share them.
    pub descriptors: Arc<BTreeMap<u32, Descriptor>>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Its state, and of the first thread the process's.
    pub core: Core,
}

/// A path that CRIU opens, or makes, as root. What lies there must be what the processes had.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenedPath {
    /// The path, as the processes see it. It need not be UTF-8.
    pub path: Vec<u8>,
    /// What for.
    pub purpose: Purpose,
    /// Flags of `open`, without those of the kind of file.
    pub flags: u32,
    /// Its size, bytes, where the image says so.
    pub size: Option<u64>,
    /// Its kind and permissions, where the image says so.
    pub mode: Option<ImageMode>,
}

/// A file's mode in the kernel's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageMode(pub u32);

/// What CRIU opens a path for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A descriptor of a regular file.
    Regular,
    /// A descriptor of a directory.
    Directory,
    /// A descriptor of a named pipe.
    Fifo,
    /// A descriptor of a device.
    Device,
    /// A descriptor of a symbolic link or a socket, by `O_PATH`.
    Other,
    /// A process's working directory.
    WorkingDirectory,
    /// A process's root.
    Root,
    /// A process's program.
    Program,
    /// A mapping.
    Mapping,
    /// A watch.
    Watch,
    /// A file that is made, and unlinked once it is open.
    Ghost,
    /// A name that a file without one was given at the checkpoint, and that goes away.
    Link,
    /// A socket that is bound, or connected to.
    Socket,
}

impl Verified {
    /// The paths that CRIU opens or makes.
    pub fn opened_paths(&self) -> impl Iterator<Item = &OpenedPath> {
        self.opened.iter()
    }
}
