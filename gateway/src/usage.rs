//! Counts what invocations use, by function, version and day, and reports it to the scheduler.
//!
//! A report has a number and is repeated as it is until it is answered, so that it counts once. A gateway that is
//! killed loses what it has not reported: at most what ended within [`REPORT_EVERY`] and one report under way.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use rekindle_wire::api::StartKind;
use rekindle_wire::clock::unix_s;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{UsageCounts, UsageEntry, UsageReport};
use rekindle_wire::{FunctionId, VersionNumber};

use crate::lease::LeasedInstance;
use crate::scheduler::SchedulerClient;

/// Interval between reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// Pause before a report is repeated.
const AGAIN: Duration = Duration::from_millis(500);
/// Number of entries in a report.
const ENTRIES_MAX: usize = 5_000;
/// Number of entries that wait, if the scheduler does not answer. Further ones are not counted.
const WAITING_MAX: usize = 100_000;
/// Limit of the last report.
const LAST_LIMIT: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;
/// Number of an answer's bytes that are counted at once, while it passes.
const COUNTED_AT: u64 = MIB;

/// A day, a function and a version.
type Key = (u32, FunctionId, VersionNumber);

/// What is not reported yet.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    open: Mutex<UnreportedUsage>,
    /// Held while a report is under way.
    reporting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct UnreportedUsage {
    counts: BTreeMap<Key, UsageCounts>,
    /// The report that is not answered yet.
    unanswered: Option<Arc<UsageReport>>,
    sequence: u64,
    lost: u64,
}

impl Usage {
    fn add(&self, key: Key, counts: &UsageCounts) {
        let mut open = self.open.lock();
        if open.counts.len() >= WAITING_MAX && !open.counts.contains_key(&key) {
            if open.lost == 0 {
                tracing::warn!("usage is not counted: the scheduler takes no reports");
            }
            open.lost += 1;
            return;
        }
        open.counts.entry(key).or_default().add(counts);
    }

    /// The report to send next, the unanswered one if there is one.
    fn next(&self, gateway: &GatewayId) -> Option<Arc<UsageReport>> {
        let mut open = self.open.lock();
        if open.unanswered.is_none() && !open.counts.is_empty() {
            let mut entries = Vec::new();
            while entries.len() < ENTRIES_MAX
                && let Some(((day, function, version), counts)) = open.counts.pop_first()
            {
                entries.push(UsageEntry {
                    day,
                    function,
                    version,
                    counts,
                });
            }
            open.sequence += 1;
            open.lost = 0;
            open.unanswered = Some(Arc::new(UsageReport {
                gateway: gateway.clone(),
                sequence: open.sequence,
                entries,
            }));
        }
        open.unanswered.clone()
    }

    fn answered(&self) {
        self.open.lock().unanswered = None;
    }
}

/// Reports usage. Runs until dropped.
pub(crate) async fn report(usage: Arc<Usage>, scheduler: SchedulerClient, gateway: GatewayId) {
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        while !send_all(&usage, &scheduler, &gateway).await {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Reports what is left when the gateway shuts down.
pub(crate) async fn report_last(usage: &Usage, scheduler: &SchedulerClient, gateway: &GatewayId) {
    match tokio::time::timeout(LAST_LIMIT, send_all(usage, scheduler, gateway)).await {
        Ok(true) => {}
        Ok(false) | Err(_) => tracing::debug!("the last usage could not be reported"),
    }
}

async fn send_all(usage: &Usage, scheduler: &SchedulerClient, gateway: &GatewayId) -> bool {
    let _alone = usage.reporting.lock().await;
    while let Some(report) = usage.next(gateway) {
        if let Err(error) = scheduler.report_usage(&report).await {
            tracing::debug!(%error, "usage could not be reported");
            return false;
        }
        usage.answered();
    }
    true
}

/// Measures an invocation from when its instance gets it.
#[derive(Debug)]
pub(crate) struct Meter {
    usage: Arc<Usage>,
    function: FunctionId,
    version: VersionNumber,
    memory_mib: u64,
    since: Instant,
}

impl Meter {
    pub(crate) fn begin(usage: &Arc<Usage>, function: &FunctionId, leased: &LeasedInstance) -> Self {
        Self {
            usage: Arc::clone(usage),
            function: function.clone(),
            version: leased.version,
            memory_mib: leased.memory_bytes.div_ceil(MIB),
            since: Instant::now(),
        }
    }

    /// The invocation failed in its instance.
    pub(crate) fn failed(&self, start: StartKind) {
        self.count(start, false, 0);
    }

    /// The answer begins. What it takes counts until the function is done with it.
    pub(crate) fn answered(self, start: StartKind, status: http::StatusCode) -> AnswerMeter {
        AnswerMeter {
            meter: Arc::new(self),
            start,
            is_ok: !status.is_server_error(),
            sent: Arc::default(),
        }
    }

    fn count(&self, start: StartKind, is_ok: bool, egress_bytes: u64) {
        let took = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut counts = UsageCounts {
            ok: u64::from(is_ok),
            errors: u64::from(!is_ok),
            egress_bytes,
            ..UsageCounts::default()
        };
        *counts.time(start) = self.memory_mib.saturating_mul(took);
        self.add(&counts);
    }

    /// Counts bytes of an answer that goes on.
    fn passed(&self, egress_bytes: u64) {
        self.add(&UsageCounts {
            egress_bytes,
            ..UsageCounts::default()
        });
    }

    /// Adds to what was used today.
    fn add(&self, counts: &UsageCounts) {
        let day = unix_s() / 86_400;
        let key = (u32::try_from(day).unwrap_or(0), self.function.clone(), self.version);
        self.usage.add(key, counts);
    }
}

/// An answer in transit, counted when this is dropped, but for the bytes that were counted while it passed.
#[derive(Debug)]
pub(crate) struct AnswerMeter {
    meter: Arc<Meter>,
    start: StartKind,
    is_ok: bool,
    /// Bytes that are not counted yet.
    sent: Arc<AtomicU64>,
}

impl AnswerMeter {
    /// The answer's body, whose bytes are counted.
    pub(crate) fn counted(&self, body: Body) -> CountedBody {
        CountedBody {
            body,
            meter: Arc::clone(&self.meter),
            sent: Arc::clone(&self.sent),
        }
    }
}

impl Drop for AnswerMeter {
    fn drop(&mut self) {
        let sent = self.sent.swap(0, Ordering::Relaxed);
        self.meter.count(self.start, self.is_ok, sent);
    }
}

/// A body whose bytes are counted while they pass: an answer may last as long as its function's timeout.
pub(crate) struct CountedBody {
    body: Body,
    meter: Arc<Meter>,
    sent: Arc<AtomicU64>,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let bytes = data.len() as u64;
            let sent = self.sent.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
            if sent >= COUNTED_AT {
                self.meter.passed(self.sent.swap(0, Ordering::Relaxed));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn key(function: &str) -> Key {
        (7, function.parse().unwrap(), VersionNumber(1))
    }

    fn one() -> UsageCounts {
        UsageCounts {
            ok: 1,
            ..UsageCounts::default()
        }
    }

    #[test]
    fn a_report_stays_as_it_is_until_it_is_answered() {
        let (usage, gateway) = (Usage::default(), GatewayId::generate());
        assert!(usage.next(&gateway).is_none());
        usage.add(key("a"), &one());
        usage.add(key("a"), &one());
        let first = usage.next(&gateway).unwrap();
        assert_eq!((first.sequence, first.entries[0].counts.ok), (1, 2));
        usage.add(key("a"), &one());
        assert_eq!(usage.next(&gateway).unwrap(), first);
        usage.answered();
        let second = usage.next(&gateway).unwrap();
        assert_eq!((second.sequence, second.entries[0].counts.ok), (2, 1));
        usage.answered();
        assert!(usage.next(&gateway).is_none());
    }

    #[tokio::test]
    async fn bytes_of_a_long_answer_are_counted_while_it_passes_and_each_once() {
        let (usage, gateway) = (Arc::new(Usage::default()), GatewayId::generate());
        let meter = Meter {
            usage: Arc::clone(&usage),
            function: "a".parse().unwrap(),
            version: VersionNumber(1),
            memory_mib: 64,
            since: Instant::now(),
        };
        let answering = meter.answered(StartKind::Warm, http::StatusCode::OK);
        let pieces = futures::stream::iter([3 * MIB / 4, MIB / 2, 7].map(|bytes| {
            let piece = Bytes::from(vec![0; usize::try_from(bytes).unwrap()]);
            Ok::<_, std::io::Error>(piece)
        }));
        let mut body = answering.counted(Body::from_stream(pieces));
        let counted = || {
            let report = usage.next(&gateway);
            usage.answered();
            report.map(|report| (report.entries[0].counts.egress_bytes, report.entries[0].counts.ok))
        };
        body.frame().await.unwrap().unwrap();
        assert_eq!(counted(), None);
        body.frame().await.unwrap().unwrap();
        assert_eq!(counted(), Some((5 * MIB / 4, 0)));
        body.frame().await.unwrap().unwrap();
        drop((body, answering));
        assert_eq!(counted(), Some((7, 1)));
    }

    #[test]
    fn what_waits_is_bounded_and_reports_are_of_a_size() {
        let (usage, gateway) = (Usage::default(), GatewayId::generate());
        for n in 0..WAITING_MAX + 10 {
            usage.add(key(&format!("f{n}")), &one());
        }
        usage.add(key("f0"), &one());
        let open = usage.open.lock();
        assert_eq!(
            (open.counts.len(), open.lost, open.counts[&key("f0")].ok),
            (WAITING_MAX, 10, 2)
        );
        drop(open);
        assert_eq!(usage.next(&gateway).unwrap().entries.len(), ENTRIES_MAX);
    }
}
