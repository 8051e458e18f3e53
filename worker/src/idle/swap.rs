//! Where a process's own memory goes: a compressed swap, either the host's or the worker's own.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rekindle_init::causes::chain;
use rekindle_wire::function_config::ByteSize;

use super::zram::{self, ZramDevice, ZramOwner, ZramPaths, ZramUsage};

/// Which swap to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IdleSwap {
    /// None: memory that a process has written stays.
    Never,
    /// The host's, if it is compressed memory; otherwise none.
    #[default]
    Host,
    /// A zram device of the worker's own with this many bytes, if the host has no swap; otherwise as `Host`.
    Zram(u64),
}

impl FromStr for IdleSwap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(':')) {
            ("none", _) => Ok(Self::Never),
            ("host", _) => Ok(Self::Host),
            (_, Some(("zram", size))) => {
                let size: ByteSize = size.parse().map_err(|e| format!("zram:{size}: {e}"))?;
                if size.0 < LEAST {
                    return Err("use zram:1MiB or more".to_owned());
                }
                Ok(Self::Zram(size.0))
            }
            _ => Err("use none, host or zram:SIZE, such as zram:2GiB".to_owned()),
        }
    }
}

/// Minimum useful size, in bytes.
const LEAST: u64 = 1 << 20;
/// Share of the swap that stays free: with less free, nothing more goes there.
const KEPT_FREE: f64 = 0.05;

/// The swap that was found or created.
#[derive(Debug)]
pub enum Swap {
    /// A zram device of the worker's own.
    Own(ZramDevice),
    /// A zram device of the host's.
    HostZram(PathBuf),
    /// Another swap of the host's, behind its compressed cache.
    Zswap(PathBuf),
    /// None, with the reason.
    Nothing(String),
}

impl Swap {
    /// Chooses the swap, and creates it if necessary. Blocks for some milliseconds.
    pub fn choose(wanted: IdleSwap, proc: &Path, places: &ZramPaths, owner: ZramOwner) -> Self {
        if wanted == IdleSwap::Never {
            return Self::Nothing("it was told to use none".to_owned());
        }
        match (Self::of_host(proc, places), wanted) {
            (Some(found), _) => found,
            (None, IdleSwap::Zram(bytes)) => match ZramDevice::make(places, owner, bytes) {
                Ok(device) => Self::Own(device),
                Err(e) => Self::Nothing(chain(&e)),
            },
            (None, _) => Self::Nothing("the host has no swap; --idle-swap zram:SIZE makes one".to_owned()),
        }
    }

    /// Returns the host's first swap, if it has any that no worker created.
    fn of_host(proc: &Path, places: &ZramPaths) -> Option<Self> {
        let text = fs::read_to_string(proc.join("swaps")).ok()?;
        let mut areas: Vec<(i64, PathBuf)> = text
            .lines()
            .skip(1)
            .filter_map(|line| {
                let mut fields = line.split_whitespace();
                let path = Path::new(fields.next()?);
                // The path is as whoever enabled the swap saw it, in a mount namespace that may be gone. Only a
                // device's name is certain.
                let zram = path.file_name()?.to_str().filter(|name| name.starts_with("zram"));
                let path = zram.map_or_else(|| path.to_owned(), |name| places.dev.join(name));
                Some((fields.last()?.parse().ok()?, path))
            })
            .filter(|(_, path)| !zram::is_a_worker_s(path))
            .collect();
        // The kernel fills the one with the highest priority first.
        areas.sort();
        let (_, path) = areas.pop()?;
        if path.parent() == Some(&places.dev)
            && path
                .file_name()
                .is_some_and(|n| n.as_encoded_bytes().starts_with(b"zram"))
        {
            return Some(Self::HostZram(path));
        }
        let zswap = fs::read_to_string(places.sys.join("module/zswap/parameters/enabled"));
        if zswap.is_ok_and(|on| on.trim() == "Y") {
            return Some(Self::Zswap(path));
        }
        Some(Self::Nothing(format!(
            "the host's swap {} is no compressed memory; turn on zswap, or have a zram before it",
            path.display()
        )))
    }

    /// Returns its kind in a word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Own(_) => "own_zram",
            Self::HostZram(_) => "host_zram",
            Self::Zswap(_) => "zswap",
            Self::Nothing(_) => "none",
        }
    }

    /// Returns whether memory can go there at all.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !matches!(self, Self::Nothing(_))
    }

    /// Returns whether there is room for more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let path = match self {
            Self::Own(device) => device.node(),
            Self::HostZram(path) | Self::Zswap(path) => path.clone(),
            Self::Nothing(_) => return false,
        };
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        room_of(&swaps, &path).is_some_and(|share| share > KEPT_FREE)
    }

    /// Returns how full the zram device is.
    pub fn fill(&self) -> Option<ZramUsage> {
        match self {
            Self::Own(device) => device.fill(),
            Self::HostZram(path) => {
                let name = path.file_name()?;
                zram::fill(&Path::new("/sys/block").join(name).join("mm_stat"))
            }
            Self::Zswap(_) | Self::Nothing(_) => None,
        }
    }
}

/// Returns the free share of one area of `/proc/swaps`, where only the name is certain. It is not the share of all
/// areas, as the next one may be a disk.
fn room_of(swaps: &str, path: &Path) -> Option<f64> {
    let line = swaps.lines().skip(1).find(|line| {
        let listed = line.split_whitespace().next().map(Path::new);
        listed.is_some_and(|listed| listed.file_name() == path.file_name())
    })?;
    let mut figures = line.split_whitespace().skip(2).map(str::parse::<f64>);
    let (size, used) = (figures.next()?.ok()?, figures.next()?.ok()?);
    Some((size - used) / size.max(1.0))
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(device) => write!(f, "{}, made by the worker", device.node().display()),
            Self::HostZram(path) => write!(f, "{}, the host's", path.display()),
            Self::Zswap(path) => write!(f, "zswap before {}, the host's", path.display()),
            Self::Nothing(why) => write!(f, "none: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_says_is_understood() {
        assert_eq!("none".parse(), Ok(IdleSwap::Never));
        assert_eq!("host".parse(), Ok(IdleSwap::Host));
        assert_eq!("zram:64MiB".parse(), Ok(IdleSwap::Zram(64 << 20)));
        for wrong in ["", "zram", "zram:", "zram:1KiB", "zram:x", "disk:1GiB"] {
            assert!(wrong.parse::<IdleSwap>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn room_is_that_of_the_area_and_not_of_a_disk_behind_it() {
        let swaps =
            "Filename\tType\tSize\tUsed\tPriority\n/dev/vdb partition 8000 0 -2\n/zram0 partition 1000 999 100\n";
        let room = |path: &str| room_of(swaps, Path::new(path));
        assert!(room("/dev/zram0").is_some_and(|room| room < KEPT_FREE));
        assert_eq!((room("/dev/vdb"), room("/dev/zram1")), (Some(1.0), None));
    }

    #[test]
    fn of_the_host_s_swaps_the_one_that_is_filled_first_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, owner) = (dir.path(), ZramOwner::of("rekindle-test"));
        let places = ZramPaths {
            sys: dir.path().join("sys"),
            dev: dir.path().join("dev"),
        };
        let heading = "Filename\tType\tSize\tUsed\tPriority\n";
        let zswap = places.sys.join("module/zswap/parameters");
        fs::create_dir_all(&zswap).unwrap();
        let kind = |swaps: &str, on: &str| {
            fs::write(proc.join("swaps"), format!("{heading}{swaps}")).unwrap();
            fs::write(zswap.join("enabled"), on).unwrap();
            Swap::choose(IdleSwap::Host, proc, &places, owner).kind()
        };
        let (disk, zram) = (
            "/dev/vdb\tpartition\t10\t0\t-2\n",
            "/dev/zram99\tpartition\t10\t0\t100\n",
        );
        assert_eq!(kind("", "N"), "none");
        assert_eq!(kind(disk, "N"), "none");
        assert_eq!(kind(disk, "Y"), "zswap");
        assert_eq!(kind(&format!("{disk}{zram}"), "N"), "host_zram");
        let never = Swap::choose(IdleSwap::Never, proc, &places, owner);
        assert!(!never.is_there() && !never.has_room());
    }
}
