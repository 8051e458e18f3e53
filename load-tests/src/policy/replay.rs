//! Replays a trace against a contender, in virtual time: every use of every function in order. Between uses, instances
//! go down the ladder, are started ahead, or must make room. Memory is what idle instances hold: what is in use is the
//! same for all contenders.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use rekindle_retention::{Clock, Figures, Plan, Rung};

use super::contender::{Contender, Knowledge};
use super::trace::Function;

/// Share of its memory that a parked instance is charged: more than measured (3 % of 80 MB, 15 % of 14), and at least 4
/// MiB.
pub(super) const PARKED_SHARE: f64 = 0.10;
const PARKED_LEAST: f64 = 4_194_304.0;

/// The outcome, counted from `Run::from` on.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) uses: u64,
    pub(super) warm: u64,
    pub(super) parked: u64,
    pub(super) cold: u64,
    pub(super) prewarmed: u64,
    pub(super) prewarm_used: u64,
    /// Instances that had to make room.
    pub(super) evicted: u64,
    /// Memory of idle instances over time, byte seconds.
    pub(super) idle: f64,
    /// For each function that was used, the share of its uses that was cold.
    pub(super) shares: Vec<f64>,
    /// Length of the counted part, seconds.
    pub(super) seconds: f64,
}

impl Outcome {
    /// Average memory of idle instances, bytes.
    pub(super) fn memory(&self) -> f64 {
        self.idle / self.seconds
    }

    /// The cold share of uses at or below which this share of the functions stays.
    pub(super) fn cold_share(&self, of_functions: f64) -> f64 {
        let at = (self.shares.len() as f64 * of_functions).ceil() as usize;
        self.shares.get(at.max(1) - 1).copied().unwrap_or(0.0)
    }
}

/// One replay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) contender: Contender,
    /// Maximum memory of all idle instances, bytes.
    pub(super) most: f64,
    /// Share of its memory that a parked instance is charged.
    pub(super) parked_share: f64,
    /// Anything earlier is not counted.
    pub(super) from: Duration,
    pub(super) until: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Use,
    /// The instance becomes idle, and ready.
    Ready,
    /// The time as ready is over: the instance is parked or goes.
    Parked,
    Ahead,
    AheadEnds,
}

/// A function's one instance while it is idle.
#[derive(Debug, Clone, Copy)]
struct Idle {
    rung: Rung,
    since: Duration,
    worth: u64,
    ahead: bool,
}

struct State<'a> {
    function: &'a Function,
    uses: Box<dyn Iterator<Item = (Duration, Duration)> + 'a>,
    next: Option<(Duration, Duration)>,
    knows: Knowledge,
    plan: Option<Plan>,
    /// Greedy-dual's clock at its last use.
    credit: Clock,
    /// Events of earlier idle times do not count.
    epoch: u32,
    idle: Option<Idle>,
    counted: u64,
    cold: u64,
}

struct Replay<'a> {
    run: Run,
    states: Vec<State<'a>>,
    events: BinaryHeap<Reverse<(Duration, Event, usize, u32)>>,
    /// Idle instances by worth; the bits of a non-negative number sort like the number.
    worth: BTreeSet<(u64, usize)>,
    clock: Clock,
    figures: Figures,
    held: f64,
    outcome: Outcome,
}

/// Replays the functions' calls.
pub(super) fn replay(functions: &[Function], run: Run) -> Outcome {
    let mut replay = Replay {
        run,
        states: Vec::with_capacity(functions.len()),
        events: BinaryHeap::new(),
        worth: BTreeSet::new(),
        clock: Clock::default(),
        figures: Figures::default(),
        held: 0.0,
        outcome: Outcome {
            seconds: run.until.saturating_sub(run.from).as_secs_f64(),
            ..Outcome::default()
        },
    };
    for (at, function) in functions.iter().enumerate() {
        let mut uses = function.uses(run.until);
        let next = uses.next();
        if let Some((begin, _)) = next {
            replay.events.push(Reverse((begin, Event::Use, at, 0)));
        }
        replay.states.push(State {
            function,
            uses: Box::new(uses),
            next,
            knows: run.contender.knows(),
            plan: None,
            credit: Clock::default(),
            epoch: 0,
            idle: None,
            counted: 0,
            cold: 0,
        });
    }
    while let Some(Reverse((now, event, at, epoch))) = replay.events.pop() {
        if now >= run.until {
            break;
        }
        if event == Event::Use {
            replay.used(now, at);
        } else if replay.states[at].epoch == epoch {
            replay.passes(now, event, at);
        }
    }
    replay.end()
}

impl Replay<'_> {
    fn used(&mut self, now: Duration, at: usize) {
        let was = self.states[at].idle;
        self.leaves(now, at);
        let counts = now >= self.run.from;
        let state = &mut self.states[at];
        let Some((begin, end)) = state.next else { return };
        if counts {
            let outcome = &mut self.outcome;
            outcome.uses += 1;
            state.counted += 1;
            match was.map(|idle| idle.rung) {
                Some(Rung::Ready) => outcome.warm += 1,
                Some(Rung::Parked) => outcome.parked += 1,
                None => {
                    outcome.cold += 1;
                    state.cold += 1;
                }
            }
            outcome.prewarm_used += u64::from(was.is_some_and(|idle| idle.ahead));
        }
        let plan = state.knows.used(begin, end);
        state.plan = Some(plan);
        state.credit = self.clock;
        state.epoch += 1;
        state.next = state.uses.next();
        let (epoch, next) = (state.epoch, state.next);
        if let Some((begin, _)) = next {
            self.events.push(Reverse((begin, Event::Use, at, epoch)));
        }
        // Idle from its end on; the next use begins later.
        self.events.push(Reverse((end, Event::Ready, at, epoch)));
        let mut later = |after: Duration, event| {
            let when = end + after;
            if next.is_none_or(|(begin, _)| when < begin) && when < self.run.until {
                self.events.push(Reverse((when, event, at, epoch)));
            }
        };
        if plan.ready > Duration::ZERO {
            later(plan.ready, Event::Parked);
        }
        if plan.parked > plan.ready {
            later(plan.parked, Event::AheadEnds);
        }
        if let Some(window) = plan.ahead.filter(|window| window.until > plan.parked) {
            later(window.from.max(plan.parked + Duration::from_millis(1)), Event::Ahead);
            later(window.until, Event::AheadEnds);
        }
    }

    /// Handles a time of the plan.
    fn passes(&mut self, now: Duration, event: Event, at: usize) {
        let Some(plan) = self.states[at].plan else { return };
        match event {
            Event::Use => {}
            Event::Ready if plan.ready > Duration::ZERO => self.stands(now, at, Rung::Ready, false),
            Event::Ready => {}
            // No longer ready.
            Event::Parked if self.states[at].idle.is_none() => {}
            Event::Parked if plan.parked > plan.ready => {
                let rung = if self.run.contender.parks() {
                    Rung::Parked
                } else {
                    Rung::Ready
                };
                self.leaves(now, at);
                self.stands(now, at, rung, false);
            }
            Event::Parked | Event::AheadEnds => self.leaves(now, at),
            Event::Ahead if self.states[at].idle.is_none() => {
                if now >= self.run.from {
                    self.outcome.prewarmed += 1;
                }
                let rung = if self.run.contender.parks() {
                    Rung::Parked
                } else {
                    Rung::Ready
                };
                self.stands(now, at, rung, true);
            }
            Event::Ahead => {}
        }
    }

    fn bytes(&self, at: usize, rung: Rung) -> f64 {
        let memory = self.states[at].function.memory;
        match rung {
            Rung::Ready => memory,
            Rung::Parked => (memory * self.run.parked_share).max(PARKED_LEAST).min(memory),
        }
    }

    /// Makes an idle instance stand by from now on; those that are worth least make room.
    fn stands(&mut self, now: Duration, at: usize, rung: Rung, ahead: bool) {
        let can_park = self.run.contender.parks();
        let cost = self.figures.saved(rung, can_park, true);
        let freed = match rung {
            Rung::Ready if can_park => self.bytes(at, Rung::Ready) - self.bytes(at, Rung::Parked),
            rung => self.bytes(at, rung),
        };
        if ahead {
            self.states[at].credit = self.clock;
        }
        let worth = self.states[at].credit.worth(cost, freed as u64).to_bits();
        self.held += self.bytes(at, rung);
        self.worth.insert((worth, at));
        self.states[at].idle = Some(Idle {
            rung,
            since: now,
            worth,
            ahead,
        });
        while self.held > self.run.most
            && let Some((worth, least)) = self.worth.first().copied()
        {
            self.clock.gone(f64::from_bits(worth));
            let rung = self.states[least].idle.map(|idle| idle.rung);
            self.leaves(now, least);
            self.outcome.evicted += u64::from(now >= self.run.from);
            if rung == Some(Rung::Ready) && can_park {
                self.stands(now, least, Rung::Parked, false);
            }
        }
    }

    fn leaves(&mut self, now: Duration, at: usize) {
        let Some(idle) = self.states[at].idle.take() else {
            return;
        };
        self.worth.remove(&(idle.worth, at));
        let bytes = self.bytes(at, idle.rung);
        self.held -= bytes;
        let counted = now.saturating_sub(idle.since.max(self.run.from));
        self.outcome.idle += bytes * counted.as_secs_f64();
    }

    fn end(mut self) -> Outcome {
        for at in 0..self.states.len() {
            self.leaves(self.run.until, at);
        }
        let used = self.states.iter().filter(|state| state.counted > 0);
        self.outcome.shares = used.map(|state| state.cold as f64 / state.counted as f64).collect();
        self.outcome.shares.sort_by(f64::total_cmp);
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trace::functions;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(86_400);

    fn run(contender: Contender, most: f64) -> Outcome {
        let all: Vec<_> = functions(300, 11).into_iter().filter(|f| f.interval >= 30.0).collect();
        let run = Run {
            contender,
            most,
            parked_share: PARKED_SHARE,
            from: DAY,
            until: 3 * DAY,
        };
        replay(&all, run)
    }

    #[test]
    fn with_nothing_kept_all_is_cold_and_nothing_is_held() {
        let none = run(Contender::Fixed(Duration::ZERO), f64::INFINITY);
        assert!(none.uses > 1_000);
        assert_eq!((none.cold, none.idle), (none.uses, 0.0));
        assert!(none.cold_share(0.5) > 0.99);
    }

    #[test]
    fn to_keep_longer_holds_more_and_starts_fewer_cold() {
        let fixed = [1, 10, 60].map(|m| run(Contender::Fixed(m * MINUTE), f64::INFINITY));
        assert!(fixed.windows(2).all(|w| w[0].cold > w[1].cold && w[0].idle < w[1].idle));
        assert!(fixed.iter().all(|o| o.uses == o.warm + o.cold && o.parked == 0));
        let parked = run(Contender::FixedParked(MINUTE, 10 * MINUTE), f64::INFINITY);
        assert_eq!(parked.cold, fixed[1].cold);
        assert!(parked.idle < fixed[1].idle / 2.0);
    }

    #[test]
    fn the_limit_on_memory_is_kept_by_evicting() {
        let free = run(Contender::Ours, f64::INFINITY);
        let tight = run(Contender::Ours, free.memory() / 4.0);
        assert!(tight.memory() <= free.memory() / 4.0);
        assert!(tight.evicted > 0 && tight.cold > free.cold && free.evicted == 0);
        assert!(free.prewarmed >= free.prewarm_used && free.prewarm_used > 0);
    }
}
