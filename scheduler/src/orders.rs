//! Tickets of orders. A worker shows one for each instance that it reports. Its word alone would be no proof that it
//! may have a function's secrets and requests.
//!
//! Instances that were ordered by an earlier release have none. They count as ordered for a while after an upgrade.

use rekindle_envelope::MasterKey;
use rekindle_wire::internal::{Heartbeat, OrderTicket};
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

const CONTEXT: &str = "rekindle tickets of orders, version 1";
/// How long after the first ticket instances without one count as ordered: the longest invocation.
const UPGRADE_S: i64 = 900;

/// Writes tickets and checks them. All schedulers of a cluster have the same master key, so a ticket outlives the
/// scheduler that wrote it.
pub(crate) struct Orders {
    key: [u8; 32],
    /// Unix time in seconds of the first ticket.
    since: i64,
}

impl Orders {
    /// With a cluster's master key, and since when its orders have tickets, Unix time in seconds.
    pub(crate) fn new(key: &MasterKey, since: i64) -> Self {
        Self {
            key: blake3::derive_key(CONTEXT, key.bytes()),
            since,
        }
    }

    /// Removes the tickets that no scheduler wrote. What is left is for instances that were ordered.
    pub(crate) fn check(&self, beat: &mut Heartbeat, now_unix_s: i64) {
        let shown = std::mem::take(&mut beat.tickets);
        let is_upgrade = now_unix_s.saturating_sub(self.since) < UPGRADE_S;
        for info in &beat.instances {
            let ticket = match shown.get(&info.id) {
                Some(ticket) if self.wrote(ticket, &beat.worker, &info.id, &info.function, info.version) => {
                    ticket.clone()
                }
                None if is_upgrade => OrderTicket(String::new()),
                Some(_) | None => continue,
            };
            beat.tickets.insert(info.id.clone(), ticket);
        }
    }

    /// The ticket for an instance that is ordered of a worker.
    pub(crate) fn ticket(
        &self,
        worker: &WorkerId,
        instance: &InstanceId,
        function: &FunctionId,
        version: VersionNumber,
    ) -> OrderTicket {
        let code = self.code(worker, instance, function, version);
        OrderTicket(code.to_hex().to_string())
    }

    /// Whether a scheduler has written this ticket for it.
    fn wrote(
        &self,
        ticket: &OrderTicket,
        worker: &WorkerId,
        instance: &InstanceId,
        function: &FunctionId,
        version: VersionNumber,
    ) -> bool {
        let shown = blake3::Hash::from_hex(ticket.0.as_bytes());
        // Compared in constant time.
        shown.is_ok_and(|shown| shown == self.code(worker, instance, function, version))
    }

    fn code(
        &self,
        worker: &WorkerId,
        instance: &InstanceId,
        function: &FunctionId,
        version: VersionNumber,
    ) -> blake3::Hash {
        // No id has a zero byte.
        let what = format!("{worker}\0{instance}\0{function}\0{version}");
        blake3::keyed_hash(&self.key, what.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{beat, info, spec};

    #[test]
    fn a_ticket_is_for_one_worker_one_instance_and_one_version() {
        let key = |text: &str| text.repeat(8).parse().unwrap();
        let orders = Orders::new(&key("12345678"), 0);
        let (a, b) = ("w-a".parse().unwrap(), "w-b".parse().unwrap());
        let (one, two) = ("i-1".parse().unwrap(), "i-2".parse().unwrap());
        let (hello, other) = ("hello".parse().unwrap(), "team.hello".parse().unwrap());
        let first = VersionNumber(1);
        let ticket = orders.ticket(&a, &one, &hello, first);
        assert!(orders.wrote(&ticket, &a, &one, &hello, first));
        assert!(Orders::new(&key("12345678"), 0).wrote(&ticket, &a, &one, &hello, first));
        assert!(!Orders::new(&key("87654321"), 0).wrote(&ticket, &a, &one, &hello, first));
        assert!(!orders.wrote(&ticket, &b, &one, &hello, first));
        assert!(!orders.wrote(&ticket, &a, &two, &hello, first));
        assert!(!orders.wrote(&ticket, &a, &one, &other, first));
        assert!(!orders.wrote(&ticket, &a, &one, &hello, VersionNumber(2)));
        assert!(!orders.wrote(&OrderTicket(String::new()), &a, &one, &hello, first));
    }

    #[test]
    fn instances_without_a_ticket_count_as_ordered_shortly_after_the_upgrade_alone() {
        let orders = Orders::new(&"12345678".repeat(8).parse().unwrap(), 1_000);
        let spec = spec("hello", 1, 10, 1, 5);
        let ids: Vec<_> = ["i-good", "i-wrong", "i-none"].map(|id| id.parse().unwrap()).into();
        let mut told = beat(0, 1, 100, ids.iter().map(|id| info(id, &spec, 0, 0, 0)).collect());
        let good = orders.ticket(&told.worker, &ids[0], &spec.function, spec.version);
        for (now, ordered) in [(1_000, vec![&ids[0], &ids[2]]), (1_900, vec![&ids[0]])] {
            told.tickets.clear();
            told.tickets
                .extend(ids[..2].iter().map(|id| (id.clone(), good.clone())));
            orders.check(&mut told, now);
            let mut left: Vec<_> = told.tickets.keys().collect();
            left.sort_unstable_by_key(|id| ids.iter().position(|other| other == *id));
            assert_eq!(left, ordered, "{now}");
        }
    }
}
