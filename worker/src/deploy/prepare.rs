//! Makes a version ready to serve: builds its layer, boots it, warms it up, checkpoints it, publishes the snapshot, and
//! restores that once. The booted instance becomes the version's first warm one. Its after-restore hook runs too, as in
//! copies: what the before-snapshot hook closed must be there again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_init::seccomp::FilterChoice;
use rekindle_snapshotter::Published;
use rekindle_snapshotter::manifest::Origin;
use rekindle_wire::api::{SnapshotSummary, StartKind, VersionState};
use rekindle_wire::internal::{BuiltLayers, PrepareEvent, PrepareRequest, StartInstance, VersionSpec, start_limit};
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{ApiError, ErrorCode, InstanceId, Secret};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::builder::Builder;
use super::rehearsal::Rehearser;
use super::unlisted::UnlistedInstance;
use super::{unique, warm_up};
use crate::criu::refusal::told_by_init;
use crate::errors::unavailable;
use crate::host::disk::free_bytes;
use crate::host::sandbox::{FunctionState, SandboxError};
use crate::instance::checkpoint::{CheckpointError, Checkpointer, QUIET_LIMIT, quiet};
use crate::instance::end::ended_before;
use crate::instance::hooks::{Hook, call_hook};
use crate::instance::runtime_snapshot::RuntimeSnapshotScope;
use crate::instance::start::Starter;
use crate::instance::{Instance, Instances, RunningInstance};
use crate::metrics::Metrics;
use crate::snapshots::made_with;

/// Time that fetching or taking a runtime's snapshot may add to a boot. It is as much as either may take by itself,
/// with a store that is slow to respond.
const SHARED_LIMIT: Duration = Duration::from_mins(2);
/// Time until a function that has ended is known to have. Only a snapshot is proof that it ran.
const END_LIMIT: Duration = Duration::from_millis(200);
/// Free disk space below which a missing snapshot is attributed to lack of room, in bytes.
const ROOM_LEAST: u64 = 64 << 20;

/// A version's first instance, after its warm-up.
struct WarmInstance {
    instance: Arc<Instance>,
    running: Arc<RunningInstance>,
    refused_warmups: Vec<String>,
}

/// Why there is no snapshot, or why instances could not move.
struct NoSnapshot {
    why: String,
    /// Whether a process that has outlived its parent is in the way.
    is_orphan: bool,
}

impl From<CheckpointError> for NoSnapshot {
    fn from(error: CheckpointError) -> Self {
        let failed = unavailable("snapshot the function", &error).message;
        let CheckpointError::Dump(dumped) = &error else {
            return Self {
                why: failed,
                is_orphan: false,
            };
        };
        let why = match dumped.of_function() {
            Some(told) => {
                tracing::info!(error = %failed, "a function cannot be checkpointed");
                format!(
                    "{told}. For the same reason an instance cannot move to another worker, and a drain of its worker \
                     stops it"
                )
            }
            None => failed,
        };
        Self {
            why,
            is_orphan: dumped.is_orphan(),
        }
    }
}

/// Makes versions ready to serve.
pub struct Preparer {
    /// Builds their layers.
    pub builder: Builder,
    /// All instances.
    pub instances: Arc<Instances>,
    /// Starts their first instances.
    pub starter: Arc<Starter>,
    /// Takes their snapshots.
    pub checkpointer: Arc<Checkpointer>,
    /// Restores their snapshots once.
    pub rehearser: Rehearser,
    /// The system call filter of functions.
    pub filter: FilterChoice,
    /// A directory on the disk that may lack room.
    pub cache_dir: PathBuf,
    /// Where snapshots are counted.
    pub metrics: Arc<Metrics>,
}

impl Preparer {
    /// Prepares a version and reports events. The last one is `Done` or `Failed`.
    pub async fn prepare(self: Arc<Self>, request: PrepareRequest, events: mpsc::Sender<PrepareEvent>) {
        let apart = request
            .built
            .is_some()
            .then(|| UnlistedInstance::new(&self.instances, &request.instance));
        let last = match self.run(&request, &events).await {
            Ok(done) => done,
            Err(error) => {
                self.end(&request.instance, "the deploy failed").await;
                PrepareEvent::Failed { error }
            }
        };
        if let Some(apart) = apart {
            apart.end("its snapshot was taken").await;
        }
        // The scheduler may have given up; then it also forgets the version.
        let _ = events.send(last).await;
    }

    async fn run(
        &self,
        request: &PrepareRequest,
        events: &mpsc::Sender<PrepareEvent>,
    ) -> Result<PrepareEvent, ApiError> {
        let BuiltLayers { rootfs, layer, reaper } = match &request.built {
            Some(built) => built.clone(),
            None => {
                phase(events, VersionState::Building).await?;
                self.builder.build(request).await?
            }
        };
        let mut spec = VersionSpec {
            function: request.function.clone(),
            version: request.version,
            config: request.config.clone(),
            uid: request.uid,
            rootfs,
            layer,
            snapshot: None,
            snapshot_digest: None,
            instruction_sets: InstructionSets::default(),
            reaper,
        };
        // A runtime's snapshot has no reaper.
        let scope = match reaper {
            true => None,
            false => RuntimeSnapshotScope::of(request.sharing, &spec, request.runtime_snapshot.clone()),
        };
        let mut warm = self.warmed_up(request, &spec, scope.clone(), events).await?;
        let mut taken = self.taken(request, &warm, events).await?;
        if matches!(&taken, Err(none) if none.is_orphan) && self.starter.booter.has_reaper(&spec).await {
            match self.below_reaper(request, &spec, warm, events).await {
                Ok(again) => {
                    spec.reaper = true;
                    warm = again;
                    taken = self.taken(request, &warm, events).await?;
                }
                Err(error) => {
                    tracing::warn!(function = %spec.function, %error, "it does not start below a reaper");
                    let why = "it does not start below a reaper";
                    warm = self.boot_instead(request, &spec, why, events).await?;
                }
            }
        }
        if !matches!(&taken, Ok(Some(_))) {
            self.still_runs(&warm).await?;
        }
        let WarmInstance {
            instance,
            refused_warmups,
            ..
        } = warm;
        let (mut snapshot, mut snapshot_error, mut no_room) = (None, None, false);
        match taken {
            Ok(None) => {}
            Ok(Some(published)) => {
                unique::refuse(&spec, published.summary.randomness.as_ref())?;
                let summary = SnapshotSummary {
                    refused_warmups,
                    ..published.summary
                };
                spec.snapshot = Some(published.id);
                spec.snapshot_digest = Some(published.digest.to_string());
                spec.instruction_sets = self.checkpointer.instruction_sets;
                match self.rehearsed(&spec, &request.secrets, summary, events).await? {
                    Ok(summary) => snapshot = Some(summary),
                    // The version goes without it, since each start would try the snapshot and then boot.
                    // Collection removes the snapshot.
                    Err(why) => {
                        (spec.snapshot, spec.snapshot_digest) = (None, None);
                        snapshot_error = Some(no_snapshot(&instance, why));
                    }
                }
            }
            Err(none) if spec.config.snapshot => {
                snapshot_error = Some(no_snapshot(&instance, none.why));
                no_room = free_bytes(&self.cache_dir).is_some_and(|free| free < ROOM_LEAST);
            }
            Err(none) => instance.sink.platform(format!("instances cannot move: {}", none.why)),
        }
        Ok(PrepareEvent::Done {
            spec,
            snapshot,
            snapshot_error,
            no_room,
            runtime_snapshot: scope.and_then(|scope| scope.begun()),
        })
    }

    /// Boots the version's first instance and sends it the warm-up requests.
    async fn warmed_up(
        &self,
        request: &PrepareRequest,
        spec: &VersionSpec,
        scope: Option<RuntimeSnapshotScope>,
        events: &mpsc::Sender<PrepareEvent>,
    ) -> Result<WarmInstance, ApiError> {
        phase(events, VersionState::Booting).await?;
        let more = scope.as_ref().map_or(Duration::ZERO, |_| SHARED_LIMIT);
        let order = first_order(request, spec);
        let instance = self.starter.accept_shared(order, &http::HeaderMap::new(), scope)?;
        self.warm_up(request, instance, more, events).await
    }

    /// The same in the place of the first instance, which stops because of `why`.
    async fn boot_instead(
        &self,
        request: &PrepareRequest,
        spec: &VersionSpec,
        why: &str,
        events: &mpsc::Sender<PrepareEvent>,
    ) -> Result<WarmInstance, ApiError> {
        phase(events, VersionState::Booting).await?;
        let order = first_order(request, spec);
        let instance = match self.instances.get(&request.instance) {
            Some(old) => self.starter.accept_instead(&old, order, why).await,
            None => self.starter.accept(order, &http::HeaderMap::new())?,
        };
        self.warm_up(request, instance, Duration::ZERO, events).await
    }

    async fn warm_up(
        &self,
        request: &PrepareRequest,
        instance: Arc<Instance>,
        more: Duration,
        events: &mpsc::Sender<PrepareEvent>,
    ) -> Result<WarmInstance, ApiError> {
        // It may be booted twice, with a snapshot of its runtime taken in between. Its files may have to come first.
        let boot_timeout = request.config.boot_timeout();
        let limit = start_limit(boot_timeout) + boot_timeout + more;
        let running = match instance.until_ready(Instant::now() + limit).await {
            Ok(running) => running,
            // It may have ended before this task saw it ready.
            Err(error) => {
                let ended = self.ended_by_itself(&instance, instance.ended_as()).await;
                return Err(ended.unwrap_or(error));
            }
        };
        phase(events, VersionState::Warming).await?;
        // A connection has just shown that it listens. A request beside that connection would make the bootstrap start
        // another thread, which all copies would have.
        quiet(&running, QUIET_LIMIT).await;
        let refused_warmups = warm_up::send_all(&instance, &running, &request.config.warmup).await?;
        for refused in &refused_warmups {
            instance.sink.platform(format!("warm-up request {refused}"));
        }
        // The next caller finds it warm: its start belongs to the deploy.
        instance.usage.note_served();
        Ok(WarmInstance {
            instance,
            running,
            refused_warmups,
        })
    }

    /// Ends the first instance, one of whose processes has outlived its parent, and boots it again below a reaper. That
    /// is the parent of what loses its own, which a checkpoint holds too.
    async fn below_reaper(
        &self,
        request: &PrepareRequest,
        spec: &VersionSpec,
        first: WarmInstance,
        events: &mpsc::Sender<PrepareEvent>,
    ) -> Result<WarmInstance, ApiError> {
        first.instance.sink.platform(
            "a process has outlived its parent: the function starts once more below a reaper, which keeps it in \
             snapshots and in moves",
        );
        let spec = VersionSpec {
            reaper: true,
            ..spec.clone()
        };
        drop(first);
        let why = "it starts once more below a reaper";
        self.boot_instead(request, &spec, why, events).await
    }

    /// Returns an error if the function has ended by itself, as all its instances may then do.
    async fn still_runs(&self, warm: &WarmInstance) -> Result<(), ApiError> {
        let mut state = warm.running.sandbox.function_state();
        let ended = state.wait_for(|state| *state != FunctionState::Alive);
        let ended = tokio::time::timeout(END_LIMIT, ended).await;
        let ended = ended.ok().and_then(Result::ok).map(|ended| *ended);
        self.ended_by_itself(&warm.instance, ended).await.map_or(Ok(()), Err)
    }

    /// Returns the error for a function that has ended like this. `None` if it was killed: it may only have been too
    /// large for its checkpoint.
    async fn ended_by_itself(&self, instance: &Instance, end: Option<FunctionState>) -> Option<ApiError> {
        let end = end.filter(|end| end.is_by_itself())?;
        let said = ended_before("its deploy was over", instance, end, 0);
        Some(self.starter.booter.not_started(instance, &said).await)
    }

    async fn end(&self, instance: &InstanceId, why: &str) {
        if let Some(instance) = self.instances.get(instance) {
            instance.stop(why).await;
            self.instances.remove_this(&instance);
        }
    }

    /// Takes the version's snapshot, if it is to have one. The inner error says why there is none, or why its instances
    /// could not move.
    async fn taken(
        &self,
        request: &PrepareRequest,
        warm: &WarmInstance,
        events: &mpsc::Sender<PrepareEvent>,
    ) -> Result<Result<Option<Published>, NoSnapshot>, ApiError> {
        let config = &request.config;
        if !config.snapshot {
            let refused = warm.running.sandbox.refuse_strays().await.err();
            let orphan = refused.filter(SandboxError::is_orphan);
            return Ok(orphan.map_or(Ok(None), |refused| {
                Err(NoSnapshot {
                    why: told_by_init(&refused).unwrap_or_default(),
                    is_orphan: true,
                })
            }));
        }
        phase(events, VersionState::Snapshotting).await?;
        let serves = request.built.is_none() && !config.deploys_without_secrets();
        Ok(self.capture(&warm.instance, &warm.running, serves).await.map(Some))
    }

    /// Returns a snapshot with the outcome of its first restore, if its function wants a rehearsal. The inner error
    /// says why there is no snapshot.
    async fn rehearsed(
        &self,
        spec: &VersionSpec,
        secrets: &[Secret],
        summary: SnapshotSummary,
        events: &mpsc::Sender<PrepareEvent>,
    ) -> Result<Result<SnapshotSummary, String>, ApiError> {
        if !spec.config.rehearse {
            return Ok(Ok(summary));
        }
        phase(events, VersionState::Rehearsing).await?;
        // Or its hook's, which would answer no better elsewhere.
        let is_the_snapshot_s = |error: &ApiError| {
            matches!(
                error.code,
                ErrorCode::RestoreFailed | ErrorCode::SnapshotLost | ErrorCode::FunctionError
            )
        };
        let mut rehearsal = self.rehearser.rehearse(spec, secrets).await;
        if let Err(error) = rehearsal.as_ref()
            && is_the_snapshot_s(error)
        {
            // It may have been a temporary failure of the store.
            tracing::warn!(function = %spec.function, %error, "a snapshot could not be restored; once more");
            rehearsal = self.rehearser.rehearse(spec, secrets).await;
        }
        Ok(match rehearsal {
            Ok(rehearsal) => Ok(SnapshotSummary {
                rehearsal: Some(rehearsal),
                ..summary
            }),
            Err(error) if is_the_snapshot_s(&error) => {
                Err(format!("it was taken, and could not be restored: {}", error.message))
            }
            // This host is at fault; the first call may run on another.
            Err(error) => {
                tracing::warn!(function = %spec.function, %error, "a snapshot's restore could not be rehearsed");
                Ok(summary)
            }
        })
    }

    /// Checkpoints and publishes. Requests wait meanwhile. If the instance serves afterwards, it gets its after-restore
    /// hook, whether or not there is a snapshot.
    async fn capture(
        &self,
        instance: &Arc<Instance>,
        running: &Arc<RunningInstance>,
        serves: bool,
    ) -> Result<Published, NoSnapshot> {
        instance.set_capturing(true);
        let spec = &instance.spec;
        let origin = Origin::Function {
            function: spec.function.clone(),
            version: spec.version,
            rootfs: spec.rootfs.clone(),
            layer: spec.layer.clone(),
        };
        let ready = self.checkpointer.prepare(instance, running).await;
        let is_hook_called = match &ready {
            Ok(ready) => ready.may_have_hooks(),
            // Its other hooks may have run.
            Err(error) => matches!(error, CheckpointError::Hook(_)),
        };
        let checkpointed = match ready {
            Ok(ready) => self.checkpointer.checkpoint(instance, running, origin, ready).await,
            Err(error) => Err(error),
        };
        if serves && is_hook_called {
            self.go_on(instance, running).await;
        }
        instance.set_capturing(false);
        self.metrics
            .captured(checkpointed.as_ref().ok().map(|published| &published.summary));
        checkpointed
            .map(|published| Published {
                summary: SnapshotSummary {
                    made_with: Some(made_with(self.filter)),
                    ..published.summary
                },
                ..published
            })
            .map_err(NoSnapshot::from)
    }

    /// Calls the after-restore hook of an instance that goes on after its checkpoint. One whose hook fails is ended, as
    /// a copy is: the next call starts another.
    async fn go_on(&self, instance: &Arc<Instance>, running: &Arc<RunningInstance>) {
        if let Err(why) = call_hook(instance, running, Hook::AfterRestore).await {
            tracing::warn!(instance = %instance.id, error = %why, "an instance cannot go on after its snapshot");
            instance
                .sink
                .platform(format!("it cannot go on after its snapshot: {why}"));
            instance.stop("its after-restore hook failed").await;
            self.instances.remove_this(instance);
        }
    }
}

/// The order of the version's first instance.
fn first_order(request: &PrepareRequest, spec: &VersionSpec) -> StartInstance {
    StartInstance {
        park: false,
        instance: request.instance.clone(),
        start: StartKind::Booted,
        spec: spec.clone(),
        secrets: match spec.config.snapshot {
            // Its memory becomes the snapshot.
            true => Vec::new(),
            false => request.secrets.clone(),
        },
        snapshot_key: None,
        ticket: request.ticket.clone(),
    }
}

async fn phase(events: &mpsc::Sender<PrepareEvent>, phase: VersionState) -> Result<(), ApiError> {
    let told = events.send(PrepareEvent::Phase { phase }).await;
    told.map_err(|_| ApiError::new(ErrorCode::Unavailable, "the scheduler has given this deploy up"))
}

/// Reports that a version has no snapshot, and why. The reason is a sentence for the user.
fn no_snapshot(instance: &Instance, why: String) -> String {
    tracing::warn!(function = %instance.spec.function, error = %why, "no snapshot");
    instance.sink.platform(format!("no snapshot: {why}"));
    why
}
