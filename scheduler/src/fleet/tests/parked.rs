//! Instances that are parked.

use super::*;

/// A heartbeat in which one instance of worker 0 is parked, with `memory` charged to it.
fn stands_still(fleet: &mut Fleet, id: &InstanceId, live: &LiveVersion, memory: u64, now: Millis) {
    let mut info = info(id, &live.spec, 0, 0, 0);
    info.state = InstanceState::Parked;
    info.memory_bytes = memory;
    fleet.heartbeat(&beat(0, 1, 100 << 20, vec![info]), now, |_, _| ClaimedVersion::Unknown);
}

#[test]
fn an_idle_instance_is_parked_for_its_time_and_then_goes() {
    let mut spec = spec("hello", 1, 64 << 20, 1, 5);
    spec.config.park_ms = 10_000;
    let hello = live(spec);
    let mut fleet = fleet(100 << 20);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    let due = fleet.due(Millis(4_000), |_, _| parked(0));
    assert_eq!(due.iter().map(|r| r.park).collect::<Vec<_>>(), [true]);
    assert_eq!(fleet.reserved(&worker(0)), 64 << 20, "it does not stand still yet");
    fleet.parked(&id);
    stands_still(&mut fleet, &id, &hello, 6 << 20, Millis(4_100));
    assert_eq!(fleet.reserved(&worker(0)), 6 << 20);
    assert!(fleet.due(Millis(13_999), |_, _| parked(0)).is_empty());
    // Its last heartbeat said that it was in use until then.
    let due = fleet.due(Millis(18_100), |_, _| parked(0));
    assert_eq!(due.iter().map(|r| r.park).collect::<Vec<_>>(), [false]);
}

#[test]
fn as_many_stay_parked_as_shall_and_those_used_last() {
    let hello = hello();
    let mut fleet = fleet(100);
    let ids: Vec<_> = (0..3)
        .map(|n| ready(&mut fleet, &format!("i-{n}"), &hello, Millis(n)))
        .collect();
    let park: Vec<_> = fleet
        .due(Millis(4_010), |_, _| parked(2))
        .into_iter()
        .map(|r| (r.instance, r.park))
        .collect();
    assert_eq!(
        park,
        [(ids[0].clone(), true), (ids[1].clone(), true), (ids[2].clone(), false)]
    );
    ids[..2].iter().for_each(|id| fleet.parked(id));
    assert!(fleet.due(Millis(99_000), |_, _| parked(2)).is_empty());
    assert_eq!(
        fleet
            .due(Millis(99_000), |_, _| parked(1))
            .first()
            .map(|r| r.instance.clone()),
        Some(ids[0].clone())
    );
}

#[test]
fn a_parked_instance_goes_on_where_its_memory_fits_and_takes_it_at_once() {
    let hello = live(spec("hello", 1, 64 << 20, 1, 5));
    let mut fleet = fleet(100 << 20);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    stands_still(&mut fleet, &id, &hello, 1, Millis(1));
    assert_eq!(fleet.reserved(&worker(0)), PARKED_LEAST);
    assert!(fleet.may_go_on(&fleet.instances[&id]));
    let placement = fleet.grant(&id, &gateway("g-1"), &hello, Millis(2)).unwrap();
    assert_eq!(placement.start, StartKind::Parked);
    assert_eq!(fleet.reserved(&worker(0)), 64 << 20);
    // A heartbeat from before its first invocation changes nothing.
    stands_still(&mut fleet, &id, &hello, 1, Millis(3));
    assert_eq!(fleet.reserved(&worker(0)), 64 << 20);

    let other = live(spec("other", 1, 60 << 20, 1, 5));
    fleet.report(&report("g-1", &[], &[&id]), Millis(4));
    stands_still(&mut fleet, &id, &hello, 1, Millis(5));
    ready(&mut fleet, "i-b", &other, Millis(6));
    assert!(!fleet.may_go_on(&fleet.instances[&id]));
}

#[test]
fn one_that_was_started_to_be_parked_counts_for_its_pool_until_it_is_used() {
    let hello = hello();
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    assert_eq!(fleet.pooled(&hello), 0);
    fleet.instances.get_mut(&id).unwrap().to_park = true;
    assert_eq!((fleet.pooled(&hello), fleet.filled_of(&hello)), (1, 0));
    fleet.grant(&id, &gateway("g-1"), &hello, Millis(1));
    assert_eq!((fleet.pooled(&hello), fleet.filled_of(&hello)), (0, 1));
}
