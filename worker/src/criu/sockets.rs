//! Gives the sockets of a restored function to its user. CRIU makes them as root of the user namespace. A second socket
//! may have the port of another (`SO_REUSEPORT`) only if both belong to the same user.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use rustix::fs::{fchown, fstat};
use rustix::process::{Gid, Pid, PidfdFlags, PidfdGetfdFlags, Uid, pidfd_getfd, pidfd_open};

use crate::host::cgroup::Cgroup;

/// Does so for all processes of a control group. What fails leaves a socket as it is.
pub(super) fn give_to_users(cgroup: &Cgroup) {
    for pid in cgroup.pids().unwrap_or_default() {
        if let Err(error) = give_to_user(pid) {
            tracing::warn!(pid, %error, "sockets of a restored process stay root's");
        }
    }
}

fn give_to_user(pid: i32) -> io::Result<()> {
    let sockets = sockets_of(pid)?;
    let process = Pid::from_raw(pid).filter(|_| !sockets.is_empty());
    let Some(process) = process else { return Ok(()) };
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let (Some(uid), Some(gid)) = (effective(&status, "Uid:"), effective(&status, "Gid:")) else {
        return Err(io::Error::other("its user is not told"));
    };
    let process = pidfd_open(process, PidfdFlags::empty())?;
    for number in sockets {
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
        if fstat(&socket)?.st_uid != uid {
            fchown(&socket, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
    }
    Ok(())
}

/// Returns the numbers of a process's sockets.
fn sockets_of(pid: i32) -> io::Result<Vec<RawFd>> {
    let number = |path: &Path| {
        let file = fs::read_link(path).ok()?;
        let is_socket = file.to_str()?.starts_with("socket:[");
        is_socket.then(|| path.file_name()?.to_str()?.parse().ok())?
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?;
    Ok(descriptors
        .flatten()
        .filter_map(|entry| number(&entry.path()))
        .collect())
}

/// Returns the effective id on this line of a process's status: the second.
fn effective(status: &str, line: &str) -> Option<u32> {
    let ids = status.lines().find_map(|found| found.strip_prefix(line))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn sockets_are_found_among_a_process_s_descriptors() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = fs::File::open("/proc/self/status").unwrap();
        let found = sockets_of(std::process::id().cast_signed()).unwrap();
        assert!(found.contains(&socket.as_raw_fd()));
        assert!(!found.contains(&file.as_raw_fd()));
    }

    #[test]
    fn the_effective_user_is_the_second() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n";
        assert_eq!(
            (effective(status, "Uid:"), effective(status, "Gid:")),
            (Some(2), Some(6))
        );
        assert_eq!(effective(status, "Pid:"), None);
    }
}
