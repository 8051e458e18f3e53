//! Asks that wait for a slot: one bounded queue for each version that is asked for, first come, first served. It also
//! decides which function's turn it is.
//!
//! Warm instances belong to one function, which competes with no other for them. Functions compete for room for further
//! instances. It goes to the function that holds least memory, and among equals to the one that was given room longest
//! ago (max-min fairness, by memory). A burst of a thousand invocations of one function takes what is free, but the
//! next room goes to whoever has less. [`crate::fleet::reservation`] makes room when no function gives any up.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use rekindle_wire::internal::Placement;
use rekindle_wire::{ApiError, FunctionId, VersionNumber};
use tokio::sync::oneshot;

use crate::catalog::{Catalog, LiveVersion};
use crate::placement::SlotRequest;

/// Maximum number of waiting asks for each version.
pub(crate) const PER_VERSION: usize = 256;

/// Outcome of an ask.
pub(crate) type PlacementResult = Result<Placement, ApiError>;

/// What asks of one queue are for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    pub(crate) function: FunctionId,
    /// The version, unless it is the live one.
    pub(crate) version: Option<VersionNumber>,
}

impl QueueKey {
    /// What asks for a version are queued as: its number, and nothing where it is the live one.
    pub(crate) fn names_of(catalog: &Catalog, live: &LiveVersion) -> Vec<Self> {
        let (function, version) = version_of(live);
        let is_live = catalog
            .live(&function)
            .is_some_and(|other| other.spec.version == version);
        let versions = [Some(version)].into_iter().chain(is_live.then_some(None));
        let named = |version| Self {
            function: function.clone(),
            version,
        };
        versions.map(named).collect()
    }
}

/// One waiting ask. It is abandoned when its receiver is dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ask: SlotRequest,
    pub(crate) answer: oneshot::Sender<PlacementResult>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    queues: HashMap<QueueKey, WaiterQueue>,
    /// Number of times that room was given.
    turn: u64,
}

#[derive(Debug, Default)]
struct WaiterQueue {
    asks: VecDeque<Waiter>,
    /// Value of `turn` when they were last given room.
    served: u64,
}

impl WaiterQueue {
    fn open(&self) -> impl Iterator<Item = &Waiter> {
        self.asks.iter().filter(|w| !w.answer.is_closed())
    }
}

impl Queue {
    /// Queues an ask, or returns it if its queue is full.
    pub(crate) fn push(&mut self, wanted: &QueueKey, waiter: Waiter) -> Result<(), Waiter> {
        let queue = &mut self.queues.entry(wanted.clone()).or_default().asks;
        queue.retain(|w| !w.answer.is_closed());
        if queue.len() >= PER_VERSION {
            return Err(waiter);
        }
        queue.push_back(waiter);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.values().map(|w| w.open().count()).sum()
    }

    /// Number of asks that wait for a function.
    pub(crate) fn waiting_for(&self, function: &FunctionId) -> usize {
        let of_function = self.queues.iter().filter(|(wanted, _)| wanted.function == *function);
        of_function.map(|(_, waiting)| waiting.open().count()).sum()
    }

    /// Number of asks that wait in one queue.
    pub(crate) fn waiting_as(&self, wanted: &QueueKey) -> usize {
        self.queues.get(wanted).map_or(0, |waiting| waiting.open().count())
    }

    /// What asks wait for.
    pub(crate) fn names(&self) -> impl Iterator<Item = &QueueKey> {
        self.queues.keys()
    }

    /// What asks wait for, or those of it that `only` names, in the order of the functions' turns. `held` returns how
    /// much memory each has, and is called only if there are several.
    pub(crate) fn turns<'a>(
        &mut self,
        only: Option<&[QueueKey]>,
        held: impl Fn() -> HashMap<&'a FunctionId, u64>,
    ) -> FairOrder {
        self.queues.retain(|_, waiting| {
            waiting.asks.retain(|w| !w.answer.is_closed());
            !waiting.asks.is_empty()
        });
        let mut turns = FairOrder::default();
        let named = |wanted: &QueueKey| only.is_none_or(|only| only.contains(wanted));
        let all: Vec<_> = self.queues.iter().filter(|(wanted, _)| named(wanted)).collect();
        // A single function has no competitor.
        let held = if all.len() > 1 { held() } else { HashMap::new() };
        for (wanted, waiting) in all {
            let held = held.get(&wanted.function).copied().unwrap_or(0);
            turns.push(wanted.clone(), held, waiting.served);
        }
        turns
    }

    /// Whether an ask already waits for the version: a new one must not overtake it.
    pub(crate) fn is_waited_for(&self, wanted: &QueueKey) -> bool {
        self.queues.get(wanted).is_some_and(|w| w.open().next().is_some())
    }

    /// Takes the ask that has waited longest.
    pub(crate) fn pop(&mut self, wanted: &QueueKey) -> Option<Waiter> {
        self.queues.get_mut(wanted)?.asks.pop_front()
    }

    /// Returns an ask that could not be served to its place.
    pub(crate) fn put_back(&mut self, wanted: &QueueKey, waiter: Waiter) {
        let waiting = self.queues.entry(wanted.clone()).or_default();
        waiting.asks.push_front(waiter);
    }

    /// Returns asks that were set aside to their places, before those that were put back meanwhile.
    pub(crate) fn put_all_back(&mut self, aside: DeferredWaiters) {
        for (wanted, mut asks) in aside.asks {
            let waiting = self.queues.entry(wanted).or_default();
            asks.append(&mut waiting.asks);
            waiting.asks = asks;
        }
    }

    /// Records that the function was given room. Returns its new place among equals.
    pub(crate) fn was_given_room(&mut self, wanted: &QueueKey) -> u64 {
        self.turn += 1;
        if let Some(waiting) = self.queues.get_mut(wanted) {
            waiting.served = self.turn;
        }
        self.turn
    }
}

/// Asks that wait for instances which are on their way, taken out of their queues while those behind them are served.
#[derive(Debug, Default)]
pub(crate) struct DeferredWaiters {
    asks: HashMap<QueueKey, VecDeque<Waiter>>,
    /// Number of them for each version, whatever it was asked for as.
    counts: HashMap<(FunctionId, VersionNumber), usize>,
}

impl DeferredWaiters {
    /// Sets an ask for a version aside, behind those for the same.
    pub(crate) fn push(&mut self, wanted: &QueueKey, live: &LiveVersion, waiter: Waiter) {
        self.asks.entry(wanted.clone()).or_default().push_back(waiter);
        *self.counts.entry(version_of(live)).or_default() += 1;
    }

    /// Number of asks for the version that are set aside.
    pub(crate) fn waiting_for(&self, live: &LiveVersion) -> usize {
        self.counts.get(&version_of(live)).copied().unwrap_or(0)
    }
}

fn version_of(live: &LiveVersion) -> (FunctionId, VersionNumber) {
    (live.spec.function.clone(), live.spec.version)
}

/// The order in which functions take turns.
#[derive(Debug, Default)]
pub(crate) struct FairOrder {
    next: BinaryHeap<Reverse<(u64, u64, QueueKey)>>,
}

impl FairOrder {
    /// Adds a function that holds `held` bytes and was last given room at `served`.
    pub(crate) fn push(&mut self, wanted: QueueKey, held: u64, served: u64) {
        self.next.push(Reverse((held, served, wanted)));
    }

    /// Removes and returns the function whose turn it is, with `held` and `served`. It takes part again once it is
    /// pushed.
    pub(crate) fn pop(&mut self) -> Option<(QueueKey, u64, u64)> {
        self.next
            .pop()
            .map(|Reverse((held, served, wanted))| (wanted, held, served))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(n: usize) -> QueueKey {
        QueueKey {
            function: format!("f-{n}").parse().unwrap(),
            version: None,
        }
    }

    /// Gives room for one instance `times` times. `waiting` has, for each function, the number of its waiting asks and
    /// the memory of one instance. Returns which function was given room, in order.
    fn given(waiting: &[(usize, u64)], times: usize) -> Vec<usize> {
        let (mut asks, mut held): (Vec<_>, Vec<_>) = (waiting.to_vec(), vec![0; waiting.len()]);
        let (mut served, mut turn, mut order) = (vec![0; waiting.len()], 0, Vec::new());
        for _ in 0..times {
            let mut turns = FairOrder::default();
            for n in (0..waiting.len()).filter(|n| asks[*n].0 > 0) {
                turns.push(name(n), held[n], served[n]);
            }
            let Some((function, ..)) = turns.pop() else { break };
            let n = (0..waiting.len()).find(|n| name(*n) == function).unwrap();
            turn += 1;
            (asks[n].0, served[n]) = (asks[n].0 - 1, turn);
            held[n] += asks[n].1;
            order.push(n);
        }
        order
    }

    fn waiter() -> (Waiter, oneshot::Receiver<PlacementResult>) {
        let (answer, told) = oneshot::channel();
        let ask = SlotRequest {
            gateway: rekindle_wire::ids::GatewayId::generate(),
            version: None,
            held: Vec::new(),
            force: None,
            avoid: Vec::new(),
            avoid_until: crate::clock::Millis(0),
        };
        (Waiter { ask, answer }, told)
    }

    #[test]
    fn a_queue_takes_so_many_of_each_function_and_who_stopped_waiting_makes_room() {
        let (mut queue, busy) = (Queue::default(), name(0));
        let mut waiting = Vec::new();
        for _ in 0..PER_VERSION {
            let (one, told) = waiter();
            assert!(queue.push(&busy, one).is_ok());
            waiting.push(told);
        }
        assert!(queue.push(&busy, waiter().0).is_err());
        let (other, _told) = waiter();
        assert!(queue.push(&name(1), other).is_ok());
        assert_eq!(
            (queue.waiting_for(&busy.function), queue.len()),
            (PER_VERSION, PER_VERSION + 1)
        );
        waiting.pop();
        let (one, _told) = waiter();
        assert!(queue.push(&busy, one).is_ok());
        assert_eq!(queue.waiting_for(&busy.function), PER_VERSION);
        // Another version has a queue of its own.
        let older = QueueKey {
            version: Some(VersionNumber(1)),
            ..busy.clone()
        };
        let (one, _waits) = waiter();
        assert!(queue.push(&older, one).is_ok());
        assert_eq!(queue.waiting_for(&busy.function), PER_VERSION + 1);
    }

    #[test]
    fn asks_for_one_version_count_together_whatever_they_call_it() {
        let hello = crate::fixture::live(crate::fixture::spec("hello", 3, 10, 1, 5));
        let other = crate::fixture::live(crate::fixture::spec("hello", 4, 10, 1, 5));
        let by = |version| QueueKey {
            function: hello.spec.function.clone(),
            version,
        };
        let mut aside = DeferredWaiters::default();
        aside.push(&by(None), &hello, waiter().0);
        aside.push(&by(Some(VersionNumber(3))), &hello, waiter().0);
        aside.push(&by(Some(VersionNumber(4))), &other, waiter().0);
        assert_eq!((aside.waiting_for(&hello), aside.waiting_for(&other)), (2, 1));
    }

    #[test]
    fn only_the_queues_that_something_has_changed_for_take_a_turn() {
        let mut queue = Queue::default();
        let told: Vec<_> = (0..3)
            .map(|n| {
                let (one, told) = waiter();
                assert!(queue.push(&name(n), one).is_ok());
                told
            })
            .collect();
        let mut turns = queue.turns(Some(&[name(1), name(7)]), HashMap::new);
        assert_eq!(turns.pop().map(|(wanted, ..)| wanted), Some(name(1)));
        assert!(turns.pop().is_none());
        assert_eq!(
            (queue.len(), queue.waiting_as(&name(0)), queue.waiting_as(&name(7))),
            (3, 1, 0)
        );
        drop(told);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_burst_of_a_thousand_does_not_keep_another_from_its_turn() {
        let order = given(&[(1_000, 1), (1, 1)], 1_001);
        assert!(order.iter().take(2).any(|n| *n == 1), "{:?}", &order[..4]);
        assert_eq!(order.len(), 1_001);
    }

    proptest! {
        #[test]
        fn room_is_shared_by_memory_and_nobody_waits_for_more_turns_than_that_takes(
            waiting in proptest::collection::vec((1_usize..200, 1_u64..100), 1..12), times in 1_usize..500
        ) {
            let order = given(&waiting, times);
            let mut held = vec![0_u64; waiting.len()];
            let mut left: Vec<_> = waiting.iter().map(|w| w.0).collect();
            for n in order {
                // No function that still waits holds less than the one given room.
                let least = (0..waiting.len()).filter(|m| left[*m] > 0).map(|m| held[m]).min().unwrap();
                prop_assert_eq!(held[n], least);
                held[n] += waiting[n].1;
                left[n] -= 1;
            }
            // So of two that still wait, neither is ahead by more than one of its instances.
            for (a, b) in (0..waiting.len()).flat_map(|a| (0..waiting.len()).map(move |b| (a, b))) {
                if left[a] > 0 && left[b] > 0 {
                    prop_assert!(held[a] <= held[b] + waiting[a].1);
                }
            }
        }
    }
}
