//! Restores processes without CRIU: a hollow process in the sandbox runs the restore program of a snapshot, or of an
//! instance that arrives.
//!
//! ```text
//! order ─> (anonymous memory) ─mapped─> register it, fill the working set
//!                │                                 │
//!                ├─ files, descriptors, threads ───┴─> last work ─> go
//! private files, clocks
//! ```
//!
//! Until `go` nothing of the processes has run, so whatever fails before can be tried by CRIU in another sandbox.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_criu::StageError;
use rekindle_init::protocol::Clocks;
use rekindle_pager::{AheadPage, Pager, PagerError, PreparedMemory, StoppedProcess};
use rekindle_telemetry::record_past;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tracing::Span;

use crate::host::sandbox::{Hollow, HollowError, OrderedHollow, RunningHollow, Sandbox, SandboxError, StartSignal};
use crate::snapshots::{OpenSnapshot, RestoreProgram};

/// How long the pager may take to register the memory and map the working set.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);

/// What restores instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Restorer {
    /// A restore program, for snapshots that can be compiled. CRIU for others.
    #[default]
    Auto,
    /// CRIU.
    Criu,
}

/// It is none of the two.
#[derive(Debug, thiserror::Error)]
#[error("say `auto` or `criu`")]
pub struct UnknownRestorer;

impl FromStr for Restorer {
    type Err = UnknownRestorer;

    fn from_str(text: &str) -> Result<Self, UnknownRestorer> {
        match text {
            "auto" => Ok(Self::Auto),
            "criu" => Ok(Self::Criu),
            _ => Err(UnknownRestorer),
        }
    }
}

impl fmt::Display for Restorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Criu => "criu",
        })
    }
}

/// Why a program did not restore its processes. Nothing of them has run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The archive of the private files cannot be opened.
    #[error("open the private files")]
    Files(#[source] io::Error),
    /// There is no place for the code that ends each thread's restore.
    #[error("find a free address")]
    Address,
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Hollow(#[from] HollowError),
    /// An operation of the program fails. Its name is as `fn snapshot inspect --program` prints it.
    #[error("{name} of process {pid}, operation {number} of its restore program")]
    Operation {
        name: String,
        pid: u32,
        number: u32,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Pager(#[from] PagerError),
    /// What init was asked for meanwhile has failed.
    #[error("prepare the sandbox")]
    Unfurnished,
    /// The last work fails.
    #[error("the last work before it runs")]
    Last(#[source] StageError),
    /// The worker stops.
    #[error("wait for it")]
    Stopped(#[from] JoinError),
}

impl RunError {
    /// Names the operation that has failed, if one has.
    fn naming_operation(self, program: &RestoreProgram) -> Self {
        let (number, pid, source) = match self {
            Self::Hollow(HollowError::Operation { number, pid, source }) => (number, pid, source),
            other => return other,
        };
        match pid.and_then(|pid| Some((pid, program.operation(pid, number)?))) {
            Some((pid, name)) => Self::Operation {
                name,
                pid,
                number,
                source,
            },
            None => Self::Hollow(HollowError::Operation { number, pid, source }),
        }
    }
}

/// Determines the pages to fill before the processes run. Called when all that the pager registers is mapped, on a
/// thread that may block.
pub(crate) type PagesAhead = Box<dyn FnOnce() -> Arc<[AheadPage]> + Send>;

/// Work before the first instruction of the processes. It gets their ids on the host, by those in the sandbox.
pub(crate) type LastWork = Box<dyn FnOnce(HashMap<u32, i32>) -> Result<(), StageError> + Send>;

/// The first part of a program's run: its memory. Nothing in it is a copy's own, so it can be done ahead.
pub(crate) struct ProgramStart {
    /// The function's ends of its outputs.
    pub(crate) outputs: [OwnedFd; 2],
    /// The snapshot whose templates the program maps.
    pub(crate) snapshot: Option<Arc<OpenSnapshot>>,
    pub(crate) program: Arc<RestoreProgram>,
    pub(crate) pager: Pager,
    pub(crate) ahead: PagesAhead,
}

/// A program that has its memory and files, and waits for the restore to begin. Nothing of its process has run.
pub(crate) struct BegunProgram {
    program: Arc<RestoreProgram>,
    pager: Pager,
    process: RunningHollow,
    start: StartSignal,
    /// Whether the pages of files that copies touch first are mapped.
    pub(crate) has_file_pages: bool,
}

/// The second part of a program's run.
pub(crate) struct ProgramRun {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) clocks: Clocks,
    pub(crate) last: LastWork,
    /// Records a phase of the restore.
    pub(crate) record: Box<dyn Fn(&'static str, Duration) + Send>,
}

/// Tells when the sandbox has the private files of the copy.
struct FilesReady(Option<oneshot::Receiver<()>>);

impl FilesReady {
    /// Waits for them, on a thread that may block. Once they are there it returns at once.
    fn wait(&mut self) -> Result<(), RunError> {
        match self.0.take() {
            Some(there) => there.blocking_recv().map_err(|_| RunError::Unfurnished),
            None => Ok(()),
        }
    }
}

impl ProgramStart {
    fn order(&self, hollow: Hollow) -> Result<(OrderedHollow, StartSignal), RunError> {
        let order = self.program.order().ok_or(RunError::Address)?;
        let own = self.program.files().into_iter().chain(&self.outputs);
        let templates = self.snapshot.iter().flat_map(|snapshot| snapshot.template.files());
        let descriptors: Vec<BorrowedFd<'_>> = own.chain(templates).map(OwnedFd::as_fd).collect();
        Ok(hollow.order(order, &descriptors)?)
    }

    /// Registers the memory, which is mapped, and fills the working set. Returns the pager that serves it.
    fn fill(self, memory: Vec<StoppedProcess>) -> Result<Pager, RunError> {
        let ahead = (self.ahead)();
        let asked = ahead.len();
        let preparing = self.pager.prepare(memory, ahead)?;
        let PreparedMemory { filled, took } = preparing.done(PREPARE_LIMIT)?;
        let pages = ("rekindle.pages", asked as u64);
        record_past(&Span::current(), "working set", took.0, took.1, &[pages]);
        tracing::debug!(asked, mapped = filled, us = took.1.as_micros(), "working set mapped");
        Ok(self.pager)
    }

    /// Runs the program of a single process up to where its restore begins. The private files are there.
    ///
    /// # Errors
    /// Returns an error when something fails. The sandbox is of no use then.
    pub(crate) async fn begin(self, hollow: Hollow) -> Result<BegunProgram, RunError> {
        let (ordered, start) = self.order(hollow)?;
        start.files_are_there();
        let program = Arc::clone(&self.program);
        let filling = tokio::task::spawn_blocking(move || {
            let (mut process, memory) = ordered.mapped(self.program.pids())?;
            let snapshot = self.snapshot.clone();
            let pager = self.fill(memory)?;
            process.begun()?;
            let file_pages = snapshot.as_ref().and_then(|snapshot| snapshot.file_pages.get());
            if let Some(file_pages) = file_pages {
                file_pages.map(&process.hosts);
            }
            Ok::<_, RunError>((process, pager, file_pages.is_some()))
        });
        let (process, pager, has_file_pages) = filling.await?.map_err(|error| error.naming_operation(&program))?;
        Ok(BegunProgram {
            program,
            pager,
            process,
            start,
            has_file_pages,
        })
    }
}

impl ProgramRun {
    /// Runs a program until the processes run. Returns the pager that serves their memory. `archive` has the private
    /// files.
    ///
    /// # Errors
    /// Returns an error when something fails before they run. The sandbox is of no use then.
    pub(crate) async fn run(self, start: ProgramStart, hollow: Hollow, archive: PathBuf) -> Result<Pager, RunError> {
        let archive = OwnedFd::from(File::open(archive).map_err(RunError::Files)?);
        let (sandbox, clocks) = (Arc::clone(&self.sandbox), self.clocks);
        let began = Instant::now();
        let (ordered, signal) = start.order(hollow)?;
        let program = Arc::clone(&start.program);
        let changes_directories = program.changes_directories();
        let (linked, may_follow) = oneshot::channel();
        let span = Span::current();
        let filling = tokio::task::spawn_blocking(move || {
            let _in = span.enter();
            let mut files = FilesReady(Some(may_follow));
            // The first of several waits for its files before it makes the others. That may take longer than a message
            // of it is waited for.
            if start.program.pids().len() > 1 {
                files.wait()?;
            }
            let (process, memory) = ordered.mapped(start.program.pids())?;
            (self.record)("mappings", began.elapsed());
            let registering = Instant::now();
            let pager = start.fill(memory)?;
            (self.record)("working-set", registering.elapsed());
            self.finish(process, files, changes_directories)?;
            Ok(pager)
        });
        let furnish = async {
            futures::try_join!(sandbox.load_files(&archive), sandbox.begin_program(clocks))?;
            signal.files_are_there();
            signal.start();
            // The hollow process opens no file through a link, whether mounts would let it or not.
            if !changes_directories {
                sandbox.follow_links().await?;
            }
            // If nobody waits for it, filling has failed.
            let _told = linked.send(());
            Ok(())
        };
        // On failure the hollow process is told to give up, so filling ends.
        let furnished: Result<(), RunError> = furnish.await;
        let filled = filling.await?;
        furnished.and(filled).map_err(|error| error.naming_operation(&program))
    }

    /// Goes on with a program that has begun, where the private files are.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) async fn go_on(self, begun: BegunProgram) -> Result<Pager, RunError> {
        self.sandbox.begin_program(self.clocks).await?;
        begun.start.start();
        let (program, process, span) = (begun.program, begun.process, Span::current());
        let changes_directories = program.changes_directories();
        if !changes_directories {
            self.sandbox.follow_links().await?;
        }
        let finishing = tokio::task::spawn_blocking(move || {
            let _in = span.enter();
            self.finish(process, FilesReady(None), changes_directories)
        });
        let finished = finishing.await?;
        finished
            .map(|()| begun.pager)
            .map_err(|error| error.naming_operation(&program))
    }

    /// Lets the processes run. Before that, directories get back the times that the restore has changed.
    fn finish(
        self,
        mut process: RunningHollow,
        mut files: FilesReady,
        changes_directories: bool,
    ) -> Result<(), RunError> {
        let resuming = Instant::now();
        // First what may take longer than the hollow process is waited for: the files that it waits for.
        files.wait()?;
        // All memory is mapped by then.
        process.ready()?;
        if changes_directories {
            // This also sets the times of directories.
            Handle::current().block_on(self.sandbox.follow_links())?;
        }
        (self.last)(std::mem::take(&mut process.hosts)).map_err(RunError::Last)?;
        process.go()?;
        (self.record)("resume", resuming.elapsed());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restorer_is_read_as_it_is_written() {
        for restorer in [Restorer::Auto, Restorer::Criu] {
            assert_eq!(restorer.to_string().parse::<Restorer>().unwrap(), restorer);
        }
        assert!("init".parse::<Restorer>().is_err());
    }
}
