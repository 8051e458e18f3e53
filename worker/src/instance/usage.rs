//! Requests in an instance: how many, and since when there is none. Closing and entering exclude each other, so that no
//! request enters an instance that has been retired.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

#[derive(Debug)]
struct State {
    in_flight: u32,
    served: u64,
    closed: bool,
    last: Instant,
}

/// The counter.
#[derive(Debug, Clone)]
pub struct Usage(Arc<Mutex<State>>);

impl Default for Usage {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            in_flight: 0,
            served: 0,
            closed: false,
            last: Instant::now(),
        })))
    }
}

impl Usage {
    /// A request enters. `None` when the instance takes none any more. Also whether it is the first.
    pub fn enter(&self) -> Option<(InFlight, bool)> {
        let mut state = self.0.lock();
        if state.closed {
            return None;
        }
        let first = state.served == 0;
        state.in_flight += 1;
        state.served += 1;
        Some((InFlight(self.clone()), first))
    }

    /// Counts as used just now.
    pub fn touch(&self) {
        self.0.lock().last = Instant::now();
    }

    /// No request enters any more.
    pub fn close(&self) {
        self.0.lock().closed = true;
    }

    /// The same, if none is in it.
    pub fn close_if_idle(&self) -> bool {
        let mut state = self.0.lock();
        let idle = state.in_flight == 0;
        state.closed |= idle;
        idle
    }

    /// Requests in it.
    pub fn in_flight(&self) -> u32 {
        self.0.lock().in_flight
    }

    /// Milliseconds since the last one left; 0 while one is in it.
    pub fn idle_ms(&self) -> u64 {
        let state = self.0.lock();
        if state.in_flight > 0 {
            0
        } else {
            u64::try_from(state.last.elapsed().as_millis()).unwrap_or(u64::MAX)
        }
    }
}

/// A request in an instance; leaves when dropped.
#[derive(Debug)]
pub struct InFlight(Usage);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.in_flight -= 1;
        state.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_instance_takes_no_request_and_a_busy_one_is_not_retired() {
        let usage = Usage::default();
        let (request, first) = usage.enter().unwrap();
        assert!(first);
        assert!(!usage.close_if_idle());
        drop(request);
        assert!(!usage.enter().unwrap().1);
        assert!(usage.close_if_idle());
        assert!(usage.enter().is_none());
    }
}
