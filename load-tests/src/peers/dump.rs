//! Stock CRIU's own dump of the function's process into memory, as it is taken for a snapshot: after an instance's
//! warm-up, and the process continues.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use rekindle_criu::{AfterDump, DumpOrder, Session};
use rekindle_testkit::platform::free_port;
use tempfile::TempDir;

use super::checkpoint::{LIMIT, warm_up};
use super::function::{Function, Running};

/// Dumps, each of a process of its own.
pub(super) struct Dumps {
    criu: PathBuf,
    /// On a tmpfs.
    dir: PathBuf,
}

impl Dumps {
    /// Dumps by this CRIU, below this directory.
    pub(super) fn of(criu: &Path, dir: &Path) -> Self {
        Self {
            criu: criu.to_owned(),
            dir: dir.to_owned(),
        }
    }

    /// A dump by `criu dump`: milliseconds from its start to its end.
    pub(super) async fn by_command(&self, function: &Function) -> Result<f64> {
        let (running, images) = self.prepare(function).await?;
        let mut dump = Command::new(&self.criu);
        dump.args([
            "dump",
            "--leave-running",
            "--tree",
            &running.pid().to_string(),
            "--images-dir",
        ])
        .arg(images.path())
        .args([
            "--manage-cgroups=ignore",
            "--network-lock=skip",
            "-v1",
            "--log-file",
            "dump.log",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
        let triggered = Instant::now();
        let status = dump.status().context("criu dump cannot be started")?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        if !status.success() {
            let log = fs::read_to_string(images.path().join("dump.log")).unwrap_or_default();
            bail!("criu dump: {status}: {}", log.trim());
        }
        Ok(ms)
    }

    /// A dump by a CRIU that has been started, linked and asked for its version: milliseconds from the order to the
    /// response, as the platform counts its own.
    pub(super) async fn by_one_that_waits(&self, function: &Function) -> Result<f64> {
        let (running, images) = self.prepare(function).await?;
        let (session, theirs) = Session::pair().context("no socket for criu swrk")?;
        // Its socket is standard input, so that the descriptor's number is known.
        let mut waiting = Command::new(&self.criu);
        waiting.args(["swrk", "0"]).stdin(theirs).stdout(Stdio::null());
        let _waiting = Running::start(waiting.stderr(Stdio::null()))?;
        session.version(LIMIT).context("criu swrk")?;
        let order = DumpOrder {
            images_dir: images.path().display().to_string(),
            pid: running.pid().cast_signed(),
            after: AfterDump::Run,
            freezer: None,
            external: Vec::new(),
            parent: None,
            log_level: 1,
            limit: LIMIT,
        };
        let triggered = Instant::now();
        session.dump(&order, |_| Ok(())).context("criu swrk")?;
        Ok(triggered.elapsed().as_secs_f64() * 1_000.0)
    }

    /// A warm process, and an empty directory; both gone when dropped.
    async fn prepare(&self, function: &Function) -> Result<(Running, TempDir)> {
        let port = free_port();
        let mut running = Running::start(&mut function.leader_command(port)?)?;
        warm_up(port, &mut running).await?;
        let images = tempfile::tempdir_in(&self.dir).context("no directory for the images")?;
        Ok((running, images))
    }
}
