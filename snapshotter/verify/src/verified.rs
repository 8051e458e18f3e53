//! The verified contents of images.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::messages::{
    Core, Descriptor, FileEntry, FileLock, Fs, GhostFile, Inventory, MemFdInode, Mm, ObjectIds, Remap, SeccompFilter,
    TimeOffsets, TreeEntry,
};

/// Checked images.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// The directory's inventory.
    pub inventory: Inventory,
    /// The processes. Parents come before their children.
    pub processes: Vec<Process>,
    /// Open and mapped files, by id.
    pub files: BTreeMap<u32, FileEntry>,
    /// Memory files, by inode.
    pub memory_files: BTreeMap<u64, MemFdInode>,
    /// Unlinked files stored in the images, by number.
    pub ghosts: BTreeMap<u32, UnlinkedFile>,
    /// Files that had lost their name.
    pub remaps: Vec<Remap>,
    /// Locks of files.
    pub locks: Vec<FileLock>,
    /// Clocks, by the number of their image.
    pub clocks: BTreeMap<u32, TimeOffsets>,
    /// The threads' filters. A thread refers to its last one by index.
    pub filters: Vec<SeccompFilter>,
    /// What is in pipes, by their numbers.
    pub pipes: BTreeMap<u32, PipeContent>,
    /// What is in named pipes, likewise.
    pub named_pipes: BTreeMap<u32, PipeContent>,
    /// What was not read of unix sockets, by their ids.
    pub queues: BTreeMap<u32, Vec<Packet>>,
    pub(crate) opened: BTreeSet<OpenedPath>,
}

/// An unlinked file that is stored in the images.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnlinkedFile {
    /// What it is.
    pub file: GhostFile,
    /// Its size in bytes.
    pub size: u64,
    /// Its content: offsets and bytes, in order. `None` if it is larger than 64 KiB.
    pub content: Option<Vec<(u64, Vec<u8>)>>,
}

/// A process.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its entry in the tree.
    pub tree: TreeEntry,
    /// Ids of what it shares with others.
    pub ids: Option<ObjectIds>,
    /// Its threads, the first one first. A dead process has only a core.
    pub threads: Vec<Thread>,
    /// Its memory. `None` if it is dead.
    pub memory: Option<Mm>,
    /// Its directories. `None` if it is dead.
    pub directories: Option<Fs>,
    /// Its open files, by descriptor. Processes may share them.
    pub descriptors: Arc<BTreeMap<u32, Descriptor>>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Its state. In the first thread, also the process's state.
    pub core: Core,
}

/// What is in a pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipeContent {
    /// The pipe's room in bytes, if it is stated.
    pub room: Option<u32>,
    /// The bytes that were not read.
    pub bytes: Vec<u8>,
}

/// A packet in a unix socket, or bytes of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether it carries files.
    pub has_files: bool,
}

/// A path that CRIU opens or creates as root. The file there must be the one that the processes had.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenedPath {
    /// The path in the processes' view. It need not be UTF-8.
    pub path: Vec<u8>,
    /// Why CRIU opens it.
    pub purpose: Purpose,
    /// Flags of `open`, without those of the file kind.
    pub flags: u32,
    /// Its size in bytes, if the image states it.
    pub size: Option<u64>,
    /// Its kind and permissions, if the image states them.
    pub mode: Option<ImageMode>,
}

/// A file's mode in the kernel's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageMode(pub u32);

/// Why CRIU opens a path.
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
    /// A file that is created, and unlinked once it is open.
    Ghost,
    /// A name that a nameless file was given at the checkpoint. It is removed again.
    Link,
    /// A socket that is bound or connected.
    Socket,
}

impl Verified {
    /// The paths that CRIU opens or creates.
    pub fn opened_paths(&self) -> impl Iterator<Item = &OpenedPath> {
        self.opened.iter()
    }
}
