//! Which platform runs on this machine: `<run>/platform.json`, written when it starts. The start time distinguishes a
//! process from a later one with the same number. A lock on `<run>/lock` lets only one start at a time; the kernel
//! releases it with the process.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// Its process id.
    pub(crate) pid: i32,
    /// Its start time, in clock ticks since the machine's boot.
    pub(crate) started_ticks: u64,
    /// Where its gateway listens.
    pub(crate) listen: SocketAddr,
    pub(crate) data: PathBuf,
}

impl Running {
    /// Whether the process still runs. A zombie does not.
    pub(crate) fn alive(&self) -> bool {
        stat_of(self.pid).is_some_and(|(state, ticks)| ticks == self.started_ticks && state != 'Z')
    }

    /// Sends a signal, if the process still runs.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        if !self.alive() {
            return Ok(());
        }
        kill(Pid::from_raw(self.pid), signal).with_context(|| format!("pid {}: {signal} cannot be sent", self.pid))
    }
}

/// The record of a run directory.
#[derive(Debug, Clone)]
pub(crate) struct PidFile {
    run: PathBuf,
}

impl PidFile {
    /// The record in `run`, which need not exist yet.
    pub(crate) fn at(run: &Path) -> Self {
        Self { run: run.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.run.join("platform.json")
    }

    /// The running platform, if there is one.
    pub(crate) fn running(&self) -> Result<Option<Running>> {
        let path = self.path();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("{}: cannot be read", path.display())),
        };
        let running: Running = serde_json::from_slice(&text)
            .with_context(|| format!("{}: not a record of a platform: remove it if none runs", path.display()))?;
        Ok(Some(running).filter(Running::alive))
    }

    /// Locks the run directory for the life of the returned value. `None` if another process holds it.
    pub(crate) fn lock(&self) -> Result<Option<Flock<File>>> {
        lock(&self.run)
    }

    /// Records this process. The caller must hold the lock.
    pub(crate) fn record(&self, listen: SocketAddr, data: &Path) -> Result<()> {
        let pid = i32::try_from(std::process::id()).context("this process has a number that does not fit")?;
        let (_, started_ticks) = stat_of(pid).context("/proc/self/stat cannot be read: is /proc mounted?")?;
        let running = Running {
            pid,
            started_ticks,
            listen,
            data: data.to_owned(),
        };
        let path = self.path();
        let new = path.with_extension("new");
        let text = serde_json::to_vec(&running).context("the record cannot be written as JSON")?;
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("{}: cannot be written", path.display()))
    }

    /// Forgets the platform. A missing record is no error.
    pub(crate) fn forget(&self) -> Result<()> {
        let path = self.path();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("{}: cannot be removed", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Locks `folder`, which is created for root only if it does not exist. `None` if another process holds the lock.
pub(crate) fn lock(folder: &Path) -> Result<Option<Flock<File>>> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .with_context(|| format!("{}: the directory cannot be made", folder.display()))?;
    let path = folder.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("{}: cannot be opened", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, e)) => Err(e).with_context(|| format!("{}: cannot be locked", path.display())),
    }
}

/// State and start time of a process (proc(5), fields 3 and 22).
fn stat_of(pid: i32) -> Option<(char, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name, field 2, is in parentheses and may hold anything, so fields are counted from the last one.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN: &str = "127.0.0.1:1";

    #[test]
    fn fields_are_found_behind_any_name() {
        let mut stat = "7 (a) b (c) S".to_owned();
        for field in 4..=30 {
            stat.push_str(&format!(" {field}"));
        }
        assert_eq!(parse_stat(&stat), Some(('S', 22)));
    }

    #[test]
    fn a_recorded_process_is_found_until_it_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = PidFile::at(dir.path());
        assert_eq!(file.running().unwrap(), None);
        file.record(LISTEN.parse().unwrap(), Path::new("/d")).unwrap();
        let running = file.running().unwrap().unwrap();
        assert_eq!(running.pid, i32::try_from(std::process::id()).unwrap());

        let other = Running {
            started_ticks: running.started_ticks + 1,
            ..running
        };
        fs::write(file.path(), serde_json::to_vec(&other).unwrap()).unwrap();
        assert_eq!(file.running().unwrap(), None);
        file.forget().unwrap();
        file.forget().unwrap();
    }

    #[test]
    fn the_lock_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let file = PidFile::at(&dir.path().join("run"));
        let held = file.lock().unwrap();
        assert!(held.is_some());
        assert!(file.lock().unwrap().is_none());
        drop(held);
        assert!(file.lock().unwrap().is_some());
    }
}
