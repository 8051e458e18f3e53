//! Runs an installer (pip, npm) to its end: confined, bounded in time and space, killed when the build is given up.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use parking_lot::Mutex;

use super::confine::{SEEN_AT, confine};

/// How much of an installer's last words is kept, bytes.
const OUTPUT_BYTES: usize = 4 * 1024;
/// How often the room it takes is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// Where installers and what they need are looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Variables of the worker's environment that an operator sets for installers.
const PASSED_PREFIXES: [&str; 3] = ["PIP_", "NPM_CONFIG_", "npm_config_"];
const PASSED: [&str; 13] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
];

/// The variables that are passed on, sorted.
pub(super) fn passed_environment() -> Vec<(OsString, OsString)> {
    let passed = |name: &OsString| {
        let name = name.to_str().unwrap_or_default();
        PASSED.contains(&name) || PASSED_PREFIXES.iter().any(|p| name.starts_with(p))
    };
    let mut environment: Vec<_> = std::env::vars_os().filter(|(name, _)| passed(name)).collect();
    environment.sort();
    environment
}

/// Whether an installer's last words say that the disk was full: pip and npm pass on what the system calls it.
pub(super) fn had_no_room(output: &str) -> bool {
    ["No space left on device", "ENOSPC"]
        .iter()
        .any(|words| output.contains(words))
}

/// Why an installer did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum InstallerError {
    /// It is not on this host.
    #[error("{program} is not installed on the worker: the operator must run `apt-get install {package}`")]
    Missing {
        /// The program.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The kernel refused to start or confine it.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error(
        "{program} was stopped after {limit:?}: install fewer dependencies, or vendor them into the folder; its last words:\n{output}"
    )]
    TimedOut {
        /// The program.
        program: String,
        /// The limit.
        limit: Duration,
        /// Its last words.
        output: String,
    },
    /// It filled the disk.
    #[error(
        "{program} was stopped since it took more than {limit} bytes of disk: remove dependencies the function does not need"
    )]
    TooLarge {
        /// The program.
        program: String,
        /// The limit.
        limit: u64,
    },
}

/// An installer about to run.
#[derive(Debug)]
pub(super) struct Installer<'a> {
    /// Program, found in [`PATH`], and the package that has it.
    pub(super) program: &'static str,
    pub(super) package: &'static str,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, &'static str)>,
    /// The build's directory on the host, which the installer sees as `/tmp`.
    pub(super) room: &'a Path,
    /// Working directory as the installer sees it.
    pub(super) cwd: &'static str,
    pub(super) room_bytes: u64,
    pub(super) time_limit: Duration,
    pub(super) cgroup_procs: &'a [PathBuf],
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) success: bool,
    /// Its last words, both streams.
    pub(super) output: String,
}

impl Installer<'_> {
    /// Runs it to its end; dropping the future kills it.
    pub(super) async fn run(self) -> Result<Finished, InstallerError> {
        let program = self.program.to_owned();
        let found = PATH
            .split(':')
            .map(|d| Path::new(d).join(&program))
            .find(|p| p.is_file());
        let Some(path) = found else {
            return Err(InstallerError::Missing {
                program,
                package: self.package,
            });
        };
        let failed = |source| InstallerError::Start {
            program: program.clone(),
            source,
        };
        let mut command = Command::new(path);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(passed_environment())
            .env("PATH", PATH)
            .env("LANG", "C.UTF-8");
        command
            .env("HOME", format!("{SEEN_AT}/home"))
            .env("TMPDIR", format!("{SEEN_AT}/tmp"));
        command
            .envs(self.environment.iter().copied())
            .stdin(std::process::Stdio::null());
        confine(&mut command, self.room, self.cwd, self.room_bytes, self.cgroup_procs).map_err(failed)?;

        let running = Arc::new(Running::default());
        // Also when this future is dropped.
        let _killed = KillOnDrop(&running);
        let mut ended = tokio::task::spawn_blocking({
            let running = Arc::clone(&running);
            move || running.to_end(command)
        });
        let deadline = tokio::time::sleep(self.time_limit);
        tokio::pin!(deadline);
        let mut stopped = None;
        let outcome = loop {
            tokio::select! {
                outcome = &mut ended => break outcome,
                () = &mut deadline, if stopped.is_none() => {
                    stopped = Some(Stopped::Late);
                    running.kill();
                }
                () = tokio::time::sleep(WATCH_EVERY), if stopped.is_none() => {
                    let (room, limit) = (self.room.to_owned(), self.room_bytes);
                    let bytes = tokio::task::spawn_blocking(move || tree_bytes(&room, limit)).await.unwrap_or(0);
                    if bytes > limit {
                        stopped = Some(Stopped::Large);
                        running.kill();
                    }
                }
            }
        };
        let (status, output) = outcome.map_err(io::Error::other).flatten().map_err(failed)?;
        match stopped {
            Some(Stopped::Late) => Err(InstallerError::TimedOut {
                program,
                limit: self.time_limit,
                output,
            }),
            Some(Stopped::Large) => Err(InstallerError::TooLarge {
                program,
                limit: self.room_bytes,
            }),
            None => Ok(Finished {
                success: status.success(),
                output,
            }),
        }
    }
}

enum Stopped {
    Late,
    Large,
}

/// The process, as long as its id is surely its own.
#[derive(Debug, Default)]
struct Running {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    killed: bool,
    pid: Option<Pid>,
}

struct KillOnDrop<'a>(&'a Running);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Running {
    /// Kills the process group, or keeps it from starting.
    fn kill(&self) {
        let mut state = self.state.lock();
        state.killed = true;
        if let Some(pid) = state.pid {
            // It may be dead already, but it is not reaped, so the id is nobody else's.
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }

    /// Starts the command and waits for it, on this thread from fork to end: the kernel kills the installer when the
    /// thread that forked it ends.
    fn to_end(&self, mut command: Command) -> io::Result<(ExitStatus, String)> {
        let (mut reader, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = {
            let mut state = self.state.lock();
            if state.killed {
                return Err(io::Error::from(io::ErrorKind::Interrupted));
            }
            let child = command.spawn()?;
            state.pid = i32::try_from(child.id()).ok().map(Pid::from_raw);
            child
        };
        // Our copies of the write end go, so that the pipe ends with the process.
        drop(command);
        let output = last_words(&mut reader);
        let pid = self.state.lock().pid;
        if let Some(pid) = pid {
            // Waits without reaping; an error means that there is nothing to wait for.
            while let Err(nix::errno::Errno::EINTR) = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
            {
            }
        }
        self.state.lock().pid = None;
        Ok((child.wait()?, output))
    }
}

fn last_words(from: &mut impl Read) -> String {
    let mut kept: VecDeque<u8> = VecDeque::new();
    let mut buffer = [0; 8 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(length) if length > 0 => {
                kept.extend(&buffer[..length]);
                let surplus = kept.len().saturating_sub(OUTPUT_BYTES);
                kept.drain(..surplus);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned()
}

/// Bytes of the files in a tree; stops counting above `enough`. What vanishes meanwhile counts nothing.
pub(super) fn tree_bytes(directory: &Path, enough: u64) -> u64 {
    let mut bytes = 0_u64;
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else {
                continue;
            };
            if metadata.is_dir() {
                left.push(entry.path());
            }
            bytes = bytes.saturating_add(metadata.len());
            if bytes > enough {
                return bytes;
            }
        }
    }
    bytes
}
