//! Quotas of namespaces, and what is in use of them.

use rekindle_wire::Namespace;
use rekindle_wire::api::{Quota, QuotaStatus, QuotaUse};
use rekindle_wire::clock::unix_s;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{ClearQuota, ReadQuota, SetQuota};

use super::known;
use crate::audit;
use crate::clock::day_of;
use crate::placing::pump;
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;

pub(super) async fn read(scheduler: Scheduler, call: Call<ReadQuota>) -> Result<QuotaStatus, Refused> {
    let namespace = known(&scheduler, call.at.namespace)?;
    status(&scheduler, namespace).await
}

pub(super) async fn set(scheduler: Scheduler, call: Call<SetQuota>) -> Result<QuotaStatus, Refused> {
    change(&scheduler, call.at.namespace, Some(call.body)).await
}

pub(super) async fn clear(scheduler: Scheduler, call: Call<ClearQuota>) -> Result<QuotaStatus, Refused> {
    change(&scheduler, call.at.namespace, None).await
}

async fn change(scheduler: &Scheduler, namespace: Namespace, limits: Option<Quota>) -> Result<QuotaStatus, Refused> {
    let told: Vec<_> = limits
        .iter()
        .flat_map(Quota::limits)
        .map(|(kind, limit)| format!("{}={}", kind.as_str(), kind.shown(limit)))
        .collect();
    audit::note(Some(&namespace), told.join(" "));
    {
        // A namespace is removed under the same lock.
        let _order = scheduler.keys.changing.lock().await;
        let namespace = known(scheduler, Some(namespace.clone()))?;
        let stored = scheduler.store.set_quota(&namespace, limits.as_ref()).await;
        stored.map_err(from_store)?;
        scheduler.state().fleet.quotas.set(&namespace, limits);
    }
    tracing::info!(%namespace, limits = told.join(" "), "a quota was changed");
    // Who waits may be let in now.
    pump(scheduler);
    status(scheduler, namespace).await
}

async fn status(scheduler: &Scheduler, namespace: Namespace) -> Result<QuotaStatus, Refused> {
    let stored = scheduler.store.stored(Some(&namespace)).await.map_err(from_store)?;
    let name = namespace.as_str();
    let async_backlog = scheduler.calls.queues().backlog(name);
    let state = scheduler.state();
    let (limits, is_own) = state.fleet.quotas.of(name);
    let held = state.fleet.holding(name);
    let used = QuotaUse {
        memory_bytes: held.memory,
        instances: held.instances,
        builds: scheduler.builds.of(name),
        stored_bytes: stored.iter().map(|(_, bytes)| bytes).sum(),
        async_backlog,
        egress_bytes_today: scheduler.metering.egress(name, day_of(unix_s())),
    };
    Ok(QuotaStatus {
        limits: *limits,
        is_own,
        used,
        namespace,
    })
}
