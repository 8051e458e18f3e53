//! Takes a checkpoint of a running instance and leaves it running:
//!
//! before-snapshot hook → connections closed → criu dump (`criu/dump.rs`) → resume → publish.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use rekindle_criu::AfterDump;
use rekindle_init::protocol::{FUNCTION_PID, FUNCTION_UID};
use rekindle_relay::SendError;
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::{CaptureMeta, CaptureOptions, ExtraFile, Published, publish};
use rekindle_wire::api::Randomness;
use rekindle_wire::headers::{HOOK_PREFIX, RESEEDED};
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::manifest::Runtime;
use rekindle_wire::{ApiError, ErrorCode, SnapshotId};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument as _, Span};

use crate::criu::dump::{Dump, DumpError, DumpingCriu};
use crate::instance::isolated_process::memory_limit;
use crate::instance::randomness::{self, SearchError};
use crate::instance::{Instance, RunningInstance, own_url};
use crate::snapshots::dump_dir::DumpDir;
use crate::snapshots::expected::expected;
use crate::snapshots::{AfterRestore, CaptureNotes, FILES_ARCHIVE, NOTES_FILE, join_time};
use crate::worker::Worker;

/// How long a hook may take, including its whole response.
const HOOK_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a hook response that is read, in bytes.
const HOOK_BODY_MAX: usize = 64 * 1024;
/// How long the function may take to notice that its connections were closed.
const QUIET_LIMIT: Duration = Duration::from_millis(500);
/// Interval between checks whether the function has noticed.
const QUIET_PAUSE: Duration = Duration::from_micros(500);
/// Maximum number of lines read from a connection table.
const TABLE_LINES_MAX: usize = 1 << 16;
/// Memory for what images say beside memory and files, bytes.
const DESCRIPTION: u64 = 64 << 20;
/// How long the function may take to be within its memory limit again. The kernel frees what the images took within
/// milliseconds.
const LOWER_LIMIT: Duration = Duration::from_secs(3);
const LOWER_PAUSE: Duration = Duration::from_millis(50);
/// The loopback addresses as the kernel's tables show them: IPv4, IPv4 mapped to IPv6, and IPv6.
const LOOPBACKS: [&str; 3] = [
    "0100007F:",
    "0000000000000000FFFF00000100007F:",
    "00000000000000000000000001000000:",
];
/// Written to the function's log when a restore would have to skip too many inode numbers.
const RENUMBERED: &str = "files in /tmp or /dev/shm will have other inode numbers in copies, since too many were \
                          made and removed before the snapshot: a program that compares them, as SQLite does, has to \
                          open its files anew in an after-restore hook";

/// A call around a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Called before the checkpoint.
    BeforeSnapshot,
    /// Called in each restored instance before its first request.
    AfterRestore,
}

/// Why there is no snapshot. The instance keeps running in every case.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The hook failed.
    #[error("{0}")]
    Hook(String),
    /// The image directory cannot be created.
    #[error("make {}", .0.display())]
    Directory(PathBuf, #[source] std::io::Error),
    /// The notes cannot be written.
    #[error("note what the restore needs")]
    Notes(#[source] crate::snapshots::NotesError),
    /// The images cannot be searched for random number generators.
    #[error("look for generators of random numbers")]
    Search(#[from] SearchError),
    /// The images cannot be edited.
    #[error("edit the images")]
    Edit(#[source] crate::snapshots::EditError),
    /// It cannot be dumped.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// A task that blocks broke off.
    #[error("work on the images")]
    Task(#[from] tokio::task::JoinError),
    /// The snapshot could not be stored.
    #[error("publish the snapshot")]
    Publish(#[source] rekindle_snapshotter::PublishError),
}

/// Returns the path to call for a hook, if the function has one.
fn hook_path(spec: &VersionSpec, hook: Hook) -> Option<String> {
    match (spec.manifest.runtime, hook) {
        (Runtime::Http, Hook::BeforeSnapshot) => spec.manifest.hooks.before_snapshot.clone(),
        (Runtime::Http, Hook::AfterRestore) => spec.manifest.hooks.after_restore.clone(),
        (_, Hook::BeforeSnapshot) => Some(format!("{HOOK_PREFIX}before-snapshot")),
        (_, Hook::AfterRestore) => Some(format!("{HOOK_PREFIX}after-restore")),
    }
}

/// A runtime's response to the before-snapshot hook.
#[derive(Debug, Default, serde::Deserialize)]
struct BeforeSnapshot {
    #[serde(default, rename = "afterRestore")]
    after_restore: Option<AfterRestore>,
}

/// Calls a hook, waits for its response and returns the body.
///
/// # Errors
/// Returns the function's response if it is an error, or says that there was none.
pub async fn call_hook(instance: &Instance, parts: &RunningInstance, hook: Hook) -> Result<Bytes, String> {
    let Some(path) = hook_path(&instance.spec, hook) else {
        return Ok(Bytes::new());
    };
    let span = tracing::debug_span!(
        "hook",
        otel.name = format!("hook {path}"),
        otel.kind = "client",
        "rekindle.role" = "worker",
        faas.invoked_name = %instance.spec.function,
        faas.instance = %instance.id,
        http.response.status_code = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
    );
    let called = send_hook(instance, parts, &path, &span).instrument(span.clone()).await;
    if called.is_err() {
        span.record("otel.status_code", "ERROR");
    }
    called
}

async fn send_hook(instance: &Instance, parts: &RunningInstance, path: &str, span: &Span) -> Result<Bytes, String> {
    let mut request = http::Request::post(own_url(path))
        .header(http::header::CONTENT_LENGTH, 0)
        .header(rekindle_wire::headers::INSTANCE, instance.id.as_str());
    let reseeded = parts
        .snapshot
        .as_ref()
        .map(|snapshot| snapshot.notes.reseeded(FUNCTION_PID));
    if let Some(reseeded) = reseeded.filter(|kinds| !kinds.is_empty()) {
        request = request.header(RESEEDED, reseeded);
    }
    let request = request.body(Body::empty());
    let mut request = request.map_err(|e| format!("hook {path}: {e}"))?;
    rekindle_telemetry::inject_span(span, request.headers_mut());
    let exchange = async {
        let answer = parts.client.send(request).await?;
        let status = answer.status();
        // Reading the body to its end lets the connection be reused. A longer body closes the connection.
        let body = axum::body::to_bytes(Body::new(answer.into_body()), HOOK_BODY_MAX).await;
        Ok((status, body.unwrap_or_default()))
    };
    let (status, body) = tokio::time::timeout(HOOK_LIMIT, exchange)
        .await
        .map_err(|_| format!("hook {path} did not answer within {} s", HOOK_LIMIT.as_secs()))?
        .map_err(|e: SendError| format!("hook {path}: {e}"))?;
    span.record("http.response.status_code", status.as_u16());
    if status.is_success() {
        Ok(body)
    } else {
        Err(format!(
            "hook {path} answered {status}: {}",
            String::from_utf8_lossy(&body)
        ))
    }
}

/// Checkpoints `instance` and publishes the snapshot with the given `origin`. No request may be in flight.
///
/// # Errors
/// See [`CheckpointError`]. The instance keeps running.
pub async fn checkpoint(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    parts: &Arc<RunningInstance>,
    origin: Origin,
) -> Result<Published, CheckpointError> {
    let started = Instant::now();
    let answer = call_hook(instance, parts, Hook::BeforeSnapshot).await;
    // A function's own hook may return anything.
    let answer: BeforeSnapshot = serde_json::from_slice(&answer.map_err(CheckpointError::Hook)?).unwrap_or_default();
    worker.metrics.capture_phase("hook", started.elapsed());
    parts.client.close_idle();
    quiet(parts).await;
    // Nobody else makes images of an instance that is not live yet.
    let alone = Arc::clone(&instance.images).acquire_owned().await.ok();
    // Dropped after the directory, whose files count as the sandbox's memory.
    let _room = RoomForImages::give(instance, parts, alone);
    // An unreadable value counts as small, which is the usual case.
    let memory = parts.cgroup.memory_current().unwrap_or(0);
    let path = worker.config.dump_dir(memory).join(format!("dump-{}", instance.id));
    let dir = DumpDir::make(&path).map_err(|e| CheckpointError::Directory(path, e))?;
    let frozen = dump(worker, instance, parts, &dir).await?;
    worker.metrics.capture_phase("freeze", frozen);
    join_time(dir.path()).map_err(CheckpointError::Edit)?;
    let started = Instant::now();
    let randomness = note_generators(dir.path().to_owned(), answer.after_restore).await?;
    worker.metrics.capture_phase("search", started.elapsed());
    let meta = CaptureMeta {
        id: SnapshotId::generate(),
        origin,
        base: parts.base.get().cloned(),
        frozen_ms: frozen.as_secs_f64() * 1e3,
        criu: worker.criu_version(),
        extra: [NOTES_FILE, FILES_ARCHIVE]
            .into_iter()
            .map(|name| ExtraFile {
                name: name.to_owned(),
                path: dir.path().join(name),
            })
            .collect(),
        options: CaptureOptions {
            codec: worker.config.codec,
            consume: true,
            ..CaptureOptions::default()
        },
    };
    let started = Instant::now();
    let published = publish(&worker.config.store, &worker.index, dir.path(), meta).await;
    worker.metrics.capture_phase("publish", started.elapsed());
    let mut published = published.map_err(CheckpointError::Publish)?;
    published.summary.randomness = Some(randomness);
    Ok(published)
}

/// Adds the generators found in the images, and what is left for the hook, to the notes of a directory. Returns a
/// summary of the randomness of copies.
async fn note_generators(dir: PathBuf, after_restore: Option<AfterRestore>) -> Result<Randomness, CheckpointError> {
    let noting = tokio::task::spawn_blocking(move || {
        let generators = randomness::search(&dir)?;
        let told = randomness::summary(&dir, &generators)?;
        let notes = CaptureNotes::read(&dir).map_err(CheckpointError::Notes)?;
        let noted = CaptureNotes {
            generators,
            after_restore,
            ..notes
        }
        .write(&dir);
        noted.map(|()| told).map_err(CheckpointError::Notes)
    });
    noting.await?
}

/// Waits until none of the worker's connections is open inside the sandbox. They come over the loopback. Connections
/// that stay open, such as the function's to the outside, are closed by CRIU in the restored instances.
pub(crate) async fn quiet(parts: &RunningInstance) {
    let tables = ["tcp", "tcp6"].map(|t| format!("/proc/{}/net/{t}", parts.sandbox.init_pid()));
    // This must not run on a thread that serves requests: a function with many connections makes these tables
    // arbitrarily long.
    let waiting = tokio::task::spawn_blocking(move || {
        let until = Instant::now() + QUIET_LIMIT;
        while tables.iter().any(|table| has_connections(Path::new(table))) && Instant::now() < until {
            std::thread::sleep(QUIET_PAUSE);
        }
    });
    // The only possible failure is the shutdown of the runtime.
    drop(waiting.await);
}

/// Returns whether the kernel's connection table at `path` contains a connection of the worker. An unreadable table
/// contains none. Blocks.
fn has_connections(path: &Path) -> bool {
    let Ok(table) = File::open(path) else { return false };
    let lines = BufReader::new(table).lines().skip(1).map_while(Result::ok);
    // State 01 is ESTABLISHED, 08 is CLOSE_WAIT.
    lines.take(TABLE_LINES_MAX).any(|line| {
        let mut words = line.split_whitespace().skip(2);
        let remote = words.next();
        let is_ours = remote.is_some_and(|remote| LOOPBACKS.iter().any(|l| remote.starts_with(l)));
        is_ours && matches!(words.next(), Some("01" | "08"))
    })
}

/// More memory for the sandbox while its images exist. The images lie on a tmpfs or in the page cache, and what CRIU
/// and init write there is charged to their own control group. Without the extra memory, a checkpoint would kill a
/// function that uses more than half of its memory. The function runs on meanwhile: if it has taken more than its own
/// limit by the end, it is killed.
pub(crate) struct RoomForImages {
    instance: Arc<Instance>,
    parts: Arc<RunningInstance>,
    /// Released after the memory limit is restored.
    alone: Option<OwnedSemaphorePermit>,
}

impl RoomForImages {
    pub(crate) fn give(
        instance: &Arc<Instance>,
        parts: &Arc<RunningInstance>,
        alone: Option<OwnedSemaphorePermit>,
    ) -> Self {
        // Images are no larger than what they are made of: memory and files, which the limit counts.
        let raised = memory_limit(&instance.spec)
            .saturating_mul(2)
            .saturating_add(DESCRIPTION);
        // The checkpoint of a small function succeeds without it.
        if let Err(e) = parts.cgroup.raise_memory(raised) {
            tracing::warn!(instance = %instance.id, error = %e, "no more memory for the checkpoint");
        }
        Self {
            instance: Arc::clone(instance),
            parts: Arc::clone(parts),
            alone,
        }
    }
}

impl Drop for RoomForImages {
    fn drop(&mut self) {
        let limit = memory_limit(&self.instance.spec);
        let (instance, parts) = (Arc::clone(&self.instance), Arc::clone(&self.parts));
        // If there is no such group any more, the instance has ended.
        let is_over = move |parts: &RunningInstance| {
            parts
                .cgroup
                .lower_memory(limit)
                .map_or_else(|e| e.is_missing(), |()| true)
        };
        if is_over(&parts) {
            return;
        }
        let alone = self.alone.take();
        let until = Instant::now() + LOWER_LIMIT;
        let lowering = move || {
            while Instant::now() < until {
                std::thread::sleep(LOWER_PAUSE);
                if is_over(&parts) {
                    return;
                }
            }
            tracing::warn!(instance = %instance.id, "a function took the memory for its checkpoint's images");
            instance.kill(ApiError::new(
                ErrorCode::FunctionOutOfMemory,
                format!(
                    "the function used more than its memory limit of {} while its checkpoint was stored, and was \
                     killed; raise memory in fn.toml",
                    instance.spec.manifest.memory
                ),
            ));
            drop(alone);
        };
        let thread = std::thread::Builder::new().name("memory-limit".to_owned());
        if thread.spawn(lowering).is_err() {
            self.instance.kill(ApiError::new(
                ErrorCode::Unavailable,
                "the host has no thread to limit the function's memory, and the function was killed: try again",
            ));
        }
    }
}

/// Dumps the instance into `dir`. Returns an upper bound on how long the processes were stopped.
async fn dump(
    worker: &Arc<Worker>,
    instance: &Instance,
    parts: &Arc<RunningInstance>,
    dir: &DumpDir,
) -> Result<Duration, CheckpointError> {
    let criu = DumpingCriu::start(worker, parts, dir.path()).await?;
    let notes = CaptureNotes {
        pipes: parts.pipes.clone(),
        generators: Vec::new(),
        after_restore: None,
        instruction_sets: worker.config.offer.instruction_sets,
    };
    let dump = Dump {
        expected: expected(FUNCTION_UID, &parts.pipes, instance.spec.manifest.image.is_some()),
        after: AfterDump::Run,
        templates: Vec::new(),
        parent: None,
    };
    let (parts, runtime) = (Arc::clone(parts), tokio::runtime::Handle::current());
    let dumping =
        tokio::task::spawn_blocking(move || criu.dump(&parts, dump, &runtime, |dir| Ok(notes.write(dir)?), || ()));
    let dumped = dumping.await??;
    if dumped.saved.unreached > 0 {
        instance.sink.platform(RENUMBERED.to_owned());
    }
    let took = dumped.frozen;
    tracing::info!(instance = %instance.id, ms = took.as_secs_f64() * 1e3, "checkpointed");
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_of_ours_is_seen_until_it_is_closed() {
        let table = |state: &str, remote: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let line =
                format!("   0: 0100007F:1F90 {remote} {state} 00000000:00000000 00:00000000 00000000  1000 0 1 1\n");
            std::fs::write(file.path(), format!("  sl  local_address rem_address   st\n{line}")).unwrap();
            has_connections(file.path())
        };
        let (loopback, outside) = ("0100007F:C350", "0200C612:1F90");
        assert!(table("01", loopback) && table("08", loopback));
        assert!(table("01", "0000000000000000FFFF00000100007F:C350"));
        // Connections that listen or wait for packets still in transit.
        assert!(!table("0A", loopback) && !table("06", loopback));
        assert!(!table("01", outside));
        assert!(!has_connections(Path::new("/proc/0/net/tcp")));
    }
}
