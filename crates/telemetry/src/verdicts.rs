//! Verdicts: traces that proved worth keeping after their head had not sampled them, exchanged between processes. Each
//! process decides for what it sees ([`crate::tail`]). A gateway and a worker send verdicts to the scheduler with their
//! reports, about once a second, and the responses carry what all others have found.
//!
//! A verdict is repeated for some seconds, so that a lost response costs none, and none comes too early for spans that
//! begin later. If there are many at once, the newest count.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use opentelemetry::TraceId;
use parking_lot::Mutex;

use crate::tail;

/// How long a verdict is repeated.
const TOLD_FOR: Duration = Duration::from_secs(4);
/// Maximum number of verdicts sent at once: 33 bytes each.
const TOLD_MOST: usize = 256;
/// Maximum number of verdicts known, so that receiving one again does not make it new.
const KNOWN_MOST: usize = 4_096;
/// How often to look for traces that are already slow.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Number of traces whose spans are sent at once: their exporter has room for some thousand spans.
const AT_ONCE: usize = 100;

static VERDICTS: LazyLock<Mutex<Verdicts>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Verdicts {
    /// Found by this process.
    own: Recent,
    /// Received from others.
    others: Recent,
    /// When traces that are already slow were last looked for.
    looked: Option<Instant>,
}

/// The newest verdicts, oldest first, each with when it was first received.
#[derive(Default)]
struct Recent {
    order: VecDeque<(Instant, TraceId)>,
    /// When each was last received.
    known: HashMap<TraceId, Instant>,
}

impl Recent {
    /// Records verdicts that are not known. One that was not received for as long as they are repeated was found anew,
    /// such as by a later attempt.
    fn note(&mut self, traces: impl IntoIterator<Item = TraceId>, now: Instant) {
        for trace in traces {
            let before = self.known.insert(trace, now);
            if before.is_none_or(|at| now.saturating_duration_since(at) >= TOLD_FOR) {
                self.order.push_back((now, trace));
            }
        }
        let beyond = self.order.len().saturating_sub(KNOWN_MOST);
        for (_, trace) in self.order.drain(..beyond) {
            self.known.remove(&trace);
        }
    }

    /// Verdicts that are still repeated, newest first.
    fn told(&self, now: Instant) -> impl Iterator<Item = TraceId> {
        let is_new = move |at: &Instant| now.saturating_duration_since(*at) < TOLD_FOR;
        let newest = self.order.iter().rev().take_while(move |(at, _)| is_new(at));
        newest.take(TOLD_MOST).map(|(_, trace)| *trace)
    }
}

/// Records that this process keeps a trace.
pub(crate) fn decided(trace: TraceId) {
    VERDICTS.lock().own.note([trace], Instant::now());
}

/// Traces that this process has lately decided to keep, as 32 hexadecimal digits each, for others to keep too. Decides
/// on those that are already slow.
pub fn kept_here() -> Vec<String> {
    look();
    let now = Instant::now();
    VERDICTS.lock().own.told(now).map(|t| t.to_string()).collect()
}

/// Like `kept_here`, with those that this process received: a scheduler's response.
pub fn kept_anywhere() -> Vec<String> {
    look();
    let now = Instant::now();
    let mut known = HashSet::new();
    let verdicts = VERDICTS.lock();
    let all = verdicts.own.told(now).chain(verdicts.others.told(now));
    all.filter(|t| known.insert(*t)).map(|t| t.to_string()).collect()
}

/// Decides on traces that are already slow, unless that was done just now.
fn look() {
    let now = Instant::now();
    {
        let mut verdicts = VERDICTS.lock();
        if verdicts
            .looked
            .is_some_and(|at| now.saturating_duration_since(at) < LOOK_EVERY)
        {
            return;
        }
        verdicts.looked = Some(now);
    }
    tail::keep_overdue(AT_ONCE);
}

/// Keeps what is here of these traces, which others keep. Invalid ids are skipped, as is everything after the first few
/// hundred. What is not reached now is reached at the next report.
pub fn keep_told(traces: &[String]) {
    let told = traces.iter().take(2 * TOLD_MOST);
    let told: Vec<TraceId> = told.filter_map(|trace| TraceId::from_hex(trace).ok()).collect();
    VERDICTS.lock().others.note(told.iter().copied(), Instant::now());
    let mut kept = 0;
    for trace in told {
        kept += usize::from(tail::keep_told(trace));
        if kept == AT_ONCE {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(recent: &Recent, now: Instant) -> Vec<u8> {
        let last = |trace: TraceId| trace.to_bytes()[15];
        recent.told(now).map(last).collect()
    }

    #[test]
    fn a_verdict_is_told_for_some_seconds_however_often_it_is_heard() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        recent.note([1.into()], start);
        recent.note([1.into(), 2.into()], start + TOLD_FOR / 2);
        assert_eq!(told(&recent, start + TOLD_FOR / 2), [2, 1]);
        recent.note([1.into()], start + TOLD_FOR);
        assert_eq!(told(&recent, start + TOLD_FOR), [2]);
        recent.note([1.into()], start + 3 * TOLD_FOR);
        assert_eq!(told(&recent, start + 3 * TOLD_FOR), [1], "it was found anew");
    }

    #[test]
    fn of_many_the_newest_are_told_also_when_older_ones_are_heard_again() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let all = 0..2 * TOLD_MOST as u128;
        recent.note(all.clone().map(TraceId::from), now);
        recent.note(all.clone().map(TraceId::from), now);
        let newest: Vec<TraceId> = recent.told(now).collect();
        assert_eq!(newest.len(), TOLD_MOST);
        assert_eq!(newest[0], TraceId::from(all.end - 1));
        recent.note((0..2 * KNOWN_MOST as u128).map(TraceId::from), now);
        assert_eq!((recent.order.len(), recent.known.len()), (KNOWN_MOST, KNOWN_MOST));
    }

    #[test]
    fn what_is_told_is_told_on_and_what_is_no_id_is_not() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736".to_owned();
        keep_told(&[trace.clone(), "soon".to_owned()]);
        assert!(kept_anywhere().contains(&trace));
        assert!(!kept_here().contains(&trace));
        assert!(!kept_anywhere().contains(&"soon".to_owned()));
    }
}
