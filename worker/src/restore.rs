//! Restoring an instance lazily from its snapshot:
//!
//! ```text
//! open snapshot ─┐
//! make sandbox ──┴─> (turn) link images, bind lazy-pages.socket, start pager
//!                      └─> criu restore ──processes stand, memory registered──> map the working set
//!                             └─> they run ──> after-restore hook ──> ready; pages follow as they are touched
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rekindle_init::protocol::{FUNCTION_PID, held_path};
use rekindle_pager::address_map::AddressMap;
use rekindle_pager::{AheadPage, Layout, LostPage, PageSource, Pager, PagerConfig};
use rekindle_snapshotter::criu::{InheritFd, LAZY_PAGES_SOCKET, RESTORE_LOG, RestoreOrder, Session, Stage};
use rekindle_telemetry::record_past;
use rekindle_wire::{ApiError, ErrorCode, SnapshotId};

use crate::freeze::{Hook, call_hook};
use crate::instance::enclosure::{Enclosure, Output, enclose, unavailable};
use crate::instance::{FunctionClient, Instance, Parts};
use crate::sandbox::Sandbox;
use crate::sandbox::pool::OUTPUT_FDS;
use crate::snapshots::{FILES_ARCHIVE, PipeNote};
use crate::worker::Worker;

/// How long the pager may take to watch the memory and map the working set.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);
/// From this log level on CRIU's logs are kept.
const KEPT_LOG_LEVEL: i32 = 2;

pub(crate) fn failed(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::RestoreFailed, unavailable(what, error).message)
}

/// Restores `instance` from `snapshot`; it is not marked ready.
///
/// # Errors
/// `restore_failed` when it cannot be restored; nothing of it runs then. `snapshot_lost` when a page cannot be had.
pub async fn restore(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    snapshot: &SnapshotId,
) -> Result<Arc<Parts>, ApiError> {
    let opening = instance.phase("open", worker.snapshots.open(snapshot));
    let enclosing = instance.phase("sandbox", enclose(worker, instance, instance.id.as_str()));
    let (snapshot, enclosure) = tokio::join!(opening, enclosing);
    let (snapshot, tier) = snapshot.map_err(|e| failed("open the snapshot", &e))?;
    worker.metrics.restoring(tier);
    tracing::Span::current().record("rekindle.tier", tier.as_str());
    let Enclosure {
        cgroup,
        sandbox,
        outputs,
        criu,
    } = enclosure?;
    let completing = snapshot.template.complete();
    completing.map_err(|e| failed("read the files of the function", &e))?;
    // Only now, when everything is here: a store that is slow to answer must not hold up others.
    let turn = instance.phase("turn", worker.turns.take()).await;
    let dir = worker.config.run_dir.join("restores").join(instance.id.as_str());
    let scratch = Scratch::link(&snapshot.images_dir, dir).map_err(|e| failed("lay out the images", &e))?;
    let pages = Pages {
        name: format!("snapshot {}", snapshot.id),
        source: Arc::clone(&snapshot.template) as Arc<dyn PageSource>,
        layout: snapshot.template.layout(),
        maps: HashMap::new(),
        record: snapshot.is_recording(),
        code: ErrorCode::SnapshotLost,
    };
    let pager = start_pager(worker, instance, &sandbox, pages, scratch.path())?;
    let order = CriuRestore {
        session: criu,
        sandbox: &sandbox,
        outputs: &outputs,
        pipes: &snapshot.notes.pipes,
        templates: snapshot.template.files().collect(),
        dir: scratch.path(),
        eager_bytes: snapshot.eager_bytes,
    };
    let working_set = snapshot.working_set();
    let standing = move |pager: &Pager| prepare_memory(pager, &working_set);
    instance
        .phase("criu", run_criu(worker, instance, order, &pager, standing))
        .await?;
    drop(turn);
    let Ok(pager) = Arc::try_unwrap(pager).map_err(drop) else {
        return Err(ApiError::new(ErrorCode::Internal, "the restore still holds the pager"));
    };
    let pipes = outputs.iter().map(Output::note).collect::<Result<_, _>>();
    let parts = Arc::new(Parts {
        client: FunctionClient::new(&sandbox),
        sandbox,
        pager: Some(pager),
        cgroup,
        pipes: pipes.map_err(|e| failed("look at the outputs", &e))?,
        arrived: None,
        frozen: AtomicBool::new(false),
        snapshot: Some(snapshot),
    });
    instance
        .phase("after-restore", call_hook(instance, &parts, Hook::AfterRestore))
        .await
        .map_err(|e| ApiError::new(ErrorCode::RestoreFailed, e))?;
    if let Some(pager) = &parts.pager {
        tell_first_fault(pager);
        let faults = &pager.stats().latency;
        let below_us = |share| faults.quantile(share).map(|bound| bound.as_micros());
        tracing::info!(
            instance = %instance.id,
            fault_p50_below_us = below_us(0.5),
            fault_p99_below_us = below_us(0.99),
            fault_max_below_us = below_us(1.0),
            pager = ?pager.stats(),
            "restored"
        );
    }
    Ok(parts)
}

/// A span of the first fault, once, if it was answered by now.
pub fn tell_first_fault(pager: &Pager) {
    let first = pager.stats().marks.lock().first_fault.take();
    if let Some((since, took)) = first {
        record_past(&tracing::Span::current(), "first fault", since, took, &[]);
    }
}

/// A directory of one restore: the images, and what CRIU writes. Removed with its content.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// An empty one.
    pub(crate) fn make(dir: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir(&dir)?;
        Ok(Self(dir))
    }

    /// One with hard links to a snapshot's images.
    fn link(images: &Path, dir: PathBuf) -> std::io::Result<Self> {
        let scratch = Self::make(dir)?;
        for entry in std::fs::read_dir(images)? {
            let entry = entry?;
            std::fs::hard_link(entry.path(), scratch.0.join(entry.file_name()))?;
        }
        Ok(scratch)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), error = %e, "cannot remove a restore's directory");
        }
    }
}

/// Where the memory of a restored instance comes from.
pub(crate) struct Pages {
    /// Said when a page is lost: whose memory it is.
    pub(crate) name: String,
    pub(crate) source: Arc<dyn PageSource>,
    pub(crate) layout: Layout,
    pub(crate) maps: HashMap<i32, AddressMap>,
    pub(crate) record: bool,
    /// What the instance is then told to have died of.
    pub(crate) code: ErrorCode,
}

/// Listens in `dir`, where CRIU, whose working directory it is, looks for the pager. By way of a descriptor of it: a socket's path has at
/// most 107 bytes, and a run directory may have any number.
fn listen(dir: &Path) -> std::io::Result<UnixListener> {
    let opened = File::open(dir)?;
    UnixListener::bind(format!("/proc/self/fd/{}/{LAZY_PAGES_SOCKET}", opened.as_raw_fd()))
}

/// Starts the pager of an instance that CRIU will restore from `dir`.
pub(crate) fn start_pager(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    sandbox: &Arc<Sandbox>,
    pages: Pages,
    dir: &Path,
) -> Result<Arc<Pager>, ApiError> {
    let listener = listen(dir).map_err(|e| failed("listen for criu", &e))?;
    let (judged, sandbox) = (Arc::downgrade(instance), Arc::downgrade(sandbox));
    let (name, code) = (pages.name, pages.code);
    let measuring = Arc::downgrade(worker);
    let on_lost = move |lost: LostPage| {
        tracing::error!(of = name, error = %lost, "a page is lost; the instance is killed");
        if let Some(worker) = measuring.upgrade() {
            worker.metrics.page_lost();
        }
        let message = format!("memory of {name} cannot be had, so the instance was killed: {lost}");
        if let Some(instance) = judged.upgrade() {
            instance.judge(ApiError::new(code, message));
        }
        if let Some(sandbox) = sandbox.upgrade() {
            sandbox.kill();
        }
    };
    let pager = Pager::start(PagerConfig {
        name: format!("pager-{}", instance.spec.function),
        listener,
        source: pages.source,
        layout: pages.layout,
        maps: pages.maps,
        record: pages.record,
        handshake_limit: Duration::from_secs(20),
        on_lost: Box::new(on_lost),
    });
    let pager = pager.map_err(|e| failed("start the pager", &e))?;
    worker.metrics.pagers.watch(pager.stats());
    Ok(Arc::new(pager))
}

/// What CRIU restores from.
pub(crate) struct CriuRestore<'a> {
    pub(crate) session: Session,
    pub(crate) sandbox: &'a Arc<Sandbox>,
    pub(crate) outputs: &'a [Output; 2],
    /// What the outputs were called at the checkpoint.
    pub(crate) pipes: &'a [PipeNote],
    pub(crate) templates: Vec<&'a OwnedFd>,
    /// The images, and the archive of private files.
    pub(crate) dir: &'a Path,
    pub(crate) eager_bytes: u64,
}

/// Why a stage of a restore failed.
pub(crate) type StageError = Box<dyn std::error::Error + Send + Sync>;

/// Puts the private files in place, and gives init what CRIU opens.
async fn lay_out(restore: &CriuRestore<'_>) -> Result<(), ApiError> {
    // Every snapshot has one, though it may be empty.
    let archive = File::open(restore.dir.join(FILES_ARCHIVE)).map_err(|e| failed("find the files of /tmp", &e))?;
    let archive = OwnedFd::from(archive);
    let images = OwnedFd::from(File::open(restore.dir).map_err(|e| failed("open the images", &e))?);
    // As `use_templates` counts on: the images first, then the templates.
    let held: Vec<_> = std::iter::once(&images)
        .chain(restore.templates.iter().copied())
        .collect();
    futures::try_join!(
        async {
            restore
                .sandbox
                .load_files(&archive)
                .await
                .map_err(|e| failed("restore /tmp", &e))
        },
        async {
            restore
                .sandbox
                .hold(&held)
                .await
                .map_err(|e| failed("give criu the images", &e))
        },
    )?;
    Ok(())
}

/// Puts the private files in place, and runs CRIU. `standing` is called, on a thread that may block, when the processes stand before their first instruction; if it fails
/// they are killed.
pub(crate) async fn run_criu(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    restore: CriuRestore<'_>,
    pager: &Arc<Pager>,
    standing: impl FnOnce(&Pager) -> Result<(), StageError> + Send + 'static,
) -> Result<(), ApiError> {
    let dir = restore.dir;
    lay_out(&restore).await?;
    let pipes = OUTPUT_FDS.into_iter().zip(restore.outputs.iter());
    let inherit = pipes.filter_map(|(fd, output)| {
        let note = restore.pipes.iter().find(|n| n.stream == output.stream)?;
        let key = note.key.clone();
        Some(InheritFd { key, fd })
    });
    let order = RestoreOrder {
        images_dir: held_path(0),
        inherit: inherit.collect(),
        lazy_pages: true,
        log_level: worker.config.criu_log_level,
        limit: worker.config.restore_limit,
    };
    let pager = Arc::clone(pager);
    let sandbox = Arc::clone(restore.sandbox);
    let span = tracing::Span::current();
    let (session, eager, measuring) = (restore.session, restore.eager_bytes, Arc::clone(instance));
    let restored = tokio::task::spawn_blocking(move || {
        let _in = span.enter();
        let began = Instant::now();
        let (mut stood, mut resuming) = (None, None);
        let mut standing = Some(standing);
        let restored = session.restore(&order, |stage| match stage {
            Stage::PreResume => {
                // All up to here: processes made, eager pages read, mappings and descriptors laid out, memory handed over.
                record_past(
                    &span,
                    "criu until resume",
                    began,
                    began.elapsed(),
                    &[("rekindle.eager_bytes", eager)],
                );
                let prepared = Instant::now();
                stood = Some(prepared);
                let done = standing.take().map_or(Ok(()), |standing| standing(&pager));
                measuring.inner_phases.lock().push(("working-set", prepared.elapsed()));
                resuming = Some(Instant::now());
                // CRIU lets the processes run even if this fails.
                done.inspect_err(|_| sandbox.kill())
            }
            Stage::PostDump | Stage::Other(_) => Ok(()),
        });
        let mut inner = measuring.inner_phases.lock();
        if let Some(since) = resuming {
            let took = since.elapsed();
            record_past(&span, "criu resume", since, took, &[]);
            inner.push(("resume", took));
        }
        let handshake = pager.stats().marks.lock().handshake;
        if let Some((since, took)) = handshake {
            record_past(&span, "handshake", since, took, &[]);
            inner.push(("processes", since.saturating_duration_since(began)));
            inner.push(("handshake", took));
            if let Some(stood) = stood {
                inner.push(("mappings", stood.saturating_duration_since(since + took)));
            }
        }
        drop(inner);
        restored
    })
    .await
    .map_err(|e| failed("restore", &e))?;
    if worker.config.criu_log_level >= KEPT_LOG_LEVEL {
        keep_log(worker, dir);
    }
    match restored {
        Ok(FUNCTION_PID) => Ok(()),
        Ok(other) => Err(ApiError::new(
            ErrorCode::RestoreFailed,
            format!("criu restored process {other} instead of {FUNCTION_PID}"),
        )),
        Err(e) => {
            let log = log_tail(&dir.join(RESTORE_LOG));
            Err(ApiError::new(
                ErrorCode::RestoreFailed,
                format!("{}{log}", failed("restore", &e).message),
            ))
        }
    }
}

/// Best effort: for whoever wants to see where the time of a restore goes.
fn keep_log(worker: &Worker, dir: &Path) {
    let kept = worker.config.data_dir.join("criu-logs");
    let name = format!(
        "{}-{RESTORE_LOG}",
        dir.file_name().unwrap_or_default().to_string_lossy()
    );
    let copied = std::fs::create_dir_all(&kept).and_then(|()| std::fs::copy(dir.join(RESTORE_LOG), kept.join(name)));
    if let Err(e) = copied {
        tracing::warn!(error = %e, "criu's log is not kept");
    }
}

/// The processes stand: has their memory watched, and maps the working set.
pub(crate) fn prepare_memory(pager: &Pager, pages: &Arc<[AheadPage]>) -> Result<(), StageError> {
    let _span = tracing::info_span!("working set", "rekindle.role" = "worker", rekindle.pages = pages.len()).entered();
    let started = Instant::now();
    let mapped = pager.prepare(Arc::clone(pages), PREPARE_LIMIT)?;
    tracing::debug!(
        asked = pages.len(),
        mapped,
        us = started.elapsed().as_micros(),
        "working set mapped"
    );
    Ok(())
}

/// The errors at the end of a CRIU log, for a message.
pub fn log_tail(path: &Path) -> String {
    let Ok(text) = std::fs::read(path) else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&text);
    let errors: Vec<&str> = text.lines().filter(|l| l.contains("Error")).collect();
    let last = &errors[errors.len().saturating_sub(4)..];
    if last.is_empty() {
        String::new()
    } else {
        format!("; criu's log: {}", last.join(" | "))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_run_directory_may_have_any_length() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("r".repeat(120)).join("restores");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(
            UnixListener::bind(dir.join(LAZY_PAGES_SOCKET)).is_err(),
            "its path is too long for a socket"
        );
        let listener = listen(&dir).unwrap();
        // As CRIU does, whose path has no directory.
        let opened = std::fs::File::open(&dir).unwrap();
        let path = format!("/proc/self/fd/{}/{LAZY_PAGES_SOCKET}", opened.as_raw_fd());
        UnixStream::connect(path).unwrap();
        listener.accept().unwrap();
        assert!(dir.join(LAZY_PAGES_SOCKET).exists(), "it lies where the images do");
    }
}
