//! Empty sandboxes created ahead. Their namespaces and control groups cost the kernel milliseconds: it waits for a
//! grace period when a process changes its control group. Nothing of a function is in them yet.
//!
//! For functions that were restored last, some are furnished ahead, too (`furnished.rs`).
//!
//! Of a used sandbox only the control group is used again, once it is clean ([`crate::host::cgroup`]). Everything else
//! ends with it (decision 18). How many are kept follows recent demand (`demand.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_init::causes::chain;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::FunctionState;
use super::demand::Demand;
use super::furnished::{FurnishedSandboxes, LackingSandbox, ReadySandboxes, SandboxContents};
use super::maker::{EmptySandbox, MakeError, SandboxMaker, end};
use crate::host::cgroup::SpareCounts;
use crate::host::start_limiter::StartLimiter;

/// How long after a sandbox was taken the next one is created: the start that took it comes first.
const REFILL_AFTER: Duration = Duration::from_millis(20);
/// How long making sandboxes waits for starts that wait for a processor, and for instances that arrive. If these wait
/// longer, they will need more sandboxes than there are.
const GIVE_WAY: Duration = Duration::from_millis(500);
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Interval between checks whether fewer are wanted.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Empty sandboxes of a host.
pub struct SandboxPool {
    maker: SandboxMaker,
    starts: Arc<StartLimiter>,
    least: usize,
    most: usize,
    demand: Mutex<Demand>,
    began: Instant,
    ready: Mutex<Vec<EmptySandbox>>,
    furnished: Mutex<FurnishedSandboxes<EmptySandbox>>,
    taken: Notify,
    expected: Notify,
    /// Held by whoever furnishes one.
    furnishing: tokio::sync::Mutex<()>,
    from_pool: AtomicU64,
    made_while_waiting: AtomicU64,
    closing: CancellationToken,
}

/// The pool's level, and what it has supplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCounts {
    /// Number of sandboxes that are ready.
    pub ready: usize,
    /// Number of sandboxes that are furnished for functions restored lately.
    pub furnished: usize,
    /// Number of these in which a restore has begun.
    pub begun: usize,
    /// Number of sandboxes taken that were ready.
    pub from_pool: u64,
    /// Number of sandboxes taken that had to be created first.
    pub made_while_waiting: u64,
    /// Number of sandboxes that could not be created.
    pub failed: u64,
    /// Number of sandboxes to keep ready now.
    pub wanted: usize,
    /// Control groups that are used again.
    pub groups: SpareCounts,
}

impl SandboxPool {
    /// Creates an empty pool. Once [`Self::keep_filled`] runs, it keeps from `least` to `most` sandboxes, by demand. It
    /// gives way to `starts` that wait.
    pub fn new(maker: SandboxMaker, starts: Arc<StartLimiter>, least: usize, most: usize) -> Self {
        Self {
            maker,
            starts,
            least,
            most,
            demand: Mutex::default(),
            began: Instant::now(),
            ready: Mutex::default(),
            furnished: Mutex::default(),
            taken: Notify::new(),
            expected: Notify::new(),
            furnishing: tokio::sync::Mutex::default(),
            from_pool: AtomicU64::new(0),
            made_while_waiting: AtomicU64::new(0),
            closing: CancellationToken::new(),
        }
    }

    pub(crate) fn maker(&self) -> &SandboxMaker {
        &self.maker
    }

    /// Returns how many there are now, and how many were taken.
    pub fn counts(&self) -> PoolCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (furnished, begun) = {
            let all = self.furnished.lock();
            (all.count(|_| true), all.count(|empty| empty.begun.is_some()))
        };
        PoolCounts {
            ready: self.ready.lock().len(),
            furnished,
            begun,
            from_pool: read(&self.from_pool),
            made_while_waiting: read(&self.made_while_waiting),
            failed: self.maker.failed(),
            wanted: self.wanted(),
            groups: self.maker.cgroups().spare_counts(),
        }
    }

    fn wanted(&self) -> usize {
        self.demand.lock().wanted(self.began.elapsed(), self.least, self.most)
    }

    /// Takes a sandbox that was furnished like this ahead.
    pub(crate) fn take_furnished(&self, contents: &SandboxContents) -> Option<EmptySandbox> {
        let take = || self.furnished.lock().take(contents, |empty| empty.begun.is_some());
        let taken = living(take)?;
        self.note_taken(true);
        Some(taken)
    }

    /// Furnishes sandboxes like this ahead, for a while: one was restored into.
    pub(crate) fn furnish_more(&self, contents: SandboxContents) {
        let gone = self.furnished.lock().want(contents, Instant::now());
        self.expected.notify_one();
        // The restore does not wait for it.
        tokio::spawn(end_all(gone));
    }

    fn note_taken(&self, was_ready: bool) {
        self.demand.lock().taken(self.began.elapsed());
        self.taken.notify_one();
        let from = if was_ready {
            &self.from_pool
        } else {
            &self.made_while_waiting
        };
        from.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a sandbox that is ready, or creates one.
    ///
    /// # Errors
    /// Returns an error when a sandbox must be created and cannot be.
    pub async fn take(&self) -> Result<EmptySandbox, MakeError> {
        let ready = living(|| self.ready.lock().pop());
        self.note_taken(ready.is_some());
        match ready {
            Some(ready) => Ok(ready),
            None => self.maker.make().await,
        }
    }

    /// Fills the pool, and refills it after each sandbox taken. Ends surplus sandboxes. Runs until dropped.
    pub async fn keep_filled(self: Arc<Self>) {
        // What is begun for a function may take long, and empty sandboxes are for all.
        tokio::join!(self.keep_ready(), self.keep_furnished());
    }

    async fn keep_furnished(&self) {
        loop {
            self.furnish_ahead().await;
            let over = self.furnished.lock().over();
            tokio::select! {
                () = over => {}
                () = self.expected.notified() => tokio::time::sleep(REFILL_AFTER).await,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn keep_ready(&self) {
        loop {
            self.fill().await;
            let surplus = {
                let mut ready = self.ready.lock();
                let wanted = self.wanted();
                (ready.len() > wanted).then(|| ready.pop()).flatten()
            };
            if let Some(surplus) = surplus {
                // One at a time: there is no hurry.
                end(surplus).await;
                continue;
            }
            tokio::select! {
                () = self.taken.notified() => tokio::time::sleep(REFILL_AFTER).await,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn give_way(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let given_way = self.starts.until_none_waits(left);
        let _closing = self.closing.run_until_cancelled(given_way).await;
    }

    async fn fill(&self) {
        let gives_way_until = Instant::now() + GIVE_WAY;
        loop {
            let lacking = self.wanted().saturating_sub(self.ready.lock().len());
            if lacking == 0 || self.closing.is_cancelled() {
                return;
            }
            self.give_way(gives_way_until).await;
            // Two run in parallel, so that a start which must create its own finds room among the makers.
            let (one, other) = tokio::join!(self.make_ready(), async {
                if lacking > 1 { self.make_ready().await } else { Ok(()) }
            });
            if let Err(e) = one.and(other) {
                tracing::warn!(error = %e, "cannot make a sandbox ahead");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    /// Furnishes what is lacking, and ends what was not wanted for a while.
    async fn furnish_ahead(&self) {
        let gives_way_until = Instant::now() + GIVE_WAY;
        let _making = self.furnishing.lock().await;
        while !self.closing.is_cancelled() {
            let over = self.furnished.lock().give_up(None, Instant::now());
            end_all(over).await;
            let Some(lacking) = self.furnished.lock().lacking(Instant::now()) else {
                break;
            };
            self.give_way(gives_way_until).await;
            let Some(made) = self.closing.run_until_cancelled(self.make_furnished(&lacking)).await else {
                break;
            };
            match made {
                Ok(empty) => {
                    let unwanted = self.furnished.lock().add(&lacking.contents, empty);
                    if let Some(unwanted) = unwanted {
                        end(unwanted).await;
                    }
                }
                Err(e) => {
                    tracing::warn!(error = %chain(&e), "cannot furnish a sandbox ahead");
                    let gone = self.furnished.lock().give_up(Some(&lacking.contents), Instant::now());
                    end_all(gone).await;
                }
            }
            // It may be the last that has a snapshot open.
            let _letting_go = tokio::task::spawn_blocking(move || drop(lacking));
        }
    }

    async fn make_furnished(&self, lacking: &LackingSandbox) -> Result<EmptySandbox, MakeError> {
        let mut empty = self.maker.make().await?;
        let furnished = async {
            self.maker.furnish(&mut empty, &lacking.contents).await?;
            match lacking.begins {
                true => self.maker.begin(&mut empty, &lacking.contents).await,
                false => Ok(()),
            }
        };
        match furnished.await {
            Ok(()) => Ok(empty),
            Err(e) => {
                end(empty).await;
                Err(e)
            }
        }
    }

    async fn make_ready(&self) -> Result<(), MakeError> {
        let empty = self.maker.make().await?;
        if self.closing.is_cancelled() {
            end(empty).await;
        } else {
            self.ready.lock().push(empty);
        }
        Ok(())
    }

    /// Ends all sandboxes that are ready. Blocks for some milliseconds, until none is being furnished either.
    pub fn close(&self) {
        self.closing.cancel();
        // One that is being furnished has files of a function.
        let _none = self.furnishing.blocking_lock();
        let all = std::mem::take(&mut *self.ready.lock());
        let furnished = self.furnished.lock().clear();
        for empty in all.into_iter().chain(furnished.into_iter().flat_map(|kind| kind.ready)) {
            empty.sandbox.end();
        }
        self.maker.cgroups().close();
    }
}

/// Takes the first that has not died while it waited, as of a host without memory.
fn living(take: impl Fn() -> Option<EmptySandbox>) -> Option<EmptySandbox> {
    std::iter::from_fn(take).find_map(|empty| {
        let state = *empty.sandbox.function_state().borrow();
        if state == FunctionState::Alive {
            return Some(empty);
        }
        tracing::warn!(?state, "a sandbox died while it waited");
        // The start does not wait for it.
        tokio::spawn(end(empty));
        None
    })
}

/// Ends sandboxes that nobody needs, and lets go of what was in them.
async fn end_all(gone: Vec<ReadySandboxes<EmptySandbox>>) {
    for mut kind in gone {
        for empty in kind.ready.drain(..) {
            end(empty).await;
        }
        // It may be the last that has a snapshot open. Nothing waits for it.
        let _letting_go = tokio::task::spawn_blocking(move || drop(kind));
    }
}
