//! The platform under load: one of its own, with one worker or two, or the one that already runs.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use rekindle_testkit::binaries::Programs;
use rekindle_testkit::s3::ObjectStore;
use rekindle_testkit::{Client, Cluster, Folder, Platform};
use tempfile::NamedTempFile;

use super::args::LoadArgs;
use crate::args::Args;
use crate::platform;

/// The admin key of `make up`'s platform.
const KEY_FILE: &str = "/var/lib/rekindle/admin.key";

/// A platform on this machine.
pub(super) struct Target {
    pub(super) client: Client,
    // Stopped, or removed, when dropped.
    kept: Kept,
}

enum Kept {
    /// All roles in one process.
    One { _platform: Platform },
    /// Each in a process of its own, with two workers.
    Two { _cluster: Cluster, _store: ObjectStore },
    /// One that runs; the key that was given.
    Running { _key: Option<NamedTempFile> },
}

impl Target {
    /// The running platform if its port is given, otherwise one of its own with these settings in its environment.
    pub(super) fn of(args: &Args, load: &LoadArgs, settings: &[(&str, &str)]) -> Result<Self> {
        let Some(port) = load.port else {
            let platform = platform::start(args, settings)?;
            return Ok(Self {
                client: Client::clone(&platform),
                kept: Kept::One { _platform: platform },
            });
        };
        let (mut file, mut given) = (PathBuf::from(KEY_FILE), None);
        if let Some(key) = &load.key {
            let own = NamedTempFile::new().context("no file for the key")?;
            fs::write(own.path(), key).context("the key cannot be written")?;
            file = own.path().to_owned();
            given = Some(own);
        }
        ensure!(
            file.exists(),
            "{KEY_FILE}: no admin key there: give the platform's with --key"
        );
        let programs = Programs::find(args.bin.as_deref())?;
        Ok(Self {
            client: Client::new(programs, format!("http://127.0.0.1:{port}"), file, Vec::new()),
            kept: Kept::Running { _key: given },
        })
    }

    /// A platform of its own with two workers, whatever already runs.
    pub(super) fn of_two_workers(args: &Args, settings: &[(&str, &str)]) -> Result<Self> {
        let (cluster, store) = platform::cluster(args, settings)?;
        Ok(Self {
            client: Client::clone(&cluster),
            kept: Kept::Two {
                _cluster: cluster,
                _store: store,
            },
        })
    }

    /// The address of its gateway.
    pub(super) fn address(&self) -> Result<SocketAddr> {
        platform::address(&self.client)
    }

    /// Deploys the function in this folder and waits until its snapshot is live.
    pub(super) fn deploy(&self, folder: &Folder) -> Result<()> {
        self.client.deployed(folder).map(drop)
    }

    /// Removes a function with all its versions; on a platform of its own it goes with the platform.
    pub(super) fn remove(&self, function: &str) -> Result<()> {
        match self.kept {
            Kept::Running { .. } => self.client.delete(function),
            _ => Ok(()),
        }
    }

    /// Its description for readers of the report.
    pub(super) fn told(&self) -> String {
        match &self.kept {
            Kept::One { .. } => format!("one of its own: {}", self.client.program()),
            Kept::Two { .. } => format!("one of its own with two workers: {}", self.client.program()),
            Kept::Running { .. } => format!("the one that runs at {}", self.client.url()),
        }
    }
}
