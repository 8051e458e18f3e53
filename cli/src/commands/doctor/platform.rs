//! Checks of what the set-up makes: the runtimes' archives, room on disk, a free port.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use nix::sys::statvfs::statvfs;
use rekindle_wire::function_config::Base;
use rekindle_wire::internal::BUILD_TOOLS;
use rekindle_worker::host::cgroup::{CGROUP_ROOT, Cgroups};
use rekindle_worker::idle::damon::{self, DamonUnavailable};
use rekindle_worker::idle::kernel::HostKernel;
use rekindle_worker::idle::swap::{IdleSwap, Swap};
use rekindle_worker::idle::{kernel, zram};

use super::Check;
use crate::args::PlatformDirs;
use crate::show;
use crate::up::pid::PidFile;

/// Less causes trouble within the first deploys.
const ROOM_MIN: u64 = 2 << 30;

/// A limit that is only tried, bytes a second.
const TRIED_BYTES: u64 = 512 << 20;

/// All checks of the set-up.
pub(super) fn checks(places: &PlatformDirs, listen: SocketAddr) -> Vec<Check> {
    vec![
        runtimes(&places.cache),
        room(&places.data),
        disk_reads(&places.cache),
        idle_memory(),
        port(places, listen),
    ]
}

fn runtimes(cache: &Path) -> Check {
    let folder = cache.join("runtimes");
    let mut found = Vec::new();
    let mut lacking = Vec::new();
    let usual = Base::USUAL.map(Base::as_str);
    for name in Base::ALL.map(Base::as_str).into_iter().chain([BUILD_TOOLS]) {
        match fs::metadata(folder.join(format!("{name}.tar"))) {
            Ok(meta) => found.push(format!("{name} {}", show::bytes(meta.len()))),
            Err(_) if name == BUILD_TOOLS || usual.contains(&name) => lacking.push(name),
            Err(_) => {}
        }
    }
    if lacking.is_empty() {
        return Check::ok("runtimes", found.join(", "));
    }
    Check::lack(
        "runtimes",
        format!("{} not built in {}", lacking.join(", "), folder.display()),
        format!(
            "run scripts/setup.sh host, or functions/runtimes/build.sh NAME {}/NAME.tar",
            folder.display()
        ),
    )
}

/// Whether functions' disk reads can be limited: tried in a control group of its own.
fn disk_reads(cache: &Path) -> Check {
    const ABILITY: &str = "disk reads";
    let there = cache.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let (root, parent) = (
        Path::new(CGROUP_ROOT),
        format!("rekindle-doctor-disk-{}", std::process::id()),
    );
    let mut groups = match Cgroups::detect_below(root, &parent) {
        Ok(groups) => groups,
        Err(e) => return Check::weaker(ABILITY, format!("cannot be tried: {e}"), "see cgroups above"),
    };
    let tried = groups.limit_disk(root, &parent, there, TRIED_BYTES);
    // Cleans up in the hierarchies where it was made; an empty group can always be removed.
    let _ = groups.remove_parent();
    match tried {
        Ok(disk) => Check::ok(
            ABILITY,
            format!("of each instance are bounded on disk {disk} ({})", there.display()),
        ),
        Err(e) => Check::weaker(
            ABILITY,
            format!("are not bounded: {:#}", anyhow::Error::from(e)),
            "a function may keep the disk busy; put --cache onto a filesystem of a whole disk or partition, with the \
             blkio (v1) or io (v2) controller",
        ),
    }
}

/// Where pages go that instances wrote and do not touch.
fn idle_memory() -> Check {
    const ABILITY: &str = "idle memory";
    let way = match kernel::probe() {
        Ok(HostKernel::Scans) => "PAGEMAP_SCAN",
        Ok(HostKernel::Reads) => "/proc/PID/pagemap",
        Err(lack) => return Check::weaker(ABILITY, format!("stays: {lack}"), "use Linux 5.10 or later, as root"),
    };
    let (zram, own) = (zram::ZramPaths::default(), zram::ZramOwner::of("rekindle-doctor"));
    let found = Swap::choose(IdleSwap::Host, Path::new("/proc"), &zram, own);
    match found {
        Swap::Nothing(why) if zram::is_there(&zram) => Check::weaker(
            ABILITY,
            format!("that was written stays: {why}"),
            "start with --idle-swap zram:SIZE, for example a quarter of the memory, or set up zram on the host",
        ),
        Swap::Nothing(why) => Check::weaker(
            ABILITY,
            format!("that was written stays: {why}; and the kernel has no zram"),
            "load it (modprobe zram), or turn on zswap before a swap of the host's",
        ),
        found => Check::ok(
            ABILITY,
            format!(
                "goes to {found}; cold pages are told by {}evicting some and looking, by {way}, which come back",
                match damon::probe(Path::new(damon::ADMIN)) {
                    Ok(()) => "DAMON, and ",
                    Err(DamonUnavailable::Busy) => "DAMON, which is in use now, and ",
                    Err(DamonUnavailable::Unknown(_)) => "",
                }
            ),
        ),
    }
}

fn room(data: &Path) -> Check {
    let there = data.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    match statvfs(there) {
        Ok(fs) => {
            let free = fs.blocks_available() * fs.fragment_size();
            let found = format!("{} free for {}", show::bytes(free), data.display());
            if free >= ROOM_MIN {
                Check::ok("disk", found)
            } else {
                Check::weaker("disk", found, "free some, or put the data elsewhere with --data")
            }
        }
        Err(e) => Check::weaker(
            "disk",
            format!("{}: {e}", there.display()),
            "choose a directory that is there with --data",
        ),
    }
}

fn port(places: &PlatformDirs, listen: SocketAddr) -> Check {
    if TcpListener::bind(listen).is_ok() {
        return Check::ok("port", format!("{listen} is free"));
    }
    match PidFile::at(&places.run).running() {
        Ok(Some(running)) if running.listen == listen => Check::ok(
            "port",
            format!("{listen} is the running platform's, pid {}", running.pid),
        ),
        _ => Check::lack(
            "port",
            format!("{listen} cannot be bound"),
            "choose another with fn up --listen, or stop what uses it",
        ),
    }
}
