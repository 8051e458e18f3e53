//! Digests of manifests for versions that were stored without one: by an earlier version, or by a worker of an earlier
//! version. They are read from the object store once and then kept. Whatever is stored at that moment is trusted, and
//! every later order carries its digest.

use crate::state::Scheduler;

/// Reads the missing digests one at a time. Those that cannot be read are left to the next start.
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
