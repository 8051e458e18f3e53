//! The subset of CRIU's RPC messages that is used here. Field numbers are those of CRIU's `rpc.proto`.

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct InheritFdMessage {
    #[prost(string, required, tag = "1")]
    pub(super) key: String,
    #[prost(int32, required, tag = "2")]
    pub(super) fd: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Options {
    #[prost(int32, required, tag = "1", default = "-1")]
    pub(super) images_dir_fd: i32,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    #[prost(bool, optional, tag = "3")]
    pub(super) leave_running: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    pub(super) file_locks: Option<bool>,
    #[prost(int32, optional, tag = "9")]
    pub(super) log_level: Option<i32>,
    #[prost(string, optional, tag = "10")]
    pub(super) log_file: Option<String>,
    #[prost(bool, optional, tag = "12")]
    pub(super) notify_scripts: Option<bool>,
    #[prost(string, optional, tag = "14")]
    pub(super) parent_img: Option<String>,
    #[prost(bool, optional, tag = "15")]
    pub(super) track_mem: Option<bool>,
    #[prost(bool, optional, tag = "18")]
    pub(super) link_remap: Option<bool>,
    #[prost(message, repeated, tag = "27")]
    pub(super) inherit_fd: Vec<InheritFdMessage>,
    #[prost(int32, optional, tag = "34")]
    pub(super) manage_cgroups_mode: Option<i32>,
    #[prost(uint32, optional, tag = "35")]
    pub(super) ghost_limit: Option<u32>,
    #[prost(string, repeated, tag = "37")]
    pub(super) external: Vec<String>,
    #[prost(string, optional, tag = "44")]
    pub(super) freeze_cgroup: Option<String>,
    #[prost(uint32, optional, tag = "45")]
    pub(super) timeout: Option<u32>,
    #[prost(bool, optional, tag = "52")]
    pub(super) tcp_close: Option<bool>,
    #[prost(int32, optional, tag = "64")]
    pub(super) network_lock: Option<i32>,
    #[prost(bool, optional, tag = "67")]
    pub(super) unprivileged: Option<bool>,
    #[prost(string, optional, tag = "68")]
    pub(super) images_dir: Option<String>,
    #[prost(bool, optional, tag = "69")]
    pub(super) leave_stopped: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Empty = 0,
    Dump = 1,
    Restore = 2,
    Check = 3,
    Notify = 6,
    Version = 10,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Request {
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) options: Option<Options>,
    #[prost(bool, optional, tag = "3")]
    pub(super) notify_success: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub(super) keep_open: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RestoreResponse {
    #[prost(int32, required, tag = "1")]
    pub(super) pid: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NotifyResponse {
    #[prost(string, optional, tag = "1")]
    pub(super) script: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VersionResponse {
    #[prost(int32, required, tag = "1")]
    pub(super) major: i32,
    #[prost(int32, required, tag = "2")]
    pub(super) minor: i32,
    #[prost(int32, optional, tag = "4")]
    pub(super) sublevel: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Response {
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub(super) kind: i32,
    #[prost(bool, required, tag = "2")]
    pub(super) success: bool,
    #[prost(message, optional, tag = "4")]
    pub(super) restore: Option<RestoreResponse>,
    #[prost(message, optional, tag = "5")]
    pub(super) notify: Option<NotifyResponse>,
    #[prost(int32, optional, tag = "7")]
    pub(super) errno: Option<i32>,
    #[prost(string, optional, tag = "9")]
    pub(super) message: Option<String>,
    #[prost(message, optional, tag = "10")]
    pub(super) version: Option<VersionResponse>,
}

/// `IGNORE` of CRIU's cgroup modes: init's cgroup is inherited and none is dumped.
pub(super) const CGROUPS_IGNORE: i32 = 0;
/// `SKIP` of CRIU's network lock methods: only the worker's traffic arrives on a sandbox's loopback.
pub(super) const NETWORK_LOCK_SKIP: i32 = 3;
