//! A platform under test: `fn up --foreground` with directories, port and control groups of its own.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_s3_servers::free_address;
use tempfile::TempDir;

use crate::binaries::{self, Programs};
use crate::child::{self, Parked, STOP_LIMIT};
use crate::{Client, imported, leftovers};

/// Limit to be ready: it imports the root filesystems at its first start.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// How to start a platform.
#[derive(Debug, Clone)]
pub struct Options {
    /// Variables of its environment.
    pub env: Vec<(String, String)>,
    /// Further arguments of `fn up`.
    pub args: Vec<String>,
    /// What it logs (`RUST_LOG`); by default what a platform in use does.
    pub log: Option<&'static str>,
    /// The directory of its programs; by default as [`Programs::find`] finds it.
    pub programs: Option<PathBuf>,
    /// The directory of the root filesystems' archives; by default they are built if needed.
    pub runtimes: Option<PathBuf>,
}

impl Options {
    /// A platform as its operator starts it, without the tests' own settings.
    pub fn plain() -> Self {
        Self {
            env: Vec::new(),
            args: Vec::new(),
            log: None,
            programs: None,
            runtimes: None,
        }
    }

    /// Other programs or archives make other layers.
    fn has_usual_layers(&self) -> bool {
        self.programs.is_none() && self.runtimes.is_none()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            args: vec!["--memory".into(), "12GiB".into()],
            log: Some("warn,rekindle=info"),
            ..Self::plain()
        }
    }
}

/// A platform. Dropping it stops it.
pub struct Platform {
    root: TempDir,
    port: u16,
    options: Options,
    programs: Programs,
    client: Client,
    running: Option<Parked>,
}

impl std::ops::Deref for Platform {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Platform {
    /// Starts one with the usual options and waits until it is ready.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts one and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready; the message has the end of its log.
    pub fn start_with(options: Options) -> Self {
        Self::try_start(options).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// If it does not become ready; the message has the end of its log.
    pub fn try_start(options: Options) -> Result<Self> {
        let programs = Programs::find(options.programs.as_deref())?;
        let root = tempfile::Builder::new().prefix("rk").tempdir();
        let root = root.context("no temporary directory")?;
        fs::create_dir(root.path().join("cache")).context("no cache can be made")?;
        let runtimes = options.runtimes.as_deref().unwrap_or_else(|| binaries::runtimes());
        std::os::unix::fs::symlink(runtimes, root.path().join("cache/runtimes"))
            .context("the runtimes cannot be linked")?;
        if options.has_usual_layers() {
            imported::fill_own_store(root.path())?;
            // One with little room for layers is to have it for its own.
            if !options.args.iter().any(|arg| arg == "--layer-cache") {
                imported::fill_layers(&root.path().join("cache"))?;
            }
        }
        let port = free_port();
        let client = Client::new(
            programs.clone(),
            format!("http://127.0.0.1:{port}"),
            root.path().join("data/admin.key"),
            vec![root.path().join("log")],
        );
        let mut platform = Self {
            root,
            port,
            options,
            programs,
            client,
            running: None,
        };
        platform.try_restart()?;
        Ok(platform)
    }

    /// Starts it again after it was stopped or killed, with the same directories.
    ///
    /// # Panics
    /// If it does not become ready.
    #[track_caller]
    pub fn restart(&mut self) {
        self.try_restart().unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Starts it again after it was stopped or killed, with the same directories.
    ///
    /// # Errors
    /// If it does not become ready.
    pub fn try_restart(&mut self) -> Result<()> {
        assert!(self.running.is_none(), "it runs already");
        let mut command = child::command(&self.programs.cli(), self.root.path(), &self.root.path().join("log"))?;
        command
            .args(["up", "--foreground", "--listen", &format!("127.0.0.1:{}", self.port)])
            .args(&self.options.args)
            .envs(self.options.log.map(|log| ("RUST_LOG", log)))
            .envs(self.options.env.iter().map(|(k, v)| (k, v)));
        let parked = Parked::start(None, command).context("setpriv (util-linux) cannot be started")?;
        let running = self.running.insert(parked);
        let end = Instant::now() + READY_LIMIT;
        loop {
            let ready = self.client.request("GET", "/readyz").try_send();
            if ready.is_ok_and(|a| a.status == 200) {
                return Ok(());
            }
            let ended = running.child.try_wait().context("its end cannot be awaited")?;
            if ended.is_some() || Instant::now() > end {
                bail!(
                    "the platform does not get ready ({ended:?}):\n{}",
                    self.client.log_tail(60)
                );
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Sets a variable of its environment, for the next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.options.env.retain(|(known, _)| known != name);
        self.options.env.push((name.to_owned(), value.to_owned()));
    }

    /// Stops it in an orderly way.
    ///
    /// # Panics
    /// If it does not end in time or ends with an error.
    #[track_caller]
    pub fn stop(&mut self) {
        let status = self.signal(Signal::SIGTERM);
        assert!(status.success(), "it stopped with {status}:\n{}", self.log_tail(60));
    }

    /// Kills it, without any chance to clean up.
    #[track_caller]
    pub fn kill9(&mut self) {
        self.signal(Signal::SIGKILL);
    }

    #[track_caller]
    fn signal(&mut self, signal: Signal) -> ExitStatus {
        let status = self.running.take().unwrap().end(signal);
        status.unwrap_or_else(|| {
            panic!(
                "it did not end within {STOP_LIMIT:?} of {signal}:\n{}",
                self.log_tail(60)
            )
        })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.running.as_ref().unwrap().pid()
    }

    /// Its own directory, which is in the path of everything it mounts.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// One of its directories: `data`, `cache` or `run`.
    pub fn directory(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Its gateway's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Removes everything that its worker could fetch again. It must be stopped.
    pub fn empty_cache(&self) {
        assert!(self.running.is_none());
        fs::remove_dir_all(self.directory("cache").join("worker")).unwrap();
    }

    /// Removes what its worker keeps of snapshots; layers stay unpacked. It must be stopped.
    pub fn forget_snapshots(&self) {
        assert!(self.running.is_none());
        for entry in fs::read_dir(self.directory("cache").join("worker")).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("layers") {
                fs::remove_dir_all(&path).unwrap();
            }
        }
    }

    /// Number of the platform's threads whose names begin like this.
    pub fn threads(&self, prefix: &str) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks
            .flatten()
            .filter_map(|t| fs::read_to_string(t.path().join("comm")).ok())
            .filter(|name| name.starts_with(prefix))
            .count()
    }

    /// What is left of a stopped platform; empty if all is well.
    pub fn leftovers(&self) -> Vec<String> {
        leftovers::of(self.root.path(), &self.directory("run"))
    }

    /// Stops it through a shared reference, at the end of a test binary.
    ///
    /// # Errors
    /// If it does not end well, or leaves something behind.
    pub fn end_shared(&self) -> Result<(), String> {
        let pid = Pid::from_raw(self.pid());
        kill(pid, Signal::SIGTERM).map_err(|e| e.to_string())?;
        let end = Instant::now() + STOP_LIMIT;
        loop {
            match nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WNOHANG)) {
                Ok(nix::sys::wait::WaitStatus::StillAlive) if Instant::now() < end => {
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(nix::sys::wait::WaitStatus::Exited(_, 0)) => break,
                other => return Err(format!("{other:?}\n{}", self.log_tail(60))),
            }
        }
        self.keep_layers();
        let left = self.leftovers();
        // Statics are not dropped.
        let _removed = fs::remove_dir_all(self.root.path());
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    }

    /// Leaves the root filesystems that its worker has unpacked to platforms that start later.
    fn keep_layers(&self) {
        if self.options.has_usual_layers() {
            // They unpack what was not kept.
            let _unkept = imported::keep_layers(&self.directory("cache"));
        }
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if let Some(parked) = self.running.take() {
            // A failed test has reported that; this only cleans up.
            let _ended = parked.end(Signal::SIGTERM);
        }
        if !thread::panicking() {
            self.keep_layers();
        }
        leftovers::remove(&self.programs, &self.directory("run"));
        if thread::panicking() {
            eprintln!("--- the end of the platform's log ---\n{}", self.log_tail(40));
        }
    }
}

/// A port of loopback that is free now.
pub fn free_port() -> u16 {
    free_address(Ipv4Addr::LOCALHOST).port()
}
