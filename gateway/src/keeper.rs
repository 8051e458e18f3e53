//! Maintains the leases: renews those in use, returns the others, and receives recalls from the scheduler. It also
//! reports the counts to the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_identity::Member;
use rekindle_wire::stats::TrafficReport;

use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::quotas::Quotas;
use crate::routes::Routes;
use crate::slots::Slots;
use crate::workers::Workers;

/// The shortest lease is half a second; this leaves several chances to renew it.
const TICK: Duration = Duration::from_millis(100);
const WATCH: Duration = Duration::from_secs(20);
/// A lost report is repeated while its leases last.
const REPORT_AGAIN: Duration = Duration::from_millis(100);
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long after the last news every tick sends a report, since the scheduler may have news of the same traces.
const TELL_ON: Duration = Duration::from_secs(3);
/// Longest silence towards the scheduler of a gateway that counts nothing.
const TELL_ANYWAY: Duration = Duration::from_secs(3);
/// Limit for the last report of a gateway that shuts down.
const TELL_LIMIT: Duration = Duration::from_secs(1);
/// How long a question about aliases stays open: short, so that the scheduler soon knows which gateways are gone.
const FOLLOW: Duration = Duration::from_secs(5);
/// Pause before aliases are asked for again. Those known remain in force.
const FOLLOW_AGAIN: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_secs(20);

/// Reports leases to the scheduler when there is something to report. Runs until dropped.
pub(crate) async fn report(slots: Arc<Slots>) {
    loop {
        // Either is a reason to look; a slot that becomes free is returned at once.
        let _ = tokio::time::timeout(TICK, slots.returns.due()).await;
        // A report that failed is repeated. Leases remain in use, since they cannot be recalled meanwhile.
        if let Err(error) = slots.report().await {
            tracing::debug!(%error, "leases could not be reported");
            tokio::time::sleep(REPORT_AGAIN).await;
        }
    }
}

/// Reports new counts to the scheduler: `fn stats` and `fn top` ask it for all gateways together. Runs until dropped.
pub(crate) async fn tell(
    slots: Arc<Slots>,
    metrics: Arc<Metrics>,
    routes: Arc<Routes>,
    keys: Arc<Keys>,
    quotas: Arc<Quotas>,
    functions_at: Option<String>,
) {
    let (mut told, mut told_shares) = (BTreeMap::new(), Vec::new());
    let mut told_used = BTreeMap::new();
    let mut last = tokio::time::Instant::now();
    let mut news = last;
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let mut functions = metrics.traffic();
        let all = functions.clone();
        functions.retain(|name, traffic| told.get(name) != Some(traffic));
        let all_shares = routes.shares();
        let mut shares = all_shares.clone();
        shares.retain(|share| !told_shares.contains(share));
        let keys_used = keys.used(&told_used);
        if !functions.is_empty() || !shares.is_empty() || !keys_used.is_empty() {
            news = tokio::time::Instant::now();
        }
        // An empty report says that this gateway is alive, and learns which functions are gone.
        if news.elapsed() >= TELL_ON && last.elapsed() < TELL_ANYWAY {
            continue;
        }
        last = tokio::time::Instant::now();
        let report = TrafficReport {
            gateway: slots.gateway.clone(),
            functions,
            shares,
            keys_used: keys_used.clone(),
            functions_at: functions_at.clone(),
        };
        match slots.scheduler.tell(&report).await {
            Ok(answer) => {
                if let Some(told) = answer.quotas {
                    quotas.apply(told, Instant::now());
                }
                told_used.retain(|id, _| keys.knows(id));
                told_used.extend(keys_used);
                (told, told_shares) = match answer.known {
                    true => (all, all_shares),
                    false => (BTreeMap::new(), Vec::new()),
                };
                for name in &answer.gone {
                    metrics.forget(name);
                    told.remove(name);
                }
            }
            Err(error) => tracing::debug!(%error, "counts could not be told"),
        }
    }
}

/// Reports all counts once more at shutdown.
pub(crate) async fn tell_last(slots: &Slots, metrics: &Metrics, routes: &Routes, keys: &Keys) {
    let report = TrafficReport {
        gateway: slots.gateway.clone(),
        functions: metrics.traffic(),
        shares: routes.shares(),
        keys_used: keys.used(&BTreeMap::new()),
        functions_at: None,
    };
    match tokio::time::timeout(TELL_LIMIT, slots.scheduler.tell(&report)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the last counts could not be told"),
        Err(_) => tracing::debug!("the scheduler does not hear the last counts"),
    }
}

/// Closes connections to workers that were unused for long. Runs until dropped.
pub(crate) async fn sweep(workers: Workers) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        workers.sweep();
    }
}

/// Closes connections to workers when a member is revoked: unused ones would not notice. Runs until dropped.
pub(crate) async fn hang_up(member: Option<Arc<Member>>, workers: Workers) {
    let Some(member) = member else {
        return std::future::pending().await;
    };
    loop {
        member.revoked().changed().await;
        workers.close_idle();
    }
}

/// Follows what aliases name. Runs until dropped.
pub(crate) async fn follow(routes: Arc<Routes>, slots: Arc<Slots>) {
    loop {
        match slots
            .scheduler
            .routes(&slots.gateway, routes.revision(), FOLLOW, None)
            .await
        {
            Ok(told) => routes.apply(told),
            Err(error) => {
                tracing::debug!(%error, "aliases cannot be followed");
                tokio::time::sleep(FOLLOW_AGAIN).await;
            }
        }
    }
}

/// Follows which keys there are. Runs until dropped.
pub(crate) async fn follow_keys(keys: Arc<Keys>, slots: Arc<Slots>) {
    loop {
        match slots.scheduler.keys(&slots.gateway, keys.revision(), FOLLOW).await {
            Ok(told) => keys.apply(told),
            Err(error) => {
                tracing::debug!(%error, "keys cannot be followed");
                tokio::time::sleep(FOLLOW_AGAIN).await;
            }
        }
    }
}

/// Watches for recalled leases. Runs until dropped.
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
