//! The images that list processes and their environment: `inventory.img`, `pstree.img`, `ids-PID.img`, `fs-PID.img`,
//! `seccomp.img` and `timens-N.img`.

use super::Message;

/// Plugins and the permission to restore uprobes are not declared.
#[derive(Clone, PartialEq, Message)]
pub struct Inventory {
    #[prost(uint32, required, tag = "1")]
    pub img_version: u32,
    #[prost(bool, optional, tag = "2")]
    pub fdinfo_per_id: Option<bool>,
    #[prost(message, optional, tag = "3")]
    pub root_ids: Option<ObjectIds>,
    #[prost(bool, optional, tag = "4")]
    pub ns_per_id: Option<bool>,
    #[prost(uint32, optional, tag = "5")]
    pub root_cg_set: Option<u32>,
    #[prost(uint32, optional, tag = "6")]
    pub lsmtype: Option<u32>,
    #[prost(uint64, optional, tag = "8")]
    pub dump_uptime: Option<u64>,
    #[prost(uint32, optional, tag = "9")]
    pub pre_dump_mode: Option<u32>,
    #[prost(bool, optional, tag = "10")]
    pub tcp_close: Option<bool>,
    #[prost(uint32, optional, tag = "11")]
    pub network_lock_method: Option<u32>,
    #[prost(message, optional, tag = "12")]
    pub plugins_entry: Option<NoPlugins>,
    #[prost(bytes = "vec", optional, tag = "13")]
    pub dump_criu_run_id: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "14")]
    pub allow_uprobes: Option<bool>,
}

/// An empty list: a plugin's name is an unknown field.
#[derive(Clone, PartialEq, Message)]
pub struct NoPlugins {}

#[derive(Clone, PartialEq, Message)]
pub struct ObjectIds {
    #[prost(uint32, required, tag = "1")]
    pub vm_id: u32,
    #[prost(uint32, required, tag = "2")]
    pub files_id: u32,
    #[prost(uint32, required, tag = "3")]
    pub fs_id: u32,
    #[prost(uint32, required, tag = "4")]
    pub sighand_id: u32,
    #[prost(uint32, optional, tag = "5")]
    pub pid_ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "6")]
    pub net_ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "7")]
    pub ipc_ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "8")]
    pub uts_ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "9")]
    pub mnt_ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "10")]
    pub user_ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "11")]
    pub cgroup_ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "12")]
    pub time_ns_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TreeEntry {
    #[prost(uint32, required, tag = "1")]
    pub pid: u32,
    #[prost(uint32, required, tag = "2")]
    pub ppid: u32,
    #[prost(uint32, required, tag = "3")]
    pub pgid: u32,
    #[prost(uint32, required, tag = "4")]
    pub sid: u32,
    #[prost(uint32, repeated, packed = "false", tag = "5")]
    pub threads: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Fs {
    #[prost(uint32, required, tag = "1")]
    pub cwd_id: u32,
    #[prost(uint32, required, tag = "2")]
    pub root_id: u32,
    #[prost(uint32, optional, tag = "3")]
    pub umask: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Seccomp {
    #[prost(message, repeated, tag = "1")]
    pub seccomp_filters: Vec<SeccompFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SeccompFilter {
    #[prost(bytes = "vec", required, tag = "1")]
    pub filter: Vec<u8>,
    #[prost(uint32, optional, tag = "2")]
    pub prev: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub flags: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TimeOffsets {
    #[prost(message, required, tag = "1")]
    pub monotonic: TimeSpec,
    #[prost(message, required, tag = "2")]
    pub boottime: TimeSpec,
}

#[derive(Clone, PartialEq, Message)]
pub struct TimeSpec {
    #[prost(uint64, required, tag = "1")]
    pub tv_sec: u64,
    #[prost(uint64, required, tag = "2")]
    pub tv_nsec: u64,
}
