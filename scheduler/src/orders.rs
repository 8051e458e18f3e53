//! Tickets of orders. A worker shows one for each instance that it reports: its word alone would be no proof that it may
//! have a function's secrets and requests.

use rekindle_envelope::MasterKey;
use rekindle_wire::internal::OrderTicket;
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

const CONTEXT: &str = "rekindle tickets of orders, version 1";

/// Writes tickets and checks them. All schedulers of a cluster have the same master key, so a ticket outlives the
/// scheduler that wrote it.
#[derive(Clone)]
pub(crate) struct Orders {
    key: [u8; 32],
}

impl Orders {
    pub(crate) fn new(key: &MasterKey) -> Self {
        Self {
            key: blake3::derive_key(CONTEXT, key.bytes()),
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
    pub(crate) fn wrote(
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

    #[test]
    fn a_ticket_is_for_one_worker_one_instance_and_one_version() {
        let key = |text: &str| text.repeat(8).parse().unwrap();
        let orders = Orders::new(&key("12345678"));
        let (a, b) = ("w-a".parse().unwrap(), "w-b".parse().unwrap());
        let (one, two) = ("i-1".parse().unwrap(), "i-2".parse().unwrap());
        let (hello, other) = ("hello".parse().unwrap(), "team.hello".parse().unwrap());
        let first = VersionNumber(1);
        let ticket = orders.ticket(&a, &one, &hello, first);
        assert!(orders.wrote(&ticket, &a, &one, &hello, first));
        assert!(Orders::new(&key("12345678")).wrote(&ticket, &a, &one, &hello, first));
        assert!(!Orders::new(&key("87654321")).wrote(&ticket, &a, &one, &hello, first));
        assert!(!orders.wrote(&ticket, &b, &one, &hello, first));
        assert!(!orders.wrote(&ticket, &a, &two, &hello, first));
        assert!(!orders.wrote(&ticket, &a, &one, &other, first));
        assert!(!orders.wrote(&ticket, &a, &one, &hello, VersionNumber(2)));
        assert!(!orders.wrote(&OrderTicket(String::new()), &a, &one, &hello, first));
    }
}
