//! Leases: which gateway may send to which instance without asking.
//!
//! A lease gives a gateway all slots of an instance for a while. The gateway renews by [`LeaseReport`] the leases it
//! keeps using. It returns a lease that it has not used for a lease's length, so that instances can become idle. The
//! scheduler recalls a lease when the instance must go or its room is needed. It takes that back when the instance does
//! not go after all: the answer to a report says which leases the gateway keeps. A gateway that dies lets its leases
//! run out. Only instances without a lease are retired for idleness.
//!
//! Leases on an instance are numbered, and its worker rejects requests under an older one ([`rekindle_wire::lease`]).
//! So two gateways never share an instance, however late one learns that its lease is over.

use std::time::Duration;

use rekindle_wire::InstanceId;
use rekindle_wire::api::StartKind;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{LeaseReport, Placement};

use super::{Fleet, Instance, Lease, Stage};
use crate::catalog::LiveVersion;
use crate::clock::Millis;

const LONGEST: Millis = Millis(10_000);
const SHORTEST: Millis = Millis(500);
/// After a restart the scheduler does not know its instances until each worker has sent a heartbeat. For this long it
/// ends no lease because the instance is unknown.
const SETTLING: Millis = Millis(5_000);

/// Length of a lease: half the idle time, so that returning and retiring together take about the idle time.
fn lease_length(idle: Millis) -> Millis {
    Millis(idle.0 / 2).clamp(SHORTEST, LONGEST)
}

impl Fleet {
    /// Leases an instance to a gateway. Returns `None` if the instance is gone.
    pub(crate) fn grant(
        &mut self,
        id: &InstanceId,
        gateway: &GatewayId,
        live: &LiveVersion,
        now: Millis,
    ) -> Option<Placement> {
        let instance = self.instances.get(id)?;
        let (to_park, is_ahead) = (instance.to_park, instance.keeping.ahead.is_some());
        let site = self.instances.sites().get(&instance.worker)?;
        let worker_address = site.facts.as_ref()?.address.as_ref().to_owned();
        if to_park {
            self.filled(id);
        }
        if is_ahead {
            self.used(id);
        }
        let mut instance = self.instances.get_mut(id)?;
        let stage = instance.stage;
        if stage == Stage::Parked {
            // Its worker thaws it for the first invocation. Its memory is set aside from now on.
            instance.stage = Stage::Ready;
        }
        let length = lease_length(instance.idle_limit);
        instance.lease_number = instance.lease_number.saturating_add(1);
        instance.lease = Some(Lease {
            gateway: gateway.clone(),
            granted_at: now,
            expires_at: now.plus(length),
            recalled: false,
            for_now: false,
            told: false,
        });
        (instance.last_active, instance.just_returned) = (now, false);
        Some(Placement {
            instance: id.clone(),
            worker_address,
            version: instance.version,
            start: match stage {
                Stage::Starting => instance.started,
                Stage::Parked => StartKind::Parked,
                _ => StartKind::Warm,
            },
            slots: instance.slots.saturating_sub(instance.in_flight).max(1),
            timeout_ms: u64::try_from(live.spec.config.timeout().as_millis()).unwrap_or(u64::MAX),
            boot_timeout_ms: live.spec.config.boot_timeout_ms,
            lease_ms: length.0,
            lease_number: instance.lease_number,
            idempotent: live.spec.config.idempotent,
            fresh: live.spec.config.fresh,
            memory_bytes: live.memory(),
        })
    }

    /// Applies a gateway's report. Returns the instances it must give back, and the instances to stop because their
    /// only slot is stuck.
    pub(crate) fn report(&mut self, report: &LeaseReport, now: Millis) -> (Vec<InstanceId>, Vec<InstanceId>) {
        let mut stuck = Vec::new();
        for returned in &report.returned {
            let Some(mut instance) = self.instances.get_mut(&returned.instance) else {
                continue;
            };
            // A gateway may repeat a report after its lease has run out. By then the instance may be another gateway's.
            if instance.lease.as_ref().is_some_and(|l| l.gateway != report.gateway) {
                continue;
            }
            instance.just_returned = instance.lease.take().is_some();
            instance.in_flight = returned.busy;
            let idle_since = Millis(now.0.saturating_sub(returned.idle_ms));
            instance.last_active = idle_since.max(instance.created_at);
            if returned.served && instance.stage == Stage::Starting {
                instance.stage = Stage::Ready;
            }
            if returned.stuck && instance.slots == 1 {
                stuck.push(returned.instance.clone());
            }
        }
        let mut give_back = Vec::new();
        let numbers = report.numbers.iter().copied().chain(std::iter::repeat(0));
        for (id, number) in report.held.iter().zip(numbers) {
            let leaving = self.instances.get(id).is_some_and(|i| self.is_leaving(i));
            let keeps = match self.instances.get_mut(id) {
                Some(mut instance) => !leaving && instance.renew(&report.gateway, number, now),
                None => now <= SETTLING,
            };
            if !keeps {
                give_back.push(id.clone());
            }
        }
        (give_back, stuck)
    }

    /// Recalls the lease on an instance for good, if there is one.
    pub(crate) fn recall(&mut self, id: &InstanceId) {
        if let Some(mut instance) = self.instances.get_mut(id)
            && let Some(lease) = &mut instance.lease
        {
            (lease.recalled, lease.for_now) = (true, false);
        }
    }

    /// Takes back a recall whose reason is over, unless there is another: the gateway may go on with what it holds. It
    /// cannot return a lease before the last stream under it has ended, and nobody else could use the other slots.
    pub(super) fn take_back(&mut self, id: &InstanceId) {
        let goes_on = |i: &Instance| {
            let is_heard = self.workers.get(&i.worker).is_some_and(|w| w.alive);
            is_heard && i.stage != Stage::Moving && !self.is_leaving(i)
        };
        if self.instances.get(id).is_some_and(goes_on)
            && let Some(mut instance) = self.instances.get_mut(id)
            && let Some(lease) = instance.lease.as_mut().filter(|lease| lease.for_now)
        {
            (lease.recalled, lease.for_now, lease.told) = (false, false, false);
        }
    }

    /// Whether any gateway has yet to be told that an instance of its own is gone.
    pub(crate) fn is_to_tell(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Recalled or gone instances that the gateway's watch has not been told about. They count as told from now on.
    pub(crate) fn untold_recalls(&mut self, gateway: &GatewayId) -> Vec<InstanceId> {
        let mut ids = self.instances.untold_of(gateway);
        for id in &ids {
            if let Some(mut instance) = self.instances.get_mut(id)
                && let Some(lease) = &mut instance.lease
            {
                lease.told = true;
            }
        }
        let ended = self.ended.remove(gateway).unwrap_or_default();
        ids.extend(ended.into_iter().map(|(id, _)| id));
        ids
    }

    /// Number of leased instances.
    pub(crate) fn leased(&self) -> usize {
        self.instances.leased()
    }

    /// Ends leases that have run out. Returns how many.
    pub(crate) fn expire_leases(&mut self, now: Millis) -> usize {
        self.ended.retain(|_, leases| {
            leases.retain(|(_, expires_at)| *expires_at > now);
            !leases.is_empty()
        });
        let ended = self.instances.lease_ended(now);
        for id in &ended {
            if let Some(mut instance) = self.instances.get_mut(id) {
                instance.lease = None;
            }
        }
        ended.len()
    }

    /// Takes back a lease whose placement could not be delivered.
    pub(crate) fn revoke(&mut self, id: &InstanceId, gateway: &GatewayId) {
        if let Some(mut instance) = self.instances.get_mut(id)
            && instance.is_leased_to(gateway)
        {
            instance.lease = None;
        }
    }
}

impl Lease {
    /// Recalls it until [`Fleet::take_back`].
    pub(super) fn recall_for_now(&mut self) {
        self.for_now |= !self.recalled;
        self.recalled = true;
    }
}

impl Instance {
    fn is_leased_to(&self, gateway: &GatewayId) -> bool {
        self.lease.as_ref().is_some_and(|l| l.gateway == *gateway)
    }

    /// Renews the gateway's lease, or returns `false` if the gateway must give it back. After a restart of the
    /// scheduler an unleased instance is leased to the gateway that claims it. The exception is a claim under an older
    /// lease than the newest known: the worker may already have rejected that one for good.
    fn renew(&mut self, gateway: &GatewayId, number: u64, now: Millis) -> bool {
        self.keeping.ahead = None;
        if matches!(self.stage, Stage::Stopping | Stage::Preparing | Stage::Moving) {
            return false;
        }
        let expires_at = now.plus(lease_length(self.idle_limit));
        match &mut self.lease {
            Some(lease) if lease.gateway == *gateway => {
                lease.expires_at = expires_at;
                !lease.recalled
            }
            Some(_) => {
                self.lease_number = self.lease_number.max(number);
                false
            }
            // 0 is no lease number: nothing is known.
            None if (1..self.lease_number).contains(&number) => false,
            None => {
                self.just_returned = false;
                self.lease_number = self.lease_number.max(number);
                self.lease = Some(Lease {
                    gateway: gateway.clone(),
                    granted_at: now,
                    expires_at,
                    recalled: false,
                    for_now: false,
                    told: false,
                });
                true
            }
        }
    }
}

impl From<Millis> for Duration {
    fn from(m: Millis) -> Self {
        Self::from_millis(m.0)
    }
}
