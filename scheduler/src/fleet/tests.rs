//! What heartbeats, leases and retirement do to the fleet.

mod parked;
mod workers;

use rekindle_wire::api::WorkerState;
use rekindle_wire::internal::{LeaseReport, Presence, ReturnedLease};
use rekindle_wire::renewal::MadeWith;

use super::membership::{GONE, SILENCE};
use super::*;
use crate::catalog::{ClaimedVersion, LiveVersion};
use crate::fixture::{beat, fleet, info, live, parked, ready, spec, worker};

fn gateway(text: &str) -> GatewayId {
    text.parse().unwrap()
}

/// A fleet of two workers that reported at the same time.
fn two_workers() -> Fleet {
    let mut fleet = fleet(100);
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), Millis(0), |_, _| ClaimedVersion::Unknown);
    fleet
}

fn hello() -> LiveVersion {
    live(spec("hello", 1, 10, 1, 5))
}

fn report(gateway_id: &str, held: &[&InstanceId], returned: &[&InstanceId]) -> LeaseReport {
    LeaseReport {
        gateway: gateway(gateway_id),
        held: held.iter().map(|id| (*id).clone()).collect(),
        numbers: Vec::new(),
        returned: returned
            .iter()
            .map(|id| ReturnedLease {
                instance: (*id).clone(),
                served: true,
                idle_ms: 0,
                stuck: false,
                busy: 0,
            })
            .collect(),
    }
}

#[test]
fn a_worker_hosts_the_namespaces_of_its_instances() {
    let mut fleet = two_workers();
    let id = ready(&mut fleet, "i-a", &hello(), Millis(1));
    let here = fleet.instances.get(&id).unwrap().worker.clone();
    assert_eq!(fleet.hosts(&here, "default"), Some(true));
    assert_eq!(fleet.hosts(&here, "team"), Some(false));
    let other = fleet.workers.keys().find(|worker| **worker != here).unwrap().clone();
    assert_eq!(fleet.hosts(&other, "default"), Some(false));
    fleet.instances.remove(&id);
    assert_eq!(fleet.hosts(&here, "default"), Some(false));
}

#[test]
fn what_a_worker_hosts_is_unknown_until_it_is_heard_and_once_it_is_given_up() {
    // A leader that has just begun has heard nobody.
    let new = Fleet::default();
    assert_eq!(new.hosts(&worker(0), "default"), None);
    let mut fleet = two_workers();
    let id = ready(&mut fleet, "i-a", &hello(), Millis(1));
    let here = fleet.instances.get(&id).unwrap().worker.clone();
    fleet.note_silence(Millis(60_000));
    assert!(
        fleet.instances.is_empty(),
        "its instances run on, and are given up here"
    );
    assert_eq!(fleet.hosts(&here, "default"), None);
    fleet.expel(&here, Millis(60_000));
    assert_eq!(fleet.hosts(&here, "default"), Some(false));
}

#[test]
fn who_claims_an_instance_by_an_older_lease_than_its_last_gives_it_back() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let first = fleet.grant(&id, &gateway("g-a"), &hello, Millis(2)).unwrap();
    let later = Millis(2).plus(Millis(first.lease_ms + 1));
    fleet.expire_leases(later);
    let second = fleet.grant(&id, &gateway("g-b"), &hello, later).unwrap();
    assert!(second.lease_number > first.lease_number);
    fleet.report(&report("g-b", &[], &[&id]), later);
    let claim = |gateway: &str, number| {
        let mut claim = report(gateway, &[&id], &[]);
        claim.numbers = vec![number];
        claim
    };
    // Its worker already rejects it.
    let (back, _) = fleet.report(&claim("g-a", first.lease_number), later);
    assert_eq!(back, std::slice::from_ref(&id));
    let (back, _) = fleet.report(&claim("g-b", second.lease_number), later);
    assert_eq!(back, [], "the last one's is good");
    // The highest number stays the highest.
    fleet.report(&report("g-b", &[], &[&id]), later);
    fleet.report(&claim("g-b", u64::MAX), later);
    fleet.report(&report("g-b", &[], &[&id]), later);
    let last = fleet.grant(&id, &gateway("g-a"), &hello, later).unwrap();
    assert_eq!(last.lease_number, u64::MAX);
}

#[test]
fn an_instance_returned_with_lost_slots_is_busy_until_its_worker_says_otherwise() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &gateway("g-a"), &hello, Millis(2));
    let mut lost = report("g-a", &[], &[&id]);
    lost.returned[0].busy = 1;
    fleet.report(&lost, Millis(3));
    assert!(!fleet.instances[&id].is_free(), "it would be retired while it works");
    let listed = beat(0, 1, 100, vec![info(&id, &hello.spec, 0, 0, 0)]);
    fleet.heartbeat(&listed, Millis(4), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances[&id].is_free());
}

#[test]
fn a_heartbeat_from_before_a_lease_s_return_keeps_no_invocation_away() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &gateway("g-a"), &hello, Millis(2));
    fleet.report(&report("g-a", &[], &[&id]), Millis(3));
    let busy = beat(0, 1, 100, vec![info(&id, &hello.spec, 0, 1, 0)]);
    fleet.heartbeat(&busy, Millis(4), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances[&id].is_free(), "another would be started");
    fleet.heartbeat(&busy, Millis(5), |_, _| ClaimedVersion::Unknown);
    assert!(!fleet.instances[&id].is_free(), "this one was written since");
}

#[test]
fn the_memory_of_a_deploy_that_failed_is_freed_though_its_worker_was_never_asked() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id: InstanceId = "i-a".parse().unwrap();
    let home = "w-0".parse().unwrap();
    fleet.add(
        id.clone(),
        home,
        &hello.spec,
        StartKind::Booted,
        Stage::Preparing,
        Millis(0),
    );
    let later = UNSEEN.plus(Millis(1));
    fleet.heartbeat(&beat(0, 1, 100, Vec::new()), later, |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.contains_key(&id), "a build may take longer");
    assert!(fleet.condemn(&id).is_some());
    fleet.heartbeat(&beat(0, 1, 100, Vec::new()), later, |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.is_empty());
    assert!(fleet.condemn(&id).is_none());
}

#[test]
fn an_instance_that_vanishes_from_the_heartbeat_is_forgotten() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let listed = beat(0, 1, 100, vec![info(&id, &hello.spec, 0, 0, 0)]);
    fleet.heartbeat(&listed, Millis(2), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.contains_key(&id));
    fleet.heartbeat(&beat(0, 1, 100, Vec::new()), Millis(3), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.is_empty());
    // A heartbeat in flight when the instance went does not bring it back.
    let stop = fleet.heartbeat(&listed, Millis(4), |_, _| ClaimedVersion::Live(hello.clone()));
    assert_eq!(stop, [id]);
    assert!(fleet.instances.is_empty());
}

#[test]
fn an_instance_just_asked_for_is_not_missed_by_a_heartbeat_written_before() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id: InstanceId = "i-a".parse().unwrap();
    fleet.add(
        id.clone(),
        crate::fixture::worker(0),
        &hello.spec,
        StartKind::Booted,
        Stage::Starting,
        Millis(1),
    );
    fleet.heartbeat(&beat(0, 1, 100, Vec::new()), Millis(2), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.contains_key(&id));
    fleet.heartbeat(&beat(0, 1, 100, Vec::new()), Millis(20_000), |_, _| {
        ClaimedVersion::Unknown
    });
    assert!(!fleet.instances.contains_key(&id));
}

#[test]
fn a_restarted_worker_has_none_of_its_older_instances() {
    let hello = hello();
    let mut fleet = fleet(100);
    ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.heartbeat(&beat(0, 2, 100, Vec::new()), Millis(2), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.is_empty());
}

#[test]
fn what_a_killed_worker_had_sent_is_no_news_once_another_is_heard_of() {
    let hello = hello();
    let mut fleet = fleet(100);
    let before = beat(0, 1, 100, Vec::new());
    for incarnation in [2, 3] {
        fleet.heartbeat(&beat(0, incarnation, 100, Vec::new()), Millis(incarnation), |_, _| {
            ClaimedVersion::Unknown
        });
    }
    let id = ready(&mut fleet, "i-a", &hello, Millis(4));
    for late in [before, beat(0, 2, 50, Vec::new())] {
        assert!(fleet.is_late(&late));
        fleet.heartbeat(&late, Millis(5), |_, _| ClaimedVersion::Unknown);
    }
    assert!(fleet.instances.contains_key(&id), "its instance is taken for another's");
    let now = beat(0, 3, 100, vec![info(&id, &hello.spec, 0, 0, 0)]);
    assert!(!fleet.is_late(&now));
    fleet.heartbeat(&now, Millis(6), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.contains_key(&id));
}

#[test]
fn snapshots_are_made_anew_only_where_all_workers_make_the_same() {
    let makes = |form| MadeWith {
        filter: "aa".to_owned(),
        form,
    };
    let told = |n, form: Option<u32>| {
        let mut told = beat(n, 1, 100, Vec::new());
        told.snapshots.makes = form.map(makes);
        told.snapshots.in_use = vec!["s-1".parse().unwrap()];
        told
    };
    let mut fleet = Fleet::default();
    let mut hear = |beat| {
        fleet.heartbeat(&beat, Millis(1), |_, _| ClaimedVersion::Unknown);
        fleet.makes()
    };
    assert_eq!(hear(told(0, None)), None, "a build that knows nothing of it");
    assert_eq!(hear(told(0, Some(1))), Some(makes(1)));
    assert_eq!(hear(told(1, Some(2))), None);
    let mut leaves = told(0, Some(1));
    leaves.presence = Presence::Leaving;
    assert_eq!(hear(leaves), Some(makes(2)));
    assert!(fleet.is_in_use(&"s-1".parse().unwrap()) && !fleet.is_in_use(&"s-2".parse().unwrap()));
}

#[test]
fn after_a_restart_of_the_scheduler_instances_are_taken_back_and_unknown_ones_stopped() {
    let hello = hello();
    let old = live(spec("hello", 0, 10, 1, 5));
    let stray = live(spec("stray", 1, 10, 1, 5));
    let (a, b, c) = ("i-a".parse().unwrap(), "i-b".parse().unwrap(), "i-c".parse().unwrap());
    let listed = vec![
        info(&a, &hello.spec, 0, 1, 0),
        info(&b, &old.spec, 0, 0, 0),
        info(&c, &stray.spec, 0, 0, 0),
    ];
    let mut fleet = Fleet::default();
    let stop = fleet.heartbeat(&beat(0, 1, 100, listed), Millis(1), |f, v| match (f.as_str(), v.0) {
        ("hello", 1) => ClaimedVersion::Live(hello.clone()),
        ("hello", 0) => ClaimedVersion::Older(old.clone()),
        _ => ClaimedVersion::Unknown,
    });
    assert_eq!(stop, [c]);
    assert!(fleet.instances[&a].draining.is_none());
    assert!(fleet.instances[&b].draining.is_some());
    // The gateway that held it before continues.
    let (give_back, _) = fleet.report(&report("g-1", &[&a, &b], &[]), Millis(2));
    assert_eq!(give_back, [b]);
    assert!(fleet.instances[&a].lease.is_some());
}

#[test]
fn an_idle_instance_is_due_after_its_idle_time_and_not_while_leased() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    assert!(fleet.due(Millis(3_999), |_, _| parked(0)).is_empty());
    fleet.grant(&id, &gateway("g-1"), &hello, Millis(3_999));
    assert!(fleet.due(Millis(4_000), |_, _| parked(0)).is_empty());
    fleet.report(&report("g-1", &[], &[&id]), Millis(5_000));
    assert!(fleet.due(Millis(8_999), |_, _| parked(0)).is_empty());
    assert_eq!(fleet.due(Millis(9_000), |_, _| parked(0)).len(), 1);
    // It is already being stopped, so it is not due again.
    assert!(fleet.due(Millis(9_001), |_, _| parked(0)).is_empty());
    fleet.kept(&id, true, Millis(9_100));
    assert!(fleet.due(Millis(9_200), |_, _| parked(0)).is_empty());
    assert_eq!(fleet.due(Millis(13_100), |_, _| parked(0)).len(), 1);
}

#[test]
fn a_lease_that_is_not_renewed_runs_out() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    let placement = fleet.grant(&id, &gateway("g-1"), &hello, Millis(0)).unwrap();
    assert_eq!(placement.lease_ms, 2_000);
    assert!(fleet.expire_leases(Millis(1_999)) == 0);
    fleet.report(&report("g-1", &[&id], &[]), Millis(1_500));
    assert!(fleet.expire_leases(Millis(3_499)) == 0);
    assert!(fleet.expire_leases(Millis(3_500)) == 1);
    assert!(fleet.instances[&id].lease.is_none());
}

#[test]
fn another_gateway_cannot_renew_or_return_a_lease() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    fleet.grant(&id, &gateway("g-1"), &hello, Millis(0));
    let (give_back, _) = fleet.report(&report("g-2", &[&id], &[&id]), Millis(1));
    assert_eq!(give_back, std::slice::from_ref(&id));
    assert_eq!(fleet.instances[&id].lease.as_ref().unwrap().gateway, gateway("g-1"));
}

#[test]
fn a_new_version_recalls_the_leases_of_the_old_one_once() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    fleet.grant(&id, &gateway("g-1"), &hello, Millis(0));
    fleet.switch(&hello.spec.function, |version| version == VersionNumber(2));
    assert!(fleet.untold_recalls(&gateway("g-2")).is_empty());
    assert_eq!(fleet.untold_recalls(&gateway("g-1")), std::slice::from_ref(&id));
    assert!(fleet.untold_recalls(&gateway("g-1")).is_empty());
    assert!(fleet.due(Millis(2), |_, _| parked(0)).is_empty());
    fleet.report(&report("g-1", &[], &[&id]), Millis(3));
    assert_eq!(fleet.due(Millis(4), |_, _| parked(0)).len(), 1);
}

#[test]
fn a_lease_stays_when_what_it_was_recalled_for_is_over() {
    let hello = hello();
    let mut fleet = two_workers();
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    fleet.grant(&id, &gateway("g-1"), &hello, Millis(0));
    let name = hello.spec.function.clone();
    let listed = |idle_ms| vec![info(&id, &hello.spec, 0, 1, idle_ms)];
    let keeps = |fleet: &mut Fleet, now| fleet.report(&report("g-1", &[&id], &[]), now).0.is_empty();
    // Its version is replaced, and serves again.
    fleet.switch(&name, |version| version == VersionNumber(2));
    assert!(!keeps(&mut fleet, Millis(1)));
    fleet.switch(&name, |version| version == hello.spec.version);
    assert!(keeps(&mut fleet, Millis(2)));
    // Its worker is drained, and no longer: until it turns out that it cannot move, it goes on.
    fleet.drain(&worker(0), true, Millis(3));
    assert!(keeps(&mut fleet, Millis(3)));
    fleet.leave_behind(&id);
    assert!(!keeps(&mut fleet, Millis(3)));
    fleet.drain(&worker(0), false, Millis(4));
    assert!(keeps(&mut fleet, Millis(4)));
    // Its worker is silent, and heard from again.
    let silent = SILENCE.plus(Millis(1));
    assert!(fleet.note_silence(silent) && !keeps(&mut fleet, silent));
    fleet.heartbeat(&beat(0, 1, 100, listed(0)), silent, |_, _| {
        ClaimedVersion::Live(hello.clone())
    });
    assert!(keeps(&mut fleet, silent));
    // One of two reasons is over.
    fleet.drain(&worker(0), true, silent);
    fleet.leave_behind(&id);
    fleet.switch(&name, |version| version == VersionNumber(2));
    fleet.drain(&worker(0), false, silent);
    assert!(!keeps(&mut fleet, silent));
    // Another has a claim to the instance.
    fleet.switch(&name, |version| version == hello.spec.version);
    assert!(keeps(&mut fleet, silent));
    fleet.recall(&id);
    fleet.drain(&worker(0), true, silent);
    fleet.drain(&worker(0), false, silent);
    assert!(!keeps(&mut fleet, silent));
}

#[test]
fn an_instance_that_finishes_takes_invocations_again_when_its_version_serves_again() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    let name = &hello.spec.function;
    fleet.switch(name, |version| version == VersionNumber(2));
    assert_eq!(fleet.instances[&id].draining, Some(Draining::NotNamed));
    fleet.switch(name, |version| version == hello.spec.version);
    assert_eq!(fleet.instances[&id].draining, None);
}

#[test]
fn an_instance_without_a_ticket_finishes_and_makes_its_worker_host_nothing() {
    let hello = hello();
    let id = "i-a".parse().unwrap();
    let mut told = beat(0, 1, 100, vec![info(&id, &hello.spec, 0, 1, 0)]);
    for is_ordered in [false, true] {
        if !is_ordered {
            told.tickets.clear();
        }
        let mut fleet = Fleet::default();
        fleet.heartbeat(&told, Millis(1), |_, _| ClaimedVersion::Live(hello.clone()));
        let draining = (!is_ordered).then_some(Draining::NotOrdered);
        assert_eq!(fleet.instances[&id].draining, draining);
        assert_eq!(fleet.is_ordered(&worker(0), &told.instances[0]), is_ordered);
        assert_eq!(
            fleet.hosts(&worker(0), hello.spec.function.namespace()),
            Some(is_ordered)
        );
        told = beat(0, 1, 100, vec![info(&id, &hello.spec, 0, 1, 0)]);
    }
}

#[test]
fn an_instance_that_finishes_for_another_reason_does_so_whatever_an_alias_names() {
    let hello = live(spec("hello", 1, 10, 1, 1));
    let (a, b) = ("i-a".parse().unwrap(), "i-b".parse().unwrap());
    let listed = vec![info(&a, &hello.spec, 0, 1, 0), info(&b, &hello.spec, 0, 1, 0)];
    let mut fleet = Fleet::default();
    fleet.heartbeat(&beat(0, 1, 100, listed), Millis(1), |_, _| {
        ClaimedVersion::Live(hello.clone())
    });
    assert_eq!(
        fleet.instances[&b].draining,
        Some(Draining::Surplus),
        "beyond the maximum"
    );
    let name = &hello.spec.function;
    for named in [1, 2, 1] {
        fleet.switch(name, |version| version == VersionNumber(named));
        let unnamed = (named != 1).then_some(Draining::NotNamed);
        let draining = [&a, &b].map(|id| fleet.instances[id].draining);
        assert_eq!(draining, [unnamed, Some(Draining::Surplus)]);
    }
}

#[test]
fn who_holds_an_instance_that_is_gone_is_told_once_while_the_lease_would_last() {
    let hello = hello();
    let mut fleet = fleet(100);
    let (a, b) = (
        ready(&mut fleet, "i-a", &hello, Millis(0)),
        ready(&mut fleet, "i-b", &hello, Millis(0)),
    );
    for id in [&a, &b] {
        fleet.grant(id, &gateway("g-1"), &hello, Millis(0));
    }
    fleet.forget(&a, Millis(1));
    assert!(fleet.is_to_tell());
    assert!(fleet.untold_recalls(&gateway("g-2")).is_empty());
    assert_eq!(fleet.untold_recalls(&gateway("g-1")), std::slice::from_ref(&a));
    assert!(!fleet.is_to_tell() && fleet.untold_recalls(&gateway("g-1")).is_empty());
    fleet.forget(&b, Millis(2));
    fleet.expire_leases(Millis(60_000));
    assert!(!fleet.is_to_tell() && fleet.untold_recalls(&gateway("g-1")).is_empty());
}

#[test]
fn a_stuck_invocation_ends_an_instance_that_serves_one_at_a_time() {
    let one = hello();
    let many = live(spec("many", 1, 10, 5, 5));
    let mut fleet = fleet(100);
    for (version, name, ends) in [(&one, "i-one", true), (&many, "i-many", false)] {
        let id = ready(&mut fleet, name, version, Millis(0));
        fleet.grant(&id, &gateway("g-1"), version, Millis(0));
        let mut report = report("g-1", &[], &[&id]);
        report.returned[0].stuck = true;
        let (_, stuck) = fleet.report(&report, Millis(1));
        assert_eq!(stuck.contains(&id), ends, "{name}");
    }
}
