//! Process ids on the host, by those in a sandbox.

use std::collections::HashMap;
use std::fs;

use super::cgroup::{Cgroup, FileError};

/// Process ids on the host, by those in a sandbox.
pub type HostPids = HashMap<u32, i32>;

/// Returns the processes in a control group.
///
/// # Errors
/// Returns an error when the group cannot be read.
pub(crate) fn processes_in(cgroup: &Cgroup) -> Result<HostPids, FileError> {
    let hosts = cgroup.pids()?.into_iter();
    Ok(hosts.filter_map(|host| Some((inner_pid(host)?, host))).collect())
}

/// Returns the id that a process has in its own pid namespace.
pub(crate) fn inner_pid(host: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{host}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}
