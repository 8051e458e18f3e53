//! The proof of CRIU: a process of ours with memory and a listening socket is checkpointed, then restored twice. After
//! each restore it must answer on its port with the sum its memory had before. Every wait has a limit, and whatever was
//! started is gone at the end.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::criu::Criu;

const LIMIT: Duration = Duration::from_secs(20);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const TARGET_MIB: u64 = 16;
/// Of what a command wrote, what an error message can hold.
const TOLD_MAX: usize = 600;

/// Runs `command` until it ends or `limit` is over; returns what it wrote, which is kept in `log`.
pub(super) fn run_bounded(command: &mut Command, limit: Duration, log: &Path) -> Result<String> {
    let mut out = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(log)
        .with_context(|| format!("{}: cannot be made", log.display()))?;
    let err = out.try_clone().context("no more file descriptors")?;
    let stdout = out.try_clone().context("no more file descriptors")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(err)
        .spawn()
        .context("it cannot be run")?;
    let status = wait(&mut child, limit)?;
    let mut text = String::new();
    out.seek(SeekFrom::Start(0)).context("its output cannot be read")?;
    out.take(1 << 20)
        .read_to_string(&mut text)
        .context("its output is not text")?;
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => bail!("{status}: {}", end_of(&text)),
        None => bail!("not done within {limit:?}: {}", end_of(&text)),
    }
}

/// Waits; kills the child when the limit is over, and then there is no status.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("its end cannot be awaited")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill().context("it cannot be killed")?;
            child.wait().context("its end cannot be awaited")?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn end_of(text: &str) -> &str {
    let text = text.trim();
    let mut from = text.len().saturating_sub(TOLD_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// A checkpoint of the target; its directory goes when this does.
#[derive(Debug)]
pub(super) struct Checkpoint {
    dir: TempDir,
    pid: Pid,
    port: u16,
    sum: String,
    /// Memory the target had filled, bytes.
    pub(super) memory: u64,
    /// How long the dump took.
    pub(super) took: Duration,
}

impl Checkpoint {
    /// Starts the target, checkpoints it, and leaves it killed.
    pub(super) fn take(criu: &Criu) -> Result<Self> {
        // Restored processes lose their parent; as their subreaper we can wait for them.
        nix::sys::prctl::set_child_subreaper(true).context("not a subreaper")?;
        let dir = tempfile::Builder::new()
            .prefix("rekindle-doctor-")
            .tempdir()
            .context("no temporary directory")?;
        let ready = dir.path().join("ready");
        let mut target = Target::start(&ready)?;
        let port = target.port(&ready)?;
        let sum = ask(port).context("the process to checkpoint does not answer")?;
        fs::create_dir(dir.path().join("images")).context("no directory for the images")?;
        let started = Instant::now();
        let mut command = criu_command(criu, "dump", dir.path());
        command.args(["--tree", &target.pid().to_string()]);
        run_criu(&mut command, dir.path(), "dump").context("criu dump failed")?;
        let took = started.elapsed();
        let pid = target.pid();
        target.reap()?;
        Ok(Self {
            dir,
            pid,
            port,
            sum,
            memory: TARGET_MIB << 20,
            took,
        })
    }

    /// Restores with every page in place before the process runs.
    pub(super) fn restore_eagerly(&self, criu: &Criu) -> Result<Duration> {
        self.restore(criu, &[])
    }

    /// Restores with pages served when they are touched. Which pager does it is decided here alone.
    pub(super) fn restore_lazily(&self, criu: &Criu) -> Result<Duration> {
        let pager = Pager::start(criu, self.dir.path())?;
        let took = self.restore(criu, &["--lazy-pages"])?;
        pager.finish()?;
        Ok(took)
    }

    fn restore(&self, criu: &Criu, options: &[&str]) -> Result<Duration> {
        let started = Instant::now();
        let mut command = criu_command(criu, "restore", self.dir.path());
        command.arg("--restore-detached").args(options);
        let restored = run_criu(&mut command, self.dir.path(), "restore");
        let _gone = Restored(self.pid);
        restored.context("criu restore failed")?;
        let took = started.elapsed();
        let sum = ask(self.port).context("the restored process does not answer on its port")?;
        if sum != self.sum {
            bail!(
                "the restored process has other memory: sum {sum}, before the checkpoint {}",
                self.sum
            );
        }
        Ok(took)
    }
}

/// A criu command with what all of ours have in common.
fn criu_command(criu: &Criu, action: &str, dir: &Path) -> Command {
    let mut command = Command::new(&criu.path);
    command
        .arg(action)
        .arg("--images-dir")
        .arg(dir.join("images"))
        .arg("--work-dir")
        .arg(dir)
        .args(["--manage-cgroups=ignore", "--network-lock=skip", "-v1"]);
    command
}

/// Runs it; its log is told when it fails.
fn run_criu(command: &mut Command, dir: &Path, name: &str) -> Result<()> {
    let log = format!("{name}.log");
    command.args(["--log-file", &log]);
    match run_bounded(command, LIMIT, &dir.join(format!("{name}.out"))) {
        Ok(_) => Ok(()),
        Err(e) => {
            let told = fs::read_to_string(dir.join(log)).unwrap_or_default();
            Err(e.context(end_of(&told).to_owned()))
        }
    }
}

/// Connects to the process and reads its sum.
fn ask(port: u16) -> Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream =
        TcpStream::connect_timeout(&address, ANSWER_LIMIT).with_context(|| format!("{address}: no connection"))?;
    stream
        .set_read_timeout(Some(ANSWER_LIMIT))
        .context("no time limit on the answer")?;
    let mut sum = String::new();
    stream
        .read_to_string(&mut sum)
        .with_context(|| format!("{address}: no answer"))?;
    if sum.trim().len() != 16 {
        bail!("{address}: half an answer: \"{}\"", sum.trim());
    }
    Ok(sum.trim().to_owned())
}

/// The process to checkpoint; killed when dropped.
struct Target(Child);

impl Target {
    fn start(ready: &Path) -> Result<Self> {
        let own = std::env::current_exe().context("the path of this program is not known")?;
        Command::new(own)
            .arg("doctor-target")
            .arg(ready)
            .args(["--mib", &TARGET_MIB.to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
            .context("the process to checkpoint cannot be started")
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX))
    }

    fn port(&mut self, ready: &Path) -> Result<u16> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            if let Ok(text) = fs::read_to_string(ready) {
                return text.parse().context("the process to checkpoint told no port");
            }
            if let Some(status) = self.0.try_wait().context("its end cannot be awaited")? {
                bail!("the process to checkpoint ended at once: {status}");
            }
            if Instant::now() > deadline {
                bail!("the process to checkpoint does not start within {ANSWER_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// After a dump it has ended.
    fn reap(&mut self) -> Result<()> {
        match wait(&mut self.0, ANSWER_LIMIT)? {
            Some(_) => Ok(()),
            None => bail!("the process went on running after its checkpoint"),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended, which is what we want.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A restored process, our child by adoption; killed when dropped.
struct Restored(Pid);

impl Drop for Restored {
    fn drop(&mut self) {
        // Only a child of ours: the number may belong to somebody else when the restore failed. (Its command line would
        // not tell: it lies on the stack, which a lazy restore may not have brought back yet.)
        let ours = matches!(waitpid(self.0, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive));
        if ours && kill(self.0, Signal::SIGKILL).is_ok() {
            let _reaped = waitpid(self.0, None);
        }
    }
}

/// CRIU's own lazy-pages daemon; killed when dropped.
struct Pager(Child);

impl Pager {
    fn start(criu: &Criu, dir: &Path) -> Result<Self> {
        let mut command = criu_command(criu, "lazy-pages", dir);
        let child = command
            .args(["--log-file", "lazy-pages.log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("the pager cannot be started")?;
        let mut pager = Self(child);
        let socket = dir.join("lazy-pages.socket");
        let deadline = Instant::now() + ANSWER_LIMIT;
        while !socket.exists() {
            if let Some(status) = pager.0.try_wait().context("its end cannot be awaited")? {
                let log = fs::read_to_string(dir.join("lazy-pages.log")).unwrap_or_default();
                bail!("the pager ended at once: {status}: {}", end_of(&log));
            }
            if Instant::now() > deadline {
                bail!("the pager does not listen within {ANSWER_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(pager)
    }

    /// It ends by itself once every page is in place or the process is gone.
    fn finish(mut self) -> Result<()> {
        match wait(&mut self.0, ANSWER_LIMIT)? {
            Some(_) => Ok(()),
            None => bail!("the pager does not end although the process is gone"),
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_killed_at_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo before; exec sleep 600"]);
        let error = run_bounded(&mut command, Duration::from_millis(200), &dir.path().join("log")).unwrap_err();
        assert!(error.to_string().contains("not done within"), "{error}");
        assert!(error.to_string().contains("before"), "{error}");
    }

    #[test]
    fn what_a_failing_command_said_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo reason >&2; exit 7"]);
        let error = run_bounded(&mut command, LIMIT, &dir.path().join("log"))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "exit status: 7: reason");
    }
}
