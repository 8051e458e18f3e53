//! Checks of what set-up makes: the runtimes' archives, room on disk, a free port.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use nix::sys::statvfs::statvfs;
use rekindle_wire::manifest::Base;

use super::Check;
use crate::args::Places;
use crate::show;
use crate::up::pid::PidFile;

/// Less is trouble within the first deploys.
const ROOM_MIN: u64 = 2 << 30;

/// All of them.
pub(super) fn checks(places: &Places, listen: SocketAddr) -> Vec<Check> {
    vec![runtimes(&places.cache), room(&places.data), port(places, listen)]
}

fn runtimes(cache: &Path) -> Check {
    let folder = cache.join("runtimes");
    let mut found = Vec::new();
    let mut lacking = Vec::new();
    for base in Base::ALL {
        match fs::metadata(folder.join(format!("{}.tar", base.as_str()))) {
            Ok(meta) => found.push(format!("{} {}", base.as_str(), show::bytes(meta.len()))),
            Err(_) => lacking.push(base.as_str()),
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

fn port(places: &Places, listen: SocketAddr) -> Check {
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
