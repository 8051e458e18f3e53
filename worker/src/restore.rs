//! Restoring an instance lazily from its snapshot:
//!
//! ```text
//! open snapshot ─┐
//! make sandbox ──┴─> link images, bind lazy-pages.socket, start pager
//!                      └─> criu restore ──processes stand, memory registered──> map the working set
//!                             └─> they run ──> after-restore hook ──> ready; pages follow as they are touched
//! ```

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rekindle_init::protocol::{FUNCTION_PID, held_path};
use rekindle_pager::{LostPage, PageRef, PageSource, Pager, PagerConfig};
use rekindle_snapshotter::criu::{InheritFd, LAZY_PAGES_SOCKET, RESTORE_LOG, RestoreOrder, Session, Stage};
use rekindle_telemetry::record_past;
use rekindle_wire::{ApiError, ErrorCode, SnapshotId};

use crate::freeze::{Hook, call_hook};
use crate::instance::enclosure::{Enclosure, Output, enclose, unavailable};
use crate::instance::{FunctionClient, Instance, Parts};
use crate::sandbox::Sandbox;
use crate::sandbox::pool::OUTPUT_FDS;
use crate::snapshots::{FILES_ARCHIVE, OpenSnapshot};
use crate::worker::Worker;

/// How long the pager may take to watch the memory and map the working set.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);
/// From this log level on CRIU's logs are kept.
const KEPT_LOG_LEVEL: i32 = 2;

fn failed(what: &str, error: &dyn std::error::Error) -> ApiError {
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
    let enclosing = instance.phase("sandbox", enclose(worker, instance));
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
    let scratch = Scratch::link(
        &snapshot.images_dir,
        worker.config.run_dir.join("restores").join(instance.id.as_str()),
    )
    .map_err(|e| failed("lay out the images", &e))?;
    // Every snapshot has one, though it may be empty.
    let archive =
        std::fs::File::open(scratch.0.join(FILES_ARCHIVE)).map_err(|e| failed("find the files of /tmp", &e))?;
    sandbox
        .load_files(&OwnedFd::from(archive))
        .await
        .map_err(|e| failed("restore /tmp", &e))?;
    let pager = start_pager(worker, instance, &sandbox, &snapshot, &scratch.0)?;
    worker.metrics.pagers.watch(pager.stats());
    let pager = Arc::new(pager);
    instance
        .phase(
            "criu",
            run_criu(
                worker, instance, criu, &sandbox, &outputs, &snapshot, &scratch.0, &pager,
            ),
        )
        .await?;
    let Ok(pager) = Arc::try_unwrap(pager).map_err(drop) else {
        return Err(ApiError::new(ErrorCode::Internal, "the restore still holds the pager"));
    };
    let parts = Arc::new(Parts {
        client: FunctionClient::new(&sandbox),
        sandbox,
        pager: Some(pager),
        cgroup,
        pipes: snapshot.notes.pipes.clone(),
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

/// A directory of one restore: hard links to the snapshot's images, and what CRIU writes. Removed with its content.
struct Scratch(PathBuf);

impl Scratch {
    fn link(images: &Path, dir: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir(&dir)?;
        let scratch = Self(dir);
        for entry in std::fs::read_dir(images)? {
            let entry = entry?;
            std::fs::hard_link(entry.path(), scratch.0.join(entry.file_name()))?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), error = %e, "cannot remove a restore's directory");
        }
    }
}

fn start_pager(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    sandbox: &Arc<Sandbox>,
    snapshot: &Arc<OpenSnapshot>,
    dir: &Path,
) -> Result<Pager, ApiError> {
    let listener = UnixListener::bind(dir.join(LAZY_PAGES_SOCKET)).map_err(|e| failed("listen for criu", &e))?;
    let (judged, sandbox, name) = (Arc::downgrade(instance), Arc::downgrade(sandbox), snapshot.id.clone());
    let measuring = Arc::downgrade(worker);
    let on_lost = move |lost: LostPage| {
        tracing::error!(snapshot = %name, error = %lost, "a page is lost; the instance is killed");
        if let Some(worker) = measuring.upgrade() {
            worker.metrics.page_lost();
        }
        let message = format!("memory of snapshot {name} cannot be had, so the instance was killed: {lost}");
        if let Some(instance) = judged.upgrade() {
            instance.judge(ApiError::new(ErrorCode::SnapshotLost, message));
        }
        if let Some(sandbox) = sandbox.upgrade() {
            sandbox.kill();
        }
    };
    Pager::start(PagerConfig {
        name: format!("pager-{}", instance.spec.function),
        listener,
        source: Arc::clone(&snapshot.template) as Arc<dyn PageSource>,
        layout: snapshot.template.layout(),
        record: snapshot.is_recording(),
        handshake_limit: Duration::from_secs(20),
        on_lost: Box::new(on_lost),
    })
    .map_err(|e| failed("start the pager", &e))
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one restore, each made by a step before"
)]
async fn run_criu(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    session: Session,
    sandbox: &Arc<Sandbox>,
    outputs: &[Output; 2],
    snapshot: &Arc<OpenSnapshot>,
    dir: &Path,
    pager: &Arc<Pager>,
) -> Result<(), ApiError> {
    let images = OwnedFd::from(std::fs::File::open(dir).map_err(|e| failed("open the images", &e))?);
    // As `use_templates` counts on: the images first, then the templates.
    let held: Vec<_> = std::iter::once(&images).chain(snapshot.template.files()).collect();
    let holding = sandbox.hold(&held).await;
    holding.map_err(|e| failed("give criu the images", &e))?;
    let pipes = OUTPUT_FDS.into_iter().zip(outputs.iter());
    let inherit = pipes.filter_map(|(fd, output)| {
        let note = snapshot.notes.pipes.iter().find(|n| n.stream == output.stream)?;
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
    let (pager, working_set) = (Arc::clone(pager), snapshot.working_set());
    let sandbox = Arc::clone(sandbox);
    let span = tracing::Span::current();
    let (eager, measuring) = (snapshot.eager_bytes, Arc::clone(instance));
    let restored = tokio::task::spawn_blocking(move || {
        let _in = span.enter();
        let began = Instant::now();
        let mut resuming = None;
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
                let done = prepare_memory(&pager, &working_set);
                measuring.inner_phases.lock().push(("working-set", prepared.elapsed()));
                resuming = Some(Instant::now());
                // CRIU lets the processes run even if this fails.
                done.inspect_err(|_| sandbox.kill())
            }
            Stage::PostDump | Stage::Other(_) => Ok(()),
        });
        if let Some(since) = resuming {
            record_past(&span, "criu resume", since, since.elapsed(), &[]);
        }
        let handshake = pager.stats().marks.lock().handshake;
        if let Some((since, took)) = handshake {
            record_past(&span, "handshake", since, took, &[]);
            measuring.inner_phases.lock().push(("handshake", took));
        }
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
fn prepare_memory(pager: &Pager, pages: &Arc<[PageRef]>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
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
