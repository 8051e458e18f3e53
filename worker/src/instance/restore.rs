//! Restores an instance lazily from its snapshot:
//!
//! ```text
//! open snapshot ─┐
//! make sandbox ──┴─> (turn) link images, start pager
//!                      └─> criu restore ──all is mapped──> register memory, fill the working set, while criu goes on
//!                             └─> they run ──> after-restore hook ──> ready; pages follow as they are touched
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rekindle_criu::{PendingRestore, RESTORE_LOG, Stage, StageError, cause_of, read_log};
use rekindle_init::causes::chain;
use rekindle_init::locks::Lock;
use rekindle_init::protocol::{Clocks, FUNCTION_PID};
use rekindle_pager::address_map::AddressMap;
use rekindle_pager::{
    AheadPage, Ancestor, Given, Handover, Layout, LostPage, PageSource, Pager, PagerConfig, Prepared, Preparing,
};
use rekindle_telemetry::record_past;
use rekindle_wire::{ApiError, ErrorCode, SnapshotId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::criu::prepared_restore::{Images, PreparedRestore, begin};
use crate::host::sandbox::{Sandbox, SandboxError};
use crate::instance::checkpoint::{Hook, call_hook};
use crate::instance::isolated_process::{IsolatedProcess, Output, isolate, unavailable};
use crate::instance::randomness;
use crate::instance::{FunctionClient, Instance, RunningInstance};
use crate::snapshots::FILES_ARCHIVE;
use crate::worker::Worker;

/// How long the pager may take to register the memory and map the working set.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);
/// How long init may take to lay out what CRIU needs.
const LAY_OUT_LIMIT: Duration = Duration::from_secs(60);
/// The log level from which CRIU's logs are kept.
const KEPT_LOG_LEVEL: i32 = 2;

pub(crate) fn failed(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::RestoreFailed, unavailable(what, error).message)
}

/// Restores `instance` from `snapshot` without marking it ready.
///
/// # Errors
/// Returns `restore_failed` when it cannot be restored; then nothing of it runs. Returns `snapshot_lost` when a page is
/// not available.
pub async fn restore(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    snapshot: &SnapshotId,
) -> Result<Arc<RunningInstance>, ApiError> {
    let _starting = worker.start_limiter.starting();
    let (uid, ordered) = (instance.spec.uid, instance.spec.snapshot_digest.as_deref());
    let opening = instance.phase("open", worker.snapshots.open(snapshot, uid, ordered));
    let enclosing = instance.phase("sandbox", isolate(worker, instance, instance.id.as_str()));
    let (snapshot, isolated) = tokio::join!(opening, enclosing);
    let (snapshot, tier) = snapshot.map_err(|e| {
        if worker.refusals.note(&instance.spec, &e) {
            worker.changed.notify_one();
        }
        failed("open the snapshot", &e)
    })?;
    let here = worker.config.offer.instruction_sets;
    snapshot
        .notes
        .runs_on(here)
        .map_err(|e| failed("restore on this host", &e))?;
    worker.metrics.restoring(tier);
    tracing::Span::current().record("rekindle.tier", tier.as_str());
    let IsolatedProcess {
        cgroup,
        sandbox,
        outputs,
        criu,
    } = isolated?;
    let completing = snapshot.template.complete();
    completing.map_err(|e| failed("read the files of the function", &e))?;
    // The turn comes last, when everything is here: a store that is slow to respond must not hold up other starts.
    let turn = instance.phase("turn", worker.start_limiter.take()).await;
    let layout = snapshot.template.layout().ok_or_else(|| {
        let message = "some of its memory is neither anonymous nor of a file: no pager can serve that";
        ApiError::new(ErrorCode::RestoreFailed, message)
    })?;
    let pids = snapshot.template.pids();
    let images = Images {
        dir: &snapshot.images_dir,
        to: instance.id.as_str(),
        alone: alone(&pids),
        pipes: &snapshot.notes.pipes,
    };
    let begun = begin(worker, &sandbox, &cgroup, &outputs, criu, images).await?;
    let handover = begun.handover();
    tracing::Span::current().record("rekindle.handover", handover);
    let PreparedRestore {
        restore,
        fork_handover,
        scratch,
    } = begun;
    let given = if fork_handover.is_some() { Vec::new() } else { pids };
    let (begun_with, working_set) = snapshot.begin();
    let pages = Pages {
        name: format!("snapshot {}", snapshot.id),
        source: Arc::clone(&snapshot.template) as Arc<dyn PageSource>,
        fork_handover,
        layout,
        maps: HashMap::new(),
        record: begun_with.records,
        code: ErrorCode::SnapshotLost,
    };
    let pager = start_pager(worker, instance, &sandbox, pages)?;
    let order = CriuRestore {
        restore,
        sandbox: &sandbox,
        templates: snapshot.template.files().collect(),
        dir: scratch.path(),
        eager_bytes: snapshot.eager_bytes,
        given,
        clocks: snapshot.clocks,
        locks: snapshot.locks.clone(),
    };
    let (resumes, resumed) = oneshot::channel();
    let (copy, original) = (Arc::clone(&cgroup), Arc::clone(&snapshot));
    let (measured, started) = (Arc::clone(worker), Arc::clone(instance));
    let mut running = Box::pin(run_criu(
        worker,
        instance,
        order,
        Arc::clone(&pager),
        || working_set,
        move || {
            let took = randomness::write(&copy, &original.notes.generators, &measured.metrics)?;
            started.inner_phases.lock().push(("generators", took));
            Ok(())
        },
        resumes,
    ));
    let criu = instance.phase("criu", async {
        tokio::select! {
            done = &mut running => Some(done),
            Ok(()) = resumed => None,
        }
    });
    let heard = criu.await.transpose()?;
    drop(turn);
    let Ok(pager) = Arc::try_unwrap(pager).map_err(drop) else {
        return Err(ApiError::new(ErrorCode::Internal, "the restore still holds the pager"));
    };
    let pipes = outputs.iter().map(Output::note).collect::<Result<_, _>>();
    let parts = Arc::new(RunningInstance {
        client: FunctionClient::new(&sandbox),
        sandbox: Arc::clone(&sandbox),
        pager: Some(pager),
        cgroup,
        pipes: pipes.map_err(|e| failed("look at the outputs", &e))?,
        arrived: None,
        frozen: AtomicBool::new(false),
        snapshot: Some(Arc::clone(&snapshot)),
        base: OnceLock::new(),
        begun: Some(begun_with),
    });
    let hook = async {
        if !snapshot.notes.is_hook_needed(FUNCTION_PID) {
            return Ok(());
        }
        let called = instance.phase("after-restore", call_hook(instance, &parts, Hook::AfterRestore));
        called
            .await
            .map(drop)
            .map_err(|e| ApiError::new(ErrorCode::RestoreFailed, e))
    };
    match heard {
        Some(()) => hook.await?,
        // The processes run, or are about to, while CRIU is still finishing.
        None => drop(tokio::try_join!(hook, running)?),
    }
    if let Some(pager) = &parts.pager {
        tell_first_fault(pager);
        let faults = &pager.stats().latency;
        let below_us = |share| faults.quantile(share).map(|bound| bound.as_micros());
        tracing::info!(
            instance = %instance.id,
            fault_p50_below_us = below_us(0.5),
            fault_p99_below_us = below_us(0.99),
            fault_max_below_us = below_us(1.0),
            handover,
            pager = ?pager.stats(),
            "restored"
        );
    }
    Ok(parts)
}

/// Records a span of the first page fault, once, if that fault has been served by now.
pub fn tell_first_fault(pager: &Pager) {
    let first = pager.stats().marks.lock().first_fault.take();
    if let Some((since, took)) = first {
        record_past(&tracing::Span::current(), "first fault", since, took, &[]);
    }
}

/// Where the memory of a restored instance comes from.
pub(crate) struct Pages {
    /// Name of the memory's owner, for the message about a lost page.
    pub(crate) name: String,
    pub(crate) source: Arc<dyn PageSource>,
    /// CRIU's own memory and the id of the process that it restores, if the kernel hands the memory over. Otherwise the
    /// process is given to the pager.
    pub(crate) fork_handover: Option<(Ancestor, i32)>,
    pub(crate) layout: Layout,
    pub(crate) maps: HashMap<i32, AddressMap>,
    pub(crate) record: bool,
    /// The error code that the instance dies with when a page is lost.
    pub(crate) code: ErrorCode,
}

/// Returns the process whose memory the kernel can hand over: it must be the only one.
pub(crate) fn alone(pids: &[i32]) -> Option<i32> {
    match pids {
        [pid] => Some(*pid),
        _ => None,
    }
}

/// Starts the pager of an instance that CRIU will restore.
pub(crate) fn start_pager(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    sandbox: &Arc<Sandbox>,
    pages: Pages,
) -> Result<Arc<Pager>, ApiError> {
    let handover = match pages.fork_handover {
        Some((ancestor, pid)) => Handover::Fork(ancestor, pid),
        None => Handover::Given,
    };
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
        handover,
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
    pub(crate) restore: PendingRestore,
    pub(crate) sandbox: &'a Arc<Sandbox>,
    pub(crate) templates: Vec<&'a OwnedFd>,
    /// The directory with the images and the archive of private files.
    pub(crate) dir: &'a Path,
    pub(crate) eager_bytes: u64,
    /// The processes whose memory is given to the pager; none if the kernel hands it over.
    pub(crate) given: Vec<i32>,
    pub(crate) clocks: Clocks,
    /// The locks that the restore loses.
    pub(crate) locks: Vec<Lock>,
}

/// Puts the private files in place, and gives init the clocks and the files that CRIU opens.
pub(crate) async fn lay_out(
    sandbox: &Sandbox,
    templates: &[&OwnedFd],
    dir: &Path,
    clocks: Clocks,
) -> Result<(), ApiError> {
    // Every snapshot has an archive, though it may be empty.
    let archive = File::open(dir.join(FILES_ARCHIVE)).map_err(|e| failed("find the files of /tmp", &e))?;
    let archive = OwnedFd::from(archive);
    let images = OwnedFd::from(File::open(dir).map_err(|e| failed("open the images", &e))?);
    // `use_templates` relies on this order: the images first, then the templates.
    let held: Vec<_> = std::iter::once(&images).chain(templates.iter().copied()).collect();
    futures::try_join!(
        async {
            sandbox
                .load_files(&archive)
                .await
                .map_err(|e| failed("restore /tmp", &e))
        },
        async {
            sandbox
                .hold(&held, Some(clocks))
                .await
                .map_err(|e| failed("give criu the images", &e))
        },
    )?;
    Ok(())
}

/// Puts the private files in place and runs CRIU.
///
/// Once all mappings are in place, the pages of `ahead` are filled while CRIU goes on. `standing` runs when the
/// processes are about to execute their first instruction. Both run on a thread that may block; if one fails, the
/// processes are killed. `resumes` fires when the processes are about to run, a little before CRIU itself reports.
pub(crate) async fn run_criu(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    restore: CriuRestore<'_>,
    pager: Arc<Pager>,
    ahead: impl FnOnce() -> Arc<[AheadPage]> + Send + 'static,
    standing: impl FnOnce() -> Result<(), StageError> + Send + 'static,
    resumes: oneshot::Sender<()>,
) -> Result<(), ApiError> {
    let CriuRestore {
        restore: order,
        sandbox,
        templates,
        dir,
        eager_bytes: eager,
        given,
        clocks,
        mut locks,
    } = restore;
    // What CRIU reads first is already in place. The rest must be in place only when CRIU begins to restore from it.
    let beside = order.is_prestarted();
    let (is_laid_out, laid_out) = sync_channel(1);
    if !beside {
        lay_out(sandbox, &templates, dir, clocks).await?;
        let _ = is_laid_out.send(());
    }
    let (killed, measuring) = (Arc::clone(sandbox), Arc::clone(instance));
    let (furnished, runtime) = (Arc::clone(sandbox), Handle::current());
    let span = tracing::Span::current();
    let running = tokio::task::spawn_blocking(move || {
        let _in = span.enter();
        let waiting = runtime.clone();
        let began = Instant::now();
        let (mut stood, mut resuming) = (None, None);
        let stats = Arc::clone(pager.stats());
        let mut unready = Some((pager, ahead));
        // Begins at the first stage that CRIU reports: it need not report both.
        let mut begin = move || match unready.take() {
            Some((pager, ahead)) => {
                let furnished = Arc::clone(&furnished);
                let given = match given.as_slice() {
                    [] => Vec::new(),
                    pids => runtime.block_on(furnished.userfaults(pids))?,
                };
                if !locks.is_empty()
                    && let Err(e) = runtime.block_on(furnished.take_locks(std::mem::take(&mut locks)))
                {
                    tracing::warn!(error = %chain(&e), "a restored function has lost locks");
                }
                // CRIU opens no more files. Links are followed in parallel with the rest of the preparation.
                let linked = runtime.spawn(async move { furnished.follow_links().await });
                Readying::begin(&pager, given, ahead(), linked).map(Some)
            }
            None => Ok(None),
        };
        let mut readying = None;
        let mut standing = Some((standing, resumes));
        let restored = order.run(|stage| match stage {
            Stage::PreRestore => Ok(laid_out.recv_timeout(LAY_OUT_LIMIT)?),
            Stage::PostRestore => {
                readying = begin()?;
                Ok(())
            }
            Stage::PreResume => {
                // The span covers everything so far: processes created, eager pages read, mappings and descriptors set
                // up, memory handed over.
                record_past(
                    &span,
                    "criu until resume",
                    began,
                    began.elapsed(),
                    &[("rekindle.eager_bytes", eager)],
                );
                let prepared = Instant::now();
                stood = Some(prepared);
                let begun = readying.take().map_or_else(&mut begin, |begun| Ok(Some(begun)));
                let ready = begun.and_then(|begun| begun.map_or(Ok(()), |begun| begun.end(&waiting)));
                let done = ready.and_then(|()| {
                    let Some((standing, resumes)) = standing.take() else {
                        return Ok(());
                    };
                    standing()?;
                    // It does not matter if nobody waits for this.
                    let _ = resumes.send(());
                    Ok(())
                });
                measuring.inner_phases.lock().push(("working-set", prepared.elapsed()));
                resuming = Some(Instant::now());
                // CRIU lets the processes run even if this fails.
                done.inspect_err(|_| killed.kill())
            }
            Stage::PostDump | Stage::Other(_) => Ok(()),
        });
        let mut inner = measuring.inner_phases.lock();
        if let Some(since) = resuming {
            let took = since.elapsed();
            record_past(&span, "criu resume", since, took, &[]);
            inner.push(("resume", took));
        }
        let handshake = stats.marks.lock().handshake;
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
    });
    let laid_out = if beside {
        let laid_out = lay_out(sandbox, &templates, dir, clocks).await;
        // If the layout failed, the dropped sender tells CRIU's thread so.
        match &laid_out {
            Ok(()) => drop(is_laid_out.send(())),
            Err(_) => drop(is_laid_out),
        }
        laid_out
    } else {
        Ok(())
    };
    let restored = running.await.map_err(|e| failed("restore", &e))?;
    laid_out?;
    if worker.config.criu_log_level >= KEPT_LOG_LEVEL {
        keep_log(worker, dir, instance.id.as_str());
    }
    match restored {
        Ok(FUNCTION_PID) => Ok(()),
        Ok(other) => Err(ApiError::new(
            ErrorCode::RestoreFailed,
            format!("criu restored process {other} instead of {FUNCTION_PID}"),
        )),
        Err(e) => {
            let log = cause_of(&e, &dir.join(RESTORE_LOG));
            Err(ApiError::new(
                ErrorCode::RestoreFailed,
                format!("{}{log}", failed("restore", &e).message),
            ))
        }
    }
}

/// Keeps CRIU's log, best effort, for those who want to see where the time of a restore goes.
fn keep_log(worker: &Worker, dir: &Path, name: &str) {
    let kept = worker.config.data_dir.join("criu-logs");
    let name = format!("{name}-{RESTORE_LOG}");
    let copied = std::fs::create_dir_all(&kept)
        .and_then(|()| read_log(&dir.join(RESTORE_LOG)))
        .and_then(|log| std::fs::write(kept.join(name), log));
    if let Err(e) = copied {
        tracing::warn!(error = %e, "criu's log is not kept");
    }
}

/// Memory is being registered, and pages are being filled ahead.
struct Readying {
    preparing: Preparing,
    /// Task that makes links of its private files followable.
    linked: tokio::task::JoinHandle<Result<(), SandboxError>>,
    asked: usize,
}

impl Readying {
    fn begin(
        pager: &Pager,
        given: Vec<Given>,
        ahead: Arc<[AheadPage]>,
        linked: tokio::task::JoinHandle<Result<(), SandboxError>>,
    ) -> Result<Self, StageError> {
        let asked = ahead.len();
        let preparing = pager.prepare(given, ahead)?;
        Ok(Self {
            preparing,
            linked,
            asked,
        })
    }

    /// Waits until the preparation is done.
    fn end(self, runtime: &Handle) -> Result<(), StageError> {
        let Prepared { filled, took } = self.preparing.done(PREPARE_LIMIT)?;
        let pages = ("rekindle.pages", self.asked as u64);
        record_past(&tracing::Span::current(), "working set", took.0, took.1, &[pages]);
        runtime.block_on(self.linked)??;
        tracing::debug!(
            asked = self.asked,
            mapped = filled,
            us = took.1.as_micros(),
            "working set mapped"
        );
        Ok(())
    }
}
