//! What namespaces use by day. Gateways report what invocations used; here it is counted once, and what is stored is
//! added up. Days are UTC's.

pub(crate) mod today;

use std::time::Duration;

use rekindle_wire::Namespace;
use rekindle_wire::api::{QuotaKind, USAGE_DAYS_MAX};
use rekindle_wire::clock::unix_s;
use rekindle_wire::internal::{GatewayQuota, GatewayQuotas, ReachedEgress, UsageReport};

use self::today::Metering;
use crate::clock::day_of;
use crate::cluster::ClusterState;
use crate::state::Scheduler;
use crate::store::StoreError;

/// Interval at which what is stored is added up.
const STORED_EVERY: Duration = Duration::from_mins(5);
/// Number of those after which the oldest days are forgotten.
const TRIM_EVERY: u32 = 12;
/// How long a source of reports is remembered, in seconds. It repeats a report for a shorter time.
const SOURCE_KEPT_S: i64 = 30 * 86_400;

/// Counts a report, once.
///
/// # Errors
/// If the database fails: the report is to be sent again.
pub(crate) async fn count(scheduler: &Scheduler, report: &UsageReport) -> Result<(), StoreError> {
    if scheduler.store.count_usage(report, unix_s()).await? {
        scheduler.metering.note(report);
        scheduler.metrics.usage.counted(report);
    }
    Ok(())
}

/// Loads what was used today.
pub(crate) async fn read(scheduler: &Scheduler) -> Result<(), StoreError> {
    let day = day_of(unix_s());
    let egress = scheduler.store.egress_on(day).await?;
    scheduler.metering.set(day, egress);
    Ok(())
}

/// What each gateway keeps of quotas, if as many share them.
pub(crate) fn for_gateways(metering: &Metering, state: &ClusterState, gateways: usize) -> GatewayQuotas {
    let day = day_of(unix_s());
    let of = |name: &Namespace| {
        let (limits, _) = state.fleet.quotas.of(name.as_str());
        let egress = limits.limit(QuotaKind::Egress).and_then(|limit| {
            let used = metering.egress(name.as_str(), day);
            (used >= limit).then_some(ReachedEgress { limit, used, day })
        });
        let quota = GatewayQuota {
            requests_per_s: limits.requests_per_s,
            gateways: gateways.max(1) as u64,
            egress,
        };
        let is_any = quota.requests_per_s.is_some() || quota.egress.is_some();
        is_any.then(|| (name.clone(), quota))
    };
    state.catalog.namespaces().iter().filter_map(of).collect()
}

/// Adds up what is stored, and forgets old days. Runs until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let mut round: u32 = 0;
    loop {
        if let Err(error) = look(&scheduler, round.is_multiple_of(TRIM_EVERY)).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "what is stored cannot be added up; trying again");
        }
        round = round.wrapping_add(1);
        tokio::time::sleep(STORED_EVERY).await;
    }
}

async fn look(scheduler: &Scheduler, trims: bool) -> Result<(), StoreError> {
    let stored = scheduler.store.stored(None).await?;
    scheduler.metering.set_stored(&stored);
    let now = unix_s();
    let day = day_of(now);
    scheduler.store.count_stored(&stored, day, now).await?;
    if trims {
        let oldest = day.saturating_sub(USAGE_DAYS_MAX - 1);
        scheduler.store.trim_usage(oldest, now - SOURCE_KEPT_S).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rekindle_wire::api::Quota;

    use super::today::tests::report;
    use super::*;
    use crate::catalog::Catalog;
    use crate::quotas::Quotas;

    #[test]
    fn a_gateway_is_told_of_limits_that_it_keeps() {
        let metering = Metering::default();
        let names = ["team", "other", "default"].map(|name| name.parse().unwrap());
        let mut state = ClusterState {
            catalog: Catalog::new(names.into()),
            ..ClusterState::default()
        };
        let limits = Quota {
            requests_per_s: Some(10),
            egress_bytes_per_day: Some(100),
            ..Quota::default()
        };
        state.fleet.quotas = Quotas::new(HashMap::from([("team".to_owned(), limits)]), Quota::default());
        let told = for_gateways(&metering, &state, 2);
        assert_eq!(told.len(), 1);
        let team = told[&"team".parse().unwrap()];
        assert_eq!((team.requests_per_s, team.gateways, team.egress), (Some(10), 2, None));
        metering.note(&report(day_of(unix_s()), "a.team", 100));
        let told = for_gateways(&metering, &state, 0);
        let team = told[&"team".parse().unwrap()];
        assert_eq!((team.gateways, team.egress.unwrap().used), (1, 100));
    }
}
