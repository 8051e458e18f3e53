//! Stock CRIU on the function's process: one checkpoint, and restores of it, eager or through CRIU's own lazy-pages
//! daemon.
//!
//! ```text
//! trigger ─┬─ eager ── criu restore -d ───────────────────────────────────────────┬─> first response ─> killed, reaped
//!          ├─ lazy ─── criu lazy-pages ──its socket──> criu restore --lazy-pages -d ┤
//!          └─ waiting ─ an order to a criu swrk that was started before ────────────┘
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rekindle_criu::{RestoreOrder, Session};
use rekindle_testkit::platform::free_port;
use tempfile::TempDir;

use super::function::{Function, Running};
use crate::client::Connection;

/// Limit for one CRIU command.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// Interval of polling for its end. Only the lazy-pages daemon's socket is awaited inside a measurement.
const POLL: Duration = Duration::from_micros(200);
/// Pid of the checkpointed process: the kernel gives it to no other process as long as the next pids begin low.
const FUNCTION_PID: u32 = 1_000;
const FIRST_FREE_PID: u32 = 20;
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// CRIU's cache of its kernel probe.
const PROBE: &str = "/run/criu.kdat";
/// CRIU's name for its socket, in the work directory.
const SOCKET: &str = "lazy-pages.socket";

/// How the process is restored. All but one bring all memory back before the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestoreMode {
    Eager,
    /// Memory comes when it is touched, from the lazy-pages daemon.
    Lazy,
    /// With the most detailed log.
    Logged,
    /// With a new kernel probe.
    Unprobed,
    /// From images that are not in memory, although they have been read before.
    OnDisk,
    /// By a CRIU that was started before the trigger.
    Prestarted,
}

/// A checkpoint of the function after its warm-up, as the platform takes it.
pub(super) struct Checkpoint {
    criu: PathBuf,
    version: String,
    images: PathBuf,
    /// The same images on a disk's filesystem, if requested.
    on_disk: Option<TempDir>,
    work: PathBuf,
    port: u16,
}

impl Checkpoint {
    /// Starts the function, warms it up, checkpoints it, and tries the two usual ways to restore it.
    pub(super) async fn take(criu: &Path, dir: &Path, function: &Function, on_disk: bool) -> Result<Self> {
        let mut checkpoint = Self {
            criu: criu.to_owned(),
            version: version(criu)?,
            images: dir.join("images"),
            on_disk: None,
            work: dir.join("work"),
            port: free_port(),
        };
        for dir in [&checkpoint.images, &checkpoint.work] {
            fs::create_dir(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        }
        set_last_pid(FUNCTION_PID - 1)?;
        let mut running = Running::start(&mut function.leader_command(checkpoint.port)?)?;
        if running.pid() != FUNCTION_PID {
            bail!(
                "the process to checkpoint has pid {} instead of {FUNCTION_PID}",
                running.pid()
            );
        }
        warm_up(checkpoint.port, &mut running).await?;
        let mut dump = checkpoint.command("dump");
        dump.args(["--tree", &FUNCTION_PID.to_string()]);
        checkpoint.finish(&mut Running::start(&mut dump)?, "dump")?;
        // CRIU has killed it.
        drop(running);
        if on_disk {
            checkpoint.on_disk = Some(copied(&checkpoint.images).context("images on disk")?);
        }
        checkpoint.restore(RestoreMode::Eager).await.context("eager restore")?;
        checkpoint.restore(RestoreMode::Lazy).await.context("lazy restore")?;
        Ok(checkpoint)
    }

    /// CRIU's version.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// One restore: milliseconds until the last byte of the first response. The process is gone when this returns.
    pub(super) async fn restore(&self, mode: RestoreMode) -> Result<f64> {
        if mode == RestoreMode::Prestarted {
            return self.restore_by_one_that_waits().await;
        }
        set_last_pid(FIRST_FREE_PID)?;
        if mode == RestoreMode::Unprobed {
            // This run writes it again.
            let _none = fs::remove_file(PROBE);
        }
        // Left by the last daemon.
        let _none = fs::remove_file(self.work.join(SOCKET));
        let (images, log_level) = match mode {
            RestoreMode::OnDisk => (self.on_disk.as_ref().context("no images on disk")?.path(), "-v1"),
            RestoreMode::Logged => (self.images.as_path(), "-v4"),
            _ => (self.images.as_path(), "-v1"),
        };
        let mut command = self.command_with("restore", images, log_level);
        command.arg("--restore-detached");
        let mut daemon_command = self.command("lazy-pages");

        let triggered = Instant::now();
        let mut daemon = None;
        if mode == RestoreMode::Lazy {
            let mut started = Running::start(&mut daemon_command)?;
            self.until_listening(&mut started)?;
            daemon = Some(started);
            command.arg("--lazy-pages");
        }
        let restored = Restored;
        let mut restore = Running::start(&mut command)?;
        let mut connection = Connection::open_when_listening(self.port, || match restore.ended()? {
            Some(status) if !status.success() => bail!("{status}: {}", self.errors("restore")),
            _ => Ok(()),
        })
        .await?;
        let answer = connection.call(Method::GET, "/", &[]).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;

        answer.of_function()?;
        self.finish(&mut restore, "restore")?;
        drop(restored);
        if let Some(mut daemon) = daemon {
            // It ends on its own, since the process is gone, and may complain of that: the response came before.
            self.until_ended(&mut daemon, "lazy-pages")?;
        }
        Ok(ms)
    }

    /// A restore by a CRIU that has been started, linked and asked for its version.
    async fn restore_by_one_that_waits(&self) -> Result<f64> {
        set_last_pid(FIRST_FREE_PID)?;
        let (session, theirs) = Session::pair().context("no socket for criu swrk")?;
        // Its socket is standard input, so that the descriptor's number is known.
        let mut waiting = Command::new(&self.criu);
        waiting.args(["swrk", "0"]).stdin(theirs).stdout(Stdio::null());
        let mut waiting = Running::start(waiting.stderr(Stdio::null()))?;
        session.version(LIMIT).context("criu swrk")?;
        let order = RestoreOrder {
            images_dir: self.images.display().to_string(),
            inherit: Vec::new(),
            log_level: 1,
            limit: LIMIT,
        };

        let triggered = Instant::now();
        let restored = Restored;
        session.restore(&order, |_| Ok(())).context("criu swrk")?;
        let mut connection = Connection::open_when_listening(self.port, || Ok(())).await?;
        let answer = connection.call(Method::GET, "/", &[]).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;

        answer.of_function()?;
        drop(session);
        self.until_ended(&mut waiting, "swrk")?;
        drop(restored);
        Ok(ms)
    }

    fn command(&self, action: &str) -> Command {
        self.command_with(action, &self.images, "-v1")
    }

    /// The options common to all its commands: stock options, and those that leave out what is not needed here.
    fn command_with(&self, action: &str, images: &Path, log_level: &str) -> Command {
        let mut command = Command::new(&self.criu);
        command
            .arg(action)
            .arg("--images-dir")
            .arg(images)
            .arg("--work-dir")
            .arg(&self.work)
            .args([
                "--manage-cgroups=ignore",
                "--network-lock=skip",
                "--file-validation=filesize",
                log_level,
                "--log-file",
            ])
            .arg(format!("{action}.log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn until_listening(&self, daemon: &mut Running) -> Result<()> {
        let (socket, deadline) = (self.work.join(SOCKET), Instant::now() + LIMIT);
        while !socket.exists() {
            daemon.still_runs().with_context(|| self.errors("lazy-pages"))?;
            if Instant::now() > deadline {
                bail!("criu lazy-pages does not listen within {LIMIT:?}");
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for the end of a command, which must be successful.
    fn finish(&self, running: &mut Running, action: &str) -> Result<()> {
        let status = self.until_ended(running, action)?;
        if !status.success() {
            bail!("criu {action}: {status}: {}", self.errors(action));
        }
        Ok(())
    }

    fn until_ended(&self, running: &mut Running, action: &str) -> Result<ExitStatus> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match running.ended()? {
                Some(status) => return Ok(status),
                None if Instant::now() > deadline => bail!("criu {action} does not end within {LIMIT:?}"),
                None => std::thread::sleep(POLL),
            }
        }
    }

    /// The errors in a command's log.
    fn errors(&self, action: &str) -> String {
        let log = fs::read_to_string(self.work.join(format!("{action}.log"))).unwrap_or_default();
        let errors: Vec<&str> = log.lines().filter(|l| l.contains("Error")).collect();
        errors[errors.len().saturating_sub(4)..].join(" | ")
    }
}

/// The restored process, ours by adoption since its parents are gone; killed and reaped when dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        let pid = Pid::from_raw(FUNCTION_PID.cast_signed());
        // In this pid namespace no other process can have the number. Without the process there is nothing to do.
        if kill(pid, Signal::SIGKILL).is_ok() {
            let _reaped = waitpid(pid, None);
        }
    }
}

/// Does what the platform does before a checkpoint: warm-up requests, then the runtime's hook, and no connection left
/// open.
pub(super) async fn warm_up(port: u16, running: &mut Running) -> Result<()> {
    let mut connection = Connection::open_when_listening(port, || running.still_runs()).await?;
    for _ in 0..3 {
        connection.call(Method::GET, "/", &[]).await?.of_function()?;
    }
    let hook = connection.call(Method::POST, "/.rekindle/before-snapshot", &[]).await?;
    // A function without a bootstrap of ours has no such hook and may answer anything.
    if hook.status.is_server_error() {
        bail!("the hook before the snapshot answers {}: {}", hook.status, hook.text());
    }
    drop(connection);
    // Time for both sides to see its end.
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// A copy outside the tmpfs that holds everything else.
fn copied(images: &Path) -> Result<TempDir> {
    let copy = tempfile::tempdir_in("/var/tmp").context("no temporary directory in /var/tmp")?;
    for image in fs::read_dir(images).context("the images cannot be listed")? {
        let image = image.context("the images cannot be listed")?;
        fs::copy(image.path(), copy.path().join(image.file_name()))
            .with_context(|| format!("{}: cannot be copied", image.path().display()))?;
    }
    Ok(copy)
}

fn set_last_pid(pid: u32) -> Result<()> {
    fs::write(LAST_PID, pid.to_string()).with_context(|| format!("{LAST_PID}: cannot be written"))
}

fn version(criu: &Path) -> Result<String> {
    let output = Command::new(criu).arg("--version").output().with_context(|| {
        format!(
            "{}: cannot be run: run scripts/setup.sh host, or name another with --criu",
            criu.display()
        )
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|l| l.strip_prefix("Version: "));
    version
        .map(|v| v.trim().to_owned())
        .with_context(|| format!("{}: does not say its version", criu.display()))
}
