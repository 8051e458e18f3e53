//! The target of a migration: an instance that arrives from another host.

mod images;
mod transfer;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use axum::body::Body;
use futures::TryStreamExt as _;
use parking_lot::Mutex;
use rekindle_criu::ScratchDir;
use rekindle_pager::{AheadPage, Layout, PageRange, PageRef, PageSource};
use rekindle_wire::ids::MigrationId;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::migration::{Expected, Standing, TargetOrder, TargetState};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::bundle::BlockingReader;
use super::header::set_pieces;
use super::peer::{Peer, Source};
use super::written::WrittenPages;
use crate::criu::memory::Pages;
use crate::criu::prepared_restore::{Images, PreparedRestore};
use crate::criu::restore::Restore;
use crate::criu::stages::StageWork;
use crate::instance::checkpoint::{Hook, call_hook};
use crate::instance::isolated_process::{IsolatedProcess, isolate, memory_limit, unavailable};
use crate::instance::{Instance, MemoryOrigin, RunningInstance, tear_down};
use crate::snapshots::OpenSnapshot;
use crate::worker::Worker;

use images::{ExpectedImages, ImagesOnDisk, lay_out};
use transfer::{PagePush, receive};

/// How long a prepared migration target waits for its images.
const WAIT_LIMIT: Duration = Duration::from_secs(90);
/// How long restored processes wait to be resumed.
const GO_LIMIT: Duration = Duration::from_secs(15);
/// Number of pages that arrive while the processes are stopped and are filled in before they run. More would cost more
/// time than they save.
const AHEAD: u64 = 1024;

/// How long an announced instance is expected, and the maximum number of announced instances.
const EXPECTED_LIMIT: Duration = Duration::from_secs(60);
const EXPECTED_MAX: usize = 1024;

/// Arriving instances by migration id.
#[derive(Default)]
pub struct MigrationTargets {
    here: Mutex<HashMap<MigrationId, Arc<MigrationTarget>>>,
    expected: Mutex<HashMap<MigrationId, (Instant, Expected)>>,
}

impl MigrationTargets {
    /// Records the scheduler's announcement that an instance will arrive.
    ///
    /// # Errors
    /// Returns `unavailable` when too many are expected.
    pub fn expect(&self, id: MigrationId, expected: Expected) -> Result<(), ApiError> {
        let mut all = self.expected.lock();
        all.retain(|_, (since, _)| since.elapsed() < EXPECTED_LIMIT);
        if all.len() >= EXPECTED_MAX {
            let message = format!("{EXPECTED_MAX} instances are on their way here: try again in a moment");
            return Err(ApiError::new(ErrorCode::Unavailable, message));
        }
        all.insert(id, (Instant::now(), expected));
        Ok(())
    }

    /// Returns what the instance runs, if it was announced. The scheduler's word counts, not the source's. An
    /// announcement is valid once.
    fn admit(&self, order: &TargetOrder) -> Result<VersionSpec, ApiError> {
        let announced = self.expected.lock().remove(&order.id);
        let comes = |expected: &Expected| {
            let (said, spec) = (&order.spec, &expected.spec);
            let what = (&said.function, said.version) == (&spec.function, spec.version);
            what && order.instance == expected.instance && order.from == expected.from
        };
        match announced {
            Some((since, expected)) if since.elapsed() < EXPECTED_LIMIT && comes(&expected) => Ok(expected.spec),
            _ => {
                let message = format!(
                    "the scheduler has not said that {} comes here from {}",
                    order.instance, order.from
                );
                Err(ApiError::new(ErrorCode::Unauthorized, message))
            }
        }
    }

    /// Returns a migration target.
    ///
    /// # Errors
    /// Returns `not_found` when it was cancelled or has been done for long.
    pub fn get(&self, id: &MigrationId) -> Result<Arc<MigrationTarget>, ApiError> {
        let found = self.here.lock().get(id).cloned();
        found.ok_or_else(|| {
            ApiError::new(
                ErrorCode::NotFound,
                format!("no migration target {id}: it is done, or was given up"),
            )
        })
    }
}

/// An instance that arrives.
pub struct MigrationTarget {
    order: TargetOrder,
    instance: Arc<Instance>,
    state: Mutex<State>,
}

enum State {
    /// Waits for the images.
    Prepared(Box<Prepared>),
    /// CRIU is at work, or the processes wait to be resumed.
    Busy,
    /// The processes are restored and stopped.
    Standing {
        go: SyncSender<()>,
        restored: oneshot::Receiver<Result<Arc<RunningInstance>, ApiError>>,
    },
    Running,
    Failed,
}

/// What is created before the images arrive.
struct Prepared {
    isolated: IsolatedProcess,
    base: Option<Arc<OpenSnapshot>>,
}

/// Takes a sandbox and opens the snapshot that the memory is mapped from.
///
/// # Errors
/// Returns an error when the host cannot take the instance.
pub async fn prepare(worker: &Arc<Worker>, order: TargetOrder) -> Result<(), ApiError> {
    let spec = worker.migration_targets.admit(&order)?;
    let order = TargetOrder { spec, ..order };
    if worker.draining.load(std::sync::atomic::Ordering::Relaxed) {
        let message = "the worker takes no new instances";
        return Err(ApiError::new(ErrorCode::Unavailable, message));
    }
    if worker.instance(&order.instance).is_some() {
        let message = format!("instance {} is on this worker already", order.instance);
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let spec = &order.spec;
    let sink = worker.logs.sink(&spec.function, spec.version, order.instance.clone());
    let instance = Instance::new(order.instance.clone(), spec.clone(), order.started, sink);
    let opening = async {
        let Some(id) = &order.base else { return Ok(None) };
        // It must be the snapshot of the instance's version, whatever the source says.
        if spec.snapshot.as_ref() != Some(id) {
            let message = format!("its memory is mapped from snapshot {id}, which is not its version's");
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        let opened = worker
            .snapshots
            .open(
                id,
                spec.uid,
                spec.manifest.image.is_some(),
                spec.snapshot_digest.as_deref(),
            )
            .await;
        let (snapshot, _) = opened.map_err(|e| unavailable("open the snapshot", &e))?;
        Ok::<_, ApiError>(Some(snapshot))
    };
    // The group does not have the instance's name: remains of the instance may still be here when it comes back.
    let (base, isolated) = tokio::join!(opening, isolate(worker, &instance, order.id.as_str()));
    let (base, isolated) = (base?, isolated?);
    if let Some(base) = &base {
        let completing = base.template.complete();
        completing.map_err(|e| unavailable("read the files of the function", &e))?;
    }
    let layout = base.as_ref().map_or_else(String::new, |b| b.template.fingerprint());
    if layout != order.layout {
        let message = "the two workers lay templates out differently: they run different versions of fn";
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let id = order.id.clone();
    let target = Arc::new(MigrationTarget {
        order,
        instance,
        state: Mutex::new(State::Prepared(Box::new(Prepared { isolated, base }))),
    });
    worker.migration_targets.here.lock().insert(id.clone(), target);
    let worker = Arc::clone(worker);
    tokio::spawn(async move {
        tokio::time::sleep(WAIT_LIMIT).await;
        let target = worker.migration_targets.here.lock().remove(&id);
        if let Some(target) = target {
            // Nobody asks any more what became of it. One that never ran is torn down.
            target.give_up();
        }
    });
    Ok(())
}

impl MigrationTarget {
    /// Returns its state.
    pub fn state(&self) -> TargetState {
        match &*self.state.lock() {
            State::Prepared(_) | State::Busy | State::Standing { .. } => TargetState::Waiting,
            State::Running => TargetState::Running,
            State::Failed => TargetState::Failed,
        }
    }

    /// Cancels it: it must not run. Returns whether it does not run and never will.
    pub fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        if matches!(*state, State::Running | State::Busy) {
            return false;
        }
        // This drops what was prepared, and restored processes are never resumed.
        *state = State::Failed;
        true
    }

    fn become_busy(&self, from: impl FnOnce(State) -> Result<State, State>) -> Option<State> {
        let mut state = self.state.lock();
        match from(std::mem::replace(&mut *state, State::Busy)) {
            Ok(taken) => Some(taken),
            Err(other) => {
                *state = other;
                None
            }
        }
    }

    /// Restores it from its bundle, up to its first instruction.
    ///
    /// # Errors
    /// Returns an error when it cannot be restored; then it never ran.
    pub async fn images(self: &Arc<Self>, worker: &Arc<Worker>, bundle: Body) -> Result<Standing, ApiError> {
        let taken = self.become_busy(|state| match state {
            State::Prepared(_) => Ok(state),
            other => Err(other),
        });
        let Some(State::Prepared(prepared)) = taken else {
            return Err(ApiError::new(
                ErrorCode::Conflict,
                "the migration target was given up, or has its images",
            ));
        };
        let stood = Box::pin(self.restore(worker, *prepared, bundle)).await;
        if stood.is_err() {
            *self.state.lock() = State::Failed;
        }
        stood
    }

    async fn restore(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        prepared: Prepared,
        bundle: Body,
    ) -> Result<Standing, ApiError> {
        // The source's instance is stopped meanwhile.
        let _starting = worker.start_limiter.starting();
        let Prepared { isolated, base } = prepared;
        let failed = |what: &'static str| move |e: &dyn std::error::Error| unavailable(what, e);
        let dir = worker.config.run_dir.join("restores").join(self.order.id.as_str());
        let scratch = ScratchDir::make(dir).map_err(|e| failed("lay out the images")(&e))?;
        let path = scratch.path().to_owned();
        let expected_images = ExpectedImages {
            templates: base.as_ref().map_or(0, |base| base.template.files().count()),
            memory: memory_limit(&self.order.spec),
            writes_root: self.order.spec.manifest.image.is_some(),
        };
        let bundle = BlockingReader(bundle.into_data_stream().map_err(io::Error::other).into_async_read());
        let on_disk = tokio::task::spawn_blocking(move || lay_out(bundle, &path, &expected_images)).await;
        let on_disk = on_disk.map_err(|e| failed("lay out the images")(&e))??;
        let to = format!("{}-images", self.order.id);
        let pids = on_disk.numbering.pids().map_err(|e| failed("serve its memory")(&e))?;
        let images = Images {
            dir: scratch.path(),
            to: &to,
            pids: &pids,
            pipes: &on_disk.header.pipes,
        };
        let mut prepared = PreparedRestore::of(worker, isolated, images).await?;
        let memory = self.memory(worker, base.as_deref(), &on_disk)?;
        let written = Arc::clone(&memory.written);
        tokio::spawn(receive(Arc::downgrade(&written)));
        let pages = Pages {
            owner: format!("an instance that came from worker {}", self.order.from),
            source: Arc::clone(&written) as Arc<dyn PageSource>,
            pids,
            layout: memory.layout,
            maps: memory.maps,
            record: false,
            code: ErrorCode::MigrationLost,
            ahead: {
                let (written, base) = (Arc::clone(&written), base.clone());
                Box::new(move || ahead(&written, base.as_deref()))
            },
        };
        let memory = prepared.start_pager(worker, &self.instance, pages)?;
        let (stands, told) = oneshot::channel();
        let (go, may_go) = sync_channel(1);
        let (done, restored) = oneshot::channel();
        let restore = Restore {
            clocks: on_disk.clocks,
            work: StageWork {
                locks: on_disk.locks,
                eager_bytes: None,
                memory: Some(memory),
                last: Box::new(move || {
                    stands.send(()).map_err(|()| "nobody waits for it any more")?;
                    Ok(may_go.recv_timeout(GO_LIMIT).map_err(|_| "it was not let go")?)
                }),
                record: self.instance.inner_phase_recorder(),
            },
            origin: MemoryOrigin {
                snapshot: base,
                working_set: None,
                arrived: Some(Arc::clone(&written)),
            },
        };
        let (worker, instance) = (Arc::clone(worker), Arc::clone(&self.instance));
        let running = async move { drop(done.send(restore.run_to_end(&worker, &instance, prepared).await)) };
        tokio::spawn(running.instrument(tracing::Span::current()));
        let arrived = || written.pages() - written.missing();
        match told.await {
            Ok(()) => {
                let mut state = self.state.lock();
                *state = State::Standing { go, restored };
                Ok(Standing {
                    arrived_pages: arrived(),
                })
            }
            Err(_) => match restored.await {
                Ok(Err(error)) => Err(error),
                _ => Err(ApiError::new(ErrorCode::Internal, "the restore broke off")),
            },
        }
    }

    /// Builds what the pager needs to know of the memory.
    fn memory(&self, worker: &Worker, base: Option<&OpenSnapshot>, on_disk: &ImagesOnDisk) -> Result<Memory, ApiError> {
        let template = base.map(|b| Arc::clone(&b.template));
        let mut layout = Layout {
            backed: template.as_ref().map_or_else(Vec::new, |t| t.folded()),
            ..Layout::default()
        };
        let mut under = HashMap::new();
        for (pid, pieces) in &on_disk.header.maps {
            let mut map = rekindle_pager::address_map::AddressMap::new(layout.backed_of(*pid));
            set_pieces(&mut map, pieces);
            under.insert(*pid, map);
        }
        for process in &on_disk.numbering.processes {
            let range = |page, pages| PageRange {
                first: PageRef { pid: process.pid, page },
                pages,
            };
            let mapped = process
                .memory
                .mapped
                .iter()
                .map(|(area, _)| range(area.first.0, area.pages));
            layout.mapped.extend(mapped);
            let holds_any = |first: u64, pages: u64| {
                let below = template
                    .as_ref()
                    .is_some_and(|t| t.holds_any(process.pid, first, pages));
                let moved = under.get(&process.pid).is_some_and(|map| map.run(first, pages) < pages);
                let written = process.runs.iter();
                let mut written =
                    written.filter(|(run, _)| run.first.0 < first + pages && first < run.first.0 + run.pages);
                below || moved || written.next().is_some()
            };
            let lazy = process.memory.lazy.iter();
            let full = lazy
                .map(|(first, pages)| range(first.0, *pages))
                .filter(|range| holds_any(range.first.page, range.pages));
            layout.anonymous.extend(full);
        }
        let source = Source(Peer::new(worker, &self.order.from, &self.order.id));
        let written = WrittenPages::new(template, &on_disk.numbering, under, source, Handle::current());
        let written = written.map_err(|e| unavailable("make room for what was written", &e))?;
        let maps = written.maps(&mut layout);
        Ok(Memory {
            written: Arc::new(written),
            layout,
            maps,
        })
    }

    /// Resumes the processes here.
    ///
    /// # Errors
    /// Returns an error when they do not run; then they never ran.
    pub async fn go(self: &Arc<Self>, worker: &Arc<Worker>) -> Result<TargetState, ApiError> {
        let taken = self.become_busy(|state| match state {
            State::Standing { .. } => Ok(state),
            other => Err(other),
        });
        let Some(State::Standing { go, restored }) = taken else {
            return match self.state() {
                // The same reply is given again.
                TargetState::Running => Ok(TargetState::Running),
                _ => Err(ApiError::new(ErrorCode::Conflict, "no processes stand here")),
            };
        };
        let sent = go.send(());
        let restored = match sent {
            Ok(()) => restored
                .await
                .unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "the restore broke off"))),
            Err(_) => Err(ApiError::new(
                ErrorCode::Unavailable,
                "the processes stood here for too long",
            )),
        };
        match restored {
            Ok(parts) => {
                self.run(worker, parts).await?;
                Ok(TargetState::Running)
            }
            Err(error) => {
                *self.state.lock() = State::Failed;
                Err(error)
            }
        }
    }

    async fn run(self: &Arc<Self>, worker: &Arc<Worker>, parts: Arc<RunningInstance>) -> Result<(), ApiError> {
        if self.order.clone
            && let Err(why) = call_hook(&self.instance, &parts, Hook::AfterRestore).await
        {
            *self.state.lock() = State::Failed;
            tear_down(parts).await;
            return Err(ApiError::new(ErrorCode::RestoreFailed, why));
        }
        if let Some(written) = &parts.arrived {
            written.note_running();
        }
        let instance = &self.instance;
        // The next request that it serves is not its first.
        instance.usage.note_served();
        if !worker.add(instance) {
            *self.state.lock() = State::Failed;
            tear_down(parts).await;
            let message = format!("instance {} is on this worker already", instance.id);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        instance.ready(Arc::clone(&parts), worker).await;
        instance.settle();
        *self.state.lock() = State::Running;
        instance.sink.platform(format!("came from {}", self.order.from));
        if let Some(written) = &parts.arrived {
            let push = PagePush {
                parts: Arc::downgrade(&parts),
                written: Arc::clone(written),
                instance: Arc::clone(instance),
                runtime: Handle::current(),
            };
            let measuring = Arc::clone(worker);
            tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                if push.all() {
                    measuring.metrics.arrived(began.elapsed());
                    push.free();
                }
            });
        }
        Ok(())
    }
}

struct Memory {
    written: Arc<WrittenPages>,
    layout: Layout,
    maps: HashMap<i32, rekindle_pager::address_map::AddressMap>,
}

/// Returns the pages to fill before the processes run: those that have arrived, and those that restores of the snapshot
/// want.
fn ahead(written: &WrittenPages, base: Option<&OpenSnapshot>) -> Arc<[AheadPage]> {
    // Pages that it wrote long ago come with the migration.
    let wanted = base.map(|base| base.begin().1);
    let mut pages: Vec<PageRef> = wanted.iter().flat_map(|ahead| ahead.iter().map(|a| a.page)).collect();
    for (range, number) in written.runs().take_while(|(_, number)| *number < AHEAD) {
        let ready = written.ready_run(number, range.pages.min(AHEAD - number));
        let page = |n| PageRef {
            page: range.first.page + n,
            ..range.first
        };
        pages.extend((0..ready).map(page));
    }
    pages.sort_unstable();
    pages.dedup();
    let pages = pages.into_iter().map(|page| AheadPage { page, written: false });
    pages.collect()
}
