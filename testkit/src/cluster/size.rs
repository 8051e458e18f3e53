//! How large a platform is.

use std::path::PathBuf;

use super::place::{Place, Role};

/// Size of a platform, and what its processes are given in addition to the guide.
#[derive(Debug, Clone)]
pub struct Size {
    /// Number of schedulers. More than one need a shared database.
    pub schedulers: u8,
    /// Number of workers.
    pub workers: u8,
    /// Number of gateways.
    pub gateways: u8,
    /// Additional arguments of a role.
    pub args: Vec<(Role, String)>,
    /// Environment variables of a process.
    pub env: Vec<(Place, String, String)>,
    /// Whether the cluster has an authority, so that its roles speak TLS.
    pub guarded: bool,
    /// Processes whose caches are on a disk of their own, with its size in MiB, as on a host where others may fill it.
    pub disks: Vec<(Place, u32)>,
    /// Whether all processes are on this host, without network namespaces.
    pub on_this_host: bool,
    /// The directory of the programs; by default as [`Programs::find`](crate::binaries::Programs::find) finds it.
    pub programs: Option<PathBuf>,
    /// The directory of the root filesystems' archives; by default they are built if needed.
    pub runtimes: Option<PathBuf>,
}

impl Size {
    /// Two schedulers that share the database at this address.
    #[must_use]
    pub fn two_schedulers(database: &str) -> Self {
        let shared = |n| (Role::Scheduler.nth(n), "FN_DATABASE".to_owned(), database.to_owned());
        Self {
            schedulers: 2,
            env: vec![shared(0), shared(1)],
            ..Self::default()
        }
    }

    /// Two workers of 1 GiB, between which instances move over TLS.
    #[must_use]
    pub fn two_workers() -> Self {
        Self {
            workers: 2,
            args: vec![(Role::Worker, "--memory".into()), (Role::Worker, "1GiB".into())],
            guarded: true,
            ..Self::default()
        }
    }
}

impl Default for Size {
    /// One of each role.
    fn default() -> Self {
        Self {
            schedulers: 1,
            workers: 1,
            gateways: 1,
            args: Vec::new(),
            env: Vec::new(),
            guarded: false,
            disks: Vec::new(),
            on_this_host: false,
            programs: None,
            runtimes: None,
        }
    }
}
