//! Moves, and what becomes of instances that do not move.

use rekindle_wire::api::{InstanceState, StartKind};
use rekindle_wire::internal::LeaseReport;

use super::*;
use crate::catalog::ClaimedVersion;
use crate::fixture::{beat, fleet, info, live, ready, spec, worker};
use crate::fleet::incoming::{ARRIVES_WITHIN, SETTLES_WITHIN};
use crate::fleet::retire::Floor;
use crate::placement::{Decision, SlotRequest, place};

fn two_workers() -> Fleet {
    let mut fleet = fleet(100);
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), Millis(0), |_, _| ClaimedVersion::Unknown);
    fleet
}

fn hello() -> crate::catalog::LiveVersion {
    live(spec("hello", 1, 60, 1, 5))
}

fn ask() -> SlotRequest {
    SlotRequest {
        gateway: "g-a".parse().unwrap(),
        version: None,
        held: Vec::new(),
        force: None,
        avoid: Vec::new(),
        avoid_until: Millis(0),
    }
}

#[test]
fn reports_tell_where_it_runs_when_the_sources_answer_was_lost() {
    let (hello, mut fleet) = (hello(), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
    assert!(fleet.begin_move(&id, Millis(2)));
    let report = |fleet: &mut Fleet, from, state| {
        let mut listed = info(&id, &hello.spec, from, 0, 0);
        listed.state = state;
        let stop = fleet.heartbeat(&beat(from, 1, 100, vec![listed]), Millis(3), |_, _| {
            ClaimedVersion::Unknown
        });
        assert!(stop.is_empty(), "{stop:?}");
        fleet.whereabouts(&id)
    };
    assert_eq!(report(&mut fleet, 0, InstanceState::Ready), Whereabouts::Source);
    fleet.ask_where(&id);
    assert_eq!(report(&mut fleet, 0, InstanceState::Moving), Whereabouts::Unknown);
    assert_eq!(report(&mut fleet, 1, InstanceState::Starting), Whereabouts::Unknown);
    assert_eq!(report(&mut fleet, 1, InstanceState::Ready), Whereabouts::Target);
    fleet.moved(&id, &MigrationKind::Move, &worker(1), Millis(4));
    assert_eq!(report(&mut fleet, 1, InstanceState::Ready), Whereabouts::Unknown);
    fleet.forget(&id, Millis(5));
    assert_eq!(fleet.whereabouts(&id), Whereabouts::Gone);
}

#[test]
fn its_room_is_set_aside_on_both_until_it_is_there_and_invocations_wait_for_it() {
    let (hello, mut fleet) = (hello(), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let planned = fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
    assert_eq!((planned.from, &planned.to), (worker(0), &worker(1)));
    assert_eq!((fleet.reserved(&worker(0)), fleet.reserved(&worker(1))), (60, 60));
    assert!(
        !fleet.instances[&id].is_free(),
        "it would be let go while it gets ready"
    );
    assert_eq!(place(&fleet, &hello, &ask(), Millis(2)), Decision::Use(id.clone()));
    assert!(fleet.begin_move(&id, Millis(3)));
    assert!(matches!(
        place(&fleet, &hello, &ask(), Millis(4)),
        Decision::Wait { .. }
    ));
    // The source does not list it any more, the target already does.
    fleet.heartbeat(&beat(0, 1, 100, Vec::new()), Millis(5), |_, _| ClaimedVersion::Unknown);
    let listed = vec![info(&id, &hello.spec, 1, 0, 0)];
    let stop = fleet.heartbeat(&beat(1, 1, 100, listed), Millis(5), |_, _| ClaimedVersion::Unknown);
    assert_eq!((stop, fleet.instances[&id].stage), (Vec::new(), Stage::Moving));
    fleet.moved(&id, &MigrationKind::Move, &worker(1), Millis(6));
    assert_eq!((fleet.reserved(&worker(0)), fleet.reserved(&worker(1))), (0, 60));
    assert_eq!(place(&fleet, &hello, &ask(), Millis(7)), Decision::Use(id.clone()));
    // A heartbeat of the source that was already in flight.
    let late = vec![info(&id, &hello.spec, 0, 0, 0)];
    let stop = fleet.heartbeat(&beat(0, 1, 100, late), Millis(8), |_, _| ClaimedVersion::Unknown);
    assert_eq!(stop, std::slice::from_ref(&id));
    assert_eq!(fleet.instances[&id].worker, worker(1));
    // A heartbeat of the target, written before the instance was there.
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), Millis(9), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.instances.contains_key(&id));
    // A delayed heartbeat does not count either, once a later one has listed the instance. A later one without it
    // does count.
    let numbered = |number: u64, listed: Vec<rekindle_wire::api::InstanceInfo>| {
        let mut beat = beat(1, 1, 100, listed);
        beat.number = number;
        beat
    };
    let there = vec![info(&id, &hello.spec, 1, 1, 9)];
    for (number, listed, is_kept) in [(8, there, true), (7, Vec::new(), true), (9, Vec::new(), false)] {
        fleet.heartbeat(&numbered(number, listed), Millis(10), |_, _| ClaimedVersion::Unknown);
        assert_eq!(fleet.instances.contains_key(&id), is_kept, "{number}");
    }
}

#[test]
fn one_that_does_not_move_is_where_it_was_and_another_is_started_when_it_takes_long() {
    let (hello, mut fleet) = (live(spec("hello", 1, 30, 1, 5)), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.plan_move(&id, Some(&worker(1)), &MigrationKind::Move).unwrap();
    assert!(fleet.begin_move(&id, Millis(2)));
    let later = Millis(3).plus(ARRIVES_WITHIN);
    assert!(matches!(place(&fleet, &hello, &ask(), later), Decision::Start { .. }));
    fleet.stays(&id, later);
    assert_eq!(
        (fleet.reserved(&worker(1)), fleet.instances[&id].stage),
        (0, Stage::Ready)
    );
    assert_eq!(place(&fleet, &hello, &ask(), later), Decision::Use(id));
}

#[test]
fn one_that_does_not_move_stays_under_its_lease() {
    let (hello, mut fleet) = (hello(), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let gateway = ask().gateway;
    fleet.grant(&id, &gateway, &hello, Millis(1));
    let held = LeaseReport {
        gateway: gateway.clone(),
        held: vec![id.clone()],
        numbers: Vec::new(),
        returned: Vec::new(),
    };
    for again in [10, 20] {
        fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
        assert!(fleet.begin_move(&id, Millis(again)));
        assert_eq!(fleet.untold_recalls(&gateway), std::slice::from_ref(&id));
        assert_eq!(fleet.report(&held, Millis(again)).0, std::slice::from_ref(&id));
        fleet.stays(&id, Millis(again + 1));
        assert!(fleet.report(&held, Millis(again + 2)).0.is_empty());
    }
    // Another reason to have it back stays.
    fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
    assert!(fleet.begin_move(&id, Millis(30)));
    fleet.recall(&id);
    fleet.stays(&id, Millis(31));
    assert_eq!(fleet.report(&held, Millis(32)).0, [id]);
}

#[test]
fn one_that_cannot_leave_a_draining_worker_keeps_no_other_from_starting() {
    let (hello, mut fleet) = (live(spec("hello", 1, 30, 8, 1)), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &"g-b".parse().unwrap(), &hello, Millis(1));
    fleet.drain(&worker(0), true, Millis(1));
    fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
    assert!(fleet.begin_move(&id, Millis(2)));
    let is_waiting = |fleet: &Fleet, now| matches!(place(fleet, &hello, &ask(), now), Decision::Wait { .. });
    let start = Decision::Start {
        worker: worker(1),
        kind: StartKind::Booted,
    };
    // It is on its way.
    assert!(is_waiting(&fleet, Millis(2).plus(SETTLES_WITHIN)));
    // What it serves goes on for longer.
    let long = Millis(3).plus(SETTLES_WITHIN);
    assert_eq!(place(&fleet, &hello, &ask(), long), start);
    // Once nothing is in flight, it will come.
    let lease = fleet.instances.get_mut(&id).unwrap().lease.take();
    assert!(is_waiting(&fleet, long));
    fleet.instances.get_mut(&id).unwrap().lease = lease;
    fleet.stays(&id, long);
    assert_eq!(place(&fleet, &hello, &ask(), long), start);
    let other: InstanceId = "i-b".parse().unwrap();
    fleet.add(
        other.clone(),
        worker(1),
        &hello.spec,
        StartKind::Booted,
        Stage::Starting,
        long,
    );
    fleet.grant(&other, &"g-b".parse().unwrap(), &hello, long);
    assert!(is_waiting(&fleet, long), "one in place of it, no more");
    // The stream ends, and it arrives after all.
    fleet.moved(&id, &MigrationKind::Move, &worker(1), long);
    fleet.end_surplus(&id, 2, long);
    assert_eq!(fleet.instances[&id].draining, None);
    fleet.end_surplus(&id, 1, long);
    assert_eq!(fleet.instances[&id].draining, Some(Draining::Surplus));
    // Elsewhere one that did not move counts.
    let (mut fleet, calm) = (two_workers(), Millis(1_500));
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &"g-b".parse().unwrap(), &hello, Millis(1));
    fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
    assert!(fleet.begin_move(&id, Millis(2)));
    fleet.stays(&id, calm);
    assert!(is_waiting(&fleet, calm));
}

#[test]
fn what_cannot_move_is_told_why() {
    let (hello, mut fleet) = (hello(), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let mut refused = |id: &InstanceId, to: Option<usize>| {
        let to = to.map(worker);
        fleet.plan_move(id, to.as_ref(), &MigrationKind::Move).unwrap_err().code
    };
    assert_eq!(refused(&"i-b".parse().unwrap(), None), ErrorCode::NotFound);
    assert_eq!(refused(&id, Some(0)), ErrorCode::Conflict);
    assert_eq!(refused(&id, Some(7)), ErrorCode::Conflict);
    fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
    assert_eq!(
        fleet.plan_move(&id, None, &MigrationKind::Move).unwrap_err().code,
        ErrorCode::Conflict
    );
    let other = ready(&mut fleet, "i-c", &hello, Millis(1));
    let full = fleet
        .plan_move(&other, Some(&worker(1)), &MigrationKind::Move)
        .unwrap_err();
    assert_eq!(full.code, ErrorCode::NoCapacity, "{full}");
}

#[test]
fn what_a_gateway_found_gone_where_it_was_is_there_after_a_move() {
    let (hello, mut fleet) = (hello(), two_workers());
    let [ours, other] = ["g-a", "g-b"].map(|id| id.parse().unwrap());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let gone = |fleet: &mut Fleet, gateway, now| {
        fleet.found_gone(&id, gateway, Millis(now));
        !fleet.instances.contains_key(&id)
    };
    assert!(!gone(&mut fleet, &ours, 2), "nobody has leased it");
    fleet.grant(&id, &ours, &hello, Millis(3));
    assert!(!gone(&mut fleet, &other, 4));
    fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
    assert!(fleet.begin_move(&id, Millis(5)));
    assert!(!gone(&mut fleet, &ours, 5));
    fleet.moved(&id, &MigrationKind::Move, &worker(1), Millis(6));
    assert!(!gone(&mut fleet, &ours, 7));
    fleet.grant(&id, &ours, &hello, Millis(8));
    assert!(gone(&mut fleet, &ours, 9));
}

#[test]
fn a_copy_is_an_instance_of_its_own() {
    let (hello, mut fleet) = (live(spec("hello", 1, 30, 1, 5)), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let kind = MigrationKind::Clone("i-b".parse().unwrap());
    fleet.plan_move(&id, None, &kind).unwrap();
    assert!(fleet.instances[&id].moving.is_none(), "the original serves on");
    fleet.moved(&id, &kind, &worker(1), Millis(2));
    assert_eq!(fleet.instances.len(), 2);
    assert_eq!(fleet.instances[&"i-b".parse::<InstanceId>().unwrap()].worker, worker(1));
}

#[test]
fn a_copy_above_the_maximum_stays_though_its_worker_lists_it_before_the_source_has_answered() {
    let (hello, mut fleet) = (live(spec("hello", 1, 30, 1, 1)), two_workers());
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    let copy: InstanceId = "i-b".parse().unwrap();
    let kind = MigrationKind::Clone(copy.clone());
    let lists = |fleet: &mut Fleet, now| {
        let listed = vec![info(&copy, &hello.spec, 0, 0, 0)];
        fleet.heartbeat(&beat(1, 1, 100, listed), now, |_, _| {
            ClaimedVersion::Live(hello.clone())
        })
    };
    let due = |fleet: &mut Fleet, now| fleet.due(now, |_, _| Floor { warm: 1, parked: 0 });
    for answer in [Ok(()), Err(())] {
        fleet.plan_move(&id, None, &kind).unwrap();
        assert!(lists(&mut fleet, Millis(2)).is_empty());
        assert_eq!(due(&mut fleet, Millis(3)), [], "it would end before it has its memory");
        match answer {
            Ok(()) => fleet.moved(&id, &kind, &worker(1), Millis(4)),
            Err(()) => fleet.give_up_copy(&copy, 1, Millis(4)),
        }
        let going: Vec<_> = due(&mut fleet, Millis(5)).into_iter().map(|r| r.instance).collect();
        match answer {
            Ok(()) => assert_eq!(going, []),
            Err(()) => assert_eq!(going, std::slice::from_ref(&copy), "nobody knows of it"),
        }
        fleet.forget(&copy, Millis(6));
        fleet.gone.clear();
    }
    // One that nobody has asked for is one too many.
    lists(&mut fleet, Millis(7));
    assert_eq!(fleet.instances[&copy].draining, Some(Draining::Surplus));
}

#[test]
fn what_was_in_use_leaves_a_draining_worker_a_few_at_a_time_and_serves_until_its_turn_comes() {
    let (hello, mut fleet) = (live(spec("hello", 1, 10, 1, 9)), two_workers());
    let at = |ms: u64| Millis(20_000 + ms);
    let old = ready(&mut fleet, "i-old", &hello, Millis(5_000));
    let ids: Vec<_> = (0..4)
        .map(|n| ready(&mut fleet, &format!("i-{n}"), &hello, at(0)))
        .collect();
    assert!(fleet.to_evacuate(2, at(100)).is_empty(), "nobody drains");
    fleet.drain(&worker(0), true, at(100));
    let first = fleet.to_evacuate(2, at(100));
    assert_eq!(first, ids[..2]);
    for id in &first {
        fleet.plan_move(id, None, &MigrationKind::Move).unwrap();
    }
    assert!(
        fleet.to_evacuate(2, at(100)).is_empty(),
        "as many as may are on their way"
    );
    // Neither those that get ready nor those behind them are stopped or forsaken, however long it takes.
    let due: Vec<_> = fleet
        .due(at(200), |_, _| Floor::default())
        .into_iter()
        .map(|r| r.instance)
        .collect();
    assert_eq!(due, std::slice::from_ref(&old));
    for _ in &ids {
        let Decision::Use(id) = place(&fleet, &hello, &ask(), at(300)) else {
            panic!()
        };
        assert!(ids.contains(&id));
        fleet.grant(&id, &"g-b".parse().unwrap(), &hello, at(300));
        fleet.report(&held("g-b", &id), at(300));
    }
    assert!(matches!(place(&fleet, &hello, &ask(), at(300)), Decision::Start { .. }));
    // Two do not move: they finish, and are tried again later while they are in use.
    for id in &first {
        fleet.leave_alone(id, at(9_000));
        fleet.stays(id, at(400));
        assert!(fleet.instances[id].lease.as_ref().unwrap().recalled);
    }
    assert_eq!(fleet.to_evacuate(2, at(500)), ids[2..]);
    for id in &ids[2..] {
        fleet.moved(id, &MigrationKind::Move, &worker(1), at(600));
    }
    assert!(fleet.to_evacuate(2, at(8_900)).is_empty());
    assert_eq!(fleet.to_evacuate(2, at(9_000)), first);
    for id in &first {
        fleet.instances.get_mut(id).unwrap().lease = None;
    }
    assert!(fleet.to_evacuate(2, at(30_000)).is_empty(), "nobody uses them any more");
}

fn held(gateway: &str, id: &InstanceId) -> LeaseReport {
    LeaseReport {
        gateway: gateway.parse().unwrap(),
        held: vec![id.clone()],
        numbers: Vec::new(),
        returned: Vec::new(),
    }
}
