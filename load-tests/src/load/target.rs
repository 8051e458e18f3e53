//! The platform under load: one of its own, with one worker or two, or the one that already runs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::args::LoadArgs;
use crate::args::Args;
use crate::hosts::Hosts;
use crate::platform::{Platform, Programs};

/// The admin key of `make up`'s platform.
const KEY_FILE: &str = "/var/lib/rekindle/admin.key";

/// A platform on this machine.
pub(crate) struct Target {
    /// Port of its gateway.
    pub(crate) port: u16,
    /// The admin key.
    pub(crate) key: String,
    programs: Programs,
    // Stopped when dropped.
    own: Option<Own>,
}

enum Own {
    /// All roles in one process.
    One(Platform),
    /// Each in a process of its own, with two workers.
    Two { _stopped_when_dropped: Hosts },
}

impl Target {
    /// The running platform if its port is given, otherwise one of its own with these settings in its environment.
    pub(super) async fn of(args: &Args, load: &LoadArgs, settings: &[(&str, &str)]) -> Result<Self> {
        let programs = Programs::find(args)?;
        let Some(port) = load.port else {
            let platform = Platform::start_with(args, settings).await?;
            return Ok(Self {
                port: platform.port(),
                key: platform.key()?,
                programs,
                own: Some(Own::One(platform)),
            });
        };
        let key = match &load.key {
            Some(key) => key.clone(),
            None => fs::read_to_string(KEY_FILE)
                .with_context(|| format!("{KEY_FILE}: no admin key there: give the platform's with --key"))?,
        };
        Ok(Self {
            port,
            key: key.trim().to_owned(),
            programs,
            own: None,
        })
    }

    /// A platform of its own with two workers, whatever already runs.
    pub(super) async fn of_two_workers(args: &Args, settings: &[(&str, &str)]) -> Result<Self> {
        let hosts = Hosts::start(args, settings).await?;
        Ok(Self {
            port: hosts.port(),
            key: hosts.key()?,
            programs: Programs::find(args)?,
            own: Some(Own::Two {
                _stopped_when_dropped: hosts,
            }),
        })
    }

    /// Its address.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Deploys the function in this folder and waits until its snapshot is live.
    pub(super) fn deploy(&self, folder: &Path) -> Result<()> {
        let version = self.programs.deploy(&self.url(), &self.key, folder)?;
        match version.snapshot_error {
            Some(error) => bail!("{} has no snapshot: {error}", folder.display()),
            None => Ok(()),
        }
    }

    /// Removes a function with all its versions; on a platform of its own it goes with the platform.
    pub(super) fn remove(&self, function: &str) -> Result<()> {
        match self.own {
            Some(_) => Ok(()),
            None => self.programs.delete(&self.url(), &self.key, function),
        }
    }

    /// Its description for readers of the report.
    pub(super) fn told(&self) -> String {
        match &self.own {
            Some(Own::One(platform)) => format!("one of its own: {}", platform.program()),
            Some(Own::Two { .. }) => "one of its own with two workers".to_owned(),
            None => format!("the one that runs at {}", self.url()),
        }
    }
}
