//! Which traces were found worth keeping after their head had not sampled them, told from process to process: each decides for what it sees
//! ([`crate::tail`]), a gateway and a worker tell the scheduler with their reports, about once a second, and the answers say what all
//! others have found. A verdict is told for some seconds, again and again, so that no answer that is lost costs one, and none comes too early for spans that
//! begin later; of many at once the newest count.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use opentelemetry::TraceId;
use parking_lot::Mutex;

use crate::tail;

/// How long one is told.
const TOLD_FOR: Duration = Duration::from_secs(4);
/// How many are told at once: 33 bytes each.
const TOLD_MOST: usize = 256;
/// How many are known, so that hearing one again does not make it new.
const KNOWN_MOST: usize = 4_096;
/// How often is looked for what is slow already.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How many traces' spans go on at one time: their way out has room for some thousand spans.
const AT_ONCE: usize = 100;

static VERDICTS: LazyLock<Mutex<Verdicts>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Verdicts {
    /// Found by this process.
    own: Recent,
    /// Told by others.
    others: Recent,
    /// When it was last looked for what is slow already.
    looked: Option<Instant>,
}

/// The newest, oldest first, each with when it was first heard of.
#[derive(Default)]
struct Recent {
    order: VecDeque<(Instant, TraceId)>,
    /// When each was last heard of.
    known: HashMap<TraceId, Instant>,
}

impl Recent {
    /// Notes those that are not known. One that was not heard of for as long as they are told was found anew, such as by a later attempt.
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

    /// Those that are still told, the newest first.
    fn told(&self, now: Instant) -> impl Iterator<Item = TraceId> {
        let is_new = move |at: &Instant| now.saturating_duration_since(*at) < TOLD_FOR;
        let newest = self.order.iter().rev().take_while(move |(at, _)| is_new(at));
        newest.take(TOLD_MOST).map(|(_, trace)| *trace)
    }
}

/// This process keeps a trace.
pub(crate) fn decided(trace: TraceId) {
    VERDICTS.lock().own.note([trace], Instant::now());
}

/// What this process has lately decided to keep, as 32 hexadecimal digits each, for others to keep too. Decides what is slow already.
pub fn kept_here() -> Vec<String> {
    look();
    let now = Instant::now();
    VERDICTS.lock().own.told(now).map(|t| t.to_string()).collect()
}

/// The same, and what this process was told of: what a scheduler answers.
pub fn kept_anywhere() -> Vec<String> {
    look();
    let now = Instant::now();
    let mut known = HashSet::new();
    let verdicts = VERDICTS.lock();
    let all = verdicts.own.told(now).chain(verdicts.others.told(now));
    all.filter(|t| known.insert(*t)).map(|t| t.to_string()).collect()
}

/// Decides what is slow already, unless that was done just now.
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

/// Others keep these traces: what is here of them is kept too. What is no trace's id is passed over, as is what comes after the first few hundred; what is
/// not come to now is at the next telling.
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
