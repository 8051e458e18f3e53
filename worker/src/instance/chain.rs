//! What led to the requests in an instance: the calls between functions before them. A call that the function makes
//! itself continues one of these chains, which keeps functions from calling each other without end.
//!
//! Which request a call belongs to is told by its trace, if the function passes that on. Otherwise it belongs to the
//! only request in flight. Among several, the longest chain counts.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use rekindle_wire::function_call::depth_of;
use rekindle_wire::headers::TRACEPARENT;
use tokio::time::Instant as Deadline;

/// The chains of the requests in an instance. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallChains(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    in_flight: Vec<ChainLink>,
    entered: u64,
    /// Length of the chain of the request that left last.
    last_depth: u32,
}

#[derive(Debug)]
struct ChainLink {
    number: u64,
    depth: u32,
    traceparent: Option<HeaderValue>,
    until: Deadline,
}

/// A request's place in its chain. It leaves on drop.
#[derive(Debug)]
pub(super) struct ChainedRequest {
    chains: CallChains,
    number: u64,
}

/// The request that a call of the function belongs to.
#[derive(Debug, PartialEq)]
pub(crate) struct Parent {
    /// Number of calls that led to it.
    pub(crate) depth: u32,
    /// Its deadline. `None` if no request is in flight.
    pub(crate) until: Option<Deadline>,
    /// Its trace context, if that is certain.
    pub(crate) traceparent: Option<HeaderValue>,
}

impl CallChains {
    /// Records a request with these headers, as a gateway sent them.
    pub(super) fn enter(&self, headers: &HeaderMap, until: Deadline) -> ChainedRequest {
        let mut state = self.0.lock();
        state.entered += 1;
        let number = state.entered;
        state.in_flight.push(ChainLink {
            number,
            depth: depth_of(headers),
            traceparent: headers.get(TRACEPARENT).cloned(),
            until,
        });
        ChainedRequest {
            chains: self.clone(),
            number,
        }
    }

    /// Finds the request that a call with this trace context belongs to.
    pub(crate) fn parent(&self, traceparent: Option<&HeaderValue>) -> Parent {
        let state = self.0.lock();
        let sent = traceparent.and_then(trace_of);
        let in_flight = || state.in_flight.iter();
        let same_trace = in_flight().filter(|link| {
            let trace = link.traceparent.as_ref().and_then(trace_of);
            trace.is_some() && trace == sent
        });
        if let Some(link) = same_trace.max_by_key(|link| link.depth) {
            return link.parent();
        }
        match &state.in_flight[..] {
            [only] => only.parent(),
            _ => Parent {
                depth: in_flight().map(|link| link.depth).max().unwrap_or(state.last_depth),
                until: in_flight().map(|link| link.until).max(),
                traceparent: None,
            },
        }
    }
}

impl ChainLink {
    fn parent(&self) -> Parent {
        Parent {
            depth: self.depth,
            until: Some(self.until),
            traceparent: self.traceparent.clone(),
        }
    }
}

impl Drop for ChainedRequest {
    fn drop(&mut self) {
        let mut state = self.chains.0.lock();
        let at = state.in_flight.iter().position(|link| link.number == self.number);
        if let Some(at) = at {
            state.last_depth = state.in_flight.swap_remove(at).depth;
        }
    }
}

/// The trace's id in a W3C trace context.
fn trace_of(traceparent: &HeaderValue) -> Option<&[u8]> {
    let text = traceparent.as_bytes();
    (text.len() >= 55).then(|| text.get(3..35)).flatten()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rekindle_wire::headers::CALL_DEPTH;

    use super::*;

    fn trace(digit: char) -> HeaderValue {
        let trace: String = std::iter::repeat_n(digit, 32).collect();
        format!("00-{trace}-00f067aa0ba902b7-01").parse().unwrap()
    }

    fn enter(chains: &CallChains, depth: u32, digit: char, until: Deadline) -> ChainedRequest {
        let mut headers = HeaderMap::new();
        headers.insert(CALL_DEPTH, HeaderValue::from(depth));
        headers.insert(TRACEPARENT, trace(digit));
        chains.enter(&headers, until)
    }

    #[test]
    fn a_call_belongs_to_the_request_of_its_trace_and_otherwise_to_the_longest_chain() {
        let (chains, now) = (CallChains::default(), Deadline::now());
        let late = now + Duration::from_secs(9);
        let nobody = chains.parent(None);
        assert_eq!((nobody.depth, nobody.until), (0, None));
        let first = enter(&chains, 2, 'a', now);
        assert_eq!(chains.parent(None).traceparent, Some(trace('a')));
        let other = enter(&chains, 5, 'b', late);
        assert_eq!(chains.parent(Some(&trace('a'))).depth, 2);
        assert_eq!(chains.parent(Some(&trace('b'))).until, Some(late));
        for sent in [None, Some(trace('c')), Some("nonsense".parse().unwrap())] {
            let parent = chains.parent(sent.as_ref());
            assert_eq!((parent.depth, parent.until, parent.traceparent), (5, Some(late), None));
        }
        drop(other);
        assert_eq!(chains.parent(Some(&trace('c'))).depth, 2);
        drop(first);
        assert_eq!(chains.parent(None).depth, 2, "it may go on after its answer");
    }
}
