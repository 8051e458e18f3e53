//! Users and groups of a sandbox, whose ids on the host differ from those of its copies.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// The ids of the host that a process has, by its `uid_map`; groups are mapped alike.
pub(super) struct Ids {
    /// The host's id that is 0 inside.
    first: u32,
    count: u32,
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.first == 0 { "the host's" } else { "its own" };
        write!(f, "{whose}, {} of them", self.count)
    }
}

impl Ids {
    /// The ids of the process with this directory in `/proc`.
    pub(super) fn of(proc: &Path) -> io::Result<Self> {
        let [users, groups] = ["uid_map", "gid_map"].map(|map| fs::read_to_string(proc.join(map)));
        let users = users?;
        let lines: Vec<&str> = users.lines().collect();
        let numbers: Vec<u32> = users.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        match (numbers.as_slice(), lines.len(), groups? == users) {
            (&[0, first, count], 1, true) => Ok(Self { first, count }),
            _ => Err(io::Error::other(format!("ids are mapped otherwise: {users}"))),
        }
    }

    /// The id inside for the host's `id`.
    pub(super) fn inside(&self, id: &str) -> String {
        let inside = id.parse().ok().and_then(|id: u32| id.checked_sub(self.first));
        match inside.filter(|id| *id < self.count) {
            Some(inside) => inside.to_string(),
            None => format!("{id} of the host"),
        }
    }

    /// Replaces the ids in the options of a mount.
    pub(super) fn in_options(&self, mount: &str) -> String {
        let option = |option: &str| match option.split_once('=') {
            Some((name @ ("uid" | "gid"), id)) => format!("{name}={}", self.inside(id)),
            _ => option.to_owned(),
        };
        mount.split(',').map(option).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_another_sandbox_are_not_taken_for_one_s_own() {
        let ids = Ids {
            first: 131_072,
            count: 65_536,
        };
        assert_eq!(ids.inside("132072"), "1000");
        assert_eq!(ids.inside("196608"), "196608 of the host");
        assert_eq!(ids.inside("0"), "0 of the host");
        let options = "/ rw,nosuid tmpfs tmpfs rw,uid=131072,gid=131073,mode=700";
        assert_eq!(
            ids.in_options(options),
            "/ rw,nosuid tmpfs tmpfs rw,uid=0,gid=1,mode=700"
        );
    }
}
