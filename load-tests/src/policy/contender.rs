//! The policies against which the trace is replayed: ours, which is the scheduler's very code, and fixed times.

use std::time::Duration;

use rekindle_retention::{Basis, History, Plan, Settings};

/// How instances are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contender {
    /// Ready for this long after each use, then gone.
    Fixed(Duration),
    /// Ready for the first duration after each use, then parked until the second is over.
    FixedParked(Duration, Duration),
    /// The hybrid histogram without a parked rung: instances stand by ready.
    Histogram,
    /// The scheduler's policy.
    Ours,
}

/// What one contender knows of one function.
#[derive(Debug, Clone)]
pub(super) enum Knowledge {
    Nothing(Plan),
    History(Box<History>),
}

impl Contender {
    /// What it knows of a function that was never called.
    pub(super) fn knows(self) -> Knowledge {
        let fixed = |ready, parked| {
            Knowledge::Nothing(Plan {
                ready,
                parked,
                ahead: None,
                basis: Basis::New,
            })
        };
        match self {
            Self::Fixed(time) => fixed(time, time),
            Self::FixedParked(ready, parked) => fixed(ready, parked),
            Self::Histogram | Self::Ours => Knowledge::History(Box::new(History::new(Settings::default()))),
        }
    }

    /// Whether it can park an instance.
    pub(super) fn parks(self) -> bool {
        matches!(self, Self::FixedParked(..) | Self::Ours)
    }
}

impl Knowledge {
    /// Records that the function was in use from `begin` to `end`. Returns the plan from then on.
    pub(super) fn used(&mut self, begin: Duration, end: Duration) -> Plan {
        match self {
            Self::Nothing(plan) => *plan,
            Self::History(history) => {
                history.seen(begin, true);
                history.seen(end, false);
                *history.plan()
            }
        }
    }
}
