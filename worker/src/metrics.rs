//! A worker's metrics. Everything about a start, a request, a checkpoint or an instance is recorded here as it happens.
//! Levels, and counters of other crates, are read on request (`reporting/observe/`).

mod pagers;

use std::sync::Arc;
use std::time::Duration;

use rekindle_snapshotter::{Store, StoreEvent};
use rekindle_telemetry::TraceRef;
use rekindle_telemetry::metrics::{Counter, Desc, Family, Histogram, Registry, S3Metrics, buckets};
use rekindle_wire::FunctionId;
use rekindle_wire::api::{RestoredBy, SnapshotSummary, StartKind};
use rekindle_wire::migration::{MigrationKind, MigrationPhases};
use tracing::Span;

use crate::restorer::Restorer;
use crate::snapshots::MemoryTier;

pub use pagers::Pagers;

/// The label with a function's name.
const FUNCTION: &str = "faas.invoked_name";
/// What makes processes.
const PROGRAM: &str = "program";
const CRIU: &str = "criu";

const INVOKE: Desc = Desc::new(
    "faas.invoke_duration",
    "s",
    &[FUNCTION, "start"],
    "The function's own time: from the request's way into the sandbox until its answer's headers. Its exemplars name \
     traces.",
)
.bounds(buckets::FINE);
const INIT: Desc = Desc::new(
    "faas.init_duration",
    "s",
    &[FUNCTION, "start"],
    "From the order to start an instance until it is ready: what a cold start waits for here.",
)
.bounds(buckets::FINE);
const STARTS: Desc = Desc::new(
    "rekindle.starts",
    "{start}",
    &["start", "outcome"],
    "Starts of instances that ended `ready` or `failed`. A restore that failed counts, and the boot in its place too.",
);
const START_PHASE: Desc = Desc::new(
    "rekindle.start.phase.duration",
    "s",
    &["start", "phase"],
    "Phases of starts: of a restore, a boot, and a parked instance that goes on; they are below the table.",
);
const RESTORES: Desc = Desc::new(
    "rekindle.restores",
    "{restore}",
    &["tier"],
    "Restores that began, by where the snapshot's memory was: in this host's `template`, all of it in its chunk cache \
     on `disk`, or in part only in `s3`.",
);
const RESTORED: Desc = Desc::new(
    "rekindle.restores.completed",
    "{restore}",
    &["by"],
    "Restores after which the processes ran, by what made them: a restore `program`, or `criu`.",
);
const BEGUN: Desc = Desc::new(
    "rekindle.restores.begun",
    "{restore}",
    &[],
    "Restores by a program that had begun before they were asked for.",
);
const FRESH_COPIES: Desc = Desc::new(
    "rekindle.fresh.copies",
    "{copy}",
    &["by", "unfit"],
    "Copies that instances of functions with `fresh` got for the next invocation: by a `reset` of the last one, or \
     by another `restore`, and why.",
);
const GENERATORS: Desc = Desc::new(
    "rekindle.restore.generators",
    "{generator}",
    &[],
    "Generators of random numbers that restores wrote to, so that no copy draws what another draws.",
);
const LOST: Desc = Desc::new(
    "rekindle.pager.lost_pages",
    "{page}",
    &[],
    "Pages that could not be had: each killed its instance.",
);
const CAPTURES: Desc = Desc::new(
    "rekindle.captures",
    "{capture}",
    &["outcome"],
    "Checkpoints taken: `published` or `failed`.",
);
const REHEARSALS: Desc = Desc::new(
    "rekindle.rehearsals",
    "{rehearsal}",
    &["outcome"],
    "Snapshots restored at their deploy, ahead of any call: `done`; `warned`, the copy answered worse than the \
     original; `failed`, the version has none.",
);
const RUNTIME_SNAPSHOTS: Desc = Desc::new(
    "rekindle.runtime_snapshots",
    "{boot}",
    &["outcome"],
    "Boots for a deploy that were to begin as the snapshot of their runtime: it was `used`, or `made`; or that \
     `failed`, and they began from nothing.",
);
const CAPTURE_BYTES: Desc = Desc::new(
    "rekindle.capture",
    "By",
    &["kind"],
    "What was captured: `memory` of the processes, of it `zero`; `stored` payload after compression, of it `shared` \
     with what the store had.",
);
const CAPTURE_PHASE: Desc = Desc::new(
    "rekindle.capture.phase.duration",
    "s",
    &["phase"],
    "`hook` before the snapshot; `freeze`: the processes stand still; `search` for generators and device numbers; \
     `publish`: cut, hashed, stored.",
);
const MIGRATIONS: Desc = Desc::new(
    "rekindle.migrations",
    "{migration}",
    &["kind", "outcome", "way"],
    "Instances that were to leave this worker, by `move` or `clone`: they `left`, or `stayed`. \
     `way` is the former name of `kind`, and goes with the next release.",
);
const TARGET_RESTORES: Desc = Desc::new(
    "rekindle.migrations.restored",
    "{migration}",
    &["by"],
    "Instances that came to this worker and ran, by what made their processes: a restore `program`, or `criu`.",
);
/// Its name in the release before.
const TARGET_RESTORES_FORMER: Desc = Desc::new(
    "rekindle.migrations.arrived",
    "{migration}",
    &["by"],
    "The former name of `rekindle_migrations_restored_total`. It goes with the next release.",
);
const MIGRATION_PAUSE: Desc = Desc::new(
    "rekindle.migration.pause.duration",
    "s",
    &["phase"],
    "How long no request could be in an instance that moved, as its source saw it: to `settle` its requests, \
     `checkpoint` it, have it `restore`d and `resume`d there; and `whole`.",
)
.bounds(buckets::FINE);
const MIGRATION_BEHIND: Desc = Desc::new(
    "rekindle.migration.behind.duration",
    "s",
    &[],
    "From when an instance that moved here runs until all its memory is here: so long a loss of its source would end \
     it.",
)
.bounds(buckets::FINE);
const IDLE_FAULT: Desc = Desc::new(
    "rekindle.idle.fault.duration",
    "s",
    &[],
    "What a touch of an evicted page waits for it, tried on pages of the worker's own: the kernel serves instances' \
     without telling.",
)
.bounds(&[
    1e-6, 2e-6, 4e-6, 6e-6, 8e-6, 12e-6, 16e-6, 32e-6, 64e-6, 128e-6, 256e-6, 512e-6, 1e-3, 4e-3, 16e-3, 64e-3, 256e-3,
]);

/// A worker's instruments.
pub struct Metrics {
    /// The registry of all instruments.
    pub registry: Registry,
    /// Counts of instances' pagers, which outlive the pagers here.
    pub pagers: Pagers,
    invoke: Family<Histogram, 2>,
    init: Family<Histogram, 2>,
    starts: Family<Counter, 2>,
    start_phase: Family<Histogram, 2>,
    restores: Family<Counter, 1>,
    restored: Family<Counter, 1>,
    /// Restores that had begun ahead.
    pub(crate) begun: Family<Counter, 0>,
    fresh_copies: Family<Counter, 2>,
    /// Number of generators that restores wrote to.
    pub(crate) generators: Family<Counter, 0>,
    lost: Family<Counter, 0>,
    captures: Family<Counter, 1>,
    capture_bytes: Family<Counter, 1>,
    capture_phase: Family<Histogram, 1>,
    rehearsals: Family<Counter, 1>,
    runtime_snapshots: Family<Counter, 1>,
    migrations: Family<Counter, 3>,
    target_restores: Family<Counter, 1>,
    target_restores_former: Family<Counter, 1>,
    migration_pause: Family<Histogram, 1>,
    migration_behind: Family<Histogram, 0>,
    idle_fault: Family<Histogram, 0>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new("worker");
        Self {
            pagers: Pagers::default(),
            invoke: registry.family(&INVOKE),
            init: registry.family(&INIT),
            starts: registry.family(&STARTS),
            start_phase: registry.family(&START_PHASE),
            restores: registry.family(&RESTORES),
            restored: registry.family(&RESTORED),
            begun: registry.family(&BEGUN),
            fresh_copies: registry.family(&FRESH_COPIES),
            generators: registry.family(&GENERATORS),
            lost: registry.family(&LOST),
            captures: registry.family(&CAPTURES),
            capture_bytes: registry.family(&CAPTURE_BYTES),
            capture_phase: registry.family(&CAPTURE_PHASE),
            rehearsals: registry.family(&REHEARSALS),
            runtime_snapshots: registry.family(&RUNTIME_SNAPSHOTS),
            migrations: registry.family(&MIGRATIONS),
            target_restores: registry.family(&TARGET_RESTORES),
            target_restores_former: registry.family(&TARGET_RESTORES_FORMER),
            migration_pause: registry.family(&MIGRATION_PAUSE),
            migration_behind: registry.family(&MIGRATION_BEHIND),
            idle_fault: registry.family(&IDLE_FAULT),
            registry,
        }
    }
}

impl Metrics {
    /// Returns the store with its requests measured as this worker's.
    pub fn measured(&self, store: &Store) -> Store {
        let s3 = S3Metrics::new(&self.registry);
        store.observed(Arc::new(move |event| match event {
            StoreEvent::Request {
                operation,
                outcome,
                took,
            } => s3.request(operation, outcome.as_str(), took),
            StoreEvent::Received(bytes) => s3.received(bytes),
            StoreEvent::Sent(bytes) => s3.sent(bytes),
        }))
    }

    /// Records that the function's response began.
    pub fn invoked(&self, function: &FunctionId, start: StartKind, took: Duration) {
        let series = self.invoke.with([function.as_str(), start.as_str()]);
        series.record_in(took, TraceRef::of(&Span::current()));
    }

    /// Records that an instance is ready after `took`.
    pub fn ready(&self, function: &FunctionId, start: StartKind, took: Duration) {
        let series = self.init.with([function.as_str(), start.as_str()]);
        series.record_in(took, TraceRef::of(&Span::current()));
    }

    /// Records that a start ended, with these phases.
    pub fn started(&self, start: StartKind, is_ready: bool, phases: &[(&'static str, Duration)]) {
        let outcome = if is_ready { "ready" } else { "failed" };
        self.starts.with([start.as_str(), outcome]).inc();
        for (phase, took) in phases {
            self.start_phase.with([start.as_str(), phase]).record(*took);
        }
    }

    /// Records that a parked instance was thawed.
    pub fn thawed(&self, took: Duration) {
        let series = self.start_phase.with([StartKind::Parked.as_str(), "thaw"]);
        series.record(took);
    }

    /// Records that a restore begins, with the snapshot's memory in this tier.
    pub fn restoring(&self, tier: MemoryTier) {
        self.restores.with([tier.as_str()]).inc();
    }

    /// Records what has made the processes of a restore.
    pub(crate) fn restored_by(&self, restorer: Restorer) {
        let by = match restorer {
            Restorer::Auto => PROGRAM,
            Restorer::Criu => CRIU,
        };
        self.restored.with([by]).inc();
    }

    /// Records that an instance of a function with `fresh` gets a copy by a reset, or why it gets a restored one.
    pub(crate) fn fresh_copy(&self, unfit: Option<&'static str>) {
        let by = if unfit.is_none() { "reset" } else { "restore" };
        self.fresh_copies.with([by, unfit.unwrap_or("none")]).inc();
    }

    /// Records that a page was not available.
    pub fn page_lost(&self) {
        self.lost.with([]).inc();
    }

    /// Records that an instance was asked to leave, and the durations if it did.
    pub fn migration_ended(&self, kind: &MigrationKind, phases: Option<&MigrationPhases>) {
        let kind = if *kind == MigrationKind::Move { "move" } else { "clone" };
        let outcome = if phases.is_some() { "left" } else { "stayed" };
        self.migrations.with([kind, outcome, kind]).inc();
        let Some(times) = phases else { return };
        for (phase, ms) in [
            ("settle", times.settle_ms),
            ("checkpoint", times.checkpoint_ms),
            ("restore", times.restore_ms),
            ("resume", times.resume_ms),
            ("whole", times.pause_ms),
        ] {
            self.migration_pause
                .with([phase])
                .record(Duration::from_secs_f64(ms.max(0.0) / 1e3));
        }
    }

    /// Records what has made the processes of an instance that runs here now.
    pub(crate) fn target_restored_by(&self, by: &RestoredBy) {
        let by = match by {
            RestoredBy::Program => PROGRAM,
            RestoredBy::Criu { .. } => CRIU,
        };
        self.target_restores.with([by]).inc();
        self.target_restores_former.with([by]).inc();
    }

    /// Records that all memory of an instance that migrated here has arrived.
    pub fn memory_followed(&self, took: Duration) {
        self.migration_behind.with([]).record(took);
    }

    /// Records how long a touch of an evicted page took.
    pub fn idle_fault(&self, took: Duration) {
        self.idle_fault.with([]).record(took);
    }

    /// Records that a checkpoint is over, and what it holds, if it succeeded.
    pub fn captured(&self, summary: Option<&SnapshotSummary>) {
        self.captures
            .with([if summary.is_some() { "published" } else { "failed" }])
            .inc();
        let Some(summary) = summary else { return };
        for (kind, bytes) in [
            ("memory", summary.memory_bytes),
            ("zero", summary.zero_bytes),
            ("stored", summary.stored_bytes),
            ("shared", summary.shared_bytes),
        ] {
            self.capture_bytes.with([kind]).add(bytes);
        }
    }

    /// Records that a snapshot's first restore, at its deploy, was `done`, `warned` or `failed`.
    pub(crate) fn rehearsed(&self, outcome: &'static str) {
        self.rehearsals.with([outcome]).inc();
    }

    /// Records how a boot used the snapshot of its runtime: `used`, `made` or `failed`.
    pub fn runtime_snapshot(&self, outcome: &'static str) {
        self.runtime_snapshots.with([outcome]).inc();
    }

    /// Records that a part of a checkpoint is over: `hook`, `freeze` or `publish`.
    pub fn capture_phase(&self, phase: &'static str, took: Duration) {
        self.capture_phase.with([phase]).record(took);
    }

    /// Returns how many starts ended `ready` or `failed`.
    pub(crate) fn starts(&self, start: StartKind, outcome: &str) -> u64 {
        self.starts.with([start.as_str(), outcome]).get()
    }

    /// Drops the metrics of a function that is gone.
    pub fn forget(&self, function: &FunctionId) {
        self.registry.forget(FUNCTION, function.as_str());
    }
}
