//! Releases: which versions are kept, and which of them serve.

use rekindle_wire::api::{Alias, Rollback, VersionInfo, VersionSummary};
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{ListAliases, ListVersions, RemoveAlias, RollBack, SetAlias};

use super::named;
use crate::refusal::{Refused, from_store, unknown_function};
use crate::releases;
use crate::state::Scheduler;

/// More than are kept by default, and as many as one answer lists.
const LISTED: u32 = 1_000;

pub(super) async fn versions(scheduler: Scheduler, call: Call<ListVersions>) -> Result<Vec<VersionSummary>, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let versions = scheduler.store.versions(&name, LISTED).await.map_err(from_store)?;
    if versions.is_empty() {
        return Err(unknown_function(&name));
    }
    let aliases = scheduler.store.aliases(&name).await.map_err(from_store)?;
    Ok(versions.into_iter().map(|version| summary(version, &aliases)).collect())
}

fn summary(version: VersionInfo, aliases: &[Alias]) -> VersionSummary {
    let number = version.version;
    let naming = aliases
        .iter()
        .filter(|alias| alias.targets.iter().any(|t| t.version == number));
    let live = aliases.iter().find(|alias| alias.name.is_live());
    VersionSummary {
        version: number,
        state: version.state,
        created_unix_s: version.created_unix_s,
        stored_bytes: version.snapshot.as_ref().map(|snapshot| snapshot.stored_bytes),
        snapshot: version.snapshot.map(|snapshot| snapshot.id),
        snapshot_error: version.snapshot_error,
        traffic_percent: live.map_or(0.0, |live| live.percent(number)),
        aliases: naming.map(|alias| alias.name.clone()).collect(),
    }
}

pub(super) async fn roll_back(scheduler: Scheduler, call: Call<RollBack>) -> Result<Rollback, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    releases::roll_back(&scheduler, &name, call.body.version).await
}

pub(super) async fn aliases(scheduler: Scheduler, call: Call<ListAliases>) -> Result<Vec<Alias>, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let aliases = scheduler.store.aliases(&name).await.map_err(from_store)?;
    let is_there = !aliases.is_empty() || !scheduler.store.versions(&name, 1).await.map_err(from_store)?.is_empty();
    is_there.then_some(aliases).ok_or_else(|| unknown_function(&name))
}

pub(super) async fn set_alias(scheduler: Scheduler, call: Call<SetAlias>) -> Result<Alias, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let alias = Alias {
        name: call.at.alias,
        targets: call.body.targets,
    };
    releases::set(&scheduler, &name, alias).await
}

pub(super) async fn remove_alias(scheduler: Scheduler, call: Call<RemoveAlias>) -> Result<(), Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    releases::remove(&scheduler, &name, call.at.alias).await
}
