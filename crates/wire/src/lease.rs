//! Fencing of leases: only the gateway with the newest lease may send to an instance.
//!
//! The scheduler numbers the leases on an instance upwards. A gateway states its lease with each invocation, and the
//! instance's worker rejects those under an older lease than it has seen. A gateway that is cut off from the scheduler
//! may continue under an expired lease. The first invocation of another gateway with a newer lease then stops it,
//! whatever the clocks say. Heartbeats tell a restarted scheduler the latest numbers.

use std::fmt;

use crate::ids::GatewayId;

/// A lease on an instance: its number and its gateway. As text, in a header: `7 g-…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseMark {
    /// Higher than the number of every earlier lease on the instance.
    pub number: u64,
    /// The gateway that holds it.
    pub gateway: GatewayId,
}

impl fmt::Display for LeaseMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.gateway)
    }
}

/// A worker's knowledge of the leases on an instance.
#[derive(Debug, Default)]
pub struct Fence {
    newest: Option<LeaseMark>,
}

impl Fence {
    /// Whether an invocation under the lease with this mark may enter. It may not after one under a newer lease has
    /// entered. Nor may it after one under another gateway's lease with the same number, which an unaware scheduler has
    /// granted again. A gateway's own older mark remains valid, because its invocations may overtake each other. An
    /// invalid mark is rejected.
    pub fn admits(&mut self, mark: &str) -> bool {
        let Some((number, gateway)) = mark.split_once(' ') else {
            return false;
        };
        let Ok(number) = number.parse::<u64>() else {
            return false;
        };
        match &mut self.newest {
            Some(newest) if newest.gateway.as_str() == gateway => {
                newest.number = newest.number.max(number);
                true
            }
            Some(newest) if number <= newest.number => false,
            newest => {
                let Ok(gateway) = gateway.parse() else { return false };
                *newest = Some(LeaseMark { number, gateway });
                true
            }
        }
    }

    /// The newest lease's number. 0 before the first.
    pub fn number(&self) -> u64 {
        self.newest.as_ref().map_or(0, |mark| mark.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_lease_is_turned_away_once_a_newer_one_was_used() {
        let mut fence = Fence::default();
        assert!(fence.admits("3 g-a") && fence.admits("3 g-a"));
        assert!(!fence.admits("3 g-b") && !fence.admits("2 g-b"));
        assert!(fence.admits("4 g-b"));
        assert!(!fence.admits("3 g-a") && !fence.admits("4 g-a"));
        assert_eq!(fence.number(), 4);
        // The gateway's own lease, renewed: requests under both may be in flight.
        assert!(fence.admits("6 g-b") && fence.admits("4 g-b"));
        assert_eq!(fence.number(), 6);
        assert!(fence.admits("7 g-a"));
    }

    #[test]
    fn what_is_no_mark_is_turned_away() {
        let mut fence = Fence::default();
        for mark in ["", "g-a", "x g-a", "-1 g-a", "1 ", "1 x", "1g-a"] {
            assert!(!fence.admits(mark), "{mark:?}");
        }
        let gateway = GatewayId::generate();
        assert!(fence.admits(&LeaseMark { number: 1, gateway }.to_string()));
    }
}
