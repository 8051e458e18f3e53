//! Asks that wait for what is on its way.

use rekindle_wire::InstanceId;
use rekindle_wire::api::StartKind;
use rekindle_wire::migration::MigrationKind;

use super::*;
use crate::catalog::ClaimedVersion;
use crate::fixture::{beat, fleet, gateway, live, ready, spec, worker};
use crate::fleet::Stage;
use crate::placement::{Decision, Shortage, SlotRequest, place_behind};

const BEGUN: Millis = Millis(100);

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

/// So many instances of a function that are moving since [`BEGUN`], all leased.
fn moving(count: usize) -> (LiveVersion, Fleet, Vec<InstanceId>) {
    let hello = live(spec("hello", 1, 10, 16, 9));
    let mut fleet = fleet(100);
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), Millis(0), |_, _| ClaimedVersion::Unknown);
    let one = |n| {
        let id = ready(&mut fleet, &format!("i-{n}"), &hello, Millis(1));
        fleet.grant(&id, &gateway(1), &hello, Millis(1));
        fleet.plan_move(&id, Some(&worker(1)), &MigrationKind::Move).unwrap();
        assert!(fleet.begin_move(&id, BEGUN));
        id
    };
    let ids = (0..count).map(one).collect();
    (hello, fleet, ids)
}

fn return_leases(fleet: &mut Fleet, ids: &[InstanceId]) {
    for id in ids {
        fleet.instances.get_mut(id).unwrap().lease = None;
    }
}

#[test]
fn asks_wait_for_as_many_as_are_on_their_way_and_those_behind_start_others_after_a_second() {
    let (hello, mut fleet, ids) = moving(2);
    return_leases(&mut fleet, &ids);
    let waits =
        |fleet: &Fleet, ahead, after: Millis| match place_behind(ahead, fleet, &hello, &ask(), BEGUN.plus(after)) {
            Decision::Wait { shortage, free_up } => {
                assert_eq!((shortage, free_up), (Shortage::Migration, None));
                true
            }
            Decision::Start { .. } => false,
            other => panic!("{other:?}"),
        };
    let short = Millis(ALL_WAIT.0 - 1);
    let long = Millis(ARRIVES_WITHIN.0 - 1);
    for (ahead, after, expected) in [
        (0, short, true),
        (9, short, true),
        (1, ALL_WAIT, true),
        (2, ALL_WAIT, false),
        (0, long, true),
        (1, long, true),
        (2, long, false),
        (0, ARRIVES_WITHIN, false),
    ] {
        assert_eq!(waits(&fleet, ahead, after), expected, "{ahead} ahead, after {after:?}");
    }
    // One arrives: it is taken before anything is started, and there is room for one ask on the other.
    fleet.moved(&ids[0], &MigrationKind::Move, &worker(1), BEGUN.plus(ALL_WAIT));
    let now = BEGUN.plus(ALL_WAIT);
    assert_eq!(
        place_behind(0, &fleet, &hello, &ask(), now),
        Decision::Use(ids[0].clone())
    );
    fleet.grant(&ids[0], &gateway(2), &hello, now);
    assert!(waits(&fleet, 0, ALL_WAIT) && !waits(&fleet, 1, ALL_WAIT));
}

#[test]
fn what_still_serves_something_is_waited_for_a_shorter_time_since_that_may_never_end() {
    let (hello, mut fleet, ids) = moving(1);
    let waits = |fleet: &Fleet, after| fleet.is_worth_waiting_for(&hello, 0, BEGUN.plus(after));
    assert!(waits(&fleet, Millis(SETTLES_WITHIN.0 - 1)));
    assert!(!waits(&fleet, SETTLES_WITHIN));
    return_leases(&mut fleet, &ids);
    assert!(waits(&fleet, SETTLES_WITHIN));
    // Of an invocation that nobody waits for any more, its worker tells.
    fleet.instances.get_mut(&ids[0]).unwrap().in_flight = 1;
    assert!(!waits(&fleet, SETTLES_WITHIN));
}

#[test]
fn what_has_arrived_is_used_before_what_was_started_meanwhile() {
    let (hello, mut fleet, ids) = moving(1);
    return_leases(&mut fleet, &ids);
    let other: InstanceId = "i-other".parse().unwrap();
    let now = BEGUN.plus(ARRIVES_WITHIN);
    fleet.add(other, worker(1), &hello.spec, StartKind::Booted, Stage::Ready, now);
    let now = now.plus(Millis(1));
    fleet.moved(&ids[0], &MigrationKind::Move, &worker(1), now);
    assert_eq!(
        place_behind(0, &fleet, &hello, &ask(), now),
        Decision::Use(ids[0].clone())
    );
}
