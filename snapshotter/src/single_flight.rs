//! Coalesces concurrent calls: work that several callers request at once runs once, and all of them get its result. The
//! work runs in its own task, so it continues when the first caller is cancelled.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::Instrument as _;

type Flight<V> = Shared<BoxFuture<'static, Option<V>>>;

/// Work in flight, by key.
pub(crate) struct SingleFlight<K: Clone + Eq + Hash, V: Clone> {
    under_way: Mutex<HashMap<K, Flight<V>>>,
}

impl<K: Clone + Eq + Hash, V: Clone> Default for SingleFlight<K, V> {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
        }
    }
}

impl<K, V> SingleFlight<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The result of the work in flight for `key`. If there is none, starts `work` and waits for it. `None` if the work
    /// was cut off because its runtime is shutting down or because it panicked.
    pub(crate) async fn join<F>(self: &Arc<Self>, key: K, work: impl FnOnce() -> F) -> Option<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let (flight, result) = {
            let mut under_way = self.under_way.lock();
            match under_way.get(&key) {
                Some(flight) => (flight.clone(), None),
                None => {
                    let (result, landed) = oneshot::channel();
                    let flight = landed.map(Result::ok).boxed().shared();
                    under_way.insert(key.clone(), flight.clone());
                    (flight, Some(result))
                }
            }
        };
        if let Some(result) = result {
            // The task is spawned without holding the lock: a runtime that shuts down drops the task, and `landing`
            // with it, right here.
            let landing = RemoveOnDrop {
                flights: self.clone(),
                key,
            };
            let work = work();
            // The task belongs to the first caller's trace.
            let task = async move {
                let value = work.await;
                drop(landing);
                // There may be no waiters left.
                drop(result.send(value));
            };
            tokio::spawn(task.in_current_span());
        }
        flight.await
    }
}

/// Removes the flight from the table when the work ends, however it ends.
struct RemoveOnDrop<K: Clone + Eq + Hash, V: Clone> {
    flights: Arc<SingleFlight<K, V>>,
    key: K,
}

impl<K: Clone + Eq + Hash, V: Clone> Drop for RemoveOnDrop<K, V> {
    fn drop(&mut self) {
        self.flights.under_way.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn work_asked_for_many_times_at_once_is_done_once_and_later_again() {
        let flights: Arc<SingleFlight<u8, u32>> = Arc::default();
        let count = Arc::new(AtomicU32::new(0));
        let ask = || {
            let count = count.clone();
            flights.join(7, move || async move {
                tokio::task::yield_now().await;
                count.fetch_add(1, Ordering::SeqCst) + 1
            })
        };
        let first = futures::future::join_all((0..50).map(|_| ask())).await;
        assert_eq!(first, vec![Some(1); 50]);
        assert_eq!(ask().await, Some(2));
        assert!(flights.under_way.lock().is_empty());
    }

    #[tokio::test]
    async fn work_goes_on_without_the_first_who_asked_and_a_panic_reaches_nobody_else() {
        let flights: Arc<SingleFlight<u8, u32>> = Arc::default();
        let (go, wait) = oneshot::channel::<()>();
        let first = tokio::spawn({
            let flights = flights.clone();
            async move {
                let work = || async move {
                    wait.await.unwrap();
                    1
                };
                flights.join(1, work).await
            }
        });
        while flights.under_way.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let second = flights.join(1, || async { 2 });
        first.abort();
        go.send(()).unwrap();
        assert_eq!(second.await, Some(1));
        let cut_off = flights.join(1, || async { panic!("on purpose") }).await;
        assert_eq!(cut_off, None);
        assert!(flights.under_way.lock().is_empty());
    }
}
