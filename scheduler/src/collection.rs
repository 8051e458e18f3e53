//! Removes unneeded objects from the object store: on demand, at intervals, and some minutes after something was
//! deleted. There is one collection at a time. Decision 7 says why it is safe while deploys run; [`DatabaseRule`] says
//! what is needed.

pub(crate) mod collector;

use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use rekindle_snapshotter::Owner;
use rekindle_snapshotter::collect::{FoundSnapshot, NeedsCache, RequiredObjects, Rule, SnapshotOwner};
use rekindle_wire::api::{Collected, Swept};
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{FunctionId, VersionNumber};
use tracing::Instrument as _;

use collector::CollectionSettings;
use rekindle_wire::clock::unix_s;

use crate::clock::Millis;
use crate::objects::ObjectError;
use crate::releases;
use crate::state::Scheduler;
use crate::store::{Store, StoreError};

/// How long a scheduler leads before it knows which snapshots instances use.
const USE_IS_KNOWN: Millis = Millis(60_000);
/// How long starts that began before a snapshot was replaced may still use it, seconds.
const USE_SETTLES: i64 = 120;

/// Why a collection failed or was incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectionError {
    #[error("a collection is under way: wait for it")]
    UnderWay,
    #[error(
        "the object store belongs to another scheduler, {0}, whose snapshots this one does not know: if that one is \
         gone for good, take the store over with `fn snapshot gc --take-over`"
    )]
    Foreign(String),
    #[error("the object store could not be collected")]
    Objects(#[from] ObjectError),
    #[error("what is needed could not be told")]
    Store(#[from] StoreError),
}

pub(crate) async fn collect(
    scheduler: &Scheduler,
    dry_run: bool,
    take_over: bool,
) -> Result<Collected, CollectionError> {
    let Ok(mut seen) = scheduler.collector.seen.try_lock() else {
        return Err(CollectionError::UnderWay);
    };
    let span = tracing::info_span!(
        "collect",
        rekindle.role = "scheduler",
        rekindle.dry_run = dry_run,
        rekindle.freed_bytes = tracing::field::Empty,
        rekindle.freed_objects = tracing::field::Empty,
    );
    let work = Box::pin(all(scheduler, &mut seen, dry_run, take_over));
    let collected = work.instrument(span.clone()).await;
    if !dry_run {
        scheduler.metrics.collected(collected.as_ref().ok());
    }
    let collected = collected?;
    let total = collected.total();
    span.record("rekindle.freed_bytes", total.bytes);
    span.record("rekindle.freed_objects", total.objects);
    let Collected { versions, .. } = collected;
    if !dry_run && (total.objects > 0 || versions > 0) {
        tracing::info!(
            versions,
            snapshots = collected.snapshots.objects,
            remains = collected.remains.objects,
            chunks = collected.chunks.objects,
            layers = collected.layers.objects,
            sources = collected.sources.objects,
            freed_bytes = total.bytes,
            left_bytes = collected.left.bytes,
            "removed from the object store what nobody needs"
        );
    }
    if let Some(snapshot) = collected.held_by.first() {
        let count = collected.held_by.len();
        tracing::warn!(
            %snapshot, count,
            "snapshots cannot be read: while they are there no chunk and no layer is removed"
        );
    }
    Ok(collected)
}

async fn all(
    scheduler: &Scheduler,
    seen: &mut NeedsCache,
    dry_run: bool,
    take_over: bool,
) -> Result<Collected, CollectionError> {
    let own = scheduler.store.platform_id().await?;
    let owner = scheduler.objects.claim(&own, take_over).await?;
    if owner != own {
        return Err(CollectionError::Foreign(owner));
    }
    let keep = scheduler.config.collecting.keep_versions.max(1);
    let old = if dry_run {
        scheduler.store.too_old(keep).await?
    } else {
        let _no_alias_changes = scheduler.releasing.lock().await;
        let old = scheduler.store.remove_too_old(keep).await?;
        for (function, version) in &old {
            scheduler.state().catalog.remove_version(function, *version);
            // Its address may be in use. What runs finishes and goes.
            releases::switch(scheduler, function);
            tracing::info!(%function, %version, "an old version is released");
        }
        old
    };
    if !dry_run {
        release_replaced(scheduler).await?;
    }
    let rule = DatabaseRule {
        store: scheduler.store.clone(),
        but: old.iter().cloned().collect(),
    };
    let mut collected = scheduler.objects.collect(seen, &rule, dry_run).await?;
    collected.versions = old.len() as u64;
    collected.sources = sources(scheduler, dry_run).await?;
    Ok(collected)
}

/// Releases replaced snapshots that no instance began as. Does nothing while a worker that has such instances may not
/// have been heard from.
async fn release_replaced(scheduler: &Scheduler) -> Result<(), CollectionError> {
    if scheduler.now() < USE_IS_KNOWN {
        return Ok(());
    }
    let settled = unix_s() - USE_SETTLES;
    for (snapshot, since) in scheduler.store.replaced().await? {
        if since <= settled && !scheduler.state().fleet.is_in_use(&snapshot) {
            scheduler.store.release_replaced(&snapshot).await?;
        }
    }
    Ok(())
}

/// Collects uploaded folders. Only this scheduler stores them, so a lock suffices in place of the protocol.
async fn sources(scheduler: &Scheduler, dry_run: bool) -> Result<Swept, CollectionError> {
    let mut swept = Swept::default();
    let stored = scheduler.objects.sources().await?;
    let used = scheduler.store.source_keys().await?;
    for (key, bytes) in stored {
        if used.contains(&key) {
            continue;
        }
        if !dry_run {
            // A deploy of the same folder stores it before its version is recorded. Until then no check for users is
            // allowed.
            let _nobody_deploys = scheduler.sources.write().await;
            if scheduler.store.uses_source(&key).await? {
                continue;
            }
            scheduler.objects.delete(&key).await?;
        }
        swept.objects += 1;
        swept.bytes += bytes;
    }
    Ok(swept)
}

/// What the database says is needed.
struct DatabaseRule {
    store: Store,
    /// Versions that would be released if this were not a dry run.
    but: HashSet<(FunctionId, VersionNumber)>,
}

impl Rule for DatabaseRule {
    fn wanted<'a>(
        &'a self,
        found: &'a [FoundSnapshot],
    ) -> BoxFuture<'a, Result<RequiredObjects, Box<dyn Error + Send + Sync>>> {
        Box::pin(async move {
            let mut wanted = RequiredObjects::default();
            let (mut under_way, mut functions) = (HashSet::new(), HashSet::new());
            // Before the versions: a renewal that ends in between is seen as under way, or has its snapshot in them.
            let renewing = self.store.renewing().await?;
            for kept in self.store.kept().await? {
                functions.insert(kept.function.clone());
                let version = (kept.function, kept.version);
                match kept.spec {
                    _ if self.but.contains(&version) => {}
                    Some(spec) => want(&mut wanted, spec)?,
                    None => {
                        let owner = Owner::deploy(&version.0, version.1);
                        wanted.deploys.insert(owner.as_str().to_owned());
                        under_way.insert(version);
                    }
                }
            }
            under_way.extend(renewing);
            wanted
                .snapshots
                .extend(self.store.replaced().await?.into_iter().map(|(id, _)| id));
            let kept = found.iter().filter(|snapshot| match &snapshot.of {
                // Its deploy may be about to record it.
                Some(SnapshotOwner::Version(function, version)) => under_way.contains(&(function.clone(), *version)),
                // Versions that begin as it need only its chunks, which they protect themselves.
                Some(SnapshotOwner::Runtime(function)) => {
                    snapshot.is_named && function.as_ref().is_none_or(|f| functions.contains(f))
                }
                Some(SnapshotOwner::Import) => true,
                None => false,
            });
            wanted.snapshots.extend(kept.map(|snapshot| snapshot.id.clone()));
            Ok(wanted)
        })
    }
}

fn want(wanted: &mut RequiredObjects, spec: VersionSpec) -> Result<(), Box<dyn Error + Send + Sync>> {
    wanted.snapshots.extend(spec.snapshot);
    for layer in [spec.rootfs, spec.layer] {
        wanted.layers.insert(layer.digest.parse()?);
    }
    Ok(())
}

/// Collects automatically until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let CollectionSettings { every, soon, .. } = scheduler.config.collecting;
    if every.is_zero() {
        return;
    }
    let mut pause = soon.min(every);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = scheduler.collector.deleted.notified() => tokio::time::sleep(soon.min(every)).await,
        }
        pause = every;
        match collect(&scheduler, false, false).await {
            Ok(collected) if collected.more => pause = soon.min(every),
            // The collection in progress was requested.
            Ok(_) | Err(CollectionError::UnderWay) => {}
            Err(error) => {
                let failures = scheduler.collector.failures.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::warn!(
                    failures,
                    error = &error as &dyn Error,
                    "a collection failed; the next one goes on where it ended"
                );
            }
        }
    }
}
