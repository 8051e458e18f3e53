//! What namespaces' instances hold, and what their quotas let them have. Parked instances count with the memory that is
//! set aside for them, and are given up first.

use std::collections::BTreeSet;

use rekindle_wire::InstanceId;
use rekindle_wire::api::{QuotaExceeded, QuotaKind};
use rekindle_wire::ids::GatewayId;

use super::{Fleet, Instance, Stage};
use crate::catalog::LiveVersion;
use crate::clock::Millis;

/// Order in which a namespace's unused instances are given up: unleased before leased, parked before ready, then least
/// recently used first.
type EvictionOrder = (bool, bool, Millis);

/// What instances hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeldResources {
    pub(crate) instances: u64,
    /// Memory that is set aside for them, in bytes.
    pub(crate) memory: u64,
}

/// What the index of a namespace has of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InstanceEntry {
    memory: u64,
    is_stopping: bool,
    unused: Option<EvictionOrder>,
}

impl InstanceEntry {
    pub(super) fn of(instance: &Instance) -> Self {
        let order = (
            instance.lease.is_some(),
            instance.stage != Stage::Parked,
            instance.last_active,
        );
        Self {
            memory: instance.set_aside(),
            is_stopping: instance.stage == Stage::Stopping,
            unused: instance.is_unused().then_some(order),
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceInstances {
    pub(crate) all: HeldResources,
    /// The part of it that is being given up.
    stopping: HeldResources,
    unused: BTreeSet<(EvictionOrder, InstanceId)>,
}

impl NamespaceInstances {
    pub(super) fn note(&mut self, id: &InstanceId, was: Option<InstanceEntry>, is: Option<InstanceEntry>) {
        let change = |holding: &mut HeldResources, part: InstanceEntry, by: fn(u64, u64) -> u64| {
            holding.instances = by(holding.instances, 1);
            holding.memory = by(holding.memory, part.memory);
        };
        if let Some(part) = was {
            change(&mut self.all, part, u64::saturating_sub);
            if part.is_stopping {
                change(&mut self.stopping, part, u64::saturating_sub);
            }
            if let Some(order) = part.unused {
                self.unused.remove(&(order, id.clone()));
            }
        }
        if let Some(part) = is {
            change(&mut self.all, part, u64::saturating_add);
            if part.is_stopping {
                change(&mut self.stopping, part, u64::saturating_add);
            }
            self.unused.extend(part.unused.map(|order| (order, id.clone())));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.instances == 0
    }
}

impl Fleet {
    /// What the instances of a namespace hold.
    pub(crate) fn holding(&self, namespace: &str) -> HeldResources {
        self.instances
            .of_namespace(namespace)
            .map_or_else(HeldResources::default, |of| of.all)
    }

    /// The quota that one more instance of a version would exceed.
    pub(crate) fn over_quota(&self, live: &LiveVersion) -> Option<QuotaExceeded> {
        let namespace = live.spec.function.namespace();
        self.exceeded(namespace, self.holding(namespace), 1, live.memory())
    }

    /// Whether its namespace's quota lets a parked instance continue.
    pub(super) fn quota_lets_go_on(&self, instance: &Instance) -> bool {
        let namespace = instance.function.namespace();
        let more = instance.memory.saturating_sub(instance.set_aside());
        self.exceeded(namespace, self.holding(namespace), 0, more).is_none()
    }

    fn exceeded(&self, namespace: &str, held: HeldResources, instances: u64, memory: u64) -> Option<QuotaExceeded> {
        let (limits, _) = self.quotas.of(namespace);
        let over = |kind, used, asked| limits.exceeded(kind, used, asked).filter(|_| asked > 0);
        over(QuotaKind::Instances, held.instances, instances).or_else(|| over(QuotaKind::Memory, held.memory, memory))
    }

    /// The unused instance that a namespace gives up for another of this version, unless what it gives up already is
    /// enough. One of the version that the asking gateway holds is in use, whatever a heartbeat says; others of the
    /// version itself come last.
    pub(crate) fn given_up_for(&self, live: &LiveVersion, asking: &GatewayId) -> Option<InstanceId> {
        let spec = &live.spec;
        let namespace = spec.function.namespace();
        let of = self.instances.of_namespace(namespace)?;
        let later = HeldResources {
            instances: of.all.instances.saturating_sub(of.stopping.instances),
            memory: of.all.memory.saturating_sub(of.stopping.memory),
        };
        self.exceeded(namespace, later, 1, live.memory())?;
        let is_own = |i: &Instance| i.function == spec.function && i.version == spec.version;
        let in_use = |i: &Instance| is_own(i) && i.lease.as_ref().is_some_and(|l| l.gateway == *asking);
        let unused = self.instances.named(of.unused.iter().map(|(_, id)| id));
        let mut others = unused.filter(|(_, i)| !in_use(i));
        let first = others.next()?;
        let found = match is_own(first.1) {
            false => first,
            true => others.find(|(_, i)| !is_own(i)).unwrap_or(first),
        };
        Some(found.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rekindle_wire::api::Quota;

    use super::*;
    use crate::fixture::{fleet, gateway, live, ready, spec};
    use crate::placement::{Decision, Shortage, SlotRequest, place};
    use crate::quotas::Quotas;

    const GIB: u64 = 1 << 30;

    fn limited(limits: Quota) -> Fleet {
        let mut fleet = fleet(100 * GIB);
        fleet.quotas = Quotas::new(HashMap::from([("team".to_owned(), limits)]), Quota::default());
        fleet
    }

    fn ask() -> SlotRequest {
        SlotRequest {
            gateway: gateway(1),
            version: None,
            held: Vec::new(),
            force: None,
            avoid: Vec::new(),
            avoid_until: Millis(0),
        }
    }

    fn memory(limit: u64) -> Quota {
        Quota {
            memory_bytes: Some(limit),
            ..Quota::default()
        }
    }

    fn shortage(fleet: &Fleet, live: &LiveVersion) -> (QuotaKind, Option<String>) {
        match place(fleet, live, &ask(), Millis(5)) {
            Decision::Wait {
                shortage: Shortage::Quota(over),
                free_up,
            } => (over.kind, free_up.map(|id| id.to_string())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_namespace_at_its_limit_gives_up_parked_instances_first_and_no_other_namespace_does() {
        let mut fleet = limited(memory(4 * GIB));
        let (busy, calm, other) = (
            live(spec("busy.team", 1, 2 * GIB, 1, 9)),
            live(spec("calm.team", 1, 2 * GIB, 1, 9)),
            live(spec("busy", 1, 2 * GIB, 1, 9)),
        );
        for name in ["i-o1", "i-o2", "i-o3"] {
            ready(&mut fleet, name, &other, Millis(0));
        }
        assert!(matches!(
            place(&fleet, &busy, &ask(), Millis(1)),
            Decision::Start { .. }
        ));
        ready(&mut fleet, "i-ready", &calm, Millis(1));
        let parked = ready(&mut fleet, "i-parked", &calm, Millis(2));
        fleet.instances.get_mut(&parked).unwrap().stage = Stage::Parked;
        assert!(matches!(place(&fleet, &busy, &ask(), Millis(3)), Decision::Wait { .. }));
        assert_eq!(
            shortage(&fleet, &busy),
            (QuotaKind::Memory, Some("i-parked".to_owned()))
        );
        fleet.free_up(&parked).unwrap();
        // What is given up already makes no room yet, and would not be enough.
        assert_eq!(shortage(&fleet, &busy).1, None, "2 GiB are left once it is gone");
        fleet.forget(&parked, Millis(4));
        assert!(matches!(
            place(&fleet, &busy, &ask(), Millis(5)),
            Decision::Start { .. }
        ));
        // Another namespace's instances have no part in it.
        assert_eq!(
            fleet.holding("team"),
            HeldResources {
                instances: 1,
                memory: 2 * GIB
            }
        );
        assert_eq!(
            fleet.holding("default"),
            HeldResources {
                instances: 3,
                memory: 6 * GIB
            }
        );
        fleet.instances.check();
    }

    #[test]
    fn a_parked_instance_does_not_go_on_beyond_the_quota() {
        let mut fleet = limited(memory(3 * GIB));
        let (own, other) = (
            live(spec("own.team", 1, 2 * GIB, 1, 9)),
            live(spec("other.team", 1, 2 * GIB, 1, 9)),
        );
        let parked = ready(&mut fleet, "i-parked", &own, Millis(0));
        fleet.instances.get_mut(&parked).unwrap().stage = Stage::Parked;
        assert_eq!(place(&fleet, &own, &ask(), Millis(1)), Decision::Use(parked.clone()));
        ready(&mut fleet, "i-ready", &other, Millis(1));
        assert_eq!(shortage(&fleet, &own), (QuotaKind::Memory, Some("i-ready".to_owned())));
    }

    #[test]
    fn what_never_fits_is_refused_at_once_and_instances_are_counted() {
        let fleet = limited(memory(GIB));
        let big = live(spec("big.team", 1, 2 * GIB, 1, 9));
        assert!(matches!(place(&fleet, &big, &ask(), Millis(1)), Decision::OverQuota(_)));
        let mut fleet = limited(Quota {
            instances: Some(1),
            ..Quota::default()
        });
        let id = ready(&mut fleet, "i-1", &big, Millis(1));
        fleet.instances.get_mut(&id).unwrap().in_flight = 1;
        assert_eq!(shortage(&fleet, &big), (QuotaKind::Instances, None));
        fleet.quotas.set(&"team".parse().unwrap(), None);
        assert!(matches!(place(&fleet, &big, &ask(), Millis(1)), Decision::Start { .. }));
    }
}
