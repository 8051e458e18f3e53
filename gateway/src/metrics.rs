//! The gateway's metrics. A function's name becomes a label only once the scheduler has confirmed that the function
//! exists: callers choose the names they ask for.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use rekindle_telemetry::TraceRef;
use rekindle_telemetry::metrics::{
    Counter, Desc, Family, Histogram, HistogramValue, Kind, Registry, buckets, observe_process,
};
use rekindle_wire::api::StartKind;
use rekindle_wire::stats::{Latencies, StartStats, Traffic};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, VersionNumber};
use tokio::sync::Semaphore;
use tracing::Span;

use crate::budget::Budget;
use crate::slots::Slots;

/// The label with a function's name.
pub(crate) const FUNCTION: &str = "faas.invoked_name";
/// Label value for a function whose existence is not confirmed.
const UNKNOWN: &str = "(unknown)";
/// Start kind if no instance was found.
const NOT_STARTED: &str = "none";

const INVOCATIONS: Desc = Desc::new(
    "faas.invocations",
    "{invocation}",
    &[FUNCTION, "start"],
    "Invocations that the function answered, whatever its status.",
);
const ERRORS: Desc = Desc::new(
    "faas.errors",
    "{error}",
    &[FUNCTION, "start", "error.type"],
    "Invocations that failed: by the platform's error code, or `5xx` for a function's own answer of such a status \
     (which counts as an invocation too).",
);
const VERSIONS: Desc = Desc::new(
    "rekindle.gateway.version.invocations",
    "{invocation}",
    &[FUNCTION, "faas.version", "outcome"],
    "Invocations by the version that served, or was to serve: `answered`, or `failed` by a function's own 5xx too.",
);
const TIMEOUTS: Desc = Desc::new(
    "faas.timeouts",
    "{timeout}",
    &[FUNCTION],
    "Invocations that the function did not answer within its timeout.",
);
const COLD_STARTS: Desc = Desc::new(
    "faas.coldstarts",
    "{coldstart}",
    &[FUNCTION, "start"],
    "Answered invocations that waited for an instance to start: restored or booted.",
);
const REQUEST: Desc = Desc::new(
    "rekindle.request.duration",
    "s",
    &[FUNCTION, "start"],
    "From an invocation's arrival until its answer's headers, as the client sees it. Its exemplars name traces.",
)
.bounds(buckets::FINE);
const PLACE: Desc = Desc::new(
    "rekindle.gateway.place.duration",
    "s",
    &["start"],
    "From looking for a slot until there is one: nothing when a lease has one, else the wait for the scheduler.",
);
const AGAIN: Desc = Desc::new(
    "rekindle.gateway.attempts_again",
    "{attempt}",
    &["reason"],
    "Attempts that the function saw nothing of: the instance was `gone`, `busy` or another gateway's (`fenced`), \
     its server `refused`, its worker `unreachable`.",
);
const ABANDONED: Desc = Desc::new(
    "rekindle.gateway.abandoned",
    "{invocation}",
    &[],
    "Invocations whose client went away before the answer began.",
);
const REFUSED: Desc = Desc::new(
    "rekindle.gateway.refused",
    "{refusal}",
    &["reason"],
    "Clients turned away for the sake of others; the reasons are below the table.",
);
const BODY_MEMORY: Desc = Desc::new(
    "rekindle.gateway.body_memory",
    "By",
    &[],
    "Memory held by requests' bodies, in blocks of 4 KiB.",
);
const BODY_MEMORY_LIMIT: Desc = Desc::new(
    "rekindle.gateway.body_memory_limit",
    "By",
    &[],
    "How much they may hold at most.",
);
const IN_FLIGHT: Desc = Desc::new(
    "rekindle.gateway.in_flight",
    "{invocation}",
    &[],
    "Invocations being served, bodies of answers included.",
);
const IN_FLIGHT_LIMIT: Desc = Desc::new(
    "rekindle.gateway.in_flight_limit",
    "{invocation}",
    &[],
    "How many are taken at most.",
);
const CONNECTIONS: Desc = Desc::new(
    "rekindle.gateway.connections",
    "{connection}",
    &[],
    "Connections of clients.",
);
const TUNNELS: Desc = Desc::new(
    "rekindle.gateway.tunnels",
    "{connection}",
    &[],
    "Connections of clients that a function changed to another protocol, such as WebSocket.",
);
const HANDSHAKES: Desc = Desc::new(
    "rekindle.gateway.handshakes",
    "{handshake}",
    &["outcome"],
    "TLS handshakes with clients: `made`, `failed`, or `timed_out`.",
);
const CERTIFICATE_READS: Desc = Desc::new(
    "rekindle.gateway.certificate.reads",
    "{read}",
    &["outcome"],
    "Certificates for clients that were read as their files had changed: `loaded`, or `failed`, where the one of \
     before stays; at the start, those that cannot be used.",
);
const ISSUER_KEYS: Desc = Desc::new(
    "rekindle.gateway.issuer_keys.fetches",
    "{fetch}",
    &["outcome"],
    "Fetches of the keys of issuers of tokens: `loaded`, or `failed`, where earlier ones are used for up to an hour.",
);
const CERTIFICATE_EXPIRY: Desc = Desc::new(
    "rekindle.gateway.certificate.expiry",
    "s",
    &["certificate"],
    "Until when each certificate for clients is good, in seconds since 1970.",
);
const WAITING: Desc = Desc::new(
    "rekindle.gateway.waiting",
    "{invocation}",
    &[],
    "Invocations that wait here for a slot.",
);
const LEASES: Desc = Desc::new(
    "rekindle.gateway.leases",
    "{lease}",
    &[],
    "Instances whose slots this gateway may use without asking.",
);
const SLOTS: Desc = Desc::new(
    "rekindle.gateway.slots",
    "{slot}",
    &["state"],
    "Slots of leased instances: `used` or `free`.",
);

/// What the gateway may take at once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) in_flight: usize,
    pub(crate) connections: usize,
    pub(crate) body_memory_bytes: u64,
}

pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    invocations: Family<Counter, 2>,
    errors: Family<Counter, 3>,
    versions: Family<Counter, 3>,
    timeouts: Family<Counter, 1>,
    cold_starts: Family<Counter, 2>,
    requests: Family<Histogram, 2>,
    place: Family<Histogram, 1>,
    again: Family<Counter, 1>,
    abandoned: Family<Counter, 0>,
    refused: Family<Counter, 1>,
    handshakes: Family<Counter, 1>,
    certificate_reads: Family<Counter, 1>,
    issuer_keys: Family<Counter, 1>,
    /// Cloned for each tunnel while it is open.
    pub(crate) tunnels: Arc<()>,
    known: RwLock<HashSet<FunctionId>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new("gateway");
        Self {
            invocations: registry.family(&INVOCATIONS),
            errors: registry.family(&ERRORS),
            versions: registry.family(&VERSIONS),
            timeouts: registry.family(&TIMEOUTS),
            cold_starts: registry.family(&COLD_STARTS),
            requests: registry.family(&REQUEST),
            place: registry.family(&PLACE),
            again: registry.family(&AGAIN),
            abandoned: registry.family(&ABANDONED),
            refused: registry.family(&REFUSED),
            handshakes: registry.family(&HANDSHAKES),
            certificate_reads: registry.family(&CERTIFICATE_READS),
            issuer_keys: registry.family(&ISSUER_KEYS),
            tunnels: Arc::default(),
            known: RwLock::default(),
            registry,
        }
    }

    /// Registers what is read at each scrape.
    pub(crate) fn observe(
        &self,
        limits: Limits,
        slots: &Arc<Slots>,
        in_flight: &Arc<Semaphore>,
        connections: &Arc<Semaphore>,
        bodies: &Budget,
    ) {
        let taken = |of: &Arc<Semaphore>, limit: usize| {
            let of = Arc::clone(of);
            move || limit.saturating_sub(of.available_permits()) as f64
        };
        let (limit, sockets) = (limits.in_flight, limits.connections);
        let registry = &self.registry;
        registry.observe_one(Kind::Gauge, &IN_FLIGHT, taken(in_flight, limit));
        registry.observe_one(Kind::Gauge, &IN_FLIGHT_LIMIT, move || limit as f64);
        registry.observe_one(Kind::Gauge, &CONNECTIONS, taken(connections, sockets));
        let tunnels = Arc::downgrade(&self.tunnels);
        // One is the registry's owner.
        let open = move || tunnels.strong_count().saturating_sub(1) as f64;
        registry.observe_one(Kind::Gauge, &TUNNELS, open);
        let (memory, bodies) = (limits.body_memory_bytes, bodies.clone());
        registry.observe_one(Kind::Gauge, &BODY_MEMORY, move || bodies.used() as f64);
        registry.observe_one(Kind::Gauge, &BODY_MEMORY_LIMIT, move || memory as f64);
        // Weak, since the slots' keepers hold the registry's owner.
        let levels = {
            let slots = Arc::downgrade(slots);
            move || slots.upgrade().map(|s| s.levels()).unwrap_or_default()
        };
        let now = levels.clone();
        registry.observe_one(Kind::Gauge, &WAITING, move || now().waiting as f64);
        let now = levels.clone();
        registry.observe_one(Kind::Gauge, &LEASES, move || now().leases as f64);
        registry.observe(Kind::Gauge, &SLOTS, move || {
            let now = levels();
            let free = now.slots.saturating_sub(now.used);
            let one = |state: &str, n: u32| (vec![state.to_owned()], f64::from(n));
            vec![one("used", now.used), one("free", free)]
        });
        observe_process(registry);
    }

    /// Registers the expiry of the certificates shown to clients.
    pub(crate) fn observe_certificates(
        &self,
        expiries: impl Fn() -> Vec<(Arc<str>, SystemTime)> + Send + Sync + 'static,
    ) {
        self.registry.observe(Kind::Gauge, &CERTIFICATE_EXPIRY, move || {
            let unix_s = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let one = |(name, expires): (Arc<str>, SystemTime)| (vec![name.to_string()], unix_s(expires));
            expiries().into_iter().map(one).collect()
        });
    }

    /// Begins to measure an invocation that arrived at `arrived`; `client` is set if its sender samples it.
    pub(crate) fn measure(
        &self,
        function: &FunctionId,
        arrived: Instant,
        client: Option<TraceRef>,
    ) -> MeasuredInvocation<'_> {
        MeasuredInvocation {
            metrics: self,
            function: function.clone(),
            arrived,
            client,
            is_over: false,
        }
    }

    /// Records that a slot was found for an invocation with this start kind.
    pub(crate) fn placed(&self, function: &FunctionId, start: StartKind, took: Duration) {
        if !self.known.read().contains(function) {
            self.known.write().insert(function.clone());
        }
        self.place.with([start.as_str()]).record(took);
    }

    /// Counts an attempt of which the function saw nothing.
    pub(crate) fn attempted_again(&self, reason: &'static str) {
        self.again.with([reason]).inc();
    }

    /// Counts a refused client.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.with([reason]).inc();
    }

    /// Counts a finished handshake with a client.
    pub(crate) fn handshake(&self, outcome: &'static str) {
        self.handshakes.with([outcome]).inc();
    }

    /// Counts a certificate that was read.
    pub(crate) fn certificate_read(&self, outcome: &'static str) {
        self.certificate_reads.with([outcome]).inc();
    }

    pub(crate) fn issuer_keys_fetched(&self, is_loaded: bool) {
        let outcome = if is_loaded { "loaded" } else { "failed" };
        self.issuer_keys.with([outcome]).inc();
    }

    /// The counts of each function known to exist.
    pub(crate) fn traffic(&self) -> BTreeMap<FunctionId, Traffic> {
        let mut all: BTreeMap<FunctionId, Traffic> = BTreeMap::new();
        let mut of = |name: &str, start: &str, add: &dyn Fn(&mut StartStats)| {
            if let Ok(name) = name.parse() {
                add(all.entry(name).or_default().entry(start.to_owned()).or_default());
            }
        };
        self.requests.each(|[name, start], series| {
            let HistogramValue { bounds, counts, .. } = series.read();
            let bounds = bounds.iter().map(|s| (s * 1e6).round() as u64).chain([u64::MAX]);
            let latencies: Latencies = bounds.zip(counts).filter(|(_, count)| *count > 0).collect();
            of(name, start, &|stats| stats.latencies = latencies.clone());
        });
        self.invocations
            .each(|[name, start], count| of(name, start, &|stats| stats.answered = count.get()));
        self.errors.each(|[name, start, code], count| {
            of(name, start, &|stats| {
                stats.errors.insert(code.to_owned(), count.get());
            });
        });
        all
    }

    /// Drops the counts of a deleted function.
    pub(crate) fn forget(&self, function: &FunctionId) {
        self.known.write().remove(function);
        self.registry.forget(FUNCTION, function.as_str());
    }

    fn count_version(&self, function: &str, placed: Option<ServingInstance>, failed: bool) {
        if let Some(ServingInstance { version, .. }) = placed {
            let outcome = if failed { "failed" } else { "answered" };
            self.versions.with([function, &version.to_string(), outcome]).inc();
        }
    }

    fn label<'a>(&self, function: &'a FunctionId) -> &'a str {
        if self.known.read().contains(function) {
            function.as_str()
        } else {
            UNKNOWN
        }
    }
}

/// What serves an invocation, or was to serve it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServingInstance {
    /// How the instance came to be.
    pub(crate) start: StartKind,
    pub(crate) version: VersionNumber,
}

/// An invocation being measured. If it is dropped early, its client went away.
pub(crate) struct MeasuredInvocation<'a> {
    metrics: &'a Metrics,
    function: FunctionId,
    arrived: Instant,
    client: Option<TraceRef>,
    is_over: bool,
}

impl MeasuredInvocation<'_> {
    /// Records that the function's response begins.
    pub(crate) fn answered(mut self, placed: Option<ServingInstance>, status: http::StatusCode, span: &Span) {
        self.is_over = true;
        let Self { metrics, function, .. } = &self;
        let start = placed.map_or(StartKind::Warm, |placed| placed.start);
        let (name, kind) = (function.as_str(), start.as_str());
        metrics.count_version(name, placed, status.is_server_error());
        metrics.invocations.with([name, kind]).inc();
        if start.is_cold() {
            metrics.cold_starts.with([name, kind]).inc();
        }
        if status.is_server_error() {
            metrics.errors.with([name, kind, "5xx"]).inc();
        }
        let took = self.arrived.elapsed();
        rekindle_telemetry::keep_if_slow(span, took);
        metrics
            .requests
            .with([name, kind])
            .record_in(took, TraceRef::of(span).or(self.client));
    }

    /// Records a failure; `placed` is what was to serve it, if an instance was found.
    pub(crate) fn failed(mut self, placed: Option<ServingInstance>, error: &ApiError, span: &Span) {
        self.is_over = true;
        let Self { metrics, function, .. } = &self;
        let name = metrics.label(function);
        let kind = placed.map_or(NOT_STARTED, |placed| placed.start.as_str());
        metrics.count_version(name, placed, true);
        metrics.errors.with([name, kind, error.code.as_str()]).inc();
        if error.code == ErrorCode::FunctionTimeout {
            metrics.timeouts.with([name]).inc();
        }
        rekindle_telemetry::keep(span);
        let took = self.arrived.elapsed();
        metrics
            .requests
            .with([name, kind])
            .record_in(took, TraceRef::of(span).or(self.client));
    }
}

impl Drop for MeasuredInvocation<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.metrics.abandoned.with([]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::SchedulerClient;
    use rekindle_telemetry::metrics::{documented, exposition};

    fn error(code: ErrorCode) -> ApiError {
        ApiError::new(code, "no")
    }

    #[test]
    fn a_name_that_nobody_deployed_is_no_label() {
        let metrics = Metrics::new();
        let (known, made_up) = ("known".parse().unwrap(), "made-up".parse().unwrap());
        metrics.placed(&known, StartKind::Warm, Duration::ZERO);
        for name in [&known, &made_up] {
            let measured = metrics.measure(name, Instant::now(), None);
            measured.failed(None, &error(ErrorCode::FunctionNotFound), &Span::none());
        }
        drop(metrics.measure(&made_up, Instant::now(), None));
        let (_, text) = exposition(&metrics.registry, &http::HeaderMap::new());
        assert!(!text.contains("made-up"), "{text}");
        for series in [
            "faas_errors_total{faas_invoked_name=\"known\",start=\"none\",error_type=\"function_not_found\"} 1",
            "faas_errors_total{faas_invoked_name=\"(unknown)\",start=\"none\",error_type=\"function_not_found\"} 1",
            "rekindle_gateway_abandoned_total 1",
        ] {
            assert!(text.contains(series), "{series}: {text}");
        }
    }

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::new();
        let token = http::HeaderValue::from_static("token");
        let scheduler =
            SchedulerClient::new("127.0.0.1:1", token, None, rekindle_relay::InProcessRoles::default()).unwrap();
        let slots = Slots::new(scheduler, Duration::ZERO);
        let some = Arc::new(Semaphore::new(1));
        metrics.observe(Limits::default(), &slots, &some, &some, &Budget::new(1));
        metrics.observe_certificates(Vec::new);
        let document = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        assert_eq!(documented(&metrics.registry, &document), Ok(()));
    }
}
