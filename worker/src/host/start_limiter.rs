//! Limits how many starts use the processors at once. Each start is work for a processor: if sixty-four began together,
//! each would end only when the last does. So some run, and the others wait in order of arrival.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How long a start waits at most. By then the starts ahead of it wait for something other than a processor, and it
/// runs beside them.
const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// How long a start keeps its permit while it waits for the function. A function that does not begin must not hold up
/// others.
pub const KEEP: Duration = Duration::from_secs(1);

/// Interval between checks whether nothing starts.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long after a start the processors are left to its first response.
const ANSWERS_IN: Duration = Duration::from_millis(10);

/// The start limiter of a host.
#[derive(Debug)]
pub struct StartLimiter {
    free: Semaphore,
    all: usize,
    waiting: AtomicUsize,
    starting: AtomicUsize,
    last_ended: Mutex<Option<Instant>>,
    limit: Duration,
}

/// Permits one start. It ends on drop.
#[derive(Debug)]
pub struct StartPermit<'a>(#[expect(dead_code, reason = "given back when dropped")] Option<SemaphorePermit<'a>>);

impl StartLimiter {
    /// Allows `all` starts at once.
    pub fn new(all: usize) -> Self {
        Self {
            free: Semaphore::new(all.max(1)),
            all: all.max(1),
            waiting: AtomicUsize::new(0),
            starting: AtomicUsize::new(0),
            last_ended: Mutex::default(),
            limit: WAIT_LIMIT,
        }
    }

    /// Waits for a permit, for some seconds at most.
    pub async fn take(&self) -> StartPermit<'_> {
        let _waiting = QueuedStart::begin(&self.waiting);
        let permit = tokio::time::timeout(self.limit, self.free.acquire()).await;
        // The semaphore is never closed.
        StartPermit(permit.ok().and_then(Result::ok))
    }

    /// Returns how many starts have a permit.
    pub fn running(&self) -> usize {
        self.all - self.free.available_permits().min(self.all)
    }

    /// Records that something starts, with or without a permit, until the returned guard is dropped.
    pub fn starting(&self) -> Starting<'_> {
        self.starting.fetch_add(1, Ordering::Relaxed);
        Starting(self)
    }

    fn is_calm(&self) -> bool {
        let answers = || self.last_ended.lock().is_some_and(|ended| ended.elapsed() < ANSWERS_IN);
        self.running() == 0 && self.starting.load(Ordering::Relaxed) == 0 && !answers()
    }

    /// Waits up to `limit` for a moment without a start. For work that nobody waits for.
    pub async fn until_calm(&self, limit: Duration) {
        let calm = async {
            while !self.is_calm() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        // Deferred work must still happen if starts follow each other without a pause.
        let _ = tokio::time::timeout(limit, calm).await;
    }

    /// Returns how many starts wait for a permit.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A start in progress. Its drop ends it, whatever the outcome.
#[derive(Debug)]
pub struct Starting<'a>(&'a StartLimiter);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        *self.0.last_ended.lock() = Some(Instant::now());
        self.0.starting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a start as waiting until dropped.
struct QueuedStart<'a>(&'a AtomicUsize);

impl<'a> QueuedStart<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for QueuedStart<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_waits_for_starts_and_not_for_ever() {
        let limiter = StartLimiter::new(2);
        limiter.until_calm(Duration::from_secs(3600)).await;
        let permit = limiter.take().await;
        let began = std::time::Instant::now();
        limiter.until_calm(Duration::from_millis(30)).await;
        assert!(began.elapsed() >= Duration::from_millis(30));
        let (_, ()) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                drop(permit);
            },
            limiter.until_calm(Duration::from_secs(3600))
        );
        assert_eq!(limiter.running(), 0);
        let starting = limiter.starting();
        limiter.until_calm(Duration::from_millis(30)).await;
        assert!(
            !limiter.is_calm(),
            "what has no permit yet, or none any more, starts all the same"
        );
        let ended = Instant::now();
        drop(starting);
        limiter.until_calm(Duration::from_secs(3600)).await;
        assert!(ended.elapsed() >= ANSWERS_IN, "its first answer comes before");
    }

    #[tokio::test]
    async fn no_more_run_at_once_than_there_are_permits_and_all_get_theirs() {
        let limiter = Arc::new(StartLimiter::new(4));
        let most = Arc::new(AtomicUsize::new(0));
        let starts: Vec<_> = (0..64)
            .map(|_| {
                let (limiter, most) = (Arc::clone(&limiter), Arc::clone(&most));
                tokio::spawn(async move {
                    let _permit = limiter.take().await;
                    most.fetch_max(limiter.running(), Ordering::Relaxed);
                    tokio::task::yield_now().await;
                })
            })
            .collect();
        for start in starts {
            start.await.unwrap();
        }
        assert_eq!(most.load(Ordering::Relaxed), 4);
        assert_eq!((limiter.running(), limiter.waiting()), (0, 0));
    }

    #[tokio::test]
    async fn who_waits_behind_starts_that_hang_goes_on_in_the_end() {
        let limiter = StartLimiter {
            limit: Duration::from_millis(20),
            ..StartLimiter::new(1)
        };
        let hanging = limiter.take().await;
        let (late, waiting) = tokio::join!(limiter.take(), async {
            tokio::task::yield_now().await;
            limiter.waiting()
        });
        assert_eq!(waiting, 1);
        assert_eq!((limiter.running(), limiter.waiting()), (1, 0));
        drop((hanging, late));
        assert_eq!(limiter.running(), 0);
    }

    #[tokio::test]
    async fn a_start_that_is_given_up_while_it_waits_is_not_waited_for() {
        let limiter = StartLimiter::new(1);
        let first = limiter.take().await;
        let gone = tokio::time::timeout(Duration::from_millis(5), limiter.take()).await;
        assert!(gone.is_err());
        assert_eq!(limiter.waiting(), 0);
        drop(first);
        drop(limiter.take().await);
    }
}
