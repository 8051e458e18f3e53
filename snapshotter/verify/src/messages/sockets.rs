//! Sockets in `files.img`, and `sk-queues.img`.

use super::{Message, Owner};

#[derive(Clone, PartialEq, Message)]
pub struct SocketOptions {
    #[prost(uint32, required, tag = "1")]
    pub so_sndbuf: u32,
    #[prost(uint32, required, tag = "2")]
    pub so_rcvbuf: u32,
    #[prost(uint64, required, tag = "3")]
    pub so_snd_tmo_sec: u64,
    #[prost(uint64, required, tag = "4")]
    pub so_snd_tmo_usec: u64,
    #[prost(uint64, required, tag = "5")]
    pub so_rcv_tmo_sec: u64,
    #[prost(uint64, required, tag = "6")]
    pub so_rcv_tmo_usec: u64,
    #[prost(bool, optional, tag = "7")]
    pub reuseaddr: Option<bool>,
    #[prost(uint32, optional, tag = "8")]
    pub so_priority: Option<u32>,
    #[prost(uint32, optional, tag = "9")]
    pub so_rcvlowat: Option<u32>,
    #[prost(uint32, optional, tag = "10")]
    pub so_mark: Option<u32>,
    #[prost(bool, optional, tag = "11")]
    pub so_passcred: Option<bool>,
    #[prost(bool, optional, tag = "12")]
    pub so_passsec: Option<bool>,
    #[prost(bool, optional, tag = "13")]
    pub so_dontroute: Option<bool>,
    #[prost(bool, optional, tag = "14")]
    pub so_no_check: Option<bool>,
    #[prost(bytes = "vec", optional, tag = "15")]
    pub so_bound_dev: Option<Vec<u8>>,
    #[prost(fixed64, repeated, packed = "false", tag = "16")]
    pub so_filter: Vec<u64>,
    #[prost(bool, optional, tag = "17")]
    pub so_reuseport: Option<bool>,
    #[prost(bool, optional, tag = "18")]
    pub so_broadcast: Option<bool>,
    #[prost(bool, optional, tag = "19")]
    pub so_keepalive: Option<bool>,
    #[prost(uint32, optional, tag = "20")]
    pub tcp_keepcnt: Option<u32>,
    #[prost(uint32, optional, tag = "21")]
    pub tcp_keepidle: Option<u32>,
    #[prost(uint32, optional, tag = "22")]
    pub tcp_keepintvl: Option<u32>,
    #[prost(uint32, optional, tag = "23")]
    pub so_oobinline: Option<u32>,
    #[prost(uint32, optional, tag = "24")]
    pub so_linger: Option<u32>,
    #[prost(uint32, optional, tag = "25")]
    pub so_buf_lock: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnixSocket {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub ino: u32,
    #[prost(uint32, required, tag = "3")]
    pub kind: u32,
    #[prost(uint32, required, tag = "4")]
    pub state: u32,
    #[prost(uint32, required, tag = "5")]
    pub flags: u32,
    #[prost(uint32, required, tag = "6")]
    pub uflags: u32,
    #[prost(uint32, required, tag = "7")]
    pub backlog: u32,
    #[prost(uint32, required, tag = "8")]
    pub peer: u32,
    #[prost(message, required, tag = "9")]
    pub fown: Owner,
    #[prost(message, required, tag = "10")]
    pub opts: SocketOptions,
    #[prost(bytes = "vec", required, tag = "11")]
    pub name: Vec<u8>,
    #[prost(uint32, optional, tag = "12")]
    pub shutdown: Option<u32>,
    #[prost(message, optional, tag = "13")]
    pub file_perms: Option<FilePermissions>,
    #[prost(bytes = "vec", optional, tag = "14")]
    pub name_dir: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "15")]
    pub deleted: Option<bool>,
    #[prost(uint32, optional, tag = "16")]
    pub ns_id: Option<u32>,
    #[prost(sint32, optional, tag = "17")]
    pub mnt_id: Option<i32>,
}

impl UnixSocket {
    /// The path of the file that it is bound to, from the root on. A relative name begins at the directory where it was
    /// bound.
    pub fn path(&self) -> Vec<u8> {
        let name = self.name.strip_suffix(&[0]).unwrap_or(&self.name);
        let Some(directory) = &self.name_dir else {
            return name.to_vec();
        };
        let parts = name.split(|c| *c == b'/').filter(|part| !matches!(*part, b"" | b"."));
        let directory = directory.strip_suffix(b"/").unwrap_or(directory);
        std::iter::once(directory).chain(parts).collect::<Vec<_>>().join(&b'/')
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct FilePermissions {
    #[prost(uint32, required, tag = "1")]
    pub mode: u32,
    #[prost(uint32, required, tag = "2")]
    pub uid: u32,
    #[prost(uint32, required, tag = "3")]
    pub gid: u32,
}

/// Sockets bound to an interface, as with a link-local address, are rejected: `ifname` is not declared.
#[derive(Clone, PartialEq, Message)]
pub struct InetSocket {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub ino: u32,
    #[prost(uint32, required, tag = "3")]
    pub family: u32,
    #[prost(uint32, required, tag = "4")]
    pub kind: u32,
    #[prost(uint32, required, tag = "5")]
    pub proto: u32,
    #[prost(uint32, required, tag = "6")]
    pub state: u32,
    #[prost(uint32, required, tag = "7")]
    pub src_port: u32,
    #[prost(uint32, required, tag = "8")]
    pub dst_port: u32,
    #[prost(uint32, required, tag = "9")]
    pub flags: u32,
    #[prost(uint32, required, tag = "10")]
    pub backlog: u32,
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub src_addr: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "12")]
    pub dst_addr: Vec<u32>,
    #[prost(message, required, tag = "13")]
    pub fown: Owner,
    #[prost(message, required, tag = "14")]
    pub opts: SocketOptions,
    #[prost(bool, optional, tag = "15")]
    pub v6only: Option<bool>,
    #[prost(message, optional, tag = "16")]
    pub ip_opts: Option<IpOptions>,
    #[prost(uint32, optional, tag = "18")]
    pub ns_id: Option<u32>,
    #[prost(uint32, optional, tag = "19")]
    pub shutdown: Option<u32>,
    #[prost(message, optional, tag = "20")]
    pub tcp_opts: Option<TcpOptions>,
}

/// Raw sockets are rejected: `raw` is not declared.
#[derive(Clone, PartialEq, Message)]
pub struct IpOptions {
    #[prost(bool, optional, tag = "1")]
    pub freebind: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub pktinfo: Option<bool>,
    #[prost(uint32, optional, tag = "6")]
    pub tos: Option<u32>,
    #[prost(uint32, optional, tag = "7")]
    pub ttl: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TcpOptions {
    #[prost(bool, optional, tag = "1")]
    pub cork: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    pub nodelay: Option<bool>,
    #[prost(uint32, optional, tag = "3")]
    pub keepcnt: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub keepidle: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub keepintvl: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NetlinkSocket {
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    #[prost(uint32, required, tag = "2")]
    pub ino: u32,
    #[prost(uint32, required, tag = "3")]
    pub protocol: u32,
    #[prost(uint32, required, tag = "4")]
    pub state: u32,
    #[prost(uint32, required, tag = "6")]
    pub flags: u32,
    #[prost(uint32, required, tag = "7")]
    pub portid: u32,
    #[prost(uint32, repeated, packed = "false", tag = "8")]
    pub groups: Vec<u32>,
    #[prost(uint32, required, tag = "9")]
    pub dst_portid: u32,
    #[prost(uint32, required, tag = "10")]
    pub dst_group: u32,
    #[prost(message, required, tag = "11")]
    pub fown: Owner,
    #[prost(message, required, tag = "12")]
    pub opts: SocketOptions,
    #[prost(uint32, optional, tag = "13")]
    pub ns_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct QueuedPacket {
    #[prost(uint32, required, tag = "1")]
    pub id_for: u32,
    #[prost(uint32, required, tag = "2")]
    pub length: u32,
    #[prost(message, repeated, tag = "4")]
    pub scm: Vec<ControlData>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ControlData {
    #[prost(uint32, required, tag = "1")]
    pub kind: u32,
    #[prost(uint32, repeated, packed = "false", tag = "2")]
    pub rights: Vec<u32>,
}
