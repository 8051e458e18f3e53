//! Restores an instance lazily from its snapshot:
//!
//! ```text
//! open snapshot ─┐
//! make sandbox ──┴─> (start permit) link images, start pager
//!                      └─> criu restore ──all is mapped──> register memory, fill the working set, while criu goes on
//!                             └─> they run ──> after-restore hook ──> ready; pages follow as they are touched
//! ```
//!
//! A snapshot with a restore program is restored by that (`restorer.rs`), and by CRIU in another sandbox if that fails.
//! What happens while CRIU restores is in `criu/stages.rs`.

use std::sync::Arc;
use std::time::Instant;

use rekindle_criu::StageError;
use rekindle_pager::Pager;
use rekindle_telemetry::record_past;
use rekindle_wire::api::StartKind;
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{ApiError, ErrorCode, SnapshotId};
use tracing::Span;

use super::begin::{BegunSnapshot, SnapshotBeginning};
use super::by_program::{ProgramRestore, go_on};
use super::hooks::{Hook, call_hook};
use super::isolate::Isolator;
use super::lifecycle::{Instance, gone};
use super::lost_page::kill_on_lost_page;
use super::registry::Instances;
use super::restored_memory::restored_memory;
use super::running::{MemoryOrigin, RunningInstance};
use super::{device_numbers, randomness};
use crate::criu::Criu;
use crate::criu::connections::connect;
use crate::criu::memory::{OnLost, RestoredMemory};
use crate::criu::prepared_restore::{PreparedRestore, RestoreImages};
use crate::criu::restore::{EndingCriu, Restore, RestoredProcesses};
use crate::criu::stages::{PagedMemory, StageWork};
use crate::errors::restore_failed;
use crate::host::host_pids::{HostPids, processes_in};
use crate::host::sandbox::{BegunRestore, Hollow, IsolatedProcess, Sandbox, SandboxContents};
use crate::host::start_limiter::StartLimiter;
use crate::metrics::Metrics;
use crate::restorer::{ProgramRun, Restorer};
use crate::snapshots::{MemoryTier, OpenSnapshot, Refusals, RestoreProgram, SnapshotError, Snapshots, WorkingSetUse};

/// Restores instances from snapshots of functions.
pub struct SnapshotRestorer {
    /// Takes the sandboxes.
    pub isolator: Arc<Isolator>,
    /// CRIU on this host.
    pub criu: Arc<Criu>,
    /// Limits how many starts use the processors at once.
    pub start_limiter: Arc<StartLimiter>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// Snapshots whose images were rejected.
    pub refusals: Arc<Refusals>,
    /// All instances, whose reports tell of rejected snapshots.
    pub instances: Arc<Instances>,
    /// The instruction sets of this host's processor.
    pub instruction_sets: InstructionSets,
    /// Where restores are counted.
    pub metrics: Arc<Metrics>,
}

impl SnapshotRestorer {
    /// Restores `instance` from the snapshot `id` without marking it ready.
    ///
    /// # Errors
    /// Returns `restore_failed` when it cannot be restored; then nothing of it runs. Returns `snapshot_lost` when a
    /// page is not available.
    pub async fn restore(&self, instance: &Arc<Instance>, id: &SnapshotId) -> Result<Arc<RunningInstance>, ApiError> {
        let _starting = self.start_limiter.starting();
        let (uid, digest) = (instance.spec.uid, instance.spec.snapshot_digest.as_deref());
        let writes_root = instance.spec.config.image.is_some();
        let opening = instance.phase("open", self.snapshots.open(id, uid, writes_root, digest));
        let name = instance.sandbox_name();
        let isolating = instance.phase("sandbox", self.isolator.isolate_for(id, instance, &name));
        let (opened, isolated) = tokio::join!(opening, isolating);
        let restore = SnapshotRestore::of(self, instance, opened)?;
        let mut isolated = isolated?;
        restore.read_files()?;
        if let Some(contents) = isolated.expected.take() {
            restore.furnish_more(contents);
        }
        // The permit comes last, when everything is here: a store that is slow to respond must not hold up other
        // starts.
        let turn = self.start_limiter.take(&instance.spec.function, StartKind::Restored);
        let permit = instance.phase("turn", turn).await;
        // A sandbox in which something has begun, or a program has failed, is of no use for anything else.
        let isolate_anew = || instance.phase("sandbox", self.isolator.isolate(instance, &name));
        if let Some(begun) = isolated.begun.take() {
            let program = restore.snapshot.program();
            match Box::pin(restore.go_on(begun, program, isolated)).await {
                Ok(restored) => {
                    program.inspect(|program| program.succeeded_ahead());
                    drop(permit);
                    self.metrics.begun.with([]).inc();
                    return restore.restored_by_program(restored).await;
                }
                // Who stops an instance ends its sandbox.
                Err(_) if !instance.is_starting() => return Err(gone()),
                Err(error) => {
                    let instance = &instance.id;
                    tracing::warn!(%instance, %error, "a restore that had begun failed: another one begins");
                }
            }
            isolated = isolate_anew().await?;
        }
        if let (Some(program), Some(hollow)) = (restore.snapshot.program(), isolated.hollow.take()) {
            match Box::pin(restore.run_program(Arc::clone(program), hollow, isolated)).await {
                Ok(restored) => {
                    program.succeeded();
                    drop(permit);
                    return restore.restored_by_program(restored).await;
                }
                Err(_) if !instance.is_starting() => return Err(gone()),
                Err(error) => {
                    program.failed();
                    let instance = &instance.id;
                    tracing::warn!(%instance, %error, "a restore program failed: criu restores its snapshot");
                }
            }
            isolated = isolate_anew().await?;
        }
        tracing::Span::current().record("rekindle.restorer", "criu");
        let mut prepared = restore.link_images(isolated).await?;
        let handover = prepared.handover();
        tracing::Span::current().record("rekindle.handover", handover);
        let (memory, working_set) = restore.start_pager(&mut prepared)?;
        let running = instance.phase("criu", restore.run_criu(prepared, memory, working_set));
        let (running, criu) = Box::pin(running).await?;
        drop(permit);
        // The processes run, or are about to, while CRIU is still finishing.
        tokio::try_join!(restore.call_hook(&running), criu.end())?;
        restore.report(&running, handover);
        self.metrics.restored_by(Restorer::Criu);
        Ok(running)
    }
}

/// A restore of one instance from its snapshot.
struct SnapshotRestore<'a> {
    by: &'a SnapshotRestorer,
    instance: &'a Arc<Instance>,
    snapshot: Arc<OpenSnapshot>,
}

impl<'a> SnapshotRestore<'a> {
    /// Begins the restore, if the snapshot could be opened and can run on this host.
    fn of(
        by: &'a SnapshotRestorer,
        instance: &'a Arc<Instance>,
        opened: Result<(Arc<OpenSnapshot>, MemoryTier), SnapshotError>,
    ) -> Result<Self, ApiError> {
        let (snapshot, tier) = opened.map_err(|e| {
            if by.refusals.note(&instance.spec, &e) {
                by.instances.changed.notify_one();
            }
            restore_failed("open the snapshot", &e)
        })?;
        let runs = snapshot.notes.runs_on(by.instruction_sets);
        runs.map_err(|e| restore_failed("restore on this host", &e))?;
        by.metrics.restoring(tier);
        if tier != MemoryTier::Template {
            instance.inner_phases.lock().push(("fetch", snapshot.fetching));
        }
        tracing::Span::current().record("rekindle.tier", tier.as_str());
        Ok(Self { by, instance, snapshot })
    }

    /// Reads into the template what its memory takes from files of the function.
    fn read_files(&self) -> Result<(), ApiError> {
        let completed = self.snapshot.template.complete();
        completed.map_err(|e| restore_failed("read the files of the function", &e))
    }

    /// Has sandboxes like this one furnished ahead, and restores begun in them.
    fn furnish_more(&self, contents: SandboxContents) {
        let beginning = SnapshotBeginning {
            function: self.instance.spec.function.clone(),
            snapshot: Arc::clone(&self.snapshot),
            metrics: Arc::clone(&self.by.metrics),
            starts: Arc::clone(&self.by.start_limiter),
        };
        let contents = contents.with_restores_begun(Arc::new(beginning));
        self.by.isolator.pool.furnish_more(contents);
    }

    /// Runs the snapshot's restore program in the hollow process of this sandbox, until the processes run.
    async fn run_program(
        &self,
        program: Arc<RestoreProgram>,
        hollow: Hollow,
        isolated: IsolatedProcess,
    ) -> Result<(RestoredProcesses, WorkingSetUse), ApiError> {
        let (pages, working_set) = self.pages(&isolated.sandbox)?;
        let restore = ProgramRestore {
            program,
            snapshot: Some(Arc::clone(&self.snapshot)),
            archive: self.snapshot.images.archive(),
            clocks: self.snapshot.clocks,
            pages,
            last: Box::new(self.last_work(&isolated.sandbox, false)),
            record: self.instance.inner_phase_recorder(),
        };
        let ran = restore.run(hollow, isolated, &self.by.metrics);
        Ok((self.instance.phase("restorer", ran).await?, working_set))
    }

    /// Goes on with a restore that has begun in this sandbox, until the processes run.
    async fn go_on(
        &self,
        begun: BegunRestore,
        program: Option<&Arc<RestoreProgram>>,
        isolated: IsolatedProcess,
    ) -> Result<(RestoredProcesses, WorkingSetUse), ApiError> {
        // It may have begun before its snapshot was known to be broken, or its program.
        let begun = begun.downcast::<BegunSnapshot>().ok();
        let begun = begun.filter(|begun| Arc::ptr_eq(&begun.snapshot, &self.snapshot));
        let (Some(begun), Some(program)) = (begun, program) else {
            let message = "its snapshot was opened anew, or its program has failed";
            return Err(ApiError::new(ErrorCode::RestoreFailed, message));
        };
        let lost = begun.on_lost.replace(self.on_lost(&isolated.sandbox));
        lost.map_err(|e| restore_failed("wait for it", &e))?;
        let run = ProgramRun {
            sandbox: Arc::clone(&isolated.sandbox),
            clocks: self.snapshot.clocks,
            last: Box::new(self.last_work(&isolated.sandbox, begun.program.has_file_pages)),
            record: self.instance.inner_phase_recorder(),
        };
        let going_on = go_on(run, begun.program, isolated);
        let gone_on = self.instance.phase("restorer", going_on).await;
        if gone_on.is_err() && self.instance.is_starting() {
            program.failed_to_begin();
        }
        let processes = gone_on?;
        tracing::Span::current().record("rekindle.begun", true);
        Ok((processes, begun.working_set))
    }

    /// Makes the instance of processes that run: from here on nothing is tried again.
    async fn restored_by_program(
        &self,
        (processes, working_set): (RestoredProcesses, WorkingSetUse),
    ) -> Result<Arc<RunningInstance>, ApiError> {
        let span = tracing::Span::current();
        span.record("rekindle.restorer", "program");
        span.record("rekindle.handover", "given");
        let running = self.running(processes, working_set)?;
        self.by.metrics.restored_by(Restorer::Auto);
        self.call_hook(&running).await?;
        self.report(&running, "given");
        Ok(running)
    }

    fn running(
        &self,
        processes: RestoredProcesses,
        working_set: WorkingSetUse,
    ) -> Result<Arc<RunningInstance>, ApiError> {
        let config = &self.instance.spec.config;
        let running = RunningInstance::restored(processes, self.origin(working_set), config);
        running.map_err(|e| restore_failed("look at the outputs", &e))
    }

    async fn link_images(&self, isolated: IsolatedProcess) -> Result<PreparedRestore, ApiError> {
        let dir = self.snapshot.images.dir().await;
        let images = RestoreImages {
            dir: dir.map_err(|e| restore_failed("write the images", &e))?,
            to: &self.instance.sandbox_name(),
            pids: &self.snapshot.template.pids(),
            pipes: &self.snapshot.notes.pipes,
        };
        PreparedRestore::of(&self.by.criu, isolated, images).await
    }

    /// Starts the pager, which serves the memory from the template.
    fn start_pager(&self, prepared: &mut PreparedRestore) -> Result<(PagedMemory, WorkingSetUse), ApiError> {
        let (pages, working_set) = self.pages(&prepared.sandbox)?;
        let memory = prepared.start_pager(pages)?;
        self.by.metrics.pagers.watch(memory.pager.stats());
        Ok((memory, working_set))
    }

    /// Returns where its pages come from.
    fn pages(&self, sandbox: &Arc<Sandbox>) -> Result<(RestoredMemory, WorkingSetUse), ApiError> {
        let (working_set, ahead) = self.snapshot.begin();
        let function = &self.instance.spec.function;
        let on_lost = self.on_lost(sandbox);
        let pages = restored_memory(&self.snapshot, function, working_set, ahead, on_lost)?;
        Ok((pages, working_set))
    }

    fn on_lost(&self, sandbox: &Arc<Sandbox>) -> OnLost {
        kill_on_lost_page(
            &self.by.metrics,
            self.instance,
            sandbox,
            format!("snapshot {}", self.snapshot.id),
            ErrorCode::SnapshotLost,
        )
    }

    fn origin(&self, working_set: WorkingSetUse) -> MemoryOrigin {
        MemoryOrigin {
            snapshot: Some(Arc::clone(&self.snapshot)),
            working_set: Some(working_set),
            has_arrived: None,
            file_numbers: self.snapshot.notes.file_numbers.clone(),
        }
    }

    /// Runs CRIU until the processes are about to run.
    async fn run_criu(
        &self,
        prepared: PreparedRestore,
        memory: PagedMemory,
        working_set: WorkingSetUse,
    ) -> Result<(Arc<RunningInstance>, EndingCriu), ApiError> {
        let restore = Restore {
            clocks: self.snapshot.clocks,
            work: StageWork {
                locks: self.snapshot.locks.clone(),
                eager_bytes: Some(self.snapshot.eager_bytes),
                memory: Some(memory),
                last: {
                    let (last, cgroup) = (self.last_work(&prepared.sandbox, false), Arc::clone(&prepared.cgroup));
                    Box::new(move || last(processes_in(&cgroup)?))
                },
                record: self.instance.inner_phase_recorder(),
            },
            snapshot: Some(Arc::clone(&self.snapshot)),
        };
        let (restored, criu) = restore.run(&self.by.criu, self.instance.id.as_str(), prepared).await?;
        Ok((self.running(restored, working_set)?, criu))
    }

    /// Returns the last work before the processes run. Their random number generators get values of their own, and
    /// their open databases the device numbers of this sandbox. Their connections to themselves are made again.
    fn last_work(
        &self,
        sandbox: &Sandbox,
        has_file_pages: bool,
    ) -> impl FnOnce(HostPids) -> Result<(), StageError> + Send + use<> {
        let snapshot = Arc::clone(&self.snapshot);
        let (metrics, instance) = (Arc::clone(&self.by.metrics), Arc::clone(self.instance));
        let init = sandbox.init_pid();
        move |hosts| {
            let took = randomness::write(&hosts, &snapshot.notes.generators, &metrics)?;
            instance.inner_phases.lock().push(("generators", took));
            device_numbers::write(&hosts, init, &snapshot.notes.file_numbers)?;
            if let Some(file_pages) = snapshot.file_pages.get().filter(|_| !has_file_pages) {
                let began = Instant::now();
                let mapped = file_pages.map(&hosts);
                let took = began.elapsed();
                record_past(
                    &Span::current(),
                    "file pages",
                    began,
                    took,
                    &[("rekindle.pages", mapped as u64)],
                );
                instance.inner_phases.lock().push(("file-pages", took));
            }
            Ok(connect(&snapshot.connections, &hosts)?)
        }
    }

    /// Calls the function's after-restore hook, if it has work to do.
    async fn call_hook(&self, running: &Arc<RunningInstance>) -> Result<(), ApiError> {
        if !self.snapshot.notes.is_hook_needed() {
            return Ok(());
        }
        let called = call_hook(self.instance, running, Hook::AfterRestore);
        let called = self.instance.phase("after-restore", called).await;
        called.map(drop).map_err(|e| ApiError::new(ErrorCode::FunctionError, e))
    }

    fn report(&self, running: &RunningInstance, handover: &str) {
        let Some(pager) = &running.pager else { return };
        record_first_fault(pager);
        let faults = &pager.stats().latency;
        let below_us = |share| faults.quantile(share).map(|bound| bound.as_micros());
        tracing::info!(
            instance = %self.instance.id,
            fault_p50_below_us = below_us(0.5),
            fault_p99_below_us = below_us(0.99),
            fault_max_below_us = below_us(1.0),
            handover,
            pager = ?pager.stats(),
            "restored"
        );
    }
}

/// Records a span of the first page fault, once, if that fault has been served by now.
pub fn record_first_fault(pager: &Pager) {
    let first = pager.stats().marks.lock().first_fault.take();
    if let Some((since, took)) = first {
        record_past(&tracing::Span::current(), "first fault", since, took, &[]);
    }
}
