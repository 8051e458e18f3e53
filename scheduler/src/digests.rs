//! Digests of manifests for versions that came without, from before they were kept or from a worker of before: read
//! from the store once, and kept from then on. Whatever is there at that moment is believed; every order after it says
//! so.

use crate::state::Scheduler;

/// Reads those that are missing, one after the other. What cannot be read is left to the next start.
pub(crate) async fn complete(scheduler: Scheduler) {
    let without = scheduler.state().catalog.without_digest();
    for before in without {
        let Some(snapshot) = &before.snapshot else { continue };
        let (function, version) = (&before.function, before.version);
        let digest = match scheduler.objects.manifest_digest(snapshot).await {
            Ok(digest) => digest,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%function, %version, %snapshot, error, "the digest of a snapshot is not known yet: any \
                    manifest is taken for it");
                continue;
            }
        };
        let Some(spec) = scheduler.state().catalog.set_digest(&before, digest) else {
            continue;
        };
        if let Err(error) = scheduler.store.keep_digest(&spec).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%function, %version, error, "the digest of a snapshot is not kept: the next start reads it \
                again");
        }
    }
}
