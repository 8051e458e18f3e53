//! Restores an arriving instance up to its first instruction:
//!
//! ```text
//! compiled ─────> a program runs ──────────> it stands ──go──> it runs
//!                     │ fails                    ^
//! not compiled ───────┴──> CRIU ─────────────────┘
//! ```
//!
//! After a program CRIU gets another sandbox. Either way the memory is mapped from templates and served by a pager,
//! which has what was written from the source.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rekindle_criu::{ScratchDir, StageError};
use rekindle_init::locks::Lock;
use rekindle_init::protocol::Clocks;
use rekindle_pager::PageSource;
use rekindle_wire::api::RestoredBy;
use rekindle_wire::migration::TargetOrder;
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};

use super::host::TargetHost;
use super::memory::{ArrivingMemory, ahead};
use crate::criu::connections::connect;
use crate::criu::memory::RestoredMemory;
use crate::criu::prepared_restore::{PreparedRestore, RestoreImages};
use crate::criu::restore::{Restore, RestoredProcesses};
use crate::criu::stages::StageWork;
use crate::errors::restore_failed;
use crate::host::host_pids::{HostPids, processes_in};
use crate::host::sandbox::{Hollow, IsolatedProcess, Sandbox};
use crate::instance::by_program::ProgramRestore;
use crate::instance::{Instance, MemoryOrigin, RunningInstance, device_numbers, kill_on_lost_page};
use crate::snapshots::connections::Connection;
use crate::snapshots::{FILES_ARCHIVE, FileNumbers, OpenSnapshot, PipeNote, RestoreProgram};

/// How long restored processes wait to be resumed.
const RESUME_LIMIT: Duration = Duration::from_secs(15);

/// The end of a restore.
type Restored = oneshot::Receiver<Result<Arc<RunningInstance>, ApiError>>;

/// What is restored.
pub(super) struct ArrivingProcesses<'a> {
    pub(super) host: Arc<TargetHost>,
    pub(super) order: &'a TargetOrder,
    pub(super) instance: Arc<Instance>,
    pub(super) base: Option<Arc<OpenSnapshot>>,
    pub(super) images: Arc<ScratchDir>,
    pub(super) pids: Vec<i32>,
    /// Names of the outputs in the images.
    pub(super) pipes: Vec<PipeNote>,
    pub(super) clocks: Clocks,
    pub(super) locks: Vec<Lock>,
    pub(super) connections: Vec<Connection>,
    /// Numbers of files that are written.
    pub(super) file_numbers: FileNumbers,
    pub(super) memory: ArrivingMemory,
}

/// Restored processes before their first instruction. If this is dropped, they never run.
pub(super) struct StoppedProcesses {
    go: SyncSender<()>,
    restored: Restored,
}

/// The stop before the first instruction, on the side of the restore.
struct StopPoint {
    stands: oneshot::Sender<()>,
    go: Receiver<()>,
}

/// The same, for whoever ordered the restore.
struct StopHandle {
    stands: oneshot::Receiver<()>,
    go: SyncSender<()>,
}

impl StoppedProcesses {
    /// Resumes them.
    ///
    /// # Errors
    /// Returns an error when they do not run; then they never ran.
    pub(super) async fn resume(self) -> Result<Arc<RunningInstance>, ApiError> {
        if self.go.send(()).is_err() {
            let message = "the restored processes were not resumed in time";
            return Err(ApiError::new(ErrorCode::Unavailable, message));
        }
        self.restored.await.unwrap_or_else(|_| Err(broke_off()))
    }
}

impl StopPoint {
    fn make() -> (Self, StopHandle) {
        let (stands, told) = oneshot::channel();
        let (go, may_go) = sync_channel(1);
        (Self { stands, go: may_go }, StopHandle { stands: told, go })
    }

    /// Says that the processes stand, and waits until they are resumed.
    fn wait(self) -> Result<(), StageError> {
        self.stands.send(()).map_err(|()| "nobody waits for it any more")?;
        Ok(self
            .go
            .recv_timeout(RESUME_LIMIT)
            .map_err(|_| "it was not resumed in time")?)
    }
}

fn broke_off() -> ApiError {
    ApiError::new(ErrorCode::Internal, "the restore broke off")
}

impl ArrivingProcesses<'_> {
    /// Restores them in this sandbox. If the program fails, CRIU restores them in another one. Also returns what has
    /// restored them.
    ///
    /// # Errors
    /// Returns an error when they cannot be restored; then nothing of them runs.
    pub(super) async fn restore(
        &self,
        mut isolated: IsolatedProcess,
        program: Result<RestoreProgram, String>,
    ) -> Result<(StoppedProcesses, RestoredBy), ApiError> {
        let because = match (program, isolated.hollow.take()) {
            (Err(why), _) => why,
            (Ok(_), None) => "no hollow process waited in its sandbox".to_owned(),
            (Ok(program), Some(hollow)) => match self.run_program(program, hollow, isolated).await {
                Ok(stopped) => return Ok((stopped, RestoredBy::Program)),
                Err(error) => {
                    let (instance, message) = (&self.instance.id, error.message);
                    tracing::warn!(%instance, message, "a restore program failed: criu restores the instance");
                    let again = self.host.isolator.isolate(&self.instance, self.order.id.as_str());
                    isolated = again.await?;
                    message
                }
            },
        };
        let stopped = self.run_criu(isolated).await?;
        Ok((stopped, RestoredBy::Criu { because }))
    }

    async fn run_program(
        &self,
        program: RestoreProgram,
        hollow: Hollow,
        isolated: IsolatedProcess,
    ) -> Result<StoppedProcesses, ApiError> {
        let (stop, order) = StopPoint::make();
        let make_own = self.make_own(&isolated.sandbox);
        let restore = ProgramRestore {
            program: Arc::new(program),
            snapshot: self.base.clone(),
            archive: self.images.path().join(FILES_ARCHIVE),
            clocks: self.clocks,
            pages: self.pages(&isolated.sandbox),
            last: Box::new(move |hosts| {
                make_own(hosts)?;
                stop.wait()
            }),
            record: self.instance.inner_phase_recorder(),
        };
        Span::current().record("rekindle.restorer", "program");
        Span::current().record("rekindle.handover", "given");
        let (host, images) = (Arc::clone(&self.host), Arc::clone(&self.images));
        let restoring = async move {
            let restored = restore.run(hollow, isolated, &host.metrics).await;
            drop(images);
            restored
        };
        self.stand(order, restoring).await
    }

    async fn run_criu(&self, isolated: IsolatedProcess) -> Result<StoppedProcesses, ApiError> {
        let (stop, order) = StopPoint::make();
        let to = format!("{}-images", self.order.id);
        let images = RestoreImages {
            dir: self.images.path(),
            to: &to,
            pids: &self.pids,
            pipes: &self.pipes,
        };
        let mut prepared = PreparedRestore::of(&self.host.criu, isolated, images).await?;
        Span::current().record("rekindle.restorer", "criu");
        Span::current().record("rekindle.handover", prepared.handover());
        let memory = prepared.start_pager(self.pages(&prepared.sandbox))?;
        self.host.metrics.pagers.watch(memory.pager.stats());
        let (make_own, cgroup) = (self.make_own(&prepared.sandbox), Arc::clone(&prepared.cgroup));
        let restore = Restore {
            clocks: self.clocks,
            work: StageWork {
                locks: self.locks.clone(),
                eager_bytes: None,
                memory: Some(memory),
                last: Box::new(move || {
                    make_own(processes_in(&cgroup)?)?;
                    stop.wait()
                }),
                record: self.instance.inner_phase_recorder(),
            },
            snapshot: self.base.clone(),
        };
        let (host, instance) = (Arc::clone(&self.host), Arc::clone(&self.instance));
        let restoring = async move { restore.run_to_end(&host.criu, instance.id.as_str(), prepared).await };
        self.stand(order, restoring).await
    }

    /// Returns the work before they stand: their open databases get the device numbers of this sandbox, and their
    /// connections to themselves are made again.
    fn make_own(&self, sandbox: &Sandbox) -> impl FnOnce(HostPids) -> Result<(), StageError> + Send + use<> {
        let (connections, file_numbers) = (self.connections.clone(), self.file_numbers.clone());
        let init = sandbox.init_pid();
        move |hosts| {
            device_numbers::write(&hosts, init, &file_numbers)?;
            Ok(connect(&connections, &hosts)?)
        }
    }

    /// Returns where their pages come from.
    fn pages(&self, sandbox: &Arc<Sandbox>) -> RestoredMemory {
        let (written, base) = (Arc::clone(&self.memory.written), self.base.clone());
        RestoredMemory {
            function: self.order.spec.function.clone(),
            source: Arc::clone(&written) as Arc<dyn PageSource>,
            pids: self.pids.clone(),
            layout: self.memory.layout.clone(),
            maps: self.memory.maps.clone(),
            record: false,
            on_lost: kill_on_lost_page(
                &self.host.metrics,
                &self.instance,
                sandbox,
                format!("an instance that came from worker {}", self.order.from),
                ErrorCode::MigrationLost,
            ),
            ahead: Box::new(move || ahead(&written, base.as_deref())),
        }
    }

    /// Waits until the processes that are being restored stand before their first instruction.
    async fn stand(
        &self,
        order: StopHandle,
        restoring: impl Future<Output = Result<RestoredProcesses, ApiError>> + Send + 'static,
    ) -> Result<StoppedProcesses, ApiError> {
        let origin = MemoryOrigin {
            snapshot: self.base.clone(),
            working_set: None,
            has_arrived: Some(self.memory.written.settled()),
            file_numbers: self.file_numbers.clone(),
        };
        let instance = Arc::clone(&self.instance);
        let (done, restored) = oneshot::channel();
        let restoring = async move {
            let running = restoring.await.and_then(|processes| {
                let running = RunningInstance::restored(processes, origin, &instance.spec.config);
                running.map_err(|e| restore_failed("look at the outputs", &e))
            });
            drop(done.send(running));
        };
        tokio::spawn(restoring.instrument(Span::current()));
        match order.stands.await {
            Ok(()) => Ok(StoppedProcesses { go: order.go, restored }),
            Err(_) => match restored.await {
                Ok(Err(error)) => Err(error),
                _ => Err(broke_off()),
            },
        }
    }
}
