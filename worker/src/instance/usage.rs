//! Counts the requests in an instance, and records since when there is none. Closing and entering exclude each other.
//! So no request enters a retired instance, and there are never more requests than its concurrency limit.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rekindle_wire::lease::Fence;

use super::chain::ChainedRequest;

#[derive(Debug)]
struct State {
    in_flight: u32,
    /// The number of requests in flight that have run far past their timeout.
    overdue: u32,
    served: u64,
    closed: bool,
    /// Whether requests are turned away for now.
    held: bool,
    last: Instant,
    /// Fence of the leases under which requests come.
    fence: Fence,
}

/// The shared counter.
#[derive(Debug, Clone)]
pub struct Usage(Arc<Mutex<State>>);

impl Default for Usage {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            in_flight: 0,
            overdue: 0,
            served: 0,
            closed: false,
            held: false,
            last: Instant::now(),
            fence: Fence::default(),
        })))
    }
}

impl Usage {
    /// Admits a request under the lease with this mark, if it names one. At most `most` requests are in flight at once.
    pub fn enter(&self, most: u32, lease: Option<&str>) -> Entry {
        let mut state = self.0.lock();
        if state.closed {
            return Entry::Closed;
        }
        if lease.is_some_and(|mark| !state.fence.admits(mark)) {
            return Entry::Fenced;
        }
        if state.held || state.in_flight >= most {
            return Entry::Full;
        }
        let first = state.served == 0;
        state.in_flight += 1;
        state.served += 1;
        let request = InFlight {
            usage: self.clone(),
            is_overdue: false,
            after: None,
            chained: None,
        };
        Entry::Entered(request, first)
    }

    /// Counts a request as served.
    pub fn note_served(&self) {
        self.0.lock().served += 1;
    }

    /// Returns whether all requests in flight are overdue.
    pub fn is_only_overdue(&self) -> bool {
        let state = self.0.lock();
        state.in_flight == state.overdue
    }

    /// Returns whether any request is overdue.
    pub fn has_overdue(&self) -> bool {
        self.0.lock().overdue > 0
    }

    /// Marks the instance as used just now.
    pub fn touch(&self) {
        self.0.lock().last = Instant::now();
    }

    /// Turns requests away as if the instance were full, or accepts them again.
    pub fn hold(&self, held: bool) {
        self.0.lock().held = held;
    }

    /// Admits no more requests.
    pub fn close(&self) {
        self.0.lock().closed = true;
    }

    /// Admits no more requests, if none is in flight. Returns whether none is.
    pub fn close_if_idle(&self) -> bool {
        let mut state = self.0.lock();
        let idle = state.in_flight == 0;
        state.closed |= idle;
        idle
    }

    /// Returns the number of the newest lease under which a request came.
    pub fn lease_number(&self) -> u64 {
        self.0.lock().fence.number()
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.0.lock().in_flight
    }

    /// Returns the milliseconds since the last request left; 0 while one is in flight.
    pub fn idle_ms(&self) -> u64 {
        let state = self.0.lock();
        if state.in_flight > 0 {
            0
        } else {
            u64::try_from(state.last.elapsed().as_millis()).unwrap_or(u64::MAX)
        }
    }
}

/// The outcome of a request's attempt to enter.
#[derive(Debug)]
pub enum Entry {
    /// Admitted. The flag tells whether it is the first request ever.
    Entered(InFlight, bool),
    /// The instance is at its concurrency limit, or admits no requests for now.
    Full,
    /// Another gateway has a newer lease.
    Fenced,
    /// The instance admits no more requests.
    Closed,
}

/// A request in flight. It leaves on drop.
#[derive(Debug)]
pub struct InFlight {
    usage: Usage,
    is_overdue: bool,
    /// Dropped once it has left.
    after: Option<Box<dyn Debug + Send + Sync>>,
    /// Its place in a chain of calls.
    chained: Option<ChainedRequest>,
}

impl InFlight {
    /// Drops `after` once it has left.
    pub(super) fn drop_after(&mut self, after: impl Debug + Send + Sync + 'static) {
        self.after = Some(Box::new(after));
    }

    /// Sets its place in a chain of calls.
    pub(super) fn is_chained(&mut self, chained: ChainedRequest) {
        self.chained = Some(chained);
    }

    /// Marks the request as overdue: the function has run far past its timeout.
    pub fn is_overdue(&mut self) {
        if !self.is_overdue {
            self.is_overdue = true;
            self.usage.0.lock().overdue += 1;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.usage.0.lock();
        state.in_flight -= 1;
        state.overdue -= u32::from(self.is_overdue);
        state.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_instance_takes_no_request_and_a_busy_one_is_not_retired() {
        let usage = Usage::default();
        let Entry::Entered(request, true) = usage.enter(1, None) else {
            panic!("the first may enter");
        };
        assert!(!usage.close_if_idle());
        drop(request);
        assert!(matches!(usage.enter(1, None), Entry::Entered(_, false)));
        assert!(usage.close_if_idle());
        assert!(matches!(usage.enter(1, None), Entry::Closed));
    }

    #[test]
    fn no_more_requests_enter_than_the_instance_takes() {
        let usage = Usage::default();
        let first = usage.enter(2, None);
        let second = usage.enter(2, None);
        assert!(matches!((&first, &second), (Entry::Entered(..), Entry::Entered(..))));
        assert!(matches!(usage.enter(2, None), Entry::Full));
        drop(first);
        assert!(matches!(usage.enter(2, None), Entry::Entered(..)));
    }

    #[test]
    fn who_is_held_up_turns_requests_away_until_it_takes_them_again() {
        let usage = Usage::default();
        usage.hold(true);
        assert!(matches!(usage.enter(2, None), Entry::Full));
        usage.hold(false);
        assert!(matches!(usage.enter(2, None), Entry::Entered(..)));
    }

    #[test]
    fn an_older_lease_enters_no_more_once_a_newer_one_has() {
        let usage = Usage::default();
        let old = usage.enter(2, Some("1 g-a"));
        assert!(matches!(usage.enter(2, Some("2 g-b")), Entry::Entered(..)));
        assert!(matches!(usage.enter(2, Some("1 g-a")), Entry::Fenced));
        drop(old);
        assert!(matches!(usage.enter(2, Some("1 g-a")), Entry::Fenced));
        assert_eq!((usage.lease_number(), usage.in_flight()), (2, 0));
    }

    #[test]
    fn an_overdue_request_is_in_it_until_it_leaves() {
        let usage = Usage::default();
        let Entry::Entered(mut request, _) = usage.enter(2, None) else {
            panic!("the first may enter");
        };
        let other = usage.enter(2, None);
        request.is_overdue();
        request.is_overdue();
        assert!(usage.has_overdue() && !usage.is_only_overdue());
        drop(other);
        assert!(usage.is_only_overdue());
        drop(request);
        assert!(!usage.has_overdue());
        assert_eq!(usage.in_flight(), 0);
    }
}
