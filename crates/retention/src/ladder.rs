//! What each rung of the ladder saves a request, in milliseconds over the rung below it.

use std::time::Duration;

/// The state of an unused instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// Frozen.
    Parked,
    /// Running and waiting for a request.
    Ready,
}

/// Wait of a request beyond its wait at a ready instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// If it finds a parked instance.
    pub parked: Duration,
    /// If an instance is restored for it, from the template that its worker has.
    pub restored: Duration,
    /// If an instance is booted for it.
    pub booted: Duration,
}

impl Default for Figures {
    /// As first measured: 1.66, 19.9 and 222 ms against 0.76. Restores and boots are faster by now
    /// (docs/reference/speed.md); only their ratios matter.
    fn default() -> Self {
        Self {
            parked: Duration::from_micros(900),
            restored: Duration::from_micros(19_100),
            booted: Duration::from_micros(221_200),
        }
    }
}

impl Figures {
    /// What is lost when an instance goes one rung down. A ready one that `can_park` is parked; any other goes. The
    /// next start is a restore if the function has a `snapshot`.
    pub fn saved(&self, rung: Rung, can_park: bool, snapshot: bool) -> Duration {
        let start = if snapshot { self.restored } else { self.booted };
        match rung {
            Rung::Ready if can_park => self.parked,
            Rung::Ready => start,
            Rung::Parked => start.saturating_sub(self.parked),
        }
    }

    /// What is lost when it goes altogether.
    pub fn lost(&self, rung: Rung, snapshot: bool) -> Duration {
        let rest = self.saved(Rung::Parked, true, snapshot);
        match rung {
            Rung::Ready => self.saved(Rung::Ready, true, snapshot) + rest,
            Rung::Parked => rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::greedy_dual::Clock;

    #[test]
    fn by_the_byte_a_ready_instance_is_parked_long_before_a_parked_one_goes() {
        let (figures, clock) = (Figures::default(), Clock::default());
        let ready = clock.worth(figures.saved(Rung::Ready, true, true), 252 << 20);
        let parked = clock.worth(figures.saved(Rung::Parked, true, true), 4 << 20);
        let booted = clock.worth(figures.saved(Rung::Parked, true, false), 4 << 20);
        assert!(ready * 100.0 < parked && parked * 10.0 < booted);
        assert_eq!(figures.lost(Rung::Ready, true), figures.restored);
        assert_eq!(figures.saved(Rung::Ready, false, false), figures.booted);
    }
}
