//! Limits how many starts use the processors at once. Each start is work for a processor: if sixty-four began together,
//! each would end only when the last does. So some run, and the others wait their turn:
//!
//! - The function that has the fewest starts running is next, then the one whose last turn was the longest ago. So a
//!   function that has many starts delays its own.
//! - Of equals, a restore is next. It takes tens of milliseconds, and a boot keeps its permit up to [`KEEP`].
//! - Neither one function's starts nor all boots together take the last permit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::FunctionId;
use rekindle_wire::api::StartKind;
use tokio::sync::oneshot;

/// How long a start of a function waits at most while no other of its starts has a permit. By then the starts ahead of
/// it wait for something other than a processor, and it runs beside them.
const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// How long a start keeps its permit while it waits for the function. A function that does not begin must not hold up
/// others.
pub const KEEP: Duration = Duration::from_secs(1);

/// Interval between checks whether nothing starts.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long after a start or an arrival the processors are left to its first response.
const ANSWERS_IN: Duration = Duration::from_millis(10);
/// How long the processors are left to an arrival that waits for its source, or stands.
const ARRIVES_IN: Duration = Duration::from_secs(1);

/// The start limiter of a host.
#[derive(Debug)]
pub struct StartLimiter {
    permits: Arc<Mutex<Permits>>,
    waiting: AtomicUsize,
    starting: AtomicUsize,
    last_ended: Mutex<Option<Instant>>,
    arriving: AtomicUsize,
    last_arrival: Mutex<Option<Instant>>,
    last_arrived: Mutex<Option<Instant>>,
    limit: Duration,
}

/// An instance that moves here: it stands still meanwhile. Its drop says that it runs or will not.
#[derive(Debug)]
pub struct Arrival(Arc<StartLimiter>);

/// Permits one start. It ends on drop.
#[derive(Debug)]
pub struct StartPermit(Option<HeldPermit>);

/// A permit to be given back.
#[derive(Debug)]
struct HeldPermit {
    permits: Arc<Mutex<Permits>>,
    function: FunctionId,
    kind: StartKind,
}

/// Who has a permit, and who waits for one.
#[derive(Debug)]
struct Permits {
    all: usize,
    restores: usize,
    boots: usize,
    /// Functions with starts that run or wait.
    functions: BTreeMap<FunctionId, FunctionQueue>,
    /// The number of permits that were given.
    given: u64,
}

#[derive(Debug, Default)]
struct FunctionQueue {
    running: usize,
    /// Its last turn, as a number of [`Permits::given`].
    last: u64,
    restores: VecDeque<oneshot::Sender<StartPermit>>,
    boots: VecDeque<oneshot::Sender<StartPermit>>,
}

impl FunctionQueue {
    fn queue(&mut self, kind: StartKind) -> &mut VecDeque<oneshot::Sender<StartPermit>> {
        match kind {
            StartKind::Booted => &mut self.boots,
            _ => &mut self.restores,
        }
    }

    /// Returns the kind of its start that is next, if one waits. `boots` tells whether boots are.
    fn next(&self, boots: bool) -> Option<StartKind> {
        match (self.restores.is_empty(), self.boots.is_empty()) {
            (false, _) => Some(StartKind::Restored),
            (true, false) if boots => Some(StartKind::Booted),
            _ => None,
        }
    }
}

impl Permits {
    /// What one function's starts, or all boots, may have of the permits.
    fn part(&self) -> usize {
        (self.all - 1).max(1)
    }

    fn running(&self) -> usize {
        self.restores + self.boots
    }

    fn next(&self) -> Option<(FunctionId, StartKind)> {
        let (part, boots) = (self.part(), self.boots < self.part());
        let waiting = self.functions.iter().filter(|(_, of)| of.running < part);
        let waiting = waiting.filter_map(|(name, of)| Some((name, of, of.next(boots)?)));
        let next = waiting.min_by_key(|(_, of, kind)| (of.running, *kind == StartKind::Booted, of.last));
        next.map(|(name, _, kind)| (name.clone(), kind))
    }

    /// Gives the free permits to those whose turn it is.
    fn give(&mut self, permits: &Arc<Mutex<Self>>) {
        while self.running() < self.all
            && let Some((function, kind)) = self.next()
        {
            let of = self.functions.entry(function.clone()).or_default();
            let Some(waiting) = of.queue(kind).pop_front() else {
                return;
            };
            let held = HeldPermit {
                permits: Arc::clone(permits),
                function: function.clone(),
                kind,
            };
            match waiting.send(StartPermit(Some(held))) {
                Ok(()) => {
                    self.given += 1;
                    of.running += 1;
                    of.last = self.given;
                    *self.count(kind) += 1;
                }
                // It has gone. What was sent is no permit yet, and must not give one back.
                Err(mut unsent) => std::mem::forget(unsent.0.take()),
            }
            self.forget(&function);
        }
    }

    fn count(&mut self, kind: StartKind) -> &mut usize {
        match kind {
            StartKind::Booted => &mut self.boots,
            _ => &mut self.restores,
        }
    }

    fn forget(&mut self, function: &FunctionId) {
        let is_idle = |of: &FunctionQueue| of.running == 0 && of.restores.is_empty() && of.boots.is_empty();
        if self.functions.get(function).is_some_and(is_idle) {
            self.functions.remove(function);
        }
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        let mut permits = self.permits.lock();
        *permits.count(self.kind) -= 1;
        if let Some(of) = permits.functions.get_mut(&self.function) {
            of.running -= 1;
        }
        permits.forget(&self.function);
        permits.give(&self.permits);
    }
}

impl StartLimiter {
    /// Allows `all` starts at once.
    pub fn new(all: usize) -> Self {
        let permits = Permits {
            all: all.max(1),
            restores: 0,
            boots: 0,
            functions: BTreeMap::new(),
            given: 0,
        };
        Self {
            permits: Arc::new(Mutex::new(permits)),
            waiting: AtomicUsize::new(0),
            starting: AtomicUsize::new(0),
            last_ended: Mutex::default(),
            arriving: AtomicUsize::new(0),
            last_arrival: Mutex::default(),
            last_arrived: Mutex::default(),
            limit: WAIT_LIMIT,
        }
    }

    /// Waits for a permit for a start of this function. After some seconds it waits no longer, unless others of the
    /// function run.
    pub async fn take(&self, function: &FunctionId, kind: StartKind) -> StartPermit {
        let _waiting = QueuedStart::begin(&self.waiting);
        let (sender, mut receiver) = oneshot::channel();
        {
            let mut permits = self.permits.lock();
            let of = permits.functions.entry(function.clone()).or_default();
            of.queue(kind).push_back(sender);
            permits.give(&self.permits);
        }
        loop {
            match tokio::time::timeout(self.limit, &mut receiver).await {
                Ok(permit) => return permit.unwrap_or(StartPermit(None)),
                Err(_) if self.runs(function) => {}
                Err(_) => return StartPermit(None),
            }
        }
    }

    /// Returns whether a start of this function has a permit.
    fn runs(&self, function: &FunctionId) -> bool {
        let permits = self.permits.lock();
        permits.functions.get(function).is_some_and(|of| of.running > 0)
    }

    /// Returns how many starts have a permit.
    pub fn running(&self) -> usize {
        self.permits.lock().running()
    }

    /// Records that something starts, with or without a permit, until the returned guard is dropped.
    pub fn starting(&self) -> StartInProgress<'_> {
        self.starting.fetch_add(1, Ordering::Relaxed);
        StartInProgress(self)
    }

    /// Records that an instance moves here, until the returned guard is dropped.
    pub fn arriving(self: &Arc<Self>) -> Arrival {
        self.arriving.fetch_add(1, Ordering::Relaxed);
        let arrival = Arrival(Arc::clone(self));
        arrival.goes_on();
        arrival
    }

    fn is_calm(&self) -> bool {
        self.running() == 0 && self.starting.load(Ordering::Relaxed) == 0 && !within(ANSWERS_IN, &self.last_ended)
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

    /// Waits up to `limit` until no start waits for a permit and nothing moves here. For work that later starts need.
    pub async fn until_none_waits(&self, limit: Duration) {
        let is_expected = || within(ARRIVES_IN, &self.last_arrival) && self.arriving.load(Ordering::Relaxed) > 0;
        let arrives = || is_expected() || within(ANSWERS_IN, &self.last_arrived);
        let none = async {
            while self.waiting() > 0 || arrives() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(limit, none).await;
    }

    /// Returns how many starts wait for a permit.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

fn within(limit: Duration, since: &Mutex<Option<Instant>>) -> bool {
    since.lock().is_some_and(|since| since.elapsed() < limit)
}

impl Arrival {
    /// Records that something happens in it: its source may have taken long.
    pub fn goes_on(&self) {
        *self.0.last_arrival.lock() = Some(Instant::now());
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        *self.0.last_arrived.lock() = Some(Instant::now());
        self.0.arriving.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A start in progress. Its drop ends it, whatever the outcome.
#[derive(Debug)]
pub struct StartInProgress<'a>(&'a StartLimiter);

impl Drop for StartInProgress<'_> {
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
    use futures::FutureExt as _;

    use super::*;

    fn function(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    async fn take(limiter: &StartLimiter, name: &str, kind: StartKind) -> StartPermit {
        limiter.take(&function(name), kind).await
    }

    async fn restore(limiter: &StartLimiter, name: &str) -> StartPermit {
        take(limiter, name, StartKind::Restored).await
    }

    #[tokio::test]
    async fn what_nobody_waits_for_waits_for_starts_and_not_for_ever() {
        let limiter = StartLimiter::new(2);
        limiter.until_calm(Duration::from_secs(3600)).await;
        let permit = restore(&limiter, "hello").await;
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
                    let _permit = restore(&limiter, "hello").await;
                    most.fetch_max(limiter.running(), Ordering::Relaxed);
                    tokio::task::yield_now().await;
                })
            })
            .collect();
        for start in starts {
            start.await.unwrap();
        }
        assert_eq!(most.load(Ordering::Relaxed), 3, "the last is left to others");
        assert_eq!((limiter.running(), limiter.waiting()), (0, 0));
    }

    #[tokio::test]
    async fn who_waits_behind_starts_that_hang_goes_on_in_the_end() {
        let limiter = StartLimiter {
            limit: Duration::from_millis(20),
            ..StartLimiter::new(1)
        };
        let hanging = restore(&limiter, "hello").await;
        let (late, waiting) = tokio::join!(restore(&limiter, "other"), async {
            tokio::task::yield_now().await;
            limiter.waiting()
        });
        assert_eq!(waiting, 1);
        assert_eq!((limiter.running(), limiter.waiting()), (1, 0));
        drop((hanging, late));
        assert_eq!(limiter.running(), 0);
    }

    /// Takes a permit if there is one now.
    async fn now(limiter: &StartLimiter, name: &str, kind: StartKind) -> Option<StartPermit> {
        let taken = tokio::time::timeout(Duration::from_millis(5), take(limiter, name, kind));
        taken.await.ok()
    }

    #[tokio::test]
    async fn many_boots_of_a_function_leave_a_permit_to_others_and_the_next_one_too() {
        let limiter = StartLimiter::new(4);
        let mut held = Vec::new();
        while let Some(permit) = now(&limiter, "never", StartKind::Booted).await {
            held.push(permit);
        }
        assert_eq!((held.len(), limiter.running()), (3, 3));
        drop(now(&limiter, "hello", StartKind::Restored).await.unwrap());
        // Boots have their part of the permits. The next one goes to who has none, not to who came first.
        let own = take(&limiter, "never", StartKind::Booted);
        let others = take(&limiter, "other", StartKind::Booted);
        let (mut own, mut others) = (Box::pin(own), Box::pin(others));
        assert!(futures::poll!(&mut own).is_pending());
        assert!(futures::poll!(&mut others).is_pending());
        held.pop();
        assert!(futures::poll!(&mut own).is_pending());
        drop(others.await);
        drop(own.await);
    }

    #[tokio::test]
    async fn of_two_functions_that_have_none_the_one_to_restore_is_next() {
        let limiter = StartLimiter::new(1);
        let first = restore(&limiter, "hello").await;
        let boot = take(&limiter, "a", StartKind::Booted);
        let (mut boot, mut restored) = (Box::pin(boot), Box::pin(restore(&limiter, "b")));
        assert!(futures::poll!(&mut boot).is_pending());
        assert!(futures::poll!(&mut restored).is_pending());
        drop(first);
        assert!(futures::poll!(&mut boot).is_pending());
        drop(restored.await);
        drop(boot.await);
        assert!(limiter.permits.lock().functions.is_empty());
    }

    #[tokio::test]
    async fn who_has_starts_that_run_waits_for_them_however_long_they_take() {
        let limiter = StartLimiter {
            limit: Duration::from_millis(2),
            ..StartLimiter::new(1)
        };
        let first = restore(&limiter, "hello").await;
        let waited = tokio::time::timeout(Duration::from_millis(20), restore(&limiter, "hello"));
        assert!(waited.await.is_err());
        drop(first);
    }

    #[tokio::test]
    async fn what_gives_way_goes_on_when_no_start_waits_any_more_or_after_a_while() {
        let limiter = StartLimiter::new(1);
        limiter.until_none_waits(WAIT_LIMIT).now_or_never().unwrap();
        let first = restore(&limiter, "hello").await;
        limiter.until_none_waits(WAIT_LIMIT).now_or_never().unwrap();
        let mut second = Box::pin(restore(&limiter, "hello"));
        assert!(futures::poll!(&mut second).is_pending());
        limiter.until_none_waits(Duration::from_millis(5)).await;
        let mut given_way = Box::pin(limiter.until_none_waits(WAIT_LIMIT));
        assert!(futures::poll!(&mut given_way).is_pending());
        drop(first);
        let _second = second.await;
        given_way.await;
    }

    #[tokio::test]
    async fn what_gives_way_waits_for_what_arrives_and_for_its_first_answer() {
        let limiter = Arc::new(StartLimiter::new(1));
        let arrival = limiter.arriving();
        let began = Instant::now();
        limiter.until_none_waits(Duration::from_millis(30)).await;
        assert!(began.elapsed() >= Duration::from_millis(30), "and not for ever");
        let arrived = Instant::now();
        drop(arrival);
        limiter.until_none_waits(WAIT_LIMIT).await;
        assert!((ANSWERS_IN..WAIT_LIMIT).contains(&arrived.elapsed()));
    }

    #[tokio::test]
    async fn a_start_that_is_given_up_while_it_waits_is_not_waited_for() {
        let limiter = StartLimiter::new(1);
        let first = restore(&limiter, "hello").await;
        let gone = tokio::time::timeout(Duration::from_millis(5), restore(&limiter, "hello")).await;
        assert!(gone.is_err());
        assert_eq!(limiter.waiting(), 0);
        drop(first);
        drop(restore(&limiter, "hello").await);
    }
}
