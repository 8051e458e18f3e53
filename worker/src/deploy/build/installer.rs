//! Runs an installer (pip, npm) to its end: in a sandbox, limited in time and space, and killed when the build is given
//! up.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rekindle_confined::{BindMount, Program, SET_UP_FAILED, Work};
use rekindle_wire::function_config::ByteSize;
use tracing::Instrument as _;
use tracing::field::Empty;

use super::operator::OperatorConfig;
use super::proxy::{ADDRESS, Proxy};
use super::space::{SpaceWatch, StopReason};
use super::{BuildDir, BuildOrder};
use crate::host::confined::wait_unreaped;
use crate::host::netlink_memory::LIMIT;

/// How much of the end of an installer's output is kept, in bytes.
const OUTPUT_BYTES: usize = 4 * 1024;
/// Interval between checks of the space it takes.
const WATCH_EVERY: Duration = Duration::from_millis(500);
const PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin";
/// Where the sandbox sees the build's directories.
pub(super) const APP: &str = "/app";
pub(super) const DEPS: &str = "/run/deps";
/// Messages that say that something needs a compiler.
const NO_COMPILER: [&str; 7] = [
    "command 'gcc' failed",
    "-linux-gnu-gcc' failed",
    "command 'cc' failed",
    "gcc: not found",
    "cc: not found",
    "not found: make",
    "Could not find any Python installation to use",
];

/// Returns whether an installer's last output says that the disk was full: pip and npm pass on the system's message.
pub(super) fn had_no_room(output: &str) -> bool {
    ["No space left on device", "ENOSPC"]
        .iter()
        .any(|words| output.contains(words))
}

/// Returns advice for an installer's output that asks for a compiler.
pub(super) fn wanted_compiler(output: &str) -> &'static str {
    if NO_COMPILER.iter().any(|words| output.contains(words)) {
        "\nit needs a C compiler, which builds do not have: use a version that brings compiled code (a wheel, a \
         prebuilt addon), or compile it \
         before the deploy (build.command in fn.toml) and upload the result"
    } else {
        ""
    }
}

/// Why an installer did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum InstallerError {
    /// The kernel refused to start or confine it.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error(
        "{program} was stopped after {limit:?}: install fewer dependencies, vendor them into the folder, or have the \
         operator raise --build-timeout; its last words:\n{output}"
    )]
    TimedOut {
        /// The program.
        program: String,
        /// The operator's `--build-timeout`.
        limit: Duration,
        /// The end of its output.
        output: String,
    },
    /// It filled the disk.
    #[error(
        "{program} was stopped since it took more than {} of disk: remove dependencies the function does not need, or \
         have the operator raise --build-size, which is a third of that",
        ByteSize(*limit)
    )]
    TooLarge {
        /// The program.
        program: String,
        /// In bytes: three times the operator's `--build-size`.
        limit: u64,
    },
    /// It made paths that no program can name.
    #[error("{program} was stopped since it made directories whose paths are longer than 4,096 bytes")]
    TooDeep {
        /// The program.
        program: String,
    },
    /// Its sockets hold too much of the kernel's memory.
    #[error(
        "{program} was stopped since its netlink sockets held more than {} MiB of messages that it had not read",
        LIMIT >> 20
    )]
    Hoards {
        /// The program.
        program: String,
    },
    /// The worker's disk is nearly full.
    #[error(
        "{program} was stopped since the disk of {} has less than {} left: the operator has to make room there",
        .directory.display(),
        ByteSize(*reserve)
    )]
    DiskFull {
        /// The program.
        program: String,
        /// The build's directory.
        directory: PathBuf,
        /// What is to stay free, in bytes.
        reserve: u64,
    },
}

/// Network egress of an installer that has any.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) proxy: Proxy,
    pub(super) configured: OperatorConfig,
}

pub(super) struct Installer<'a, 'o> {
    pub(super) order: &'a BuildOrder<'o>,
    pub(super) build_dir: &'a BuildDir,
    /// Directories that form its root filesystem, the uppermost first.
    pub(super) root: Vec<PathBuf>,
    pub(super) network: Option<&'a Network>,
    /// An absolute path in that root.
    pub(super) program: &'static str,
    pub(super) arguments: Vec<String>,
    /// `NAME=value`.
    pub(super) environment: Vec<String>,
    pub(super) shown: Vec<BindMount>,
}

#[derive(Debug)]
pub(super) struct InstallerOutcome {
    pub(super) success: bool,
    /// The end of its output, both streams.
    pub(super) output: String,
}

impl Installer<'_, '_> {
    /// Runs it to its end. Dropping the future kills it. Its span is `install`, or `compile` without a network.
    pub(super) async fn run(self) -> Result<InstallerOutcome, InstallerError> {
        let span = tracing::info_span!(
            "installer",
            otel.name = if self.network.is_some() { "install" } else { "compile" },
            otel.status_code = Empty,
            "rekindle.role" = "worker",
            process.executable.path = self.program,
        );
        let finished = self.finish().instrument(span.clone()).await;
        if !finished.as_ref().is_ok_and(|finished| finished.success) {
            span.record("otel.status_code", "ERROR");
        }
        finished
    }

    async fn finish(self) -> Result<InstallerOutcome, InstallerError> {
        let program = self.program.to_owned();
        let failed = |source| InstallerError::Start {
            program: program.clone(),
            source,
        };
        let (time_limit, room_bytes) = (self.order.limits.install_timeout, self.order.limits.room_bytes());
        let command = self.command().map_err(failed)?;

        let running = Arc::new(RunningInstaller::default());
        // Also when this future is dropped.
        let _killed = KillOnDrop(&running);
        let mut ended = tokio::task::spawn_blocking({
            let running = Arc::clone(&running);
            move || running.to_end(command)
        });
        let deadline = tokio::time::sleep(time_limit);
        tokio::pin!(deadline);
        let watch = Arc::new(SpaceWatch::begin(
            self.build_dir.path.clone(),
            self.order.cgroup_procs.clone(),
            room_bytes,
        ));
        let mut stopped = None;
        let outcome = loop {
            tokio::select! {
                outcome = &mut ended => break outcome,
                () = &mut deadline, if stopped.is_none() => {
                    stopped = Some(StopReason::Late);
                    running.kill();
                }
                () = tokio::time::sleep(WATCH_EVERY), if stopped.is_none() => {
                    let watch = Arc::clone(&watch);
                    stopped = tokio::task::spawn_blocking(move || watch.look()).await.unwrap_or(None);
                    if stopped.is_some() {
                        running.kill();
                    }
                }
            }
        };
        let (status, output) = outcome.map_err(io::Error::other).flatten().map_err(failed)?;
        match stopped {
            Some(StopReason::Late) => Err(InstallerError::TimedOut {
                program,
                limit: time_limit,
                output,
            }),
            Some(StopReason::Large) => Err(InstallerError::TooLarge {
                program,
                limit: room_bytes,
            }),
            Some(StopReason::Deep) => Err(InstallerError::TooDeep { program }),
            Some(StopReason::Hoarding) => Err(InstallerError::Hoards { program }),
            Some(StopReason::DiskFull) => Err(InstallerError::DiskFull {
                program,
                directory: self.build_dir.path.clone(),
                reserve: watch.reserve,
            }),
            None if status.code() == Some(SET_UP_FAILED) && output.starts_with("cannot confine") => {
                Err(failed(io::Error::other(output)))
            }
            None => {
                let refusals = self.network.and_then(|network| network.proxy.refusals());
                let refusals = refusals.filter(|_| !status.success()).map(|text| format!("\n{text}"));
                Ok(InstallerOutcome {
                    success: status.success(),
                    output: output + &refusals.unwrap_or_default(),
                })
            }
        }
    }
}

impl Installer<'_, '_> {
    fn command(&self) -> io::Result<Command> {
        let seen = |source: PathBuf, at: &str| BindMount {
            source,
            at: PathBuf::from(at),
            write: true,
        };
        let mut shown = vec![seen(self.build_dir.app(), APP), seen(self.build_dir.tmp(), "/tmp")];
        // It no longer exists once the packages have moved to the cache.
        if self.build_dir.deps().exists() {
            shown.push(seen(self.build_dir.deps(), DEPS));
        }
        shown.extend(self.shown.iter().cloned());
        let base = [PATH, "LANG=C.UTF-8", "HOME=/tmp/home", "TMPDIR=/tmp"].map(str::to_owned);
        let mut environment = base.to_vec();
        environment.extend(self.environment.iter().cloned());
        if let Some(network) = self.network {
            shown.extend(network.configured.shown.iter().cloned());
            environment.extend(network.configured.environment.iter().cloned());
            let proxied = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
            environment.extend(proxied.map(|name| format!("{name}={ADDRESS}")));
        }
        let program = Program {
            root: self.root.clone(),
            shown,
            path: self.program.to_owned(),
            arguments: [self.program.to_owned()]
                .into_iter()
                .chain(self.arguments.iter().cloned())
                .collect(),
            environment,
            cwd: APP.to_owned(),
            file_bytes: self.order.limits.room_bytes(),
        };
        let (id, groups) = (self.build_dir.id, &self.order.cgroup_procs);
        let network = self.network.map(|network| network.proxy.namespace());
        let mut command = self
            .order
            .confinement
            .command(Work::Program(program), id, network, groups)?;
        command.process_group(0).stdin(std::process::Stdio::null());
        Ok(command)
    }
}

/// The process, as long as its id is surely its own.
#[derive(Debug, Default)]
struct RunningInstaller {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    killed: bool,
    pid: Option<Pid>,
}

struct KillOnDrop<'a>(&'a RunningInstaller);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl RunningInstaller {
    /// Kills the process group, or keeps it from starting.
    fn kill(&self) {
        let mut state = self.state.lock();
        state.killed = true;
        if let Some(pid) = state.pid {
            // It may be dead already, but it is not reaped, so the id is nobody else's.
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }

    /// Runs the command and waits for it, on this thread from fork to end: the kernel kills the installer when the
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
        // This drops the worker's copies of the write end, so that the pipe ends with the process.
        drop(command);
        let output = last_words(&mut reader);
        let pid = self.state.lock().pid;
        if let Some(pid) = pid {
            wait_unreaped(pid);
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
