//! Takes a checkpoint of a running instance and leaves it running:
//!
//! before-snapshot hook → connections closed → criu dump (`criu/dump.rs`) → resume → publish.
//!
//! The caller then calls the after-restore hook, if the instance is to serve.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_criu::AfterDump;
use rekindle_init::protocol::FUNCTION_UID;
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::{
    CaptureMeta, CaptureOptions, Codec, ExtraFile, Keyring, Published, RegionIndex, Store, publish,
};
use rekindle_wire::SnapshotId;
use rekindle_wire::api::Randomness;
use rekindle_wire::function_config::ByteSize;
use rekindle_wire::processor::InstructionSets;

use super::hooks::{Hook, call_hook};
use super::image_memory::SearchError;
use super::lifecycle::Instance;
use super::room_for_images::RoomForImages;
use super::running::RunningInstance;
use super::{device_numbers, randomness};
use crate::criu::Criu;
use crate::criu::dump::{Dump, DumpError, DumpOutcome, DumpingCriu, PAUSES_MS};
use crate::host::poll_until;
use crate::metrics::Metrics;
use crate::snapshots::dump_dir::{DumpDir, DumpDirs};
use crate::snapshots::expected::expected;
use crate::snapshots::{AfterRestore, CaptureNotes, FILES_ARCHIVE, FileNumbers, NOTES_FILE, join_time};

/// How long the function may take to notice that its connections were closed, before a snapshot of it.
pub(crate) const QUIET_LIMIT: Duration = Duration::from_millis(500);
/// Interval between checks whether the function has noticed.
const QUIET_PAUSE: Duration = Duration::from_micros(500);
/// Maximum number of lines read from a connection table.
const TABLE_LINES_MAX: usize = 1 << 16;
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

/// Why there is no snapshot. The instance keeps running in every case.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It holds secrets, which must not be stored.
    #[error("an instance that holds secrets is not stored")]
    Secrets,
    /// The hook failed.
    #[error("{0}")]
    Hook(String),
    /// The image directory cannot be created.
    #[error("make {}", .0.display())]
    Directory(PathBuf, #[source] std::io::Error),
    /// The notes cannot be written.
    #[error("note what the restore needs")]
    Notes(#[source] crate::snapshots::NotesError),
    /// The images cannot be searched for what copies need of their own.
    #[error("look for generators of random numbers and device numbers")]
    Search(#[from] SearchError),
    /// The images cannot be edited.
    #[error("edit the images")]
    Edit(#[source] crate::snapshots::EditError),
    /// It cannot be dumped.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// CRIU was killed at the memory limit.
    #[error(
        "the images of its memory and files did not fit into the memory that a checkpoint may take, {0}: raise memory \
         in fn.toml, or hold less of it before the snapshot"
    )]
    NoMemory(ByteSize),
    /// A task that blocks broke off.
    #[error("work on the images")]
    Task(#[from] tokio::task::JoinError),
    /// The snapshot could not be stored.
    #[error("publish the snapshot")]
    Publish(#[source] rekindle_snapshotter::PublishError),
}

/// A runtime's response to the before-snapshot hook.
#[derive(Debug, Default, serde::Deserialize)]
pub struct BeforeSnapshotResponse {
    #[serde(default, rename = "afterRestore")]
    after_restore: Option<AfterRestore>,
}

impl BeforeSnapshotResponse {
    /// Returns whether the function may have an after-restore hook.
    pub(crate) fn may_have_hooks(&self) -> bool {
        self.after_restore.as_ref().is_none_or(|left| left.hooks > 0)
    }
}

/// Takes checkpoints of instances.
pub struct Checkpointer {
    /// CRIU on this host.
    pub criu: Arc<Criu>,
    /// Where CRIU dumps.
    pub dump_dirs: DumpDirs,
    /// Where snapshots are published.
    pub store: Store,
    /// Keys of namespaces whose snapshots are encrypted.
    pub keys: Keyring,
    /// The store's regions, by content.
    pub index: Arc<RegionIndex>,
    /// How memory is divided and compressed.
    pub codec: Codec,
    /// The instruction sets of this host's processor.
    pub instruction_sets: InstructionSets,
    /// Where the phases of checkpoints are measured.
    pub metrics: Arc<Metrics>,
}

impl Checkpointer {
    /// Has the function get ready for its checkpoint. No request may be in flight.
    ///
    /// # Errors
    /// Returns an error when it holds secrets, or its hook fails.
    pub async fn prepare(
        &self,
        instance: &Arc<Instance>,
        running: &Arc<RunningInstance>,
    ) -> Result<BeforeSnapshotResponse, CheckpointError> {
        if !instance.secrets().is_empty() {
            return Err(CheckpointError::Secrets);
        }
        let started = Instant::now();
        let answer = call_hook(instance, running, Hook::BeforeSnapshot).await;
        // A function's own hook may return anything.
        let answer = serde_json::from_slice(&answer.map_err(CheckpointError::Hook)?).unwrap_or_default();
        self.metrics.capture_phase("hook", started.elapsed());
        Ok(answer)
    }

    /// Checkpoints `instance`, which is prepared, and publishes the snapshot with the given `origin`.
    ///
    /// # Errors
    /// See [`CheckpointError`]. The instance keeps running.
    pub async fn checkpoint(
        &self,
        instance: &Arc<Instance>,
        running: &Arc<RunningInstance>,
        origin: Origin,
        answer: BeforeSnapshotResponse,
    ) -> Result<Published, CheckpointError> {
        running.client.close_idle();
        quiet(running, QUIET_LIMIT).await;
        // Nobody else makes images of an instance that is not live yet.
        let alone = Arc::clone(&instance.images).acquire_owned().await.ok();
        // Dropped after the directory, whose files count as the sandbox's memory.
        let _room = RoomForImages::give(instance, running, alone);
        // An unreadable value counts as small, which is the usual case.
        let memory = running.cgroup.memory_current().unwrap_or(0);
        let path = self.dump_dirs.choose(memory).join(format!("dump-{}", instance.id));
        let oom_kills = || running.cgroup.oom_kills().unwrap_or(0);
        let killed_before = oom_kills();
        let mut pauses = PAUSES_MS.iter();
        let (dir, dumped) = loop {
            let dir = DumpDir::make(&path).map_err(|e| CheckpointError::Directory(path.clone(), e))?;
            let error = match self.dump(instance, running, &dir).await {
                Ok(dumped) => break (dir, dumped),
                Err(error) => error,
            };
            if oom_kills() > killed_before {
                return Err(CheckpointError::NoMemory(ByteSize(RoomForImages::limit(instance))));
            }
            let passing = matches!(&error, CheckpointError::Dump(e) if e.is_passing());
            let Some(pause) = pauses.next().filter(|_| passing) else {
                return Err(error);
            };
            drop(dir);
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        };
        let frozen = dumped.frozen;
        self.metrics.capture_phase("freeze", frozen);
        join_time(dir.path()).map_err(CheckpointError::Edit)?;
        let started = Instant::now();
        let randomness = note_what_was_found(dir.path().to_owned(), answer.after_restore, dumped).await?;
        self.metrics.capture_phase("search", started.elapsed());
        let meta = CaptureMeta {
            id: SnapshotId::generate(),
            origin,
            base: running.base.get().cloned(),
            seal: self.keys.of_namespace(instance.spec.function.namespace()),
            frozen_ms: frozen.as_secs_f64() * 1e3,
            criu: self.criu.version(),
            extra: [NOTES_FILE, FILES_ARCHIVE]
                .into_iter()
                .map(|name| ExtraFile {
                    name: name.to_owned(),
                    path: dir.path().join(name),
                })
                .collect(),
            options: CaptureOptions {
                codec: self.codec,
                consume: true,
                ..CaptureOptions::default()
            },
        };
        let started = Instant::now();
        let published = publish(&self.store, &self.index, dir.path(), meta).await;
        self.metrics.capture_phase("publish", started.elapsed());
        let mut published = published.map_err(CheckpointError::Publish)?;
        published.summary.randomness = Some(randomness);
        Ok(published)
    }

    async fn dump(
        &self,
        instance: &Instance,
        running: &Arc<RunningInstance>,
        dir: &DumpDir,
    ) -> Result<DumpOutcome<()>, CheckpointError> {
        let criu = DumpingCriu::start(&self.criu, &running.sandbox, &running.cgroup, dir.path()).await?;
        let notes = CaptureNotes {
            pipes: running.pipes.clone(),
            generators: Vec::new(),
            after_restore: None,
            instruction_sets: self.instruction_sets,
            connections: Vec::new(),
            reaper: instance.spec.reaper,
            file_numbers: FileNumbers::default(),
        };
        let dump = Dump {
            expected: expected(FUNCTION_UID, &running.pipes, instance.spec.config.image.is_some()),
            after: AfterDump::Run,
            serves: false,
            templates: Vec::new(),
            parent: None,
        };
        let (running, runtime) = (Arc::clone(running), tokio::runtime::Handle::current());
        let dumping = tokio::task::spawn_blocking(move || {
            let edit = |dir: &Path| Ok(notes.write(dir)?);
            criu.dump(&running.sandbox, &running.cgroup, dump, &runtime, edit, || ())
        });
        let dumped = dumping.await??;
        if dumped.saved.unreached > 0 {
            instance.sink.platform(RENUMBERED.to_owned());
        }
        let took = dumped.frozen;
        tracing::info!(instance = %instance.id, ms = took.as_secs_f64() * 1e3, "checkpointed");
        Ok(dumped)
    }
}

/// Adds the generators and device numbers found in the images, what is left for the hook, and connections to the notes
/// of a directory. Returns a summary of the randomness of copies.
async fn note_what_was_found(
    dir: PathBuf,
    after_restore: Option<AfterRestore>,
    dumped: DumpOutcome<()>,
) -> Result<Randomness, CheckpointError> {
    let noting = tokio::task::spawn_blocking(move || {
        let generators = randomness::search(&dir)?;
        let told = randomness::summary(&dir, &generators)?;
        let notes = CaptureNotes::read(&dir).map_err(CheckpointError::Notes)?;
        let noted = CaptureNotes {
            generators,
            after_restore,
            connections: dumped.connections,
            file_numbers: device_numbers::search(&dir, &dumped.open_files)?,
            ..notes
        }
        .write(&dir);
        noted.map(|()| told).map_err(CheckpointError::Notes)
    });
    noting.await?
}

/// Waits until none of the worker's connections is open inside the sandbox, up to `limit`. They come over the loopback
/// to the function's port. Other connections stay: copies get those of the function to itself, and find others closed.
pub(crate) async fn quiet(running: &RunningInstance, limit: Duration) {
    let tables = ["tcp", "tcp6"].map(|t| format!("/proc/{}/net/{t}", running.sandbox.init_pid()));
    let port = running.client.port();
    // This must not run on a thread that serves requests: a function with many connections makes these tables
    // arbitrarily long.
    let waiting = tokio::task::spawn_blocking(move || {
        let has_any = || tables.iter().any(|table| has_connections(Path::new(table), port));
        poll_until(limit, QUIET_PAUSE, || !has_any());
    });
    // The only possible failure is the shutdown of the runtime.
    drop(waiting.await);
}

/// Returns whether the kernel's connection table at `path` contains a connection of the worker: one over the loopback
/// with an end at `port`, where the function listens. An unreadable table contains none. Blocks.
fn has_connections(path: &Path, port: u16) -> bool {
    let Ok(table) = File::open(path) else { return false };
    let port = format!(":{port:04X}");
    let lines = BufReader::new(table).lines().skip(1).map_while(Result::ok);
    // State 01 is ESTABLISHED, 08 is CLOSE_WAIT.
    lines.take(TABLE_LINES_MAX).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (Some(local), Some(remote)) = (words.next(), words.next()) else {
            return false;
        };
        let is_ours =
            LOOPBACKS.iter().any(|l| remote.starts_with(l)) && [local, remote].iter().any(|e| e.ends_with(&port));
        is_ours && matches!(words.next(), Some("01" | "08"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_may_have_a_hook_unless_its_runtime_says_that_it_has_none() {
        let may = |answer: &str| {
            let answer: BeforeSnapshotResponse = serde_json::from_str(answer).unwrap_or_default();
            answer.may_have_hooks()
        };
        assert!(may("its own hook answers what it likes") && may("{}"));
        assert!(may(r#"{"afterRestore": {"hooks": 1, "reseeds": []}}"#));
        assert!(!may(r#"{"afterRestore": {"hooks": 0, "reseeds": ["openssl"]}}"#));
    }

    #[test]
    fn a_connection_of_ours_is_seen_until_it_is_closed() {
        let row = |state: &str, local: &str, remote: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let line = format!("   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  1000 0 1 1\n");
            std::fs::write(file.path(), format!("  sl  local_address rem_address   st\n{line}")).unwrap();
            has_connections(file.path(), 8080)
        };
        let table = |state: &str, remote: &str| row(state, "0100007F:1F90", remote);
        let (loopback, outside) = ("0100007F:C350", "0200C612:1F90");
        assert!(table("01", loopback) && table("08", loopback));
        assert!(table("01", "0000000000000000FFFF00000100007F:C350"));
        // Connections that listen or wait for packets still in transit.
        assert!(!table("0A", loopback) && !table("06", loopback));
        assert!(!table("01", outside));
        // From the worker's end, and a connection of the function to itself.
        assert!(row("01", loopback, "0100007F:1F90") && !row("01", loopback, "0100007F:2329"));
        assert!(!has_connections(Path::new("/proc/0/net/tcp"), 8080));
    }
}
