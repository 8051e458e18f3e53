//! One instance that leaves: its processes are stopped, described, and kept until the target has their pages.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::{Mutex, RwLock};
use rekindle_criu::AfterDump;
use rekindle_criu::descriptors::external_name;
use rekindle_criu::images::parent_images;
use rekindle_init::protocol::{FUNCTION_PID, FUNCTION_UID};
use rekindle_verify::PageLocation;
use rekindle_wire::ids::MigrationId;
use rekindle_wire::migration::{MigrationKind, MigrationPhases, SettleLimit, TargetState};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::super::bundle::Bundle;
use super::super::peer::Peer;
use super::images::pack_up;
use super::memory::SourcePages;
use crate::criu::dump::{Dump, DumpError, DumpingCriu, PAUSES_MS};
use crate::criu::{Criu, Tracking, forget_changes, link_names};
use crate::errors::unavailable;
use crate::host::sandbox::InnerProc;
use crate::instance::checkpoint::quiet;
use crate::instance::room_for_images::RoomForImages;
use crate::instance::{Instance, Instances, RunningInstance, gone};
use crate::snapshots::dump_dir::DumpDir;
use crate::snapshots::expected::expected_to_travel;

/// How long the function may take to notice that its idle connections were closed. It stands still meanwhile, and some
/// servers never notice. A connection left open is closed where the instance goes on.
const QUIET_LIMIT: Duration = Duration::from_millis(20);
/// How long the processes may take to be restored at the target, and to be resumed there.
const STAND_LIMIT: Duration = Duration::from_secs(20);
const RESUME_LIMIT: Duration = Duration::from_secs(10);
/// How long to ask whether the processes were resumed if no response came.
pub(super) const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of an instance's files in memory and shared memory, bytes. They are sent while it stands still: about
/// a second, on a network of 10 GbE.
const SHARED_MAX: u64 = 256 << 20;
/// Bytes of images that describe an instance, beside its files.
const DESCRIPTION: u64 = 64 << 20;
/// How long the target may be silent while it lacks pages.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// How long the pager may take to return its maps.
const MAPS_LIMIT: Duration = Duration::from_secs(5);
/// Directory, in the image directory, of the parent images that claim to have every page.
const KNOWN: &str = "known";
/// The link by which CRIU finds that directory. CRIU creates it.
const PARENT_LINK: &str = "parent";

/// An instance that leaves.
pub struct MigrationSource {
    pub(super) id: MigrationId,
    pub(super) instance: Arc<Instance>,
    pub(super) kind: MigrationKind,
    pub(super) target: Peer,
    pub(super) criu: Mutex<Option<DumpingCriu>>,
    pub(super) dir: DumpDir,
    /// Its pages, once its processes are stopped.
    pub(super) left: RwLock<Option<Arc<SourcePages>>>,
    /// Room for the images. They are charged to the instance until they are gone, which is before this is dropped.
    pub(super) room: Mutex<Option<RoomForImages>>,
    /// Names that its files have while its processes are stopped.
    pub(super) link_names: Arc<Mutex<Vec<PathBuf>>>,
    /// The stopped instance here, once its copy runs.
    pub(super) running: Mutex<Option<Arc<RunningInstance>>>,
    pub(super) heard: Mutex<Instant>,
    /// Notified when every page is at the target, or nobody wants the pages any more.
    pub(super) done: Notify,
    /// Whether `done` was notified.
    pub(super) over: AtomicBool,
}

pub(super) fn images_there(instance: &Instance) -> ApiError {
    let message = format!(
        "the memory of {} is still on its way to an earlier copy of it: try again in a moment",
        instance.id
    );
    ApiError::new(ErrorCode::Conflict, message)
}

pub(super) fn not_ready(instance: &Instance) -> ApiError {
    let message = format!(
        "instance {} cannot leave while it is {}",
        instance.id,
        instance.state().as_str()
    );
    ApiError::new(ErrorCode::Conflict, message)
}

/// Refuses an instance that would stand still for seconds while its files are sent.
pub(super) fn refuse_large(instance: &Instance, running: &RunningInstance) -> Result<(), ApiError> {
    // An unreadable value counts as small, which is the usual case.
    refuse_above(instance, running.cgroup.memory_shared().unwrap_or(0), SHARED_MAX)
}

/// Refuses an instance whose `bytes` of files and shared memory are more than `most`.
fn refuse_above(instance: &Instance, bytes: u64, most: u64) -> Result<(), ApiError> {
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "instance {} has {} MiB in /tmp, /dev/shm and shared memory, which go with it while it stands still: at most \
         {} MiB are moved. Have the function remove files that it needs no more",
        instance.id,
        bytes >> 20,
        SHARED_MAX >> 20
    );
    Err(ApiError::new(ErrorCode::Conflict, message))
}

/// Undoes the preparations when an instance does not leave after all.
struct LeaveRollback<'a> {
    instance: &'a Instance,
    running: &'a RunningInstance,
    link_names: &'a Mutex<Vec<PathBuf>>,
    left: bool,
}

impl Drop for LeaveRollback<'_> {
    fn drop(&mut self) {
        if !self.left {
            link_names::remove(self.running.sandbox.init_pid(), &self.link_names.lock());
            go_on(self.running);
            self.instance.set_moving(false);
            self.instance.usage.hold(false);
        }
    }
}

/// Resumes all processes that CRIU has left stopped.
fn go_on(running: &RunningInstance) {
    for pid in running.cgroup.pids().unwrap_or_default() {
        // A process that is gone needs no signal.
        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
    }
}

impl MigrationSource {
    /// Makes the instance leave now. On an error it keeps running here, unless the error says that it is lost.
    ///
    /// # Errors
    /// Returns what prevented it.
    pub(super) async fn perform(
        &self,
        instances: &Instances,
        criu: &Criu,
        order: &SettleLimit,
    ) -> Result<MigrationPhases, ApiError> {
        let dumping = self.criu.lock().take();
        let dumping = dumping.ok_or_else(|| ApiError::new(ErrorCode::Conflict, "it is leaving already"))?;
        let (instance, running) = (&self.instance, self.instance.running().ok_or_else(gone)?);
        // There were none when this was prepared.
        let Ok(alone) = Arc::clone(&instance.images).try_acquire_owned() else {
            return Err(images_there(instance));
        };
        let mut phases = MigrationPhases::default();
        let began = Instant::now();
        instance.usage.hold(true);
        let mut rollback = LeaveRollback {
            instance,
            running: &running,
            link_names: &self.link_names,
            left: false,
        };
        self.settle(Duration::from_millis(order.settle_ms)).await?;
        instance.unpark_whole(&running).await?;
        if !instance.set_moving(true) {
            return Err(not_ready(instance));
        }
        running.client.close_idle();
        quiet(&running, QUIET_LIMIT).await;
        // Requests that it was waited for may have written more.
        refuse_large(instance, &running)?;
        phases.settle_ms = ms(began);
        let pausing = Instant::now();
        let (bundle, left) = self.checkpoint(criu, &running, dumping, alone).await?;
        phases.checkpoint_ms = ms(pausing);
        phases.written_pages = left.numbering.pages;
        phases.image_bytes = bundle.bytes();
        // What it wrote until it stood still.
        refuse_above(instance, bundle.bytes(), SHARED_MAX + DESCRIPTION)?;
        *self.left.write() = Some(Arc::new(left));
        if self.kind != MigrationKind::Move {
            // The instance resumes; what its copy needs has been dumped.
            drop(rollback);
            // New invocations may be sent to it again.
            instances.changed.notify_one();
            phases.pause_ms = ms(began);
            let restoring = Instant::now();
            phases.restored_by = self.target.images(bundle, STAND_LIMIT).await?.restored_by;
            phases.restore_ms = ms(restoring);
            let resuming = Instant::now();
            self.target.resume(RESUME_LIMIT).await?;
            phases.resume_ms = ms(resuming);
            return Ok(phases);
        }
        let restoring = Instant::now();
        phases.restored_by = self.target.images(bundle, STAND_LIMIT).await?.restored_by;
        phases.restore_ms = ms(restoring);
        let resuming = Instant::now();
        if let Err(error) = self.target.resume(RESUME_LIMIT).await {
            match self.resolve().await {
                Some(TargetState::Running) => {}
                Some(_) => return Err(error),
                None => {
                    // It may run there, so it must not run here any more.
                    rollback.left = true;
                    let message = format!(
                        "{} is lost: worker {} had all of it and cannot be asked whether it runs ({})",
                        instance.id,
                        self.target.address(),
                        error.message
                    );
                    let lost = ApiError::new(ErrorCode::MigrationLost, message);
                    instance.kill(lost.clone());
                    return Err(lost);
                }
            }
        }
        rollback.left = true;
        *self.running.lock() = instance.leave();
        instances.remove_this(instance);
        phases.resume_ms = ms(resuming);
        phases.pause_ms = ms(began);
        Ok(phases)
    }

    /// Waits until no request is in flight.
    async fn settle(&self, limit: Duration) -> Result<(), ApiError> {
        let until = Instant::now() + limit;
        while self.instance.usage.in_flight() > 0 {
            if Instant::now() >= until {
                let message = format!(
                    "{} still serves requests after {} ms, so it stays: try again, or give it longer",
                    self.instance.id,
                    limit.as_millis()
                );
                return Err(ApiError::new(ErrorCode::Conflict, message));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Returns whether the copy runs; `None` if that cannot be determined. A copy that does not run now will not run
    /// later.
    async fn resolve(&self) -> Option<TargetState> {
        let until = Instant::now() + RESOLVE_LIMIT;
        loop {
            match self.target.state(Duration::from_secs(1)).await {
                Ok(TargetState::Waiting) => {
                    if self.target.cancel(Duration::from_secs(1)).await.is_ok() {
                        return Some(TargetState::Failed);
                    }
                }
                Ok(state) => return Some(state),
                Err(e) if e.code == ErrorCode::NotFound => return Some(TargetState::Failed),
                Err(_) => {}
            }
            if Instant::now() >= until {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops the processes and describes them. They stay stopped if they are to move.
    async fn checkpoint(
        &self,
        criu: &Criu,
        running: &Arc<RunningInstance>,
        mut dumping: DumpingCriu,
        alone: OwnedSemaphorePermit,
    ) -> Result<(Bundle, SourcePages), ApiError> {
        *self.room.lock() = Some(RoomForImages::give(&self.instance, running, Some(alone)));
        let mut pauses = PAUSES_MS.iter();
        loop {
            let error = match self.describe(criu.tracking(), running, dumping).await? {
                Ok(described) => return Ok(described),
                Err(error) => error,
            };
            let Some(pause) = pauses.next().filter(|_| error.is_passing()) else {
                let failed = unavailable("describe the processes", &error);
                return Err(match error.of_function() {
                    Some(told) => {
                        tracing::info!(instance = %self.instance.id, error = %failed, "it cannot leave");
                        let message = format!("instance {} cannot move: {told}", self.instance.id);
                        ApiError::new(ErrorCode::Conflict, message)
                    }
                    None => failed,
                });
            };
            tokio::time::sleep(Duration::from_millis(*pause)).await;
            let emptied = self.dir.empty();
            emptied.map_err(|e| unavailable("empty the image directory", &e))?;
            let again = DumpingCriu::start(criu, &running.sandbox, &running.cgroup, self.dir.path()).await;
            dumping = again.map_err(|e| unavailable("dump the instance", &e))?;
        }
    }

    /// One attempt at it.
    async fn describe(
        &self,
        tracking: Tracking,
        running: &Arc<RunningInstance>,
        criu: DumpingCriu,
    ) -> Result<Result<(Bundle, SourcePages), DumpError>, ApiError> {
        let failed = |what: &'static str| move |e: &dyn std::error::Error| unavailable(what, e);
        let proc = InnerProc::of(running.sandbox.init_pid()).map_err(|e| failed("look at the processes")(&e))?;
        let describe_only = self.kind == MigrationKind::Move && tracking != Tracking::None;
        if describe_only {
            self.say_known(&proc, tracking)
                .map_err(|e| failed("lay out what criu need not dump")(&e))?;
        }
        let templates = match &running.snapshot {
            Some(snapshot) => snapshot.template.files().map(external_name).collect(),
            None => Ok(Vec::new()),
        };
        let templates: Vec<String> = templates.map_err(|e| failed("name the templates")(&e))?;
        let dump = Dump {
            expected: expected_to_travel(
                FUNCTION_UID,
                &running.pipes,
                self.instance.spec.config.image.is_some(),
                &templates,
                PageLocation::Dump,
            ),
            after: match self.kind {
                MigrationKind::Move => AfterDump::Stop,
                MigrationKind::Clone(_) => AfterDump::Run,
            },
            serves: true,
            templates: templates.clone(),
            parent: describe_only.then(|| KNOWN.to_owned()),
        };
        let runtime = tokio::runtime::Handle::current();
        let (dir, running) = (self.dir.path().to_owned(), Arc::clone(running));
        let (stays, link_names) = (self.kind == MigrationKind::Move, Arc::clone(&self.link_names));
        let packed = tokio::task::spawn_blocking(move || {
            // The processes are stopped, so the pager's maps stay valid.
            let maps = || {
                running
                    .pager
                    .as_ref()
                    .map_or(Ok(Vec::new()), |pager| pager.maps(MAPS_LIMIT))
            };
            let dumped = criu.dump(
                &running.sandbox,
                &running.cgroup,
                dump,
                &runtime,
                |dir| Ok(forget_known(dir)?),
                maps,
            );
            let dumped = match dumped {
                Ok(dumped) => dumped,
                Err(error) => return Ok(Err(error)),
            };
            if stays {
                *link_names.lock() = dumped.link_names;
            }
            let maps = dumped.seen;
            let maps = maps.map_err(|e| ApiError::new(ErrorCode::Conflict, format!("it cannot leave: {e}")))?;
            pack_up(
                &dir,
                &proc,
                &running,
                templates,
                &maps,
                (dumped.connections, dumped.open_files),
            )
            .map(Ok)
        });
        packed.await.map_err(|e| failed("describe the processes")(&e))?
    }

    /// Lays out parent images for CRIU that claim to have every page already.
    fn say_known(&self, proc: &InnerProc, tracking: Tracking) -> std::io::Result<()> {
        let mut pids = proc.pids()?;
        pids.retain(|pid| *pid >= FUNCTION_PID);
        if tracking == Tracking::Kernel {
            for pid in &pids {
                // A process that is gone has nothing to forget.
                let _ = forget_changes(proc, *pid);
            }
        }
        let known = self.dir.path().join(KNOWN);
        std::fs::create_dir(&known)?;
        for (name, bytes) in parent_images(pids) {
            std::fs::write(known.join(name), bytes)?;
        }
        Ok(())
    }

    /// Records that every page is at the target, or that nobody wants the pages any more. Transfers in progress break
    /// off.
    pub fn done(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.done.notify_one();
    }

    /// Waits until the pages are at the target, or nobody wants them any more.
    pub(super) async fn until_done(&self) {
        loop {
            if tokio::time::timeout(Duration::from_secs(1), self.done.notified())
                .await
                .is_ok()
            {
                break;
            }
            if self.heard.lock().elapsed() > SILENCE_LIMIT {
                tracing::warn!(migration = %self.id, "the target was silent: what it has not got is given up");
                self.over.store(true, Ordering::Relaxed);
                break;
            }
        }
    }

    /// Releases the stopped processes.
    pub(super) async fn release(&self) {
        let running = self.running.lock().take();
        if let Some(running) = running {
            running.tear_down().await;
        }
    }
}

/// Removes the parent images once CRIU has dumped.
fn forget_known(dir: &Path) -> std::io::Result<()> {
    for removed in [
        std::fs::remove_file(dir.join(PARENT_LINK)),
        std::fs::remove_dir_all(dir.join(KNOWN)),
    ] {
        match removed {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
