//! Places for uploads in progress. Deploys share 32 places, and an upload takes one before it comes. So those of one
//! namespace are limited: its keys could keep all others from deploying by uploads that come slowly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::{ApiError, ErrorCode, Namespace};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of uploads at once by all keys of a namespace, or by one for all namespaces.
const EACH: usize = 8;
/// How long others wait for a place. Meanwhile they have none of the deploys' places.
const WAIT: Duration = Duration::from_secs(30);

/// A place for an upload; `None` for the platform's own key, which needs none.
pub(crate) type UploadPermit = Option<OwnedSemaphorePermit>;

/// Uploads in progress, by whose they are.
#[derive(Default)]
pub(crate) struct UploadPermits(Mutex<BTreeMap<String, Arc<Semaphore>>>);

impl UploadPermits {
    /// Waits for a place for an upload to a namespace.
    ///
    /// # Errors
    /// `throttled` if none is free in time.
    pub(crate) async fn take(&self, caller: &Caller, namespace: &Namespace) -> Result<UploadPermit, ApiError> {
        if caller.is_platform() {
            return Ok(None);
        }
        let own = self.of(caller, namespace);
        match tokio::time::timeout(WAIT, own.acquire_owned()).await {
            Ok(Ok(place)) => Ok(Some(place)),
            _ => Err(ApiError::new(
                ErrorCode::Throttled,
                format!("{EACH} uploads with keys of this namespace are under way: wait for them, and deploy again"),
            )),
        }
    }

    fn of(&self, caller: &Caller, namespace: &Namespace) -> Arc<Semaphore> {
        let whose = match caller.has(AccessRole::Deployer, &Scope::Platform) {
            true => caller.name().to_owned(),
            false => format!("namespace {namespace}"),
        };
        let mut all = self.0.lock();
        // A place that is held, or waited for, holds its semaphore.
        all.retain(|_, own| Arc::strong_count(own) > 1);
        all.entry(whose)
            .or_insert_with(|| Arc::new(Semaphore::new(EACH)))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::access::generate;

    use std::str::FromStr as _;

    use super::*;

    fn of(namespace: &str) -> Caller {
        let scope = Scope::Namespace(namespace.parse().unwrap());
        Caller::with_key(generate().0, AccessRole::Deployer, scope)
    }

    #[tokio::test]
    async fn the_keys_of_a_namespace_share_places_and_leave_some_to_others() {
        let places = UploadPermits::default();
        let (team, other) = (
            Namespace::from_str("team").unwrap(),
            Namespace::from_str("other").unwrap(),
        );
        let mut held = Vec::new();
        for _ in 0..EACH {
            held.push(places.take(&of("team"), &team).await.unwrap().unwrap());
        }
        let (of_team, of_other) = (of("team"), of("other"));
        let short = Duration::from_millis(20);
        let waits = tokio::time::timeout(short, places.take(&of_team, &team)).await;
        assert!(waits.is_err(), "there is a ninth");
        let elsewhere = places.take(&of_other, &other).await.unwrap();
        assert!(elsewhere.is_some() && places.take(&Caller::platform(), &team).await.unwrap().is_none());
        held.pop();
        held.push(places.take(&of_team, &team).await.unwrap().unwrap());
        drop((held, elsewhere));
        drop(places.take(&of_team, &team).await.unwrap());
        assert_eq!(places.0.lock().len(), 1, "what is not held is forgotten");
    }
}
