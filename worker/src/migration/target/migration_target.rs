//! One instance that arrives.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use futures::TryStreamExt as _;
use parking_lot::Mutex;
use rekindle_criu::ScratchDir;
use rekindle_wire::api::RestoredBy;
use rekindle_wire::migration::{HeldCopy, TargetOrder, TargetState};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::runtime::Handle;
use tracing::Instrument as _;

use super::super::bundle::BlockingReader;
use super::super::peer::SourcePeer;
use super::super::written::WrittenPages;
use super::host::TargetHost;
use super::images::{ExpectedImages, ImagesOnDisk, lay_out};
use super::memory::ArrivingMemory;
use super::restore::{ArrivingProcesses, StoppedProcesses};
use super::transfer::{PagePush, receive};
use crate::errors::unavailable;
use crate::host::sandbox::IsolatedProcess;
use crate::host::start_limiter::Arrival;
use crate::instance::hooks::{Hook, call_hook};
use crate::instance::isolate::memory_limit;
use crate::instance::{Instance, RunningInstance};
use crate::snapshots::OpenSnapshot;

/// An instance that arrives.
pub struct MigrationTarget {
    order: TargetOrder,
    instance: Arc<Instance>,
    host: Arc<TargetHost>,
    state: Mutex<State>,
}

enum State {
    /// Waits for the images.
    Prepared(Box<PreparedTarget>),
    /// A program or CRIU is at work, or the processes wait to be resumed.
    Busy,
    /// The processes are restored and stopped.
    Held {
        stopped: StoppedProcesses,
        written: Arc<WrittenPages>,
        by: RestoredBy,
        arrival: Arrival,
    },
    Running,
    Failed,
}

/// What is created before the images arrive.
pub(super) struct PreparedTarget {
    pub(super) isolated: IsolatedProcess,
    pub(super) base: Option<Arc<OpenSnapshot>>,
    pub(super) arrival: Arrival,
}

impl MigrationTarget {
    /// Creates it, ready for the images.
    pub(super) fn new(
        order: TargetOrder,
        instance: Arc<Instance>,
        host: Arc<TargetHost>,
        prepared: PreparedTarget,
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
            State::Prepared(_) | State::Busy | State::Held { .. } => TargetState::Waiting,
            State::Running => TargetState::Running,
            State::Failed => TargetState::Failed,
        }
    }

    /// Cancels it: it must not run. Returns whether it does not run and never will.
    pub fn cancel(&self) -> bool {
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
    pub async fn images(&self, bundle: Body) -> Result<HeldCopy, ApiError> {
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
        let span = tracing::info_span!(
            "arrive",
            "rekindle.role" = "worker",
            rekindle.instance = self.order.instance.as_str(),
            rekindle.restorer = tracing::field::Empty,
            rekindle.handover = tracing::field::Empty,
        );
        let stood = Box::pin(self.restore(*prepared, bundle)).instrument(span).await;
        if stood.is_err() {
            *self.state.lock() = State::Failed;
        }
        stood
    }

    async fn restore(&self, prepared: PreparedTarget, bundle: Body) -> Result<HeldCopy, ApiError> {
        // The source's instance is stopped meanwhile.
        let _starting = self.host.start_limiter.starting();
        let PreparedTarget {
            isolated,
            base,
            arrival,
        } = prepared;
        arrival.goes_on();
        let failed = |what: &'static str| move |e: &dyn std::error::Error| unavailable(what, e);
        let scratch = ScratchDir::make(self.host.criu.scratch(self.order.id.as_str()))
            .map_err(|e| failed("lay out the images")(&e))?;
        let expected_images = ExpectedImages {
            templates: base.as_ref().map_or(0, |base| base.template.files().count()),
            memory: memory_limit(&self.order.spec),
            writes_root: self.order.spec.config.image.is_some(),
        };
        let bundle = BlockingReader(bundle.into_data_stream().map_err(io::Error::other).into_async_read());
        let (path, id) = (scratch.path().to_owned(), self.order.id.clone());
        let snapshots = Arc::clone(&self.host.snapshots);
        let laying_out = move || lay_out(bundle, &path, &expected_images, (&snapshots, id.as_str()));
        let on_disk = tokio::task::spawn_blocking(laying_out).await;
        let on_disk = on_disk.map_err(|e| failed("lay out the images")(&e))??;
        let pids = on_disk.numbering.pids().map_err(|e| failed("serve its memory")(&e))?;
        let source = SourcePeer(self.host.peers.at(&self.order.from, &self.order.id));
        let memory = ArrivingMemory::of(base.as_deref(), &on_disk, source)?;
        let written = Arc::clone(&memory.written);
        tokio::spawn(receive(Arc::downgrade(&written)));
        let ImagesOnDisk {
            header,
            clocks,
            locks,
            connections,
            program,
            ..
        } = on_disk;
        let arriving = ArrivingProcesses {
            host: Arc::clone(&self.host),
            order: &self.order,
            instance: Arc::clone(&self.instance),
            base,
            images: Arc::new(scratch),
            pids,
            pipes: header.pipes,
            clocks,
            locks,
            connections,
            file_numbers: header.file_numbers,
            memory,
        };
        let (stopped, by) = arriving.restore(isolated, program).await?;
        let arrived_pages = written.pages() - written.missing();
        *self.state.lock() = State::Held {
            stopped,
            written,
            by: by.clone(),
            arrival,
        };
        Ok(HeldCopy {
            arrived_pages,
            restored_by: Some(by),
        })
    }

    /// Resumes the processes here.
    ///
    /// # Errors
    /// Returns an error when they do not run; then they never ran.
    pub async fn resume(&self) -> Result<TargetState, ApiError> {
        let taken = self.become_busy(|state| match state {
            State::Held { .. } => Ok(state),
            other => Err(other),
        });
        let Some(State::Held {
            stopped,
            written,
            by,
            arrival: _arrival,
        }) = taken
        else {
            return match self.state() {
                // The same reply is given again.
                TargetState::Running => Ok(TargetState::Running),
                _ => Err(ApiError::new(ErrorCode::Conflict, "no processes stand here")),
            };
        };
        match stopped.resume().await {
            Ok(running) => {
                self.run(running, &written).await?;
                self.host.metrics.target_restored_by(&by);
                Ok(TargetState::Running)
            }
            Err(error) => {
                *self.state.lock() = State::Failed;
                Err(error)
            }
        }
    }

    async fn run(&self, running: Arc<RunningInstance>, written: &Arc<WrittenPages>) -> Result<(), ApiError> {
        if self.order.clone
            && let Err(why) = call_hook(&self.instance, &running, Hook::AfterRestore).await
        {
            *self.state.lock() = State::Failed;
            running.tear_down().await;
            return Err(ApiError::new(ErrorCode::RestoreFailed, why));
        }
        written.note_running();
        let instance = &self.instance;
        // The next request that it serves is not its first.
        instance.usage.note_served();
        if !self.host.instances.add(instance) {
            *self.state.lock() = State::Failed;
            running.tear_down().await;
            let message = format!("instance {} is on this worker already", instance.id);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        self.host.supervisor.ready(instance, Arc::clone(&running)).await;
        // It has had no other copy here.
        instance.settle(0);
        *self.state.lock() = State::Running;
        instance.sink.platform(format!("came from {}", self.order.from));
        let push = PagePush {
            running: Arc::downgrade(&running),
            written: Arc::clone(written),
            instance: Arc::clone(instance),
            runtime: Handle::current(),
        };
        let metrics = Arc::clone(&self.host.metrics);
        tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            if push.all() {
                metrics.memory_followed(began.elapsed());
                push.free();
            }
        });
        Ok(())
    }
}
