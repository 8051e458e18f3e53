//! Permits for requests to the store: some for each layer, before those that all layers share. So nobody waits for all
//! that one function reads.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::counts::FetchReason;

/// Maximum number of requests at once of one layer, besides those for what a start needs, which have a limit already.
const OF_ONE: usize = 4;

#[derive(Debug)]
pub(super) struct FetchPermits {
    own: Semaphore,
    all: Arc<Semaphore>,
}

/// A permit, until it is dropped.
#[derive(Debug)]
pub(super) struct FetchPermit<'a> {
    _all: Option<SemaphorePermit<'a>>,
    _own: Option<SemaphorePermit<'a>>,
}

impl FetchPermits {
    /// `all` are the permits that all layers share.
    pub(super) fn new(all: Arc<Semaphore>) -> Self {
        Self {
            own: Semaphore::new(OF_ONE),
            all,
        }
    }

    pub(super) async fn take(&self, reason: FetchReason) -> FetchPermit<'_> {
        // Neither is ever closed. Who waits for the own one must hold none that others could have.
        let own = match reason {
            FetchReason::Start => None,
            FetchReason::Touched | FetchReason::Background => self.own.acquire().await.ok(),
        };
        FetchPermit {
            _all: self.all.acquire().await.ok(),
            _own: own,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_layer_leaves_permits_to_others_however_much_is_read_of_it() {
        let all = Arc::new(Semaphore::new(16));
        let (one, other) = (FetchPermits::new(Arc::clone(&all)), FetchPermits::new(all));
        let mut taken = Vec::new();
        while let Some(permit) = one.take(FetchReason::Touched).now_or_never() {
            taken.push(permit);
            assert!(taken.len() <= OF_ONE, "one layer has {} permits", taken.len());
        }
        assert_eq!(taken.len(), OF_ONE);
        assert!(one.take(FetchReason::Background).now_or_never().is_none());
        assert!(other.take(FetchReason::Touched).now_or_never().is_some());
        assert!(one.take(FetchReason::Start).now_or_never().is_some());
        taken.pop();
        assert!(one.take(FetchReason::Touched).now_or_never().is_some());
    }
}
