//! Sockets. CRIU creates them as root, and sets options that only root may set.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, KIND_OF_MODE, PERMISSIONS, note, paths};
use crate::error::{EntryLocation, VerifyError};
use crate::messages::{FileEntry, FilePermissions, InetSocket, IpOptions, NetlinkSocket, SocketOptions, UnixSocket};
use crate::verified::{OpenedPath, Purpose};

use super::open_flags;

const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
const SEQPACKET: u32 = 5;
const INET: u32 = 2;
const INET6: u32 = 10;
const TCP: u32 = 6;
const UDP: u32 = 17;
const UDP_LITE: u32 = 136;
/// The kernel's TCP states, which it also uses for other sockets.
const ESTABLISHED: u32 = 1;
const CLOSED: u32 = 7;
const LISTENING: u32 = 10;
const STATES: std::ops::RangeInclusive<u32> = 1..=12;
const PORT_MAX: u32 = 65_535;
const BACKLOG_MAX: u32 = 65_535;
/// Maximum length of a unix socket's address in bytes.
const NAME_MAX: usize = 108;
/// Maximum size of a buffer in bytes, because CRIU ignores the limits that apply to others. The kernel grows TCP
/// buffers by itself.
const BUFFER_MAX: u32 = 64 << 20;
/// Highest priority without a capability.
const PRIORITY_MAX: u32 = 6;
/// Maximum number of instructions in a socket's filter.
const FILTER_MAX: usize = 4096;
/// One second in microseconds.
const SECOND: u64 = 1_000_000;
const SHUTDOWN_MAX: u32 = 3;
const NETLINK_ROUTE: u32 = 0;
/// Other protocols, without groups: socket diagnostics, device events, generic.
const NETLINK_PROTOCOLS: [u32; 3] = [4, 15, 16];
const NETLINK_GROUP_WORDS: usize = 4;

fn check_options(at: EntryLocation<'_>, options: &SocketOptions) -> Result<(), VerifyError> {
    let SocketOptions {
        so_sndbuf,
        so_rcvbuf,
        so_snd_tmo_sec,
        so_snd_tmo_usec,
        so_rcv_tmo_sec,
        so_rcv_tmo_usec,
        reuseaddr: _,
        so_priority,
        so_rcvlowat,
        so_mark,
        so_passcred: _,
        so_passsec,
        so_dontroute: _,
        so_no_check: _,
        so_bound_dev,
        so_filter,
        so_reuseport: _,
        so_broadcast: _,
        so_keepalive: _,
        tcp_keepcnt,
        tcp_keepidle,
        tcp_keepintvl,
        so_oobinline,
        so_linger,
        so_buf_lock,
    } = options;
    at.hold(*so_sndbuf <= BUFFER_MAX, "opts.so_sndbuf", so_sndbuf)?;
    at.hold(*so_rcvbuf <= BUFFER_MAX, "opts.so_rcvbuf", so_rcvbuf)?;
    at.hold(
        so_snd_tmo_sec.max(so_rcv_tmo_sec) <= &i64::MAX.cast_unsigned(),
        "opts.so_snd_tmo_sec",
        so_snd_tmo_sec,
    )?;
    at.hold(*so_snd_tmo_usec < SECOND, "opts.so_snd_tmo_usec", so_snd_tmo_usec)?;
    at.hold(*so_rcv_tmo_usec < SECOND, "opts.so_rcv_tmo_usec", so_rcv_tmo_usec)?;
    at.hold(
        so_priority.unwrap_or(0) <= PRIORITY_MAX,
        "opts.so_priority",
        so_priority,
    )?;
    let lowat = so_rcvlowat.unwrap_or(0);
    at.hold(i32::try_from(lowat).is_ok(), "opts.so_rcvlowat", lowat)?;
    at.hold(so_mark.unwrap_or(0) == 0, "opts.so_mark", so_mark)?;
    at.hold(!so_passsec.unwrap_or(false), "opts.so_passsec", so_passsec)?;
    at.hold(so_bound_dev.is_none(), "opts.so_bound_dev", so_bound_dev)?;
    at.hold(so_filter.len() <= FILTER_MAX, "opts.so_filter", so_filter.len())?;
    for (field, old) in [
        ("opts.tcp_keepcnt", tcp_keepcnt),
        ("opts.tcp_keepidle", tcp_keepidle),
        ("opts.tcp_keepintvl", tcp_keepintvl),
    ] {
        at.hold(old.is_none(), field, old)?;
    }
    at.hold(so_oobinline.unwrap_or(0) <= 1, "opts.so_oobinline", so_oobinline)?;
    let linger = so_linger.unwrap_or(0);
    at.hold(i32::try_from(linger).is_ok(), "opts.so_linger", linger)?;
    at.hold(so_buf_lock.unwrap_or(0) <= 3, "opts.so_buf_lock", so_buf_lock)
}

/// A socket must be in the sandbox's network.
fn check_network(context: Context<'_>, at: EntryLocation<'_>, network: Option<u32>) -> Result<(), VerifyError> {
    let own = network.is_none() || network == context.own.net_ns_id;
    at.hold(own, "ns_id", network)
}

/// The inodes of unix sockets, by which they refer to each other.
pub(super) fn unix_inodes(entries: &BTreeMap<u32, FileEntry>) -> BTreeSet<u32> {
    entries
        .values()
        .filter_map(|entry| Some(entry.usk.as_ref()?.ino))
        .collect()
}

pub(super) fn check_unix(
    context: Context<'_>,
    at: EntryLocation<'_>,
    socket: &UnixSocket,
    inodes: &BTreeSet<u32>,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(), VerifyError> {
    let UnixSocket {
        id: _,
        ino,
        kind,
        state,
        flags,
        uflags,
        backlog,
        peer,
        fown: _,
        opts,
        name,
        shutdown,
        file_perms,
        name_dir,
        deleted,
        ns_id,
        mnt_id,
    } = socket;
    at.hold(*ino != 0, "usk.ino", ino)?;
    at.hold(matches!(*kind, STREAM | DATAGRAM | SEQPACKET), "usk.type", kind)?;
    at.hold(matches!(*state, ESTABLISHED | CLOSED | LISTENING), "usk.state", state)?;
    at.hold(open_flags::may_be(*flags), "usk.flags", flags)?;
    // Set for sockets whose other end is not among the processes.
    at.hold(*uflags == 0, "usk.uflags", uflags)?;
    at.hold(*peer == 0 || inodes.contains(peer), "usk.peer", peer)?;
    // For all but listening sockets, CRIU records the queued bytes in this field.
    let limit = if *state == LISTENING { BACKLOG_MAX } else { BUFFER_MAX };
    at.hold(*backlog <= limit, "usk.backlog", backlog)?;
    at.hold(shutdown.unwrap_or(0) <= SHUTDOWN_MAX, "usk.shutdown", shutdown)?;
    check_options(at, opts)?;
    at.hold(mnt_id.is_none(), "usk.mnt_id", mnt_id)?;
    check_network(context, at, *ns_id)?;
    at.hold(name.len() <= NAME_MAX, "usk.name", name.len())?;
    let is_path = name.first().is_some_and(|first| *first != 0);
    if !is_path {
        at.hold(name_dir.is_none(), "usk.name_dir", name_dir)?;
        at.hold(deleted.is_none(), "usk.deleted", deleted)?;
        return at.hold(file_perms.is_none(), "usk.file_perms", file_perms);
    }
    let path = socket.path();
    let is_below = paths::is_below_writable(&path, context.expected.writes_root);
    // Where CRIU restores, it binds by the whole path: as root, it must change to no directory of the function's.
    let is_relative = name_dir.is_some() && name.first() != Some(&b'/');
    if is_relative && !(is_below && path.len() < NAME_MAX) {
        return Err(at.refuse_relative(name));
    }
    at.hold(is_relative || name_dir.is_none(), "usk.name_dir", name_dir)?;
    at.hold(is_below, "usk.name", String::from_utf8_lossy(name))?;
    if let Some(FilePermissions { mode, uid, gid }) = file_perms {
        let plain = mode & !PERMISSIONS == libc::S_IFSOCK && mode & KIND_OF_MODE == libc::S_IFSOCK;
        at.hold(
            plain || (*mode == 0 && deleted == &Some(true)),
            "usk.file_perms.mode",
            mode,
        )?;
        let expected = context.expected;
        let own = (*uid == expected.uid && *gid == expected.gid) || (*mode == 0 && *uid == 0 && *gid == 0);
        at.hold(own, "usk.file_perms.uid", (uid, gid))?;
    }
    note(opened, OpenedPath::plain(path, Purpose::Socket));
    Ok(())
}

pub(super) fn check_inet(context: Context<'_>, at: EntryLocation<'_>, socket: &InetSocket) -> Result<u32, VerifyError> {
    let InetSocket {
        id: _,
        ino: _,
        family,
        kind,
        proto,
        state,
        src_port,
        dst_port,
        flags,
        backlog,
        src_addr,
        dst_addr,
        fown: _,
        opts,
        v6only,
        ip_opts,
        ns_id,
        shutdown,
        tcp_opts: _,
    } = socket;
    let words = match *family {
        INET => 1,
        INET6 => 4,
        _ => return Err(at.refuse("isk.family", family)),
    };
    at.hold(*family == INET6 || v6only.is_none(), "isk.v6only", v6only)?;
    let known = matches!((*kind, *proto), (STREAM, TCP) | (DATAGRAM, UDP | UDP_LITE));
    at.hold(known, "isk.proto", (kind, proto))?;
    let listens = *state == LISTENING && *proto == TCP;
    at.hold(
        STATES.contains(state) && (*state != LISTENING || listens),
        "isk.state",
        state,
    )?;
    at.hold(*src_port <= PORT_MAX, "isk.src_port", src_port)?;
    at.hold(*dst_port <= PORT_MAX, "isk.dst_port", dst_port)?;
    let limit = if *state == LISTENING { BACKLOG_MAX } else { BUFFER_MAX };
    at.hold(*backlog <= limit, "isk.backlog", backlog)?;
    at.hold(src_addr.len() == words, "isk.src_addr", src_addr)?;
    at.hold(dst_addr.len() == words, "isk.dst_addr", dst_addr)?;
    check_options(at, opts)?;
    if let Some(IpOptions { tos, ttl, .. }) = ip_opts {
        at.hold(tos.unwrap_or(0) <= 255, "isk.ip_opts.tos", tos)?;
        at.hold(ttl.unwrap_or(0) <= 255, "isk.ip_opts.ttl", ttl)?;
    }
    check_network(context, at, *ns_id)?;
    at.hold(shutdown.unwrap_or(0) <= SHUTDOWN_MAX, "isk.shutdown", shutdown)?;
    Ok(*flags)
}

/// The permissions of a netlink socket depend on its user, not on its creator, except for the groups that it listens
/// to.
pub(super) fn check_netlink(
    context: Context<'_>,
    at: EntryLocation<'_>,
    socket: &NetlinkSocket,
) -> Result<u32, VerifyError> {
    let NetlinkSocket {
        id: _,
        ino: _,
        protocol,
        state,
        flags,
        portid: _,
        groups,
        dst_portid: _,
        dst_group,
        fown: _,
        opts,
        ns_id,
    } = socket;
    let hears = groups.iter().any(|word| *word != 0) || *dst_group != 0;
    let known = *protocol == NETLINK_ROUTE || (NETLINK_PROTOCOLS.contains(protocol) && !hears);
    at.hold(known, "nlsk.protocol", protocol)?;
    at.hold(groups.len() <= NETLINK_GROUP_WORDS, "nlsk.groups", groups)?;
    at.hold(matches!(*state, ESTABLISHED | CLOSED), "nlsk.state", state)?;
    check_options(at, opts)?;
    check_network(context, at, *ns_id)?;
    Ok(*flags)
}
