//! Which runs of a schedule are to begin: a pure function of the schedule, what was decided before, and the time.
//!
//! ```text
//! due ──missed policy──> waits ──overlap policy──> fired
//!   └─> missed              └─> skipped
//! ```
//!
//! What is due is looked for after the last run that was decided about, so a scheduler that begins finds what was due
//! while none led. At most a week is looked back, and at most [`WAITING_MAX`] runs wait.

use rekindle_wire::api::ScheduledRun;
use rekindle_wire::schedule::{Missed, Overlap, Schedule, Timetable};
use serde::{Deserialize, Serialize};

/// Maximum number of runs of one schedule that wait.
pub(super) const WAITING_MAX: usize = 100;
/// A run that is later than this was missed, where it matters: a change of leaders takes less.
const GRACE_MS: i64 = 30_000;
/// How far back runs are looked for.
const LOOKED_BACK_MS: i64 = 7 * 24 * 3_600_000;
/// Time spans in which the newest due runs are looked for, until enough are found.
const SPANS_MS: [i64; 4] = [120_000, 3 * 3_600_000, 24 * 3_600_000, LOOKED_BACK_MS];
/// A clock that shows an earlier time than this much before the last decision was set back.
const SET_BACK_MS: i64 = 60_000;

/// How far a schedule has got. This is what is stored of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The schedule's rule. Empty if no version that serves has the schedule.
    pub(super) rule: String,
    /// It has been decided about every run that was due up to then.
    pub(super) decided_unix_ms: i64,
    /// When those runs were due that wait, the oldest first.
    #[serde(default)]
    pub(super) waiting: Vec<i64>,
    #[serde(default)]
    pub(super) last: Option<ScheduledRun>,
}

impl Progress {
    /// Begins at `now`: nothing that was due before is run.
    pub(super) fn begin(&mut self, rule: String, now: i64) {
        self.rule = rule;
        self.decided_unix_ms = now;
        self.waiting.clear();
    }

    /// Has runs wait that are due. Returns how many were missed.
    pub(super) fn admit(&mut self, schedule: &Schedule, table: &Timetable, now: i64) -> u64 {
        if self.decided_unix_ms > now + SET_BACK_MS {
            self.decided_unix_ms = now;
        }
        let (newest, more) = due(table, self.decided_unix_ms, now);
        let Some(last) = newest.last().copied() else {
            // What was due before that is not looked for again.
            self.decided_unix_ms = self.decided_unix_ms.max(now - LOOKED_BACK_MS);
            return 0;
        };
        self.decided_unix_ms = last;
        let all = more + newest.len() as u64;
        let admitted = match schedule.missed {
            Missed::Each => newest,
            Missed::Skip if now - last > GRACE_MS => Vec::new(),
            Missed::Skip | Missed::Once => vec![last],
        };
        let mut missed = all - admitted.len() as u64;
        self.waiting.extend(admitted);
        let beyond = self.waiting.len().saturating_sub(WAITING_MAX);
        self.waiting.drain(..beyond);
        missed += beyond as u64;
        missed
    }

    /// The next run to fire, if any, and how many are left out. `goes_on` says whether the last run has not ended.
    pub(super) fn next(&mut self, overlap: Overlap, goes_on: bool) -> (Option<i64>, u64) {
        match (overlap, goes_on) {
            (Overlap::Queue, true) => (None, 0),
            (Overlap::Queue, false) => (self.waiting.first().copied(), 0),
            (Overlap::Skip, _) => {
                // The newest stands for those that could not be fired.
                let kept = usize::from(!goes_on);
                let beyond = self.waiting.len().saturating_sub(kept);
                self.waiting.drain(..beyond);
                (self.waiting.first().copied(), beyond as u64)
            }
        }
    }

    /// Records that the run that was due then has been fired.
    pub(super) fn fired(&mut self, run: ScheduledRun) {
        self.waiting.retain(|due| *due != run.due_unix_ms);
        self.last = Some(run);
    }
}

/// The newest due times after one time, up to another, the oldest first; and how many more there were. Those more than
/// a week ago are not counted.
fn due(table: &Timetable, after: i64, until: i64) -> (Vec<i64>, u64) {
    let mut found = (std::collections::VecDeque::new(), 0);
    for span in SPANS_MS {
        let start = after.max(until - span);
        found = (std::collections::VecDeque::new(), 0);
        let mut at = start;
        while let Some(next) = table.next_after(at).filter(|next| *next <= until) {
            at = next;
            found.0.push_back(next);
            if found.0.len() > WAITING_MAX {
                found.0.pop_front();
                found.1 += 1;
            }
        }
        if start == after || found.0.len() == WAITING_MAX {
            break;
        }
    }
    (found.0.into(), found.1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: i64 = 60_000;
    const DAY: i64 = 24 * 60 * MINUTE;
    /// A time at midnight.
    const START: i64 = 20_000 * DAY;

    fn schedule(cron: &str, overlap: Overlap, missed: Missed) -> (Schedule, Timetable) {
        let schedule = Schedule {
            name: "s".parse().unwrap(),
            cron: cron.to_owned(),
            timezone: "UTC".to_owned(),
            payload: None,
            overlap,
            missed,
        };
        let table = Timetable::new(cron, "UTC").unwrap();
        (schedule, table)
    }

    fn begun(schedule: &Schedule, at: i64) -> Progress {
        let mut progress = Progress::default();
        progress.begin(schedule.rule(), at);
        progress
    }

    fn run(due: i64) -> ScheduledRun {
        ScheduledRun {
            due_unix_ms: due,
            fired_unix_ms: due,
            call: None,
        }
    }

    #[test]
    fn a_run_is_due_once() {
        let (every, table) = schedule("*/5 * * * *", Overlap::Skip, Missed::Once);
        let mut progress = begun(&every, START + 1);
        assert_eq!(progress.admit(&every, &table, START + 5 * MINUTE - 1), 0);
        assert_eq!(progress.next(Overlap::Skip, false), (None, 0));
        assert_eq!(progress.admit(&every, &table, START + 5 * MINUTE), 0);
        assert_eq!(progress.next(Overlap::Skip, false), (Some(START + 5 * MINUTE), 0));
        progress.fired(run(START + 5 * MINUTE));
        assert_eq!(progress.admit(&every, &table, START + 5 * MINUTE + 900), 0);
        assert_eq!(progress.next(Overlap::Skip, false), (None, 0));
        assert_eq!(progress.last, Some(run(START + 5 * MINUTE)));
    }

    #[test]
    fn what_was_due_during_an_outage_is_left_out_run_once_or_each() {
        let until = START + 60 * MINUTE + 40_000;
        for (missed, waiting, lost) in [
            (Missed::Skip, vec![], 12),
            (Missed::Once, vec![START + 60 * MINUTE], 11),
            (Missed::Each, (1..=12).map(|n| START + n * 5 * MINUTE).collect(), 0),
        ] {
            let (every, table) = schedule("*/5 * * * *", Overlap::Queue, missed);
            let mut progress = begun(&every, START);
            assert_eq!(progress.admit(&every, &table, until), lost, "{missed:?}");
            assert_eq!(progress.waiting, waiting, "{missed:?}");
            assert_eq!(progress.admit(&every, &table, until), 0, "it was decided about");
        }
    }

    #[test]
    fn a_run_that_is_late_by_a_change_of_leaders_was_not_missed() {
        let (every, table) = schedule("*/5 * * * *", Overlap::Skip, Missed::Skip);
        let mut progress = begun(&every, START);
        assert_eq!(progress.admit(&every, &table, START + 5 * MINUTE + GRACE_MS), 0);
        assert_eq!(progress.waiting, [START + 5 * MINUTE]);
    }

    #[test]
    fn catching_up_has_bounds() {
        let (each, table) = schedule("* * * * *", Overlap::Queue, Missed::Each);
        let mut progress = begun(&each, START - 365 * DAY);
        let missed = progress.admit(&each, &table, START);
        assert_eq!(
            (progress.waiting.len(), progress.waiting.last()),
            (WAITING_MAX, Some(&START))
        );
        assert!(missed > 0 && missed <= 7 * 24 * 60, "{missed}");
        // A rare one is looked for within a week.
        let (rare, table) = schedule("0 0 1 1 *", Overlap::Queue, Missed::Each);
        let mut progress = begun(&rare, START - 4 * 365 * DAY);
        progress.admit(&rare, &table, START);
        assert!(progress.waiting.is_empty());
        assert!(
            table.next_after(progress.decided_unix_ms).unwrap() > START,
            "it is not looked at for ever"
        );
        let (second, table) = schedule("* * * * * *", Overlap::Queue, Missed::Each);
        let mut progress = begun(&second, START - 30 * DAY);
        progress.admit(&second, &table, START);
        assert_eq!(progress.waiting.len(), WAITING_MAX);
    }

    #[test]
    fn while_a_run_goes_on_others_are_left_out_or_wait_in_order() {
        let (skips, table) = schedule("* * * * *", Overlap::Skip, Missed::Once);
        let mut progress = begun(&skips, START);
        progress.admit(&skips, &table, START + MINUTE);
        assert_eq!(progress.next(Overlap::Skip, true), (None, 1));
        assert!(progress.waiting.is_empty());
        let (queues, table) = schedule("* * * * *", Overlap::Queue, Missed::Once);
        let mut progress = begun(&queues, START);
        for n in 1..=3 {
            progress.admit(&queues, &table, START + n * MINUTE);
            assert_eq!(progress.next(Overlap::Queue, true), (None, 0));
        }
        for n in 1..=3 {
            assert_eq!(progress.next(Overlap::Queue, false), (Some(START + n * MINUTE), 0));
            progress.fired(run(START + n * MINUTE));
        }
        assert_eq!(progress.next(Overlap::Queue, false), (None, 0));
    }

    #[test]
    fn a_clock_that_was_far_ahead_stops_nothing_for_long() {
        let (every, table) = schedule("* * * * *", Overlap::Skip, Missed::Once);
        let mut progress = begun(&every, START + 365 * DAY);
        progress.admit(&every, &table, START + 1);
        progress.admit(&every, &table, START + MINUTE);
        assert_eq!(progress.waiting, [START + MINUTE]);
        // A little is what clocks of two schedulers differ by.
        let mut progress = begun(&every, START + MINUTE);
        progress.admit(&every, &table, START + 1);
        assert_eq!(progress.decided_unix_ms, START + MINUTE);
    }

    proptest! {
        /// However often it is looked, and by whichever leader: each due time waits once, or was missed.
        #[test]
        fn every_due_time_is_decided_about_once(
            looks in proptest::collection::vec((1i64..40 * MINUTE, any::<bool>(), any::<bool>()), 1..40),
            step in 1u32..30, queues in any::<bool>(), missed in 0usize..3,
        ) {
            let overlap = if queues { Overlap::Queue } else { Overlap::Skip };
            let missed = [Missed::Skip, Missed::Once, Missed::Each][missed];
            let (every, table) = schedule(&format!("*/{step} * * * *"), overlap, missed);
            let mut progress = begun(&every, START);
            let (mut now, mut fired, mut lost) = (START, Vec::new(), 0);
            let crashed = looks.iter().any(|(_, _, crashes)| *crashes);
            for (pause, goes_on, crashes) in looks {
                now += pause;
                let before = progress.clone();
                let mut here = progress.clone();
                let mut gone = here.admit(&every, &table, now);
                let (next, skipped) = here.next(overlap, goes_on);
                gone += skipped;
                if let Some(due) = next {
                    // Fired before it is stored: a leader that is killed in between leaves it to the next.
                    if !fired.contains(&due) {
                        fired.push(due);
                    }
                    here.fired(run(due));
                }
                match crashes {
                    true => progress = before,
                    false => { progress = here; lost += gone; }
                }
                prop_assert!(progress.waiting.len() <= WAITING_MAX);
            }
            let mut all = Vec::new();
            let mut at = START;
            while let Some(next) = table.next_after(at).filter(|next| *next <= progress.decided_unix_ms) {
                all.push(next);
                at = next;
            }
            prop_assert!(fired.windows(2).all(|pair| pair[0] < pair[1]), "in order: {fired:?}");
            prop_assert!(progress.waiting.iter().all(|due| all.contains(due)));
            if !crashed {
                prop_assert_eq!(fired.len() as u64 + progress.waiting.len() as u64 + lost, all.len() as u64);
            }
        }
    }
}
