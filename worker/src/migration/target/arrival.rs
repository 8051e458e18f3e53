//! One instance that arrives.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use axum::body::Body;
use futures::TryStreamExt as _;
use parking_lot::Mutex;
use rekindle_criu::ScratchDir;
use rekindle_pager::PageSource;
use rekindle_wire::migration::{Standing, TargetOrder, TargetState};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::super::bundle::BlockingReader;
use super::super::peer::{Peers, Source};
use super::super::written::WrittenPages;
use super::images::{ExpectedImages, lay_out};
use super::memory::{Memory, ahead};
use super::transfer::{PagePush, receive};
use crate::criu::Criu;
use crate::criu::connections::connect;
use crate::criu::memory::Pages;
use crate::criu::prepared_restore::{Images, PreparedRestore};
use crate::criu::restore::Restore;
use crate::criu::stages::StageWork;
use crate::errors::{restore_failed, unavailable};
use crate::host::host_pids::processes_in;
use crate::host::sandbox::IsolatedProcess;
use crate::host::start_limiter::StartLimiter;
use crate::instance::hooks::{Hook, call_hook};
use crate::instance::isolate::memory_limit;
use crate::instance::{Instance, Instances, MemoryOrigin, RunningInstance, Supervisor, kill_on_lost_page};
use crate::metrics::Metrics;
use crate::snapshots::OpenSnapshot;

/// How long restored processes wait to be resumed.
const GO_LIMIT: Duration = Duration::from_secs(15);

/// An instance that arrives.
pub struct MigrationTarget {
    order: TargetOrder,
    instance: Arc<Instance>,
    host: Arc<TargetHost>,
    state: Mutex<State>,
}

/// What a host restores arriving instances with.
pub struct TargetHost {
    /// CRIU on this host.
    pub criu: Arc<Criu>,
    /// Limits how many starts use the processors at once.
    pub start_limiter: Arc<StartLimiter>,
    /// The workers that instances come from.
    pub peers: Peers,
    /// All instances.
    pub instances: Arc<Instances>,
    /// Watches over those that run.
    pub supervisor: Arc<Supervisor>,
    /// Where arrivals are measured.
    pub metrics: Arc<Metrics>,
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
        written: Arc<WrittenPages>,
    },
    Running,
    Failed,
}

/// What is created before the images arrive.
pub(super) struct Prepared {
    pub(super) isolated: IsolatedProcess,
    pub(super) base: Option<Arc<OpenSnapshot>>,
}

impl MigrationTarget {
    /// Creates it, ready for the images.
    pub(super) fn new(
        order: TargetOrder,
        instance: Arc<Instance>,
        host: Arc<TargetHost>,
        prepared: Prepared,
    ) -> Arc<Self> {
        Arc::new(Self {
            order,
            instance,
            host,
            state: Mutex::new(State::Prepared(Box::new(prepared))),
        })
    }

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
    pub async fn images(&self, bundle: Body) -> Result<Standing, ApiError> {
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
        let stood = Box::pin(self.restore(*prepared, bundle)).await;
        if stood.is_err() {
            *self.state.lock() = State::Failed;
        }
        stood
    }

    async fn restore(&self, prepared: Prepared, bundle: Body) -> Result<Standing, ApiError> {
        // The source's instance is stopped meanwhile.
        let _starting = self.host.start_limiter.starting();
        let Prepared { isolated, base } = prepared;
        let failed = |what: &'static str| move |e: &dyn std::error::Error| unavailable(what, e);
        let scratch = ScratchDir::make(self.host.criu.scratch(self.order.id.as_str()))
            .map_err(|e| failed("lay out the images")(&e))?;
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
        let mut prepared = PreparedRestore::of(&self.host.criu, isolated, images).await?;
        let source = Source(self.host.peers.at(&self.order.from, &self.order.id));
        let memory = Memory::of(base.as_deref(), &on_disk, source)?;
        let written = Arc::clone(&memory.written);
        tokio::spawn(receive(Arc::downgrade(&written)));
        let pages = Pages {
            function: self.order.spec.function.clone(),
            source: Arc::clone(&written) as Arc<dyn PageSource>,
            pids,
            layout: memory.layout,
            maps: memory.maps,
            record: false,
            on_lost: kill_on_lost_page(
                &self.host.metrics,
                &self.instance,
                &prepared.sandbox,
                format!("an instance that came from worker {}", self.order.from),
                ErrorCode::MigrationLost,
            ),
            ahead: {
                let (written, base) = (Arc::clone(&written), base.clone());
                Box::new(move || ahead(&written, base.as_deref()))
            },
        };
        let memory = prepared.start_pager(pages)?;
        self.host.metrics.pagers.watch(memory.pager.stats());
        let (stands, told) = oneshot::channel();
        let (go, may_go) = sync_channel(1);
        let (done, restored) = oneshot::channel();
        let (connections, cgroup) = (on_disk.connections, Arc::clone(&prepared.cgroup));
        let restore = Restore {
            clocks: on_disk.clocks,
            work: StageWork {
                locks: on_disk.locks,
                eager_bytes: None,
                memory: Some(memory),
                last: Box::new(move || {
                    connect(&connections, &processes_in(&cgroup)?)?;
                    stands.send(()).map_err(|()| "nobody waits for it any more")?;
                    Ok(may_go.recv_timeout(GO_LIMIT).map_err(|_| "it was not let go")?)
                }),
                record: self.instance.inner_phase_recorder(),
            },
            snapshot: base.clone(),
        };
        let origin = MemoryOrigin {
            snapshot: base,
            working_set: None,
            has_arrived: Some(written.settled()),
        };
        let (criu, instance) = (Arc::clone(&self.host.criu), Arc::clone(&self.instance));
        let running = async move {
            let restored = restore.run_to_end(&criu, instance.id.as_str(), prepared).await;
            let running = restored.and_then(|processes| {
                let running = RunningInstance::restored(processes, origin, instance.spec.manifest.port);
                running.map_err(|e| restore_failed("look at the outputs", &e))
            });
            drop(done.send(running));
        };
        tokio::spawn(running.instrument(tracing::Span::current()));
        match told.await {
            Ok(()) => {
                let mut state = self.state.lock();
                let arrived_pages = written.pages() - written.missing();
                *state = State::Standing { go, restored, written };
                Ok(Standing { arrived_pages })
            }
            Err(_) => match restored.await {
                Ok(Err(error)) => Err(error),
                _ => Err(ApiError::new(ErrorCode::Internal, "the restore broke off")),
            },
        }
    }

    /// Resumes the processes here.
    ///
    /// # Errors
    /// Returns an error when they do not run; then they never ran.
    pub async fn go(&self) -> Result<TargetState, ApiError> {
        let taken = self.become_busy(|state| match state {
            State::Standing { .. } => Ok(state),
            other => Err(other),
        });
        let Some(State::Standing { go, restored, written }) = taken else {
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
                self.run(parts, &written).await?;
                Ok(TargetState::Running)
            }
            Err(error) => {
                *self.state.lock() = State::Failed;
                Err(error)
            }
        }
    }

    async fn run(&self, parts: Arc<RunningInstance>, written: &Arc<WrittenPages>) -> Result<(), ApiError> {
        if self.order.clone
            && let Err(why) = call_hook(&self.instance, &parts, Hook::AfterRestore).await
        {
            *self.state.lock() = State::Failed;
            parts.tear_down().await;
            return Err(ApiError::new(ErrorCode::RestoreFailed, why));
        }
        written.note_running();
        let instance = &self.instance;
        // The next request that it serves is not its first.
        instance.usage.note_served();
        if !self.host.instances.add(instance) {
            *self.state.lock() = State::Failed;
            parts.tear_down().await;
            let message = format!("instance {} is on this worker already", instance.id);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        self.host.supervisor.ready(instance, Arc::clone(&parts)).await;
        // It has had no other copy here.
        instance.settle(0);
        *self.state.lock() = State::Running;
        instance.sink.platform(format!("came from {}", self.order.from));
        let push = PagePush {
            parts: Arc::downgrade(&parts),
            written: Arc::clone(written),
            instance: Arc::clone(instance),
            runtime: Handle::current(),
        };
        let metrics = Arc::clone(&self.host.metrics);
        tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            if push.all() {
                metrics.arrived(began.elapsed());
                push.free();
            }
        });
        Ok(())
    }
}
