//! The accepted image files, by name. All others are rejected: CRIU reads some images, including those of older
//! versions, merely because they exist.

use crate::error::VerifyError;

/// Maximum number of files in a directory.
pub(crate) const FILES_MAX: usize = 100_000;
/// Prefix of the name of a file with the pages of a migrating process that CRIU is to restore. The process id follows.
pub const EAGER_PREFIX: &str = "eager-";

/// A kind of image, with the number in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Inventory,
    Pstree,
    Core(u32),
    Ids(u32),
    Mm(u32),
    Pagemap(u32),
    SharedPagemap(u64),
    Pages,
    /// Only for a migrating instance.
    Eager(u32),
    Fs(u32),
    Descriptors(u32),
    Files,
    MemFd,
    PipesData,
    FifoData,
    SocketQueues,
    Ghost(u32),
    Remaps,
    Locks,
    Seccomp,
    Time(u32),
    /// Counters of the dump, which no restore reads.
    Stats,
}

impl Kind {
    /// The kind of a file with this name.
    pub(crate) fn of(name: &str) -> Result<Self, VerifyError> {
        Self::known(name).ok_or_else(|| VerifyError::Kind(name.to_owned()))
    }

    fn known(name: &str) -> Option<Self> {
        if name == "stats-dump" {
            return Some(Self::Stats);
        }
        if let Some(number) = name.strip_prefix(EAGER_PREFIX) {
            return canonical(number)
                .and_then(|pid| u32::try_from(pid).ok())
                .map(Self::Eager);
        }
        let stem = name.strip_suffix(".img")?;
        let plain = match stem {
            "inventory" => Some(Self::Inventory),
            "pstree" => Some(Self::Pstree),
            "files" => Some(Self::Files),
            "memfd" => Some(Self::MemFd),
            "pipes-data" => Some(Self::PipesData),
            "fifo-data" => Some(Self::FifoData),
            "sk-queues" => Some(Self::SocketQueues),
            "remap-fpath" => Some(Self::Remaps),
            "filelocks" => Some(Self::Locks),
            "seccomp" => Some(Self::Seccomp),
            _ => None,
        };
        if plain.is_some() {
            return plain;
        }
        let (kind, number) = stem.rsplit_once('-')?;
        if kind == "ghost-file" {
            let id = u32::from_str_radix(number, 16).ok()?;
            return (format!("{id:x}") == number).then_some(Self::Ghost(id));
        }
        let value = canonical(number)?;
        let short = u32::try_from(value).ok();
        match kind {
            "core" => short.map(Self::Core),
            "ids" => short.map(Self::Ids),
            "mm" => short.map(Self::Mm),
            "pagemap" => short.map(Self::Pagemap),
            "pagemap-shmem" => Some(Self::SharedPagemap(value)),
            "pages" => short.map(|_| Self::Pages),
            "fs" => short.map(Self::Fs),
            "fdinfo" => short.map(Self::Descriptors),
            "timens" => short.map(Self::Time),
            _ => None,
        }
    }

    /// Whether its contents are not checked.
    pub(crate) fn is_opaque(self) -> bool {
        matches!(self, Self::Pages | Self::Eager(_) | Self::Stats)
    }
}

/// Parses a number in its canonical spelling. With leading zeros or signs, one number would have several names.
fn canonical(number: &str) -> Option<u64> {
    let value: u64 = number.parse().ok()?;
    (value.to_string() == number).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_one_spelling_only() {
        assert_eq!(Kind::of("core-501.img").unwrap(), Kind::Core(501));
        assert_eq!(Kind::of("ghost-file-1f.img").unwrap(), Kind::Ghost(0x1f));
        assert_eq!(Kind::of("pagemap-shmem-7.img").unwrap(), Kind::SharedPagemap(7));
        assert_eq!(Kind::of("eager-501").unwrap(), Kind::Eager(501));
        for name in [
            "core-0501.img",
            "core-+501.img",
            "core-501.img.img",
            "core-501",
            "core-.img",
            "core-4294967296.img",
            "ghost-file-1F.img",
            "eager-0501",
            "eager-501.img",
            "parent",
            "../files.img",
        ] {
            assert!(Kind::of(name).is_err(), "{name}");
        }
    }

    #[test]
    fn kinds_that_give_rights_and_those_of_older_versions_are_refused() {
        for kind in [
            "mountpoints-12",
            "netns-9",
            "netdev-9",
            "ifaddr-9",
            "route-9",
            "iptables-9",
            "nftables-9",
            "utsns-11",
            "ipcns-var-10",
            "ipcns-shm-10",
            "ipcns-msg-10",
            "ipcns-sem-10",
            "userns-13",
            "pidns-1",
            "tty",
            "tty-info",
            "tty-data",
            "cgroup",
            "tunfile",
            "tcp-stream-5",
            "creds-501",
            "sigacts-501",
            "rlimit-501",
            "itimers-501",
            "posix-timers-501",
            "signal-s-501",
            "signal-p-501",
            "vmas-501",
            "reg-files",
            "ext-files",
            "ns-files",
            "pipes",
            "fifo",
            "unixsk",
            "inetsk",
            "packetsk",
            "netlinksk",
            "eventfd",
            "eventpoll",
            "eventpoll-tfd",
            "signalfd",
            "inotify",
            "inotify-wd",
            "fanotify",
            "timerfd",
            "pidfd",
            "bpfmap-file",
            "bpfmap-data",
            "apparmor",
            "autofs-5",
            "binfmt-misc",
            "cpuinfo",
            "pages-shmem-5",
            "netns-ct-9",
            "irmap-cache",
        ] {
            let name = format!("{kind}.img");
            assert!(Kind::of(&name).is_err(), "{name}");
        }
    }
}
