//! Keeps the leases in order: renews what is used, returns what is not, and hears what the scheduler wants back. And tells it what was
//! counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rekindle_identity::Member;
use rekindle_wire::stats::TrafficReport;

use crate::metrics::Metrics;
use crate::slots::Slots;
use crate::workers::Workers;

/// The shortest lease is half a second; this leaves it several chances to be renewed.
const TICK: Duration = Duration::from_millis(100);
const WATCH: Duration = Duration::from_secs(20);
/// A report that was lost is told again while its leases last.
const REPORT_AGAIN: Duration = Duration::from_millis(100);
const TELL_EVERY: Duration = Duration::from_secs(1);
/// For so long after the last news it is told each time, as it may have news of the same traces.
const TELL_ON: Duration = Duration::from_secs(3);
/// How long the scheduler may hear nothing of a gateway that counts nothing.
const TELL_ANYWAY: Duration = Duration::from_secs(3);
/// How long an ending gateway may take to tell its last.
const TELL_LIMIT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_secs(20);

/// Reports to the scheduler when there is something to tell. Runs until it is dropped.
pub(crate) async fn report(slots: Arc<Slots>) {
    loop {
        // Either is a reason to look; a slot that got free is returned at once.
        let _ = tokio::time::timeout(TICK, slots.returnable.notified()).await;
        // What could not be told is told again; what is held goes on being used, as nobody can say otherwise.
        if let Err(error) = slots.report().await {
            tracing::debug!(%error, "leases could not be reported");
            tokio::time::sleep(REPORT_AGAIN).await;
        }
    }
}

/// Tells the scheduler what was counted, when there is something new: `fn stats` and `fn top` ask it for all gateways together. And which traces
/// are kept here, and hears which others keep. Runs until it is dropped.
pub(crate) async fn tell(slots: Arc<Slots>, metrics: Arc<Metrics>) {
    let mut told = BTreeMap::new();
    let mut last = tokio::time::Instant::now();
    let mut news = last;
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let mut functions = metrics.traffic();
        let all = functions.clone();
        functions.retain(|name, traffic| told.get(name) != Some(traffic));
        let kept_traces = rekindle_telemetry::kept_here();
        if !functions.is_empty() || !kept_traces.is_empty() {
            news = tokio::time::Instant::now();
        }
        // With nothing in it, it says that this gateway is there, and hears what is gone.
        if news.elapsed() >= TELL_ON && last.elapsed() < TELL_ANYWAY {
            continue;
        }
        last = tokio::time::Instant::now();
        let report = TrafficReport {
            gateway: slots.gateway.clone(),
            functions,
            kept_traces,
        };
        match slots.scheduler.tell(&report).await {
            Ok(answer) => {
                rekindle_telemetry::keep_told(&answer.kept_traces);
                told = if answer.known { all } else { BTreeMap::new() };
                for name in &answer.gone {
                    metrics.forget(name);
                    told.remove(name);
                }
            }
            Err(error) => tracing::debug!(%error, "counts could not be told"),
        }
    }
}

/// Tells everything that was counted once more, as the gateway ends.
pub(crate) async fn tell_last(slots: &Slots, metrics: &Metrics) {
    let report = TrafficReport {
        gateway: slots.gateway.clone(),
        functions: metrics.traffic(),
        kept_traces: rekindle_telemetry::kept_here(),
    };
    match tokio::time::timeout(TELL_LIMIT, slots.scheduler.tell(&report)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the last counts could not be told"),
        Err(_) => tracing::debug!("the scheduler does not hear the last counts"),
    }
}

/// Closes connections to workers that were not used for long. Runs until it is dropped.
pub(crate) async fn sweep(workers: Workers) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        workers.sweep();
    }
}

/// Closes connections to workers when a member is revoked: those that nobody uses would not notice. Runs until it is
/// dropped.
pub(crate) async fn hang_up(member: Option<Arc<Member>>, workers: Workers) {
    let Some(member) = member else {
        return std::future::pending().await;
    };
    loop {
        member.revoked().changed().await;
        workers.close_idle();
    }
}

/// Watches for leases that are wanted back. Runs until it is dropped.
pub(crate) async fn watch(slots: Arc<Slots>) {
    loop {
        match slots.scheduler.recalls(&slots.gateway, WATCH).await {
            Ok(answer) => slots.close(&answer.give_back),
            Err(error) => {
                tracing::debug!(%error, "recalls cannot be watched");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
