//! Makes a version ready to serve: builds its layer, boots it, warms it up, checkpoints it, publishes the snapshot, and
//! restores that once. The booted instance becomes the version's first warm one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use rekindle_snapshotter::layer::publish_layer;
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::{Owner, Publication, Published, StoreError, keys};
use rekindle_wire::api::{SnapshotSummary, StartKind, VersionState};
use rekindle_wire::internal::{
    BUILD_TOOLS, BuiltLayers, LayerRef, PrepareEvent, PrepareRequest, RuntimeAlias, StartInstance, VersionSpec,
};
use rekindle_wire::manifest::Base;
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::deploy::build::{BuildOrder, Root, build_layer};
use crate::deploy::layers::LayerUse;
use crate::deploy::rehearsal::rehearse;
use crate::deploy::renewal::made_with;
use crate::deploy::runtime_snapshot::Scope;
use crate::deploy::unlisted::UnlistedInstance;
use crate::deploy::warm_up;
use crate::host::confined::Confinement;
use crate::instance::checkpoint::{checkpoint, quiet};
use crate::instance::isolated_process::unavailable;
use crate::instance::{Instance, RunningInstance, start};
use crate::reporting::metrics::disk_free;
use crate::worker::Worker;

/// Time that fetching or taking a runtime's snapshot may add to a boot. It is as much as either may take by itself,
/// with a store that is slow to respond.
const SHARED_LIMIT: Duration = Duration::from_mins(2);
/// Number of attempts to find a runtime that is being replaced, and the pause between them.
const RUNTIME_ATTEMPTS: u32 = 5;
const RUNTIME_PAUSE: Duration = Duration::from_secs(1);
/// Free disk space below which a missing snapshot is attributed to lack of room, in bytes.
const ROOM_LEAST: u64 = 64 << 20;

/// Prepares a version and reports events. The last one is `Done` or `Failed`.
pub async fn prepare(worker: Arc<Worker>, request: PrepareRequest, events: mpsc::Sender<PrepareEvent>) {
    let apart = request
        .built
        .is_some()
        .then(|| UnlistedInstance::new(&worker, &request.instance));
    let last = match run(&worker, &request, &events).await {
        Ok(done) => done,
        Err(error) => {
            if let Some(instance) = worker.instance(&request.instance) {
                instance.stop("the deploy failed").await;
                worker.remove(&request.instance);
            }
            PrepareEvent::Failed { error }
        }
    };
    if let Some(apart) = apart {
        apart.end("its snapshot was taken").await;
    }
    // The scheduler may have given up; then it also forgets the version.
    let _ = events.send(last).await;
}

async fn phase(events: &mpsc::Sender<PrepareEvent>, phase: VersionState) -> Result<(), ApiError> {
    let told = events.send(PrepareEvent::Phase { phase }).await;
    told.map_err(|_| ApiError::new(ErrorCode::Unavailable, "the scheduler has given this deploy up"))
}

async fn run(
    worker: &Arc<Worker>,
    request: &PrepareRequest,
    events: &mpsc::Sender<PrepareEvent>,
) -> Result<PrepareEvent, ApiError> {
    let BuiltLayers { rootfs, layer } = match &request.built {
        Some(built) => built.clone(),
        None => {
            phase(events, VersionState::Building).await?;
            build(worker, request).await?
        }
    };
    let mut spec = VersionSpec {
        function: request.function.clone(),
        version: request.version,
        manifest: request.manifest.clone(),
        uid: request.uid,
        rootfs,
        layer,
        snapshot: None,
        snapshot_digest: None,
        instruction_sets: InstructionSets::default(),
    };
    phase(events, VersionState::Booting).await?;
    let order = StartInstance {
        park: false,
        instance: request.instance.clone(),
        start: StartKind::Booted,
        spec: spec.clone(),
    };
    let scope = Scope::of(request.sharing, &spec, request.runtime_snapshot.clone());
    // It may be booted twice, with a snapshot of its runtime taken in between.
    let limit = request.manifest.boot_timeout() * 2 + scope.as_ref().map_or(Duration::ZERO, |_| SHARED_LIMIT);
    let instance = start::accept_shared(worker, order, &http::HeaderMap::new(), scope.clone())?;
    let parts = instance.until_ready(Instant::now() + limit).await?;
    phase(events, VersionState::Warming).await?;
    // A connection has just shown that it listens. A request beside that connection would make the bootstrap start
    // another thread, which all copies would have.
    quiet(&parts).await;
    let refused_warmups = warm_up::send_all(&instance, &parts, &spec.manifest.warmup).await?;
    for refused in &refused_warmups {
        instance.sink.platform(format!("warm-up request {refused}"));
    }
    // The next caller finds it warm: its start belongs to the deploy.
    instance.usage.note_served();
    let (mut snapshot, mut snapshot_error, mut no_room) = (None, None, false);
    if spec.manifest.snapshot {
        phase(events, VersionState::Snapshotting).await?;
        match capture(worker, &instance, &parts).await {
            Ok(published) => {
                refuse_repeating(&spec, &published.summary)?;
                let summary = SnapshotSummary {
                    refused_warmups,
                    ..published.summary
                };
                spec.snapshot = Some(published.id);
                spec.snapshot_digest = Some(published.digest.to_string());
                spec.instruction_sets = worker.config.offer.instruction_sets;
                match rehearsed(worker, &spec, summary, events).await? {
                    Ok(summary) => snapshot = Some(summary),
                    // The version goes without it, since each start would try the snapshot and then boot. Collection
                    // removes the snapshot.
                    Err(why) => {
                        (spec.snapshot, spec.snapshot_digest) = (None, None);
                        snapshot_error = Some(no_snapshot(&instance, why));
                    }
                }
            }
            Err(why) => {
                snapshot_error = Some(no_snapshot(&instance, why));
                no_room = disk_free(&worker.config.cache_dir).is_some_and(|free| free < ROOM_LEAST);
            }
        }
    }
    Ok(PrepareEvent::Done {
        spec,
        snapshot,
        snapshot_error,
        no_room,
        runtime_snapshot: scope.and_then(|scope| scope.begun()),
    })
}

/// Reports that a version has no snapshot, and why. The reason is a sentence for the user.
fn no_snapshot(instance: &Instance, why: String) -> String {
    tracing::warn!(function = %instance.spec.function, error = %why, "no snapshot");
    instance.sink.platform(format!("no snapshot: {why}"));
    why
}

/// Returns a snapshot with the outcome of its first restore, if its function wants a rehearsal. The inner error says
/// why there is no snapshot.
async fn rehearsed(
    worker: &Arc<Worker>,
    spec: &VersionSpec,
    summary: SnapshotSummary,
    events: &mpsc::Sender<PrepareEvent>,
) -> Result<Result<SnapshotSummary, String>, ApiError> {
    if !spec.manifest.rehearse {
        return Ok(Ok(summary));
    }
    phase(events, VersionState::Rehearsing).await?;
    let is_the_snapshot_s = |error: &ApiError| matches!(error.code, ErrorCode::RestoreFailed | ErrorCode::SnapshotLost);
    let mut rehearsal = rehearse(worker, spec).await;
    if let Err(error) = rehearsal.as_ref()
        && is_the_snapshot_s(error)
    {
        // It may have been a temporary failure of the store.
        tracing::warn!(function = %spec.function, %error, "a snapshot could not be restored; once more");
        rehearsal = rehearse(worker, spec).await;
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

/// Rejects a version whose copies must share no random number if it has a generator that cannot be reseeded.
fn refuse_repeating(spec: &VersionSpec, snapshot: &SnapshotSummary) -> Result<(), ApiError> {
    let repeating = snapshot.randomness.as_ref().and_then(|told| told.repeating.first());
    match repeating.filter(|_| spec.manifest.unique) {
        None => Ok(()),
        Some(repeating) => Err(ApiError::new(
            ErrorCode::InvalidManifest,
            format!(
                "snapshot = \"unique\" refuses this version, whose copies would share numbers of {}: {}. Where the \
                 function does so, or needs no such numbers, set snapshot = true",
                repeating.name, repeating.advice
            ),
        )),
    }
}

/// Builds a version's layers.
async fn build(worker: &Worker, request: &PrepareRequest) -> Result<BuiltLayers, ApiError> {
    // The publication is not finished here. The scheduler finishes it when the version is recorded with its layers.
    let owner = Owner::deploy(&request.function, request.version);
    let publication = Publication::new(worker.config.store.clone(), owner);
    let manifest = &request.manifest;
    let runtime = async {
        match manifest.image {
            None => runtime(worker, &publication, manifest.base).await.map(Some),
            Some(_) => Ok(None),
        }
    };
    let (runtime, built) = tokio::try_join!(runtime, tars(worker, request))?;
    let layer = publish(worker, &publication, &built.layer).await?;
    let rootfs = match (runtime, &built.rootfs) {
        (_, Some(image)) => publish(worker, &publication, image).await?,
        (Some(runtime), None) => runtime,
        (None, None) => return Err(ApiError::new(ErrorCode::Internal, "the image has no root filesystem")),
    };
    Ok(BuiltLayers { rootfs, layer })
}

async fn publish(worker: &Worker, publication: &Publication, tar: &Temporary) -> Result<LayerRef, ApiError> {
    let published = publish_layer(&worker.config.store, publication, &tar.0).await;
    published.map_err(|e| unavailable("publish the function's files", &e))
}

/// Returns the root filesystem of a runtime as the store has it now, protected for this deploy.
async fn runtime(worker: &Worker, publication: &Publication, base: Base) -> Result<LayerRef, ApiError> {
    for _ in 0..RUNTIME_ATTEMPTS {
        let layer = current_runtime(worker, base.as_str()).await?;
        let digest = layer.digest.parse();
        let digest = digest.map_err(|e| unavailable("read the runtime's digest", &e))?;
        let usable = publication.protect_one(keys::layer(&digest)).await;
        if usable.map_err(|e| unavailable("keep the runtime's root filesystem", &e))? {
            return Ok(layer);
        }
        // Another runtime was imported this moment, and the old one is being collected.
        tokio::time::sleep(RUNTIME_PAUSE).await;
    }
    let what = format!("the {} runtime is being replaced: deploy again", base.as_str());
    Err(ApiError::new(ErrorCode::Unavailable, what))
}

/// Returns a root filesystem of a build.
async fn root_filesystem(worker: &Worker, root: Root) -> Result<LayerUse, String> {
    let name = match root {
        Root::Runtime(base) => base.as_str(),
        Root::Tools => BUILD_TOOLS,
    };
    let layer = current_runtime(worker, name).await.map_err(|e| e.message)?;
    let found = worker.layers.get(&layer).await;
    found.map_err(|e| unavailable(&format!("fetch the root filesystem \"{name}\""), &e).message)
}

async fn current_runtime(worker: &Worker, name: &str) -> Result<LayerRef, ApiError> {
    runtime_alias(worker, name).await.map(|alias| alias.layer)
}

/// Returns a root filesystem as the store has it now, and the packages in it.
pub(crate) async fn runtime_alias(worker: &Worker, name: &str) -> Result<RuntimeAlias, ApiError> {
    let key = format!("runtimes/{name}.json");
    let bytes = worker.config.store.get(&key).await.map_err(|e| {
        let error = unavailable("find the runtime's root filesystem", &e);
        match e {
            StoreError::NotFound { .. } => ApiError::new(
                ErrorCode::BuildFailed,
                format!("{}: the operator must add it: fn runtimes add {name}", error.message),
            ),
            // Another worker may reach the store.
            _ => error,
        }
    })?;
    serde_json::from_slice(&bytes).map_err(|e| unavailable(&format!("read {key}"), &e))
}

/// Builds the function's own layer, and its root filesystem if that is an image's, from the uploaded folder.
async fn tars(worker: &Worker, request: &PrepareRequest) -> Result<BuiltTars, ApiError> {
    let work_dir = worker.config.cache_dir.join("build");
    let source = Temporary(work_dir.join(format!("{}.source.tar.gz", request.instance)));
    let bytes = worker
        .config
        .store
        .get(&request.source_key)
        .await
        .map_err(|e| unavailable("fetch the uploaded folder", &e))?;
    tokio::fs::write(&source.0, &bytes)
        .await
        .map_err(|e| unavailable("keep the uploaded folder", &e))?;
    let name = format!("build-{}", request.instance);
    let cgroup = worker
        .cgroups
        .create(&name, worker.config.build_limits.group)
        .map_err(|e| unavailable("bound the build", &e))?;
    // The layers stay until the build is over.
    let used = &Mutex::new(Vec::new());
    let roots = |root| {
        async move {
            let layer = root_filesystem(worker, root).await?;
            let path = layer.path().to_owned();
            used.lock().push(layer);
            Ok(path)
        }
        .boxed()
    };
    let order = BuildOrder {
        roots: &roots,
        network: &worker.config.build_network,
        counts: worker.metrics.builds.clone(),
        source_tar_gz: source.0.clone(),
        manifest: &request.manifest,
        work_dir,
        limits: worker.config.build_limits,
        confinement: Confinement::new(worker.config.init_binary.clone()),
        cgroup_procs: cgroup.procs_files(),
    };
    let built = build_layer(&order, |line| tracing::debug!(line, "build")).await;
    let tars = built.map_err(|e| ApiError::new(e.code(), unavailable("build the function", &e).message))?;
    Ok(BuiltTars {
        layer: Temporary(tars.layer),
        rootfs: tars.rootfs.map(Temporary),
    })
}

/// The tars of a build, removed when dropped.
struct BuiltTars {
    layer: Temporary,
    rootfs: Option<Temporary>,
}

struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // The file may never have been created.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Checkpoints and publishes. Requests wait meanwhile. The error is a sentence for the user.
async fn capture(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    parts: &Arc<RunningInstance>,
) -> Result<Published, String> {
    instance.set_capturing(true);
    let spec = &instance.spec;
    let origin = Origin::Function {
        function: spec.function.clone(),
        version: spec.version,
        rootfs: spec.rootfs.clone(),
        layer: spec.layer.clone(),
    };
    let checkpointed = checkpoint(worker, instance, parts, origin).await;
    instance.set_capturing(false);
    worker
        .metrics
        .captured(checkpointed.as_ref().ok().map(|published| &published.summary));
    checkpointed
        .map(|published| Published {
            summary: SnapshotSummary {
                made_with: Some(made_with(worker.config.filter)),
                ..published.summary
            },
            ..published
        })
        .map_err(|e| unavailable("snapshot the function", &e).message)
}
