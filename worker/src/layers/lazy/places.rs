//! Places for requests to the store: some for each layer, before those that all layers share. So nobody waits for all
//! that one function reads.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::counts::Reason;

/// Maximum number of requests at once of one layer, besides those for what a start needs, which have a limit already.
const OF_ONE: usize = 4;

/// A layer's places.
#[derive(Debug)]
pub(super) struct Places {
    own: Semaphore,
    all: Arc<Semaphore>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    _all: Option<SemaphorePermit<'a>>,
    _own: Option<SemaphorePermit<'a>>,
}

impl Places {
    /// Creates those of a layer, among those of `all`.
    pub(super) fn new(all: Arc<Semaphore>) -> Self {
        Self {
            own: Semaphore::new(OF_ONE),
            all,
        }
    }

    /// Waits for a place.
    pub(super) async fn take(&self, reason: Reason) -> Place<'_> {
        // Neither is ever closed. Who waits for the own one must hold none that others could have.
        let own = match reason {
            Reason::Start => None,
            Reason::Touched | Reason::Background => self.own.acquire().await.ok(),
        };
        Place {
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
    async fn a_layer_leaves_places_to_others_however_much_is_read_of_it() {
        let all = Arc::new(Semaphore::new(16));
        let (one, other) = (Places::new(Arc::clone(&all)), Places::new(all));
        let mut taken = Vec::new();
        while let Some(place) = one.take(Reason::Touched).now_or_never() {
            taken.push(place);
            assert!(taken.len() <= OF_ONE, "one layer has {} places", taken.len());
        }
        assert_eq!(taken.len(), OF_ONE);
        assert!(one.take(Reason::Background).now_or_never().is_none());
        assert!(other.take(Reason::Touched).now_or_never().is_some());
        assert!(one.take(Reason::Start).now_or_never().is_some());
        taken.pop();
        assert!(one.take(Reason::Touched).now_or_never().is_some());
    }
}
