//! Takes a checkpoint of a running instance with CRIU. Snapshots of functions and of runtimes, and migrations, take
//! this one path:
//!
//! ```text
//! start criu outside ─> freeze, no strays ─> paths of watches ─> criu goes inside, dumps
//!                                     └─post-dump─> edit, verify, compare, save ─> go on, or stay stopped
//! ```

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use rekindle_criu::descriptors::WORKING_DIR;
use rekindle_criu::{AfterDump, CriuError, DUMP_LOG, DumpOrder, Stage, StageError, cause_of};
use rekindle_init::files::Saved;
use rekindle_init::protocol::FUNCTION_PID;
use rekindle_verify::{Expected, Verified, VerifyError, verify};
use rekindle_wire::ApiError;
use tokio::runtime::Handle;

use super::installation::Criu;
use super::open_files::{self, OpenFiles};
use super::quiesce::{QuiesceError, QuiescedFunction};
use super::watches::{WatchError, WatchedPaths};
use super::{code_pages, connections, link_names, probe, refusal, same_files, semaphores, unix_names};
use crate::host::cgroup::Cgroup;
use crate::host::sandbox::dumper::Dumper;
use crate::host::sandbox::{Sandbox, SandboxError};
use crate::snapshots::connections::ConnectionNote;
use crate::snapshots::{FILES_ARCHIVE, forget_outside};

/// How long CRIU may take to start.
const CRIU_LIMIT: Duration = Duration::from_secs(10);
/// Pauses in milliseconds before another attempt at a function that had a file of `/proc` or `/sys` open. It runs
/// meanwhile.
pub(crate) const PAUSES_MS: [u64; 5] = [5, 10, 20, 40, 80];

/// Why there is no dump. The instance keeps running in every case.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// A file of the image directory cannot be created.
    #[error("prepare {}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
    /// The kernel probe cannot be given to CRIU.
    #[error("{0}")]
    Probe(ApiError),
    /// CRIU cannot be started, or does not get inside.
    #[error("start criu")]
    Start(#[source] SandboxError),
    /// CRIU's task broke off.
    #[error("talk to criu")]
    Task(#[from] tokio::task::JoinError),
    /// CRIU failed.
    #[error("checkpoint the function{log}")]
    Criu {
        /// The error from its log.
        log: String,
        /// What the function has that is in the way, in a user's words, if it is that.
        told: Option<String>,
        /// The error that CRIU reported.
        #[source]
        source: CriuError,
    },
    /// CRIU went on without a stage at which something is checked.
    #[error("criu did not say when it had seized the processes, or dumped them, so its images are unchecked")]
    Unchecked,
    /// The function cannot be checkpointed in its present state.
    #[error(transparent)]
    Quiesce(#[from] QuiesceError),
    /// What the function watches is not found.
    #[error(transparent)]
    Watch(#[from] WatchError),
}

/// In what CRIU's log says of a connection that waits to be accepted.
const NOT_ACCEPTED: &str = "of the function is not accepted yet";

impl DumpError {
    /// Returns whether the function may well be dumped in a moment: it had a file of `/proc` or `/sys` open, or had not
    /// accepted a connection yet.
    pub(crate) fn is_passing(&self) -> bool {
        let Self::Criu { source, log, .. } = self else {
            return false;
        };
        if log.contains(NOT_ACCEPTED) {
            return true;
        }
        let CriuError::Stage(_, refused) = source else {
            return false;
        };
        matches!(refused.downcast_ref(), Some(VerifyError::OfKernel { .. }))
    }

    /// Returns what is in the way and of the function's making, in a user's words. `None` for a failure of the host.
    pub(crate) fn of_function(&self) -> Option<String> {
        match self {
            Self::Criu { told, .. } => told.clone(),
            Self::Quiesce(refused) => refusal::of_processes(refused),
            Self::Watch(refused @ WatchError::NoPath { .. }) => Some(refused.to_string()),
            _ => None,
        }
    }

    /// Returns whether a process that has outlived its parent is in the way.
    pub(crate) fn is_orphan(&self) -> bool {
        let refused = match self {
            Self::Quiesce(refused) => Some(refused),
            Self::Criu {
                source: CriuError::Stage(_, refused),
                ..
            } => refused.downcast_ref(),
            _ => None,
        };
        matches!(refused, Some(QuiesceError::Strays(refused)) if refused.is_orphan())
    }

    /// Wraps CRIU's failure, with the cause found in its log in this directory, about the processes below `init`.
    fn criu(source: CriuError, dir: &Path, init: Pid) -> Self {
        let log = cause_of(&source, &dir.join(DUMP_LOG));
        let told = refusal::of_dump(&source, &log, init);
        Self::Criu { log, told, source }
    }
}

/// What is dumped, and what becomes of it.
pub(crate) struct Dump {
    pub(crate) expected: Expected,
    /// What happens to the processes afterwards.
    pub(crate) after: AfterDump,
    /// Whether invocations may wait for it.
    pub(crate) serves: bool,
    /// Names of the templates that their memory is mapped from.
    pub(crate) templates: Vec<String>,
    /// The directory of parent images that claim to have every page, below the image directory.
    pub(crate) parent: Option<String>,
}

/// What a dump yields beside the images and the archive of private files.
pub(crate) struct DumpOutcome<T> {
    /// An upper bound on how long the processes were stopped.
    pub(crate) frozen: Duration,
    /// How the private files were saved.
    pub(crate) saved: Saved,
    /// Connections of the function to itself that a copy gets.
    pub(crate) connections: Vec<ConnectionNote>,
    /// Files that may be databases.
    pub(crate) open_files: OpenFiles,
    /// Names that files have been given, if the processes stay stopped.
    pub(crate) link_names: Vec<PathBuf>,
    /// What was looked at while the processes were stopped.
    pub(crate) seen: T,
}

/// A CRIU outside the sandbox that is ready to dump its function. Its drop ends it.
pub(crate) struct DumpingCriu {
    dumper: Dumper,
    dir: PathBuf,
    watched: WatchedPaths,
    log_level: i32,
    limit: Duration,
}

impl DumpingCriu {
    /// Starts CRIU, to dump the function in `sandbox` into `dir`. The function keeps running.
    ///
    /// # Errors
    /// See [`DumpError`].
    pub(crate) async fn start(criu: &Criu, sandbox: &Sandbox, cgroup: &Cgroup, dir: &Path) -> Result<Self, DumpError> {
        let opened = File::open(dir).map_err(|e| DumpError::Directory(dir.to_owned(), e))?;
        let freezer = QuiescedFunction::freezer(cgroup);
        let freezer = freezer.map_err(|e| DumpError::Directory(cgroup.function(), e))?;
        probe::give_outside(criu, dir).await.map_err(DumpError::Probe)?;
        let images = OwnedFd::from(opened);
        let dumper = Dumper::start(sandbox, cgroup.procs_files(), &images, &freezer).await;
        let dumper = dumper.map_err(DumpError::Start)?;
        // CRIU is ready only once it responds. Waiting for that keeps the time that the function is stopped to a
        // minimum.
        let init = sandbox.init_pid();
        let (dumper, ready, watched) = tokio::task::spawn_blocking(move || {
            let ready = dumper.session.version(CRIU_LIMIT);
            (dumper, ready, WatchedPaths::look_ahead(init))
        })
        .await?;
        ready.map_err(|e| DumpError::criu(e, dir, init))?;
        Ok(Self {
            dumper,
            dir: dir.to_owned(),
            watched,
            log_level: criu.settings.log_level,
            limit: criu.settings.dump_limit,
        })
    }

    /// Dumps. While the processes are stopped, `edit` may change the images before they are verified, and `look` runs
    /// at the end. Blocks.
    ///
    /// # Errors
    /// See [`DumpError`]. The instance keeps running then.
    pub(crate) fn dump<T>(
        self,
        sandbox: &Arc<Sandbox>,
        cgroup: &Arc<Cgroup>,
        dump: Dump,
        runtime: &Handle,
        edit: impl FnOnce(&Path) -> Result<(), StageError>,
        look: impl FnOnce() -> T,
    ) -> Result<DumpOutcome<T>, DumpError> {
        let archive = self.dir.join(FILES_ARCHIVE);
        let archive = File::create(&archive).map_err(|e| DumpError::Directory(archive, e))?;
        let archive = OwnedFd::from(archive);
        let started = Instant::now();
        let quiesced = QuiescedFunction::of(cgroup, sandbox, dump.serves, runtime)?;
        self.watched.give(sandbox.init_pid(), &self.dir)?;
        runtime.block_on(self.dumper.go_inside()).map_err(DumpError::Start)?;
        let order = DumpOrder {
            images_dir: WORKING_DIR.to_owned(),
            pid: FUNCTION_PID,
            after: dump.after,
            freezer: quiesced.freezer_path(),
            external: dump.templates,
            parent: dump.parent,
            log_level: self.log_level,
            limit: self.limit,
        };
        let mut work = Some(|| {
            edit(&self.dir)?;
            let verified = check(&self.dir, sandbox, cgroup, &dump.expected)?;
            let connections = connections::copy(cgroup, &verified);
            let saved = runtime.block_on(sandbox.save_files(&archive))?;
            let open_files = open_files::of(sandbox.init_pid(), cgroup)?;
            Ok::<_, StageError>((saved, (connections, open_files), link_names::of(&verified), look()))
        });
        let (mut seized, mut done) = (false, None);
        let dumped = self.dumper.session.dump(&order, |stage| {
            match stage {
                Stage::Seized => {
                    quiesced.seized(runtime)?;
                    code_pages::fill(cgroup)?;
                    seized = true;
                }
                Stage::PostDump if !seized => return Err(DumpError::Unchecked.into()),
                Stage::PostDump => {
                    if let Some(work) = work.take() {
                        done = Some(quiesced.hold(runtime, work)?);
                    }
                }
                _ => {}
            }
            Ok(())
        });
        drop(quiesced);
        if dumped.is_err() || matches!(dump.after, AfterDump::Run) {
            let names = match &done {
                Some((_, _, names, _)) => names,
                None => &link_names::unverified(&self.dir),
            };
            link_names::remove(sandbox.init_pid(), names);
        }
        dumped.map_err(|e| DumpError::criu(e, &self.dir, sandbox.init_pid()))?;
        let frozen = started.elapsed();
        let (saved, (connections, open_files), link_names, seen) = done.ok_or(DumpError::Unchecked)?;
        Ok(DumpOutcome {
            frozen,
            saved,
            connections,
            open_files,
            link_names,
            seen,
        })
    }
}

/// Checks the images before the platform makes any other change to them. No path can change meanwhile.
fn check(dir: &Path, sandbox: &Sandbox, cgroup: &Cgroup, expected: &Expected) -> Result<Verified, StageError> {
    let began = Instant::now();
    let init = sandbox.init_pid();
    forget_outside(dir)?;
    unix_names::settle(dir, cgroup, init, expected.uid)?;
    let verified = verify(dir, expected)?;
    same_files::compare(init, &verified)?;
    semaphores::refuse(init, &verified)?;
    tracing::debug!(
        ms = began.elapsed().as_secs_f64() * 1e3,
        "checked the images of a checkpoint"
    );
    Ok(verified)
}
