//! `files.img` and related images. Terminals, namespaces, tunnels, packet sockets, fanotify, maps of BPF programs and
//! external files are not declared.

use super::{Message, Owner, sockets};

#[derive(Clone, PartialEq, Message)]
pub struct FileEntry {
    #[prost(uint32, required, tag = "1")]
    pub kind: u32,
    #[prost(uint32, required, tag = "2")]
    pub id: u32,
    #[prost(message, optional, tag = "3")]
    pub reg: Option<RegularFile>,
    #[prost(message, optional, boxed, tag = "4")]
    pub isk: Option<Box<sockets::InetSocket>>,
    #[prost(message, optional, boxed, tag = "7")]
    pub nlsk: Option<Box<sockets::NetlinkSocket>>,
    #[prost(message, optional, tag = "8")]
    pub efd: Option<EventFd>,
    #[prost(message, optional, tag = "9")]
    pub epfd: Option<EventPoll>,
    #[prost(message, optional, tag = "10")]
    pub sgfd: Option<SignalFd>,
    #[prost(message, optional, tag = "12")]
    pub tfd: Option<TimerFd>,
    #[prost(message, optional, tag = "13")]
    pub ify: Option<Inotify>,
    #[prost(message, optional, boxed, tag = "16")]
    pub usk: Option<Box<sockets::UnixSocket>>,
    #[prost(message, optional, tag = "17")]
    pub fifo: Option<Fifo>,
    #[prost(message, optional, tag = "18")]
    pub pipe: Option<Pipe>,
    #[prost(message, optional, tag = "20")]
    pub memfd: Option<MemFd>,
    #[prost(message, optional, tag = "22")]
    pub pidfd: Option<PidFd>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RegularFile {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(uint64, required, tag = "3")]
    pub pos: u64,
    #[prost(message, required, tag = "5")]
    pub fown: Owner,
    #[prost(bytes = "vec", required, tag = "6")]
    pub name: Vec<u8>,
    #[prost(sint32, optional, tag = "7")]
    pub mnt_id: Option<i32>,
    #[prost(uint64, optional, tag = "8")]
    pub size: Option<u64>,
    #[prost(bool, optional, tag = "9")]
    pub ext: Option<bool>,
    #[prost(uint32, optional, tag = "10")]
    pub mode: Option<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub build_id: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Pipe {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub pipe_id: u32,
    #[prost(uint32, required, tag = "3")]
    pub flags: u32,
    #[prost(message, required, tag = "4")]
    pub fown: Owner,
}

#[derive(Clone, PartialEq, Message)]
pub struct Fifo {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub pipe_id: u32,
    #[prost(uint32, optional, tag = "3")]
    pub regf_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PipeData {
    #[prost(uint32, required, tag = "1")]
    pub pipe_id: u32,
    #[prost(uint32, required, tag = "2")]
    pub bytes: u32,
    #[prost(uint32, optional, tag = "3")]
    pub size: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EventFd {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(message, required, tag = "3")]
    pub fown: Owner,
    #[prost(uint64, required, tag = "4")]
    pub counter: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct EventPoll {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(message, required, tag = "3")]
    pub fown: Owner,
    #[prost(message, repeated, tag = "4")]
    pub tfd: Vec<EventPollTarget>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EventPollTarget {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub tfd: u32,
    #[prost(uint32, required, tag = "3")]
    pub events: u32,
    #[prost(uint64, required, tag = "4")]
    pub data: u64,
    #[prost(uint32, optional, tag = "5")]
    pub dev: Option<u32>,
    #[prost(uint64, optional, tag = "6")]
    pub inode: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub pos: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignalFd {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(message, required, tag = "3")]
    pub fown: Owner,
    #[prost(uint64, required, tag = "4")]
    pub sigmask: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct TimerFd {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(message, required, tag = "3")]
    pub fown: Owner,
    #[prost(uint32, required, tag = "4")]
    pub clockid: u32,
    #[prost(uint64, required, tag = "5")]
    pub ticks: u64,
    #[prost(uint32, required, tag = "6")]
    pub settime_flags: u32,
    #[prost(uint64, required, tag = "7")]
    pub vsec: u64,
    #[prost(uint64, required, tag = "8")]
    pub vnsec: u64,
    #[prost(uint64, required, tag = "9")]
    pub isec: u64,
    #[prost(uint64, required, tag = "10")]
    pub insec: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Inotify {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(message, required, tag = "4")]
    pub fown: Owner,
    #[prost(message, repeated, tag = "5")]
    pub wd: Vec<Watch>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Watch {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint64, required, tag = "2")]
    pub i_ino: u64,
    #[prost(uint32, required, tag = "3")]
    pub mask: u32,
    #[prost(uint32, required, tag = "4")]
    pub ignored_mask: u32,
    #[prost(uint32, required, tag = "5")]
    pub s_dev: u32,
    #[prost(uint32, required, tag = "6")]
    pub wd: u32,
    #[prost(message, required, tag = "7")]
    pub f_handle: FileHandle,
}

#[derive(Clone, PartialEq, Message)]
pub struct FileHandle {
    #[prost(uint32, required, tag = "1")]
    pub bytes: u32,
    #[prost(uint32, required, tag = "2")]
    pub kind: u32,
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub handle: Vec<u64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub path: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "5")]
    pub mnt_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MemFd {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(uint64, required, tag = "3")]
    pub pos: u64,
    #[prost(message, required, tag = "4")]
    pub fown: Owner,
    #[prost(uint32, required, tag = "5")]
    pub inode_id: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct MemFdInode {
    #[prost(bytes = "vec", required, tag = "1")]
    pub name: Vec<u8>,
    #[prost(uint32, required, tag = "2")]
    pub uid: u32,
    #[prost(uint32, required, tag = "3")]
    pub gid: u32,
    #[prost(uint64, required, tag = "4")]
    pub size: u64,
    #[prost(uint32, required, tag = "5")]
    pub shmid: u32,
    #[prost(uint32, required, tag = "6")]
    pub seals: u32,
    #[prost(uint64, required, tag = "7")]
    pub inode_id: u64,
    #[prost(uint32, optional, tag = "8")]
    pub hugetlb_flag: Option<u32>,
    #[prost(uint32, optional, tag = "9")]
    pub mode: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PidFd {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub ino: u32,
    #[prost(uint32, required, tag = "3")]
    pub flags: u32,
    #[prost(int32, required, tag = "4")]
    pub nspid: i32,
    #[prost(message, required, tag = "5")]
    pub fown: Owner,
}

#[derive(Clone, PartialEq, Message)]
pub struct GhostFile {
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    #[prost(uint32, required, tag = "2")]
    pub gid: u32,
    #[prost(uint32, required, tag = "3")]
    pub mode: u32,
    #[prost(uint32, optional, tag = "4")]
    pub dev: Option<u32>,
    #[prost(uint64, optional, tag = "5")]
    pub ino: Option<u64>,
    #[prost(uint32, optional, tag = "6")]
    pub rdev: Option<u32>,
    #[prost(message, optional, tag = "7")]
    pub atim: Option<TimeVal>,
    #[prost(message, optional, tag = "8")]
    pub mtim: Option<TimeVal>,
    #[prost(bool, optional, tag = "9")]
    pub chunks: Option<bool>,
    #[prost(uint64, optional, tag = "10")]
    pub size: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TimeVal {
    #[prost(uint64, required, tag = "1")]
    pub tv_sec: u64,
    #[prost(uint64, required, tag = "2")]
    pub tv_usec: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct GhostChunk {
    #[prost(uint64, required, tag = "1")]
    pub len: u64,
    #[prost(uint64, required, tag = "2")]
    pub off: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Remap {
    #[prost(uint32, required, tag = "1")]
    pub orig_id: u32,
    #[prost(uint32, required, tag = "2")]
    pub remap_id: u32,
    #[prost(uint32, optional, tag = "3")]
    pub remap_type: Option<u32>,
}

impl Remap {
    /// The type of a file that CRIU gave another name at the checkpoint.
    pub const LINKED: u32 = 0;
    /// The type of a file that is in the images.
    pub const GHOST: u32 = 1;

    /// The file with the name that CRIU gave, by its id.
    pub fn link(&self) -> Option<u32> {
        (self.remap_type == Some(Self::LINKED)).then_some(self.remap_id)
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct FileLock {
    #[prost(uint32, required, tag = "1")]
    pub flag: u32,
    #[prost(uint32, required, tag = "2")]
    pub kind: u32,
    #[prost(int32, required, tag = "3")]
    pub pid: i32,
    #[prost(int32, required, tag = "4")]
    pub fd: i32,
    #[prost(int64, required, tag = "5")]
    pub start: i64,
    #[prost(int64, required, tag = "6")]
    pub len: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Descriptor {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    #[prost(uint32, required, tag = "3")]
    pub kind: u32,
    #[prost(uint32, required, tag = "4")]
    pub fd: u32,
}
