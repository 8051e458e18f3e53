//! A platform under test: `fn up --foreground` with directories, port and control groups of its own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking::Parked;
use tempfile::TempDir;

use crate::{Client, binaries, leftovers};

/// Limit to be ready: it imports the root filesystems at its first start.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// Limit for an orderly stop.
const STOP_LIMIT: Duration = Duration::from_secs(45);

/// How to start a platform.
#[derive(Debug, Clone)]
pub struct Options {
    /// Variables of its environment.
    pub env: Vec<(String, String)>,
    /// Further arguments of `fn up`.
    pub args: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            env: Vec::new(),
            args: vec!["--memory".into(), "12GiB".into()],
        }
    }
}

/// A platform. Dropping it stops it.
pub struct Platform {
    root: TempDir,
    port: u16,
    options: Options,
    client: Client,
    running: Option<Parked>,
}

impl std::ops::Deref for Platform {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

pub(crate) mod parking {
    //! Children that die with the test. The kernel's parent-death signal is tied to the thread that started the child,
    //! and tests' threads end early. So a dedicated thread starts it and stays.

    use super::*;

    pub(crate) struct Parked {
        pub(crate) child: Child,
        _thread: mpsc::SyncSender<()>,
    }

    impl Parked {
        pub(crate) fn start(command: Command) -> Self {
            Self::start_in(None, command)
        }

        /// Starts a child in this network namespace, or where the caller is.
        pub(crate) fn start_in(namespace: Option<File>, mut command: Command) -> Self {
            let (started, child) = mpsc::sync_channel(1);
            let (stay, end) = mpsc::sync_channel::<()>(1);
            thread::spawn(move || {
                if let Some(namespace) = namespace {
                    setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                }
                started.send(command.spawn().unwrap()).unwrap();
                // Until the handle is dropped.
                let _gone = end.recv();
            });
            Self {
                child: child.recv().unwrap(),
                _thread: stay,
            }
        }
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
        let root = tempfile::Builder::new().prefix("rk").tempdir().unwrap();
        fs::create_dir(root.path().join("cache")).unwrap();
        std::os::unix::fs::symlink(binaries::runtimes(), root.path().join("cache/runtimes")).unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let client = Client::new(
            format!("http://127.0.0.1:{port}"),
            root.path().join("data/admin.key"),
            vec![root.path().join("log")],
        );
        let mut platform = Self {
            root,
            port,
            options,
            client,
            running: None,
        };
        platform.restart();
        platform
    }

    /// Starts it again after it was stopped or killed, with the same directories.
    ///
    /// # Panics
    /// If it does not become ready.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(self.running.is_none(), "it runs already");
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM"])
            .arg(binaries::directory().join("fn"))
            .args(["up", "--foreground", "--listen", &format!("127.0.0.1:{}", self.port)])
            .args(&self.options.args)
            .env("FN_DATA", self.directory("data"))
            .env("FN_CACHE", self.directory("cache"))
            .env("FN_RUN", self.directory("run"))
            .env("RUST_LOG", "warn,rekindle=info")
            .envs(self.options.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.running = Some(Parked::start(command));
        let end = Instant::now() + READY_LIMIT;
        loop {
            if self.request("GET", "/readyz").try_send().is_ok_and(|a| a.status == 200) {
                return;
            }
            let ended = self.child().try_wait().unwrap();
            if ended.is_some() || Instant::now() > end {
                panic!("the platform does not get ready ({ended:?}):\n{}", self.log_tail(60));
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Sets a variable of its environment, for the next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.options.env.retain(|(known, _)| known != name);
        self.options.env.push((name.to_owned(), value.to_owned()));
    }

    fn child(&mut self) -> &mut Child {
        &mut self.running.as_mut().unwrap().child
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
        let pid = self.pid();
        kill(Pid::from_raw(pid), signal).unwrap();
        let child = self.child();
        let end = Instant::now() + STOP_LIMIT;
        while Instant::now() < end {
            if let Some(status) = child.try_wait().unwrap() {
                self.running = None;
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        self.running = None;
        panic!(
            "it did not end within {STOP_LIMIT:?} of {signal}:\n{}",
            self.log_tail(60)
        );
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.running.as_ref().unwrap().child.id().cast_signed()
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

    fn log_path(&self) -> PathBuf {
        self.root.path().join("log")
    }

    /// Removes everything that its worker could fetch again. It must be stopped.
    pub fn empty_cache(&self) {
        assert!(self.running.is_none());
        fs::remove_dir_all(self.directory("cache").join("worker")).unwrap();
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
}

impl Platform {
    /// Stops it through a shared reference, at the end of a test binary.
    pub(crate) fn end_shared(&self) -> Result<(), String> {
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
        let left = self.leftovers();
        // Statics are not dropped.
        let _removed = fs::remove_dir_all(self.root.path());
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if let Some(mut parked) = self.running.take() {
            // A failed test has reported that; this only cleans up.
            let _gone = kill(Pid::from_raw(parked.child.id().cast_signed()), Signal::SIGTERM);
            let end = Instant::now() + STOP_LIMIT;
            while Instant::now() < end && parked.child.try_wait().is_ok_and(|s| s.is_none()) {
                thread::sleep(Duration::from_millis(10));
            }
            let _ended = parked.child.kill();
            let _reaped = parked.child.wait();
        }
        if thread::panicking() {
            eprintln!("--- the end of the platform's log ---\n{}", self.log_tail(40));
        }
    }
}
