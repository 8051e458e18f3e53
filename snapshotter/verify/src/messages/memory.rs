//! `mm-PID.img` and pagemaps.

use super::Message;

/// Rings for asynchronous I/O are not declared.
#[derive(Clone, PartialEq, Message)]
pub struct Mm {
    #[prost(uint64, required, tag = "1")]
    pub mm_start_code: u64,
    #[prost(uint64, required, tag = "2")]
    pub mm_end_code: u64,
    #[prost(uint64, required, tag = "3")]
    pub mm_start_data: u64,
    #[prost(uint64, required, tag = "4")]
    pub mm_end_data: u64,
    #[prost(uint64, required, tag = "5")]
    pub mm_start_stack: u64,
    #[prost(uint64, required, tag = "6")]
    pub mm_start_brk: u64,
    #[prost(uint64, required, tag = "7")]
    pub mm_brk: u64,
    #[prost(uint64, required, tag = "8")]
    pub mm_arg_start: u64,
    #[prost(uint64, required, tag = "9")]
    pub mm_arg_end: u64,
    #[prost(uint64, required, tag = "10")]
    pub mm_env_start: u64,
    #[prost(uint64, required, tag = "11")]
    pub mm_env_end: u64,
    #[prost(uint32, required, tag = "12")]
    pub exe_file_id: u32,
    #[prost(uint64, repeated, packed = "false", tag = "13")]
    pub mm_saved_auxv: Vec<u64>,
    #[prost(message, repeated, tag = "14")]
    pub vmas: Vec<Vma>,
    #[prost(int32, optional, tag = "15")]
    pub dumpable: Option<i32>,
    #[prost(bool, optional, tag = "17")]
    pub thp_disabled: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Vma {
    #[prost(uint64, required, tag = "1")]
    pub start: u64,
    #[prost(uint64, required, tag = "2")]
    pub end: u64,
    #[prost(uint64, required, tag = "3")]
    pub pgoff: u64,
    #[prost(uint64, required, tag = "4")]
    pub shmid: u64,
    #[prost(uint32, required, tag = "5")]
    pub prot: u32,
    #[prost(uint32, required, tag = "6")]
    pub flags: u32,
    #[prost(uint32, required, tag = "7")]
    pub status: u32,
    #[prost(sint64, required, tag = "8")]
    pub fd: i64,
    #[prost(uint64, optional, tag = "9")]
    pub madv: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub fdflags: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PagemapHead {
    #[prost(uint32, required, tag = "1")]
    pub pages_id: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct PagemapRun {
    #[prost(uint64, required, tag = "1")]
    pub vaddr: u64,
    #[prost(uint32, required, tag = "2")]
    pub compat_nr_pages: u32,
    #[prost(bool, optional, tag = "3")]
    pub in_parent: Option<bool>,
    #[prost(uint32, optional, tag = "4")]
    pub flags: Option<u32>,
    #[prost(uint64, optional, tag = "5")]
    pub nr_pages: Option<u64>,
}
