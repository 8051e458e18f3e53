//! Starts a version from a snapshot of its runtime: an interpreter that has loaded no function yet. Memory that a
//! function has in common with that need not be stored again.
//!
//! ```text
//! there is one:   criu restore, eagerly ──> another user, if need be ─┐
//! there is none:  boot, with nothing loaded ──> checkpoint, publish ──┴─> after-restore hook ─┐
//!                                        the function listens <── POST /.rekindle/load <─────┘
//! ```
//!
//! The price of sharing is less randomness. The layout of its memory and the interpreter's hash secret are the same in
//! all versions that start this way (decision 28).

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use rekindle_criu::ScratchDir;
use rekindle_init::causes::chain;
use rekindle_init::protocol::FUNCTION_UID;
use rekindle_snapshotter::capture::BaseMemory;
use rekindle_snapshotter::interchange::write_whole;
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::{Snapshot, Store, StoreError, keys};
use rekindle_verify::verify;
use rekindle_wire::api::StartKind;
use rekindle_wire::function_config::{Base, Runtime};
use rekindle_wire::headers::HOOK_PREFIX;
use rekindle_wire::internal::{LayerRef, RuntimeSnapshot, Sharing, VersionSpec};
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{ApiError, ErrorCode, FunctionId};

use super::boot::Booter;
use super::checkpoint::{Checkpointer, QUIET_LIMIT, quiet};
use super::client::own_url;
use super::end::ended_before;
use super::hooks::{Hook, call_hook};
use super::isolate::Isolator;
use super::lifecycle::Instance;
use super::program::environment;
use super::randomness;
use super::running::{MemoryOrigin, RunningInstance};
use crate::criu::Criu;
use crate::criu::prepared_restore::PreparedRestore;
use crate::criu::restore::Restore;
use crate::criu::stages::StageWork;
use crate::errors::{restore_failed, unavailable};
use crate::host::host_pids::processes_in;
use crate::host::sandbox::FunctionState;
use crate::host::start_limiter::StartLimiter;
use crate::metrics::Metrics;
use crate::snapshots::expected::expected;
use crate::snapshots::{CaptureNotes, Directory, EditError, Snapshots, become_user, clocks, let_be_read, made_with};

/// Maximum size of a response to a load that is read, in bytes.
const BODY_MAX: usize = 64 * 1024;
/// How long to wait for the end of a process that has closed its connection.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Variables that the interpreter or the C library reads when it starts, or a library when it is first used. A function
/// with such a variable in its environment is booted with it. Names, or prefixes of names.
const READ_AT_START: [&str; 12] = [
    "PYTHON",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "OPENSSL_",
    "SSL_",
    "LC_",
    "LANG",
    "TZ",
];

/// The snapshot of a runtime from which a version starts.
#[derive(Debug, Clone)]
pub struct RuntimeSnapshotScope {
    runtime: Runtime,
    /// The root filesystem that has the runtime's interpreter.
    base: Base,
    /// The function whose versions share it; `None` for all of a namespace.
    function: Option<FunctionId>,
    /// Where its name is in the store.
    key: String,
    /// The snapshot that the scheduler knows.
    known: Option<RuntimeSnapshot>,
    /// The snapshot that was used or made.
    begun: Arc<OnceLock<RuntimeSnapshot>>,
}

impl RuntimeSnapshotScope {
    /// Returns the scope of this version, with the snapshot `known` to the scheduler, if any. Returns `None` if the
    /// version should not or cannot start from a snapshot.
    pub fn of(sharing: Sharing, spec: &VersionSpec, known: Option<RuntimeSnapshot>) -> Option<Self> {
        let config = &spec.config;
        let key = keys::runtime_snapshot(config.base, sharing.sharers(&spec.function)?);
        let read_at_start = |name: &String| READ_AT_START.iter().any(|known| name.starts_with(known));
        // Without a snapshot of its own it has nothing to share, and an `http` function's program is its own.
        let begins = config.snapshot && config.runtime != Runtime::Http && !config.env.keys().any(read_at_start);
        begins.then_some(Self {
            runtime: config.runtime,
            base: config.base,
            function: (sharing == Sharing::Versions).then(|| spec.function.clone()),
            key,
            known,
            begun: Arc::default(),
        })
    }

    /// Returns the snapshot that was used, or made for it.
    pub fn begun(&self) -> Option<RuntimeSnapshot> {
        self.begun.get().cloned()
    }

    fn note(&self, snapshot: &Snapshot, rootfs: &LayerRef) {
        let begun = RuntimeSnapshot {
            snapshot: snapshot.id().clone(),
            rootfs: rootfs.clone(),
            digest: Some(snapshot.digest.to_string()),
        };
        // It starts once.
        drop(self.begun.set(begun));
    }
}

/// Boots instances from the snapshots of their runtimes.
pub struct RuntimeBooter {
    /// Boots what no snapshot can start.
    pub booter: Arc<Booter>,
    /// Takes the snapshots.
    pub checkpointer: Arc<Checkpointer>,
    /// Takes the sandboxes.
    pub isolator: Arc<Isolator>,
    /// CRIU on this host.
    pub criu: Arc<Criu>,
    /// Limits how many starts use the processors at once.
    pub start_limiter: Arc<StartLimiter>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// The store that names the snapshots.
    pub store: Store,
    /// The instruction sets of this host's processor.
    pub instruction_sets: InstructionSets,
    /// Where boots are counted.
    pub metrics: Arc<Metrics>,
}

impl RuntimeBooter {
    /// Boots `instance` from the snapshot of its runtime, which is made if there is none. If that fails, boots it from
    /// nothing.
    ///
    /// # Errors
    /// The same as [`Booter::boot`].
    pub async fn boot(
        &self,
        instance: &Arc<Instance>,
        scope: &RuntimeSnapshotScope,
    ) -> Result<Arc<RunningInstance>, ApiError> {
        let started = Instant::now();
        let begun = Box::pin(self.begin(instance, scope)).await;
        let why = match begun {
            Ok((running, how)) => {
                self.metrics.runtime_snapshot(how);
                return Ok(running);
            }
            Err(why) => why,
        };
        self.metrics.runtime_snapshot("failed");
        // If this took all the time of a boot, a second attempt would take it again.
        if !instance.is_starting() || started.elapsed() >= instance.spec.config.boot_timeout() {
            return Err(why);
        }
        // It may be the function's own fault, and the message then says so.
        let what = "a version cannot begin as the snapshot of its runtime; booting from nothing";
        tracing::warn!(instance = %instance.id, error = %why, what);
        let said = format!(
            "it cannot begin as the snapshot of its runtime, booting from nothing: {}",
            why.message
        );
        instance.sink.platform(said);
        Box::pin(self.booter.boot(instance)).await
    }

    async fn begin(
        &self,
        instance: &Arc<Instance>,
        scope: &RuntimeSnapshotScope,
    ) -> Result<(Arc<RunningInstance>, &'static str), ApiError> {
        let found = instance.phase("runtime snapshot", Box::pin(self.find(instance, scope)));
        let (running, how) = match found.await? {
            Some((snapshot, images)) => {
                let running = Box::pin(self.begin_as(instance, &snapshot, images)).await?;
                scope.note(&snapshot, &instance.spec.rootfs);
                (running, "used")
            }
            None => {
                let running = Box::pin(self.booter.boot_unloaded(instance)).await?;
                if let Some(made) = Box::pin(self.make(instance, &running, scope)).await {
                    self.note_base(&running, &made);
                    scope.note(&made, &instance.spec.rootfs);
                }
                (running, "made")
            }
        };
        // The hook runs here too, not only in restored copies. The instance must not have drawn a random number that
        // another function has.
        let hook = call_hook(instance, &running, Hook::AfterRestore).await;
        hook.map_err(|e| ApiError::new(ErrorCode::RestoreFailed, e))?;
        instance.phase("load", self.load(instance, &running)).await?;
        Ok((running, how))
    }

    /// Returns the snapshot, if one of its root filesystem exists and is intact. All its images are in a directory for
    /// `instance`.
    async fn find(
        &self,
        instance: &Instance,
        scope: &RuntimeSnapshotScope,
    ) -> Result<Option<(Snapshot, ScratchDir)>, ApiError> {
        let Some(snapshot) = self.named(scope, &instance.spec.function, &instance.spec.rootfs).await else {
            return Ok(None);
        };
        let images = ScratchDir::make(self.criu.scratch(instance.id.as_str()))
            .map_err(|e| restore_failed("lay out the images", &e))?;
        match write_whole(&snapshot, self.snapshots.reader(), images.path()).await {
            Ok(()) => match self.of_today(&snapshot, images.path()) {
                Ok(()) => Ok(Some((snapshot, images))),
                Err(why) => {
                    tracing::warn!(snapshot = %snapshot.id(), why, "the snapshot of a runtime is outdated: another is \
                        made");
                    Ok(None)
                }
            },
            Err(error) if error.is_damage() => {
                let error = &error as &dyn std::error::Error;
                let snapshot = snapshot.id();
                tracing::warn!(%snapshot, error, "the snapshot of a runtime is damaged: another is made");
                Ok(None)
            }
            Err(error) => Err(restore_failed("write the images", &error)),
        }
    }

    /// Checks that the images in `dir`, from which they are restored, belong to a function under the present filter.
    /// Returns why not otherwise.
    fn of_today(&self, snapshot: &Snapshot, dir: &Path) -> Result<(), String> {
        let Origin::Runtime { uid, .. } = snapshot.manifest.origin else {
            return Err("it is no runtime's".to_owned());
        };
        let notes = CaptureNotes::read(dir).map_err(|e| chain(&e))?;
        notes.runs_on(self.instruction_sets).map_err(|e| chain(&e))?;
        let verified = verify(dir, &expected(uid, &notes.pipes, false)).map_err(|e| chain(&e))?;
        let wanted = made_with(self.booter.filter).filter;
        let mut filters = verified
            .filters
            .iter()
            .map(|filter| blake3::hash(&filter.filter).to_hex());
        match filters.find(|filter| filter.as_str() != wanted) {
            None => Ok(()),
            Some(other) => Err(format!("its filter is {other}")),
        }
    }

    /// Returns the named snapshot, if it is one of this root filesystem and can be opened.
    async fn named(&self, scope: &RuntimeSnapshotScope, function: &FunctionId, rootfs: &LayerRef) -> Option<Snapshot> {
        let key = scope.key.as_str();
        let unusable = |error: &(dyn std::error::Error + 'static)| {
            tracing::warn!(key, error, "the snapshot of a runtime cannot be used: another is made");
        };
        let named: RuntimeSnapshot = match &scope.known {
            // This holds whatever the store names by now.
            Some(known) => known.clone(),
            None => match self.store.get(key).await {
                Ok(bytes) => serde_json::from_slice(&bytes).inspect_err(|e| unusable(e)).ok()?,
                Err(StoreError::NotFound { .. }) => return None,
                Err(error) => {
                    unusable(&error);
                    return None;
                }
            },
        };
        if named.rootfs != *rootfs {
            // The runtime has been built again since.
            return None;
        }
        let snapshot = Snapshot::open(&self.store, &named.snapshot).await;
        let snapshot = snapshot.inspect_err(|e| unusable(e)).ok()?;
        let keys = &self.checkpointer.keys;
        if snapshot.manifest.sealed_by != keys.of_namespace(function.namespace()).map(|key| key.id()) {
            // Its namespace has been encrypted since. The versions' snapshots could not share memory with it.
            return None;
        }
        let same = self
            .snapshots
            .compare(snapshot.id(), snapshot.digest, named.digest.as_deref());
        same.inspect_err(|e| unusable(e)).ok()?;
        Some(snapshot)
    }

    /// Checkpoints a runtime that has loaded nothing yet, and names the snapshot for later versions.
    async fn make(
        &self,
        instance: &Arc<Instance>,
        running: &Arc<RunningInstance>,
        scope: &RuntimeSnapshotScope,
    ) -> Option<Snapshot> {
        let origin = Origin::Runtime {
            runtime: scope.runtime,
            function: scope.function.clone(),
            rootfs: instance.spec.rootfs.clone(),
            uid: FUNCTION_UID,
        };
        let made = async {
            // A connection has just shown that it listens. A hook beside that connection would make the bootstrap start
            // another thread, which all copies would have.
            quiet(running, QUIET_LIMIT).await;
            let checkpointed = async {
                let ready = self.checkpointer.prepare(instance, running).await?;
                self.checkpointer.checkpoint(instance, running, origin, ready).await
            };
            let published = checkpointed.await;
            let published = published.map_err(|e| unavailable("snapshot the runtime", &e))?;
            let named = RuntimeSnapshot {
                snapshot: published.id.clone(),
                rootfs: instance.spec.rootfs.clone(),
                digest: Some(published.digest.to_string()),
            };
            let bytes = serde_json::to_vec(&named).map_err(|e| unavailable("name the runtime's snapshot", &e))?;
            let put = self.store.put(&scope.key, Bytes::from(bytes)).await;
            put.map_err(|e| unavailable("name the runtime's snapshot", &e))?;
            let opened = Snapshot::open(&self.store, &published.id).await;
            opened.map_err(|e| unavailable("open the runtime's snapshot", &e))
        };
        let made = instance.phase("runtime snapshot", made).await;
        // The booted runtime continues without a snapshot; the next deploy tries again.
        made.inspect(|snapshot| {
            let runtime = scope.base.as_str();
            tracing::info!(snapshot = %snapshot.id(), runtime, "a runtime has a snapshot");
        })
        .inspect_err(|error: &ApiError| tracing::warn!(%error, "there is no snapshot of a runtime"))
        .ok()
    }

    /// Records that this instance started from `snapshot`.
    fn note_base(&self, running: &RunningInstance, snapshot: &Snapshot) {
        let base = BaseMemory::new(snapshot, self.snapshots.reader().clone());
        // It starts once.
        drop(running.base.set(base));
    }

    /// Restores the snapshot in `instance`'s sandbox, with all its memory. It is booted once for each version, and a
    /// checkpoint of memory that a pager serves is more difficult.
    async fn begin_as(
        &self,
        instance: &Arc<Instance>,
        snapshot: &Snapshot,
        scratch: ScratchDir,
    ) -> Result<Arc<RunningInstance>, ApiError> {
        let Origin::Runtime { uid, .. } = snapshot.manifest.origin else {
            let what = format!("snapshot {} is no runtime's", snapshot.id());
            return Err(ApiError::new(ErrorCode::RestoreFailed, what));
        };
        let files = instance.phase("files", self.isolator.fetch(instance)).await?;
        let turn = self.start_limiter.take(&instance.spec.function, StartKind::Restored);
        let permit = instance.phase("turn", turn).await;
        let name = instance.sandbox_name();
        let isolated = instance.phase("sandbox", self.isolator.isolate_with(None, instance, &name, files));
        let isolated = isolated.await?;
        let notes = CaptureNotes::read(scratch.path()).map_err(|e| restore_failed("read the notes", &e))?;
        let editing = |e: EditError| restore_failed("edit the images", &e);
        become_user(&mut Directory(scratch.path()), uid, FUNCTION_UID).map_err(editing)?;
        let clocks = clocks(&Directory(scratch.path())).map_err(editing)?;
        let_be_read(scratch.path()).map_err(editing)?;
        let prepared = PreparedRestore::without_pager(&self.criu, isolated, scratch, &notes.pipes).await?;
        let (cgroup, measured) = (Arc::clone(&prepared.cgroup), Arc::clone(&self.metrics));
        let restore = Restore {
            clocks,
            work: StageWork {
                // A runtime that has loaded nothing holds none.
                locks: Vec::new(),
                eager_bytes: None,
                memory: None,
                last: Box::new(move || {
                    let hosts = processes_in(&cgroup)?;
                    Ok(randomness::write(&hosts, &notes.generators, &measured).map(drop)?)
                }),
                record: instance.inner_phase_recorder(),
            },
            snapshot: None,
        };
        let restored = restore.run_to_end(&self.criu, instance.id.as_str(), prepared);
        let restored = instance.phase("criu", restored).await?;
        let running = RunningInstance::restored(restored, MemoryOrigin::default(), &instance.spec.config);
        let running = running.map_err(|e| restore_failed("look at the outputs", &e))?;
        drop(permit);
        self.note_base(&running, snapshot);
        Ok(running)
    }

    /// Makes the bootstrap load the function, with its own environment.
    async fn load(&self, instance: &Instance, running: &RunningInstance) -> Result<(), ApiError> {
        let path = format!("{HOOK_PREFIX}load");
        let environment: serde_json::Map<_, _> = environment(&instance.spec)
            .iter()
            .filter_map(|variable| variable.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let order = serde_json::json!({ "env": environment }).to_string();
        let request = http::Request::post(own_url(&path))
            .header(http::header::CONTENT_LENGTH, order.len())
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Body::from(order))
            .map_err(|e| unavailable("ask for the function", &e))?;
        let exchange = async {
            let answer = running.client.send(request).await.map_err(|e| e.to_string())?;
            let status = answer.status();
            let body = axum::body::to_bytes(Body::new(answer.into_body()), BODY_MAX).await;
            match status.is_success() {
                true => Ok(()),
                false => Err(format!(
                    "answered {status}: {}",
                    String::from_utf8_lossy(&body.unwrap_or_default())
                )),
            }
        };
        let limit = instance.spec.config.boot_timeout();
        let why = match tokio::time::timeout(limit, exchange).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => format!("did not load the function within boot_timeout, {} s", limit.as_secs()),
        };
        // If it cannot be loaded, the process has ended and reports why.
        let mut state = running.sandbox.function_state();
        let ended = state.wait_for(|s| *s != FunctionState::Alive);
        let ended = tokio::time::timeout(END_LIMIT, ended)
            .await
            .map(|ended| ended.map(|s| *s));
        let said = match ended {
            Ok(ended) => {
                let kills = running.cgroup.oom_kills().unwrap_or(0);
                ended_before(
                    "it served HTTP",
                    instance,
                    ended.unwrap_or(FunctionState::SandboxGone),
                    kills,
                )
            }
            Err(_) => why,
        };
        Err(self.booter.not_started(instance, &said).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;

    #[test]
    fn what_is_read_at_start_begins_from_nothing() {
        let version = spec("runtime = \"python\"\nentry = \"main.handler\"");
        let all = RuntimeSnapshotScope::of(Sharing::Functions, &version, None).unwrap();
        assert_eq!(all.key, "runtime-snapshots/python.json");
        let own = RuntimeSnapshotScope::of(Sharing::Versions, &version, None).unwrap();
        assert_eq!(own.key, format!("runtime-snapshots/python/{}.json", version.function));
        assert!(RuntimeSnapshotScope::of(Sharing::None, &version, None).is_none());
        let mut of_team = version.clone();
        of_team.function = format!("{}.team", version.function).parse().unwrap();
        let team = RuntimeSnapshotScope::of(Sharing::Functions, &of_team, None).unwrap();
        assert_eq!(team.key, "runtime-snapshots/python/.team.json");
        let mut newer = version.clone();
        newer.config.base = Base::Python313;
        let newer = RuntimeSnapshotScope::of(Sharing::Functions, &newer, None).unwrap();
        assert_eq!(newer.key, "runtime-snapshots/python3.13.json");
        for (name, begins) in [
            ("NODE_ENV", true),
            ("GREETING", true),
            ("PYTHONHASHSEED", false),
            ("NODE_OPTIONS", false),
            ("LD_PRELOAD", false),
            ("TZ", false),
        ] {
            let mut version = version.clone();
            version.config.env.insert(name.to_owned(), "1".to_owned());
            assert_eq!(
                RuntimeSnapshotScope::of(Sharing::Functions, &version, None).is_some(),
                begins,
                "{name}"
            );
        }
        let mut http = version.clone();
        http.config.runtime = Runtime::Http;
        let mut without = version;
        without.config.snapshot = false;
        for version in [http, without] {
            assert!(RuntimeSnapshotScope::of(Sharing::Functions, &version, None).is_none());
        }
    }
}
