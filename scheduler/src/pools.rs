//! Starts instances ahead of any request. Each live version gets as many ready ones as its `min_warm` says, and as many
//! restored and frozen ones as its `min_parked` says. A function whose next call is expected gets one, frozen
//! ([`crate::retention`]), and so does one that a schedule runs shortly ([`crate::schedules`]).

use std::collections::BTreeSet;

use rekindle_wire::WorkerId;
use rekindle_wire::api::StartKind;
use rekindle_wire::error::chain;
use rekindle_wire::internal::StartInstance;

use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::cluster::ClusterState;
use crate::fleet::keeping::EarlyStartReason;
use crate::fleet::retire::InstanceDecision;
use crate::placement::start::cheapest;
use crate::placing::pump;
use crate::state::Scheduler;

/// An instance to start ahead.
struct EarlyStart {
    why: EarlyStartReason,
    kind: StartKind,
    park: bool,
}

/// Starts the next instance of each version that is short of one, where there is room.
pub(crate) fn refill(scheduler: &Scheduler) {
    let mut starts = Vec::new();
    {
        let mut state = scheduler.state();
        let now = scheduler.now();
        // Most functions have neither a minimum nor an expected call, and there may be very many.
        let names = state.catalog.standing();
        let names: BTreeSet<_> = names.chain(state.retention.expected()).chain(&state.upcoming).collect();
        let may_lack: Vec<LiveVersion> = names
            .into_iter()
            .flat_map(|name| state.catalog.all_live(name))
            .collect();
        let ClusterState {
            fleet, catalog, pools, ..
        } = &mut *state;
        let kept = |function: &_, version| {
            catalog
                .serving(function, version)
                .is_some_and(|live| may_stand_by(&live))
        };
        fleet.keep_filled(kept);
        pools.keep(kept);
        for live in may_lack.into_iter().filter(may_stand_by) {
            let Some(next) = lacks(&state, &live, now) else {
                continue;
            };
            let ClusterState { fleet, pools, .. } = &mut *state;
            if fleet.over_quota(&live).is_some() {
                continue;
            }
            // A worker short of memory would evict it again.
            let has_memory = |w: &WorkerId| fleet.workers.get(w).is_some_and(|w| !w.guard.is_short());
            let mut kind = next.kind;
            let mut best = cheapest(fleet, &live, kind, now, has_memory);
            if best.is_err() && kind == StartKind::Restored && !next.park {
                // As for a call, if the only workers with room lack instruction sets of its snapshot's processor.
                kind = StartKind::Booted;
                best = cheapest(fleet, &live, kind, now, has_memory);
            }
            let Ok(best) = best else {
                continue;
            };
            let worker = best.worker;
            if !pools.may_start(&live, fleet.filled_of(&live), now) {
                continue;
            }
            let Some(address) = fleet.workers.get(&worker).map(|w| w.address.clone()) else {
                continue;
            };
            let instance = fleet.add_ahead(worker.clone(), &live, kind, next.why, next.park, now);
            if next.why == EarlyStartReason::Forecast {
                fleet.decided(InstanceDecision::Prewarmed);
            }
            let (function, version) = (&live.spec.function, live.spec.version);
            let start = StartInstance {
                ticket: Some(scheduler.orders.ticket(&worker, &instance, function, version)),
                instance,
                start: kind,
                park: next.park,
                spec: (*live.spec).clone(),
                secrets: Vec::new(),
                snapshot_key: None,
            };
            starts.push((address, start));
        }
    }
    for (address, mut start) in starts {
        let here = scheduler.clone();
        scheduler.tasks.spawn(async move {
            let id = start.instance.clone();
            let function = &start.spec.function;
            let secrets = here.secrets.of(function, &start.spec.config);
            let started = match secrets.and_then(|secrets| Ok((secrets, here.seals.of(function)?))) {
                Ok((secrets, key)) => {
                    (start.secrets, start.snapshot_key) = (secrets, key);
                    let started = here.workers.start(&address, &start).await;
                    started.map_err(|e| (e.is_leaving(), chain(&e)))
                }
                Err(error) => Err((false, error.message)),
            };
            match started {
                Ok(()) => return,
                Err((true, _)) => tracing::debug!(instance = %id, "not started ahead: its worker is shutting down"),
                Err((false, error)) => {
                    tracing::warn!(instance = %id, error, "an instance could not be started ahead");
                }
            }
            drop(here.state().fleet.forget(&id, here.now()));
            pump(&here);
        });
    }
}

/// Whether instances of a version are ever started ahead.
fn may_stand_by(live: &LiveVersion) -> bool {
    let config = &live.spec.config;
    let is_foreseen = config.min_parked > 0 || config.adaptive || !config.schedules.is_empty();
    config.min_warm > 0 || live.spec.snapshot.is_some() && is_foreseen
}

/// The next instance that a version needs to reach its minimum or for an expected call.
fn lacks(state: &ClusterState, live: &LiveVersion, now: Millis) -> Option<EarlyStart> {
    let ClusterState { fleet, retention, .. } = state;
    let (spec, config) = (&live.spec, &live.spec.config);
    let (warm, parked) = (config.min_warm as usize, config.min_parked as usize);
    // Instances are counted only where it matters: most functions set no minimum, and few calls are expected at any
    // moment.
    let next = if warm > 0 && fleet.warm(live) < warm {
        EarlyStart {
            why: EarlyStartReason::Floor,
            kind: live.natural_start(),
            park: false,
        }
    } else {
        let why = if spec.snapshot.is_some() && parked > 0 && fleet.pooled(live) < parked {
            EarlyStartReason::Floor
        } else if (retention.expects(live, now) || state.is_upcoming(live)) && !fleet.stands_by(live) {
            EarlyStartReason::Forecast
        } else {
            return None;
        };
        EarlyStart {
            why,
            kind: StartKind::Restored,
            park: true,
        }
    };
    let full = fleet.count(&spec.function, spec.version) >= config.max_instances as usize;
    (!full).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{fleet, live, ready, spec, worker};
    use crate::fleet::Stage;

    #[test]
    fn a_version_lacks_what_its_config_says_until_it_is_there() {
        let mut spec = spec("hello", 1, 10, 1, 2);
        spec.config.min_warm = 1;
        let hello = live(spec.clone());
        let mut state = ClusterState {
            fleet: fleet(100),
            ..ClusterState::default()
        };
        state.catalog.release(spec);
        let next = lacks(&state, &hello, Millis(0)).unwrap();
        assert_eq!(
            (next.why, next.kind, next.park),
            (EarlyStartReason::Floor, StartKind::Booted, false)
        );
        let kind = StartKind::Booted;
        state
            .fleet
            .add_ahead(worker(0), &hello, kind, EarlyStartReason::Floor, false, Millis(0));
        assert!(lacks(&state, &hello, Millis(1)).is_none(), "it is on its way");
        assert!(may_stand_by(&hello));
    }

    #[test]
    fn one_stands_by_for_a_scheduled_run_though_its_calls_are_not_foreseen() {
        let mut spec = spec("hello", 1, 10, 1, 2);
        (spec.config.adaptive, spec.snapshot) = (false, Some("s-1".parse().unwrap()));
        let hello = live(spec.clone());
        let mut state = ClusterState {
            fleet: fleet(100),
            ..ClusterState::default()
        };
        state.catalog.release(spec.clone());
        assert!(lacks(&state, &hello, Millis(0)).is_none());
        state.upcoming.insert(spec.function.clone());
        let next = lacks(&state, &hello, Millis(0)).unwrap();
        assert_eq!(
            (next.why, next.kind, next.park),
            (EarlyStartReason::Forecast, StartKind::Restored, true)
        );
        state
            .fleet
            .add_ahead(worker(0), &hello, next.kind, next.why, next.park, Millis(0));
        assert!(lacks(&state, &hello, Millis(1)).is_none(), "it is on its way");
    }

    #[test]
    fn nothing_is_started_ahead_beyond_max_instances() {
        let mut spec = spec("hello", 1, 10, 1, 2);
        spec.config.min_warm = 2;
        let hello = live(spec.clone());
        let mut state = ClusterState {
            fleet: fleet(100),
            ..ClusterState::default()
        };
        state.catalog.release(spec);
        for name in ["i-a", "i-b"] {
            ready(&mut state.fleet, name, &hello, Millis(0));
            state.fleet.instances.get_mut(&name.parse().unwrap()).unwrap().stage = Stage::Stopping;
        }
        assert!(lacks(&state, &hello, Millis(1)).is_none(), "they take the room still");
    }
}
