//! Who waits for a slot: one bounded queue per function, first come, first served.

use std::collections::{HashMap, VecDeque};

use rekindle_wire::internal::Placement;
use rekindle_wire::{ApiError, FunctionName};
use tokio::sync::oneshot;

use crate::placement::Ask;

/// Asks waiting per function at most.
pub(crate) const PER_FUNCTION: usize = 256;

/// How an ask ends.
pub(crate) type Answer = Result<Placement, ApiError>;

/// One waiting ask. It is abandoned when nobody listens any more.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ask: Ask,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// All waiting asks.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    functions: HashMap<FunctionName, VecDeque<Waiter>>,
}

impl Queue {
    /// Queues an ask, or hands it back when the function's queue is full.
    pub(crate) fn push(&mut self, function: &FunctionName, waiter: Waiter) -> Result<(), Waiter> {
        let queue = self.functions.entry(function.clone()).or_default();
        queue.retain(|w| !w.answer.is_closed());
        if queue.len() >= PER_FUNCTION {
            return Err(waiter);
        }
        queue.push_back(waiter);
        Ok(())
    }

    /// Asks that wait.
    pub(crate) fn len(&self) -> usize {
        self.functions.keys().map(|name| self.waiting_for(name)).sum()
    }

    /// Asks that wait for a function.
    pub(crate) fn waiting_for(&self, function: &FunctionName) -> usize {
        let waiting = |queue: &VecDeque<Waiter>| queue.iter().filter(|w| !w.answer.is_closed()).count();
        self.functions.get(function).map_or(0, waiting)
    }

    /// Functions somebody waits for.
    pub(crate) fn functions(&mut self) -> Vec<FunctionName> {
        self.functions.retain(|_, queue| {
            queue.retain(|w| !w.answer.is_closed());
            !queue.is_empty()
        });
        self.functions.keys().cloned().collect()
    }

    /// Whether anybody waits already: a new ask must not overtake.
    pub(crate) fn is_waited_for(&self, function: &FunctionName) -> bool {
        self.functions
            .get(function)
            .is_some_and(|q| q.iter().any(|w| !w.answer.is_closed()))
    }

    /// Takes the ask that has waited longest.
    pub(crate) fn pop(&mut self, function: &FunctionName) -> Option<Waiter> {
        self.functions.get_mut(function)?.pop_front()
    }

    /// It could not be served after all and keeps its place.
    pub(crate) fn put_back(&mut self, function: &FunctionName, waiter: Waiter) {
        self.functions.entry(function.clone()).or_default().push_front(waiter);
    }
}
