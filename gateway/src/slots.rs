//! Slots for invocations. A free slot is taken without asking the scheduler. Otherwise the invocation waits, and as
//! many asks go to the scheduler as the waiting invocations need. A slot that becomes free goes to the longest waiting
//! invocation, whether or not an ask was answered.

mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::api::StartKind;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{Placement, PlacementRequest, ReturnedLease};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, VersionNumber};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tracing::Instrument as _;

use crate::lease::{LeasedInstance, Leases, Outcome};
use crate::scheduler::SchedulerClient;

/// Maximum number of waiting invocations of one function.
const WAITERS_MAX: usize = 1_024;
/// Maximum number of a function's asks at the scheduler.
const ASKS_MAX: usize = 64;
/// An ask in flight for longer than this waits at the scheduler, and nothing is being started for it: it can be
/// cancelled.
const CALL_OFF_AFTER: Duration = Duration::from_millis(50);
/// Pause before the scheduler is asked again for invocations that may yet have a slot of an instance that is there.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// How long other workers are preferred to one that could not be reached.
const AVOID_FOR: Duration = Duration::from_secs(3);
/// What a wait may take on top of the scheduler's own limit.
const GRACE: Duration = Duration::from_secs(5);

type SlotResult = Result<Slot, ApiError>;

/// Levels of what a gateway holds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Levels {
    pub(crate) waiting: usize,
    pub(crate) leases: usize,
    pub(crate) slots: u32,
    pub(crate) used: u32,
}

struct Waiter {
    since: Instant,
    answer: oneshot::Sender<SlotResult>,
}

struct PendingAsk {
    number: u64,
    since: Instant,
    task: AbortHandle,
}

/// The version that an invocation is for. `None` for whichever the scheduler says serves.
type WantedVersion = Option<VersionNumber>;

/// Invocations that wait for a slot of one version, and the asks for them.
#[derive(Default)]
struct WaitQueue {
    waiters: VecDeque<Waiter>,
    asks: Vec<PendingAsk>,
}

#[derive(Default)]
struct Function {
    leases: Leases,
    waiting: BTreeMap<WantedVersion, WaitQueue>,
    /// Slots of an instance, once one was granted.
    slots_each: Option<u32>,
    /// Instances found gone, for the next ask to report.
    gone: Vec<InstanceId>,
}

impl Function {
    /// Number of waiting invocations.
    fn waiters(&self) -> usize {
        self.waiting.values().map(|waiting| waiting.waiters.len()).sum()
    }

    /// Whether nothing is held of it, and nothing waits.
    fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.waiting.is_empty() && self.gone.is_empty()
    }
}

impl WaitQueue {
    /// Number of asks that the waiting invocations need. Before the first answer, one ask finds out how many slots an
    /// instance has.
    fn asks_wanted(&self, slots_each: Option<u32>) -> usize {
        let each = slots_each.map_or(usize::MAX, |n| n.max(1) as usize);
        self.waiters.len().div_ceil(each).min(ASKS_MAX)
    }
}

pub(crate) struct Slots {
    pub(crate) gateway: GatewayId,
    pub(crate) scheduler: SchedulerClient,
    pub(crate) returns: report::Returns,
    wait: Duration,
    asked: AtomicU64,
    functions: Mutex<HashMap<FunctionId, Function>>,
    /// Returned leases that have not been reported to the scheduler yet.
    unsent: Mutex<Vec<(ReturnedLease, Instant)>>,
    /// Whether the last report was answered.
    scheduler_is_there: AtomicBool,
    /// Workers that could not be reached, and when.
    unreached: Mutex<HashMap<Arc<str>, Instant>>,
}

/// A slot in use; free again when dropped.
pub(crate) struct Slot {
    pub(crate) leased: LeasedInstance,
    function: FunctionId,
    slots: Arc<Slots>,
    outcome: Outcome,
    /// Whether dropping it does nothing, since it was released otherwise.
    spent: bool,
}

impl Slot {
    /// Marks the instance as gone, and the slot with it.
    pub(crate) fn is_gone(&mut self) {
        self.outcome = Outcome::Gone;
    }

    /// Marks the slot as lost: no client waits for the invocation any more, and the function may still be working on
    /// it.
    pub(crate) fn is_lost(&mut self) {
        self.outcome = Outcome::Lost;
    }

    /// Marks the slot as lost to an invocation that ran into its timeout.
    pub(crate) fn is_stuck(&mut self) {
        self.outcome = Outcome::Stuck;
    }

    /// Records that the worker could not be reached.
    pub(crate) fn is_unreachable(&mut self) {
        self.outcome = Outcome::Unusable;
        self.avoid_worker();
    }

    /// Records that the worker says the lease is over.
    pub(crate) fn is_fenced(&mut self) {
        self.outcome = Outcome::Unusable;
    }

    /// Prefers other workers for a while: this one's other instances are just as unreachable.
    pub(crate) fn avoid_worker(&self) {
        for function in self.slots.functions.lock().values_mut() {
            function.leases.close_at(&self.leased.address);
        }
        let mut unreached = self.slots.unreached.lock();
        unreached.insert(self.leased.address.clone(), Instant::now());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.spent {
            return;
        }
        self.slots.clone().release(&self.function, &self.leased, self.outcome);
    }
}

impl Slots {
    pub(crate) fn new(scheduler: SchedulerClient, wait: Duration) -> Arc<Self> {
        Arc::new(Self {
            gateway: GatewayId::generate(),
            scheduler,
            returns: report::Returns::default(),
            wait,
            asked: AtomicU64::new(0),
            functions: Mutex::default(),
            unsent: Mutex::default(),
            scheduler_is_there: AtomicBool::new(true),
            unreached: Mutex::default(),
        })
    }

    pub(crate) fn levels(&self) -> Levels {
        let mut all = Levels::default();
        for function in self.functions.lock().values() {
            let (leases, slots, used) = function.leases.levels();
            all.waiting += function.waiters();
            all.leases += leases;
            all.slots += slots;
            all.used += used;
        }
        all
    }

    /// Limit for all placements of one invocation together.
    pub(crate) fn limit(&self) -> Duration {
        self.wait + GRACE
    }

    /// Takes a slot for an invocation of this version of `function`, or of the one that serves. The wait is bounded by
    /// the time that a placement may take.
    ///
    /// # Errors
    /// The scheduler's error, or `throttled` if the wait was in vain.
    pub(crate) async fn take(self: &Arc<Self>, function: &FunctionId, wanted: WantedVersion) -> SlotResult {
        let waiting = {
            let mut functions = self.functions.lock();
            let entry = functions.entry(function.clone()).or_default();
            // No overtaking: while invocations wait, free slots are theirs.
            let must_wait = entry.waiting.get(&wanted).is_some_and(|w| !w.waiters.is_empty());
            if !must_wait && let Some(leased) = entry.leases.take(wanted, Instant::now(), self.is_scheduler_there()) {
                return Ok(self.slot(function, leased));
            }
            let still_wait = |waiting: &mut WaitQueue| waiting.waiters.retain(|w| !w.answer.is_closed());
            entry.waiting.values_mut().for_each(still_wait);
            if entry.waiters() >= WAITERS_MAX {
                return Err(throttled(function));
            }
            let (answer, told) = oneshot::channel();
            entry.waiting.entry(wanted).or_default().waiters.push_back(Waiter {
                since: Instant::now(),
                answer,
            });
            self.settle_asks(function, entry, wanted);
            told
        };
        let _leaving = AskCancellation(self, function, wanted);
        match tokio::time::timeout(self.limit(), waiting).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(throttled(function)),
        }
    }

    /// Takes a slot on a fresh instance started as asked, which is not shared.
    pub(crate) async fn take_fresh(
        self: &Arc<Self>,
        function: &FunctionId,
        wanted: WantedVersion,
        force: StartKind,
    ) -> SlotResult {
        let mut request = self.request(function, wanted, Vec::new(), Vec::new());
        request.force = Some(force);
        let placement = self.scheduler.place(&request).await?;
        let mut functions = self.functions.lock();
        let entry = functions.entry(function.clone()).or_default();
        self.add(entry, wanted, &placement);
        let leased = entry.leases.take_alone(&placement.instance, Instant::now());
        drop(functions);
        leased
            .map(|leased| self.slot(function, leased))
            .ok_or_else(|| throttled(function))
    }

    /// Adds a lease. An earlier one on the same instance need no longer be reported as returned, nor that it was gone
    /// from where it had been.
    fn add(&self, entry: &mut Function, wanted: WantedVersion, placement: &Placement) {
        entry.gone.retain(|gone| *gone != placement.instance);
        self.unsent.lock().retain(|(r, _)| r.instance != placement.instance);
        entry.leases.add(placement, wanted, &self.gateway, Instant::now());
    }

    fn is_scheduler_there(&self) -> bool {
        self.scheduler_is_there.load(Ordering::Relaxed)
    }

    /// Closes leases that the scheduler recalled.
    pub(crate) fn close(&self, instances: &[InstanceId]) {
        if instances.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut functions = self.functions.lock();
        for instance in instances {
            let _ = functions.values_mut().any(|f| f.leases.recall(instance, now));
        }
        drop(functions);
        self.returns.are_due();
    }

    fn slot(self: &Arc<Self>, function: &FunctionId, leased: LeasedInstance) -> Slot {
        Slot {
            leased,
            function: function.clone(),
            slots: self.clone(),
            outcome: Outcome::Free,
            spent: false,
        }
    }

    fn release(self: Arc<Self>, function: &FunctionId, leased: &LeasedInstance, outcome: Outcome) {
        let mut functions = self.functions.lock();
        let Some(entry) = functions.get_mut(function) else {
            return;
        };
        let instance = &leased.instance;
        // One that has moved is there where it is leased now.
        if outcome != Outcome::Gone || !entry.leases.is_elsewhere(leased) {
            if entry.leases.release(instance, outcome, Instant::now()) {
                self.returns.are_due();
            }
            if outcome == Outcome::Gone && !entry.gone.contains(instance) {
                entry.gone.push(instance.clone());
            }
        }
        self.hand_out(function, entry);
    }

    /// Gives free slots to waiting invocations.
    fn hand_out(self: &Arc<Self>, function: &FunctionId, entry: &mut Function) {
        let mut next = entry.waiting.keys().next().copied();
        while let Some(wanted) = next {
            self.hand_out_of(function, entry, wanted);
            let after = (Bound::Excluded(wanted), Bound::Unbounded);
            next = entry.waiting.range(after).next().map(|(wanted, _)| *wanted);
        }
    }

    fn hand_out_of(self: &Arc<Self>, function: &FunctionId, entry: &mut Function, wanted: WantedVersion) {
        let Function { leases, waiting, .. } = entry;
        let Some(waiting) = waiting.get_mut(&wanted) else {
            return;
        };
        waiting.waiters.retain(|w| !w.answer.is_closed());
        while !waiting.waiters.is_empty() {
            let Some(leased) = leases.take(wanted, Instant::now(), self.is_scheduler_there()) else {
                break;
            };
            let instance = leased.instance.clone();
            let Some(waiter) = waiting.waiters.pop_front() else {
                break;
            };
            if let Err(Ok(mut slot)) = waiter.answer.send(Ok(self.slot(function, leased))) {
                // It stopped waiting just now. Dropping the slot normally would take the lock again.
                slot.spent = true;
                leases.release(&instance, Outcome::Free, Instant::now());
            }
        }
        self.settle_asks(function, entry, wanted);
    }

    /// Sends as many asks as are wanted, and cancels those that no invocation waits for.
    fn settle_asks(self: &Arc<Self>, function: &FunctionId, entry: &mut Function, wanted: WantedVersion) {
        let Function {
            leases,
            waiting: all,
            slots_each,
            gone,
        } = entry;
        let Some(waiting) = all.get_mut(&wanted) else {
            return;
        };
        let needed = waiting.asks_wanted(*slots_each);
        while waiting.asks.len() < needed {
            let request = self.request(function, wanted, leases.held(wanted), std::mem::take(gone));
            waiting.asks.push(self.ask(request));
        }
        if needed == 0 {
            waiting.asks.retain(|ask| {
                let waits_there = ask.since.elapsed() > CALL_OFF_AFTER;
                if waits_there {
                    ask.task.abort();
                }
                !waits_there
            });
        }
        if waiting.waiters.is_empty() && waiting.asks.is_empty() {
            all.remove(&wanted);
        }
    }

    fn ask(self: &Arc<Self>, request: PlacementRequest) -> PendingAsk {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let slots = self.clone();
        let task = tokio::spawn(
            async move {
                let since = Instant::now();
                slots.returns.are_reported().await;
                let answer = slots.place(request.clone()).await;
                slots.answered((&request.function, request.version), number, since.elapsed(), answer);
            }
            .in_current_span(),
        );
        PendingAsk {
            number,
            since: Instant::now(),
            task: task.abort_handle(),
        }
    }

    /// Asks for a lease. A scheduler that is away costs nobody their invocation while there are instances, whose slots
    /// become free in the meantime. It is asked again for as long as an invocation waits.
    async fn place(&self, mut request: PlacementRequest) -> Result<Placement, ApiError> {
        let since = Instant::now();
        loop {
            let answer = self.scheduler.place(&request).await;
            let is_away = matches!(&answer, Err(error) if error.code == ErrorCode::Unavailable);
            if !is_away || since.elapsed() + ASK_AGAIN >= self.wait {
                return answer;
            }
            match self.functions.lock().get(&request.function) {
                Some(entry) if entry.leases.serve(request.version) => {
                    request.held = entry.leases.held(request.version);
                }
                _ => return answer,
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    fn answered(
        self: &Arc<Self>,
        (function, wanted): (&FunctionId, WantedVersion),
        number: u64,
        took: Duration,
        answer: Result<Placement, ApiError>,
    ) {
        let mut functions = self.functions.lock();
        let entry = functions.entry(function.clone()).or_default();
        let waiting = entry.waiting.entry(wanted).or_default();
        waiting.asks.retain(|a| a.number != number);
        match answer {
            Ok(placement) => {
                entry.slots_each = Some(placement.slots);
                self.add(entry, wanted, &placement);
                self.scheduler_is_there.store(true, Ordering::Relaxed);
            }
            Err(error) => {
                let waited_enough = self.wait * 9 / 10;
                let doomed = match error.code {
                    ErrorCode::FunctionNotFound | ErrorCode::NotFound => waiting.waiters.len(),
                    // The ask took its whole time: later waiters may go on waiting.
                    ErrorCode::Throttled | ErrorCode::QuotaExceeded | ErrorCode::NoCapacity
                        if took >= waited_enough =>
                    {
                        let old = |w: &&Waiter| w.since.elapsed() >= waited_enough;
                        waiting.waiters.iter().take_while(old).count()
                    }
                    _ => entry.slots_each.unwrap_or(u32::MAX) as usize,
                };
                let doomed = doomed.min(waiting.waiters.len());
                for waiter in waiting.waiters.drain(..doomed) {
                    drop(waiter.answer.send(Err(error.clone())));
                }
            }
        }
        self.hand_out(function, entry);
    }

    fn request(
        &self,
        function: &FunctionId,
        wanted: WantedVersion,
        held: Vec<InstanceId>,
        gone: Vec<InstanceId>,
    ) -> PlacementRequest {
        let mut unreached = self.unreached.lock();
        unreached.retain(|_, since| since.elapsed() < AVOID_FOR);
        PlacementRequest {
            avoid: unreached.keys().map(ToString::to_string).collect(),
            gateway: self.gateway.clone(),
            function: function.clone(),
            version: wanted,
            held,
            force: None,
            wait_ms: u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX),
            gone,
        }
    }
}

/// When a wait ends, for whatever reason, cancels asks that are no longer needed.
struct AskCancellation<'a>(&'a Arc<Slots>, &'a FunctionId, WantedVersion);

impl Drop for AskCancellation<'_> {
    fn drop(&mut self) {
        let Self(slots, function, wanted) = *self;
        if let Some(entry) = slots.functions.lock().get_mut(function) {
            if let Some(waiting) = entry.waiting.get_mut(&wanted) {
                waiting.waiters.retain(|w| !w.answer.is_closed());
            }
            slots.settle_asks(function, entry, wanted);
        }
    }
}

pub(crate) fn throttled(function: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::Throttled,
        format!(
            "too many invocations of {function} are waiting: send less, or raise max_instances or concurrency in \
             fn.toml"
        ),
    )
}
