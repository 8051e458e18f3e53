//! The decision's rules one by one, and then whether they hold under any sequence of events.

mod events;

use std::collections::BTreeMap;

use proptest::prelude::*;
use rekindle_wire::api::InstanceState;
use rekindle_wire::internal::{Heartbeat, LeaseReport, ReturnedLease};
use rekindle_wire::migration::MigrationKind;
use rekindle_wire::processor::InstructionSets;

use super::*;
use crate::catalog::ClaimedVersion;
use crate::fixture::{beat, fleet, gateway, info, live, parked, ready, spec, worker};

fn ask(n: usize) -> SlotRequest {
    SlotRequest {
        gateway: gateway(n),
        version: None,
        held: Vec::new(),
        force: None,
        avoid: Vec::new(),
        avoid_until: NOW,
    }
}

const NOW: Millis = Millis(100_000);

#[test]
fn a_ready_instance_is_used_before_a_new_one_is_started() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let mut fleet = fleet(100);
    fleet.note_silence(Millis(0));
    let old = ready(&mut fleet, "i-old", &hello, Millis(1));
    let recent = ready(&mut fleet, "i-recent", &hello, Millis(2));
    assert_eq!(place(&fleet, &hello, &ask(0), Millis(3)), Decision::Use(recent.clone()));
    fleet.grant(&recent, &gateway(0), &hello, Millis(3));
    assert_eq!(place(&fleet, &hello, &ask(0), Millis(3)), Decision::Use(old.clone()));
    fleet.grant(&old, &gateway(0), &hello, Millis(3));
    let start = Decision::Start {
        worker: worker(0),
        kind: StartKind::Booted,
    };
    assert_eq!(place(&fleet, &hello, &ask(0), Millis(3)), start);
}

#[test]
fn a_version_with_a_snapshot_is_restored() {
    let mut s = spec("hello", 1, 10, 1, 5);
    s.snapshot = Some("s-1".parse().unwrap());
    let decision = place(&fleet(100), &live(s), &ask(0), Millis(1));
    let Decision::Start { kind, .. } = decision else {
        panic!("{decision:?}")
    };
    assert_eq!(kind, StartKind::Restored);
}

/// The instruction sets of a processor with these flags.
fn sets(flags: &str) -> InstructionSets {
    InstructionSets::of_cpuinfo(&format!("flags : {flags}\n"))
}

#[test]
fn a_host_that_lacks_an_instruction_set_of_the_snapshot_s_is_not_chosen_and_boots_where_no_other_has_room() {
    let mut s = spec("hello", 1, 10, 1, 5);
    (s.snapshot, s.instruction_sets) = (Some("s-1".parse().unwrap()), sets("avx avx512f"));
    let hello = live(s);
    let mut fleet = Fleet::default();
    // One with the most room that lacks it, one that has it, and one that does not say.
    for (n, capacity, has) in [(0, 1_000, "avx"), (1, 15, "avx avx512f gfni")] {
        let mut beat = beat(n, 1, capacity, Vec::new());
        beat.offer.instruction_sets = sets(has);
        fleet.heartbeat(&beat, NOW, |_, _| ClaimedVersion::Unknown);
    }
    let started = |fleet: &Fleet, force| {
        let ask = SlotRequest { force, ..ask(0) };
        match place(fleet, &hello, &ask, NOW) {
            Decision::Start { worker, kind } => Some((worker, kind)),
            _ => None,
        }
    };
    assert_eq!(started(&fleet, None), Some((worker(1), StartKind::Restored)));
    assert_eq!(
        started(&fleet, Some(StartKind::Booted)).map(|(_, kind)| kind),
        Some(StartKind::Booted)
    );
    fleet.drain(&worker(1), true, NOW);
    assert_eq!(started(&fleet, None), Some((worker(0), StartKind::Booted)));
    assert_eq!(
        started(&fleet, Some(StartKind::Restored)),
        None,
        "who asks for a restore waits for one"
    );
    // A worker of an earlier version does not report them.
    fleet.heartbeat(&beat(2, 1, 15, Vec::new()), NOW, |_, _| ClaimedVersion::Unknown);
    assert_eq!(started(&fleet, None), Some((worker(2), StartKind::Restored)));
}

#[test]
fn an_instance_moves_to_no_host_that_lacks_an_instruction_set_of_its_own() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let mut fleet = Fleet::default();
    for (n, capacity, has) in [(0, 100, "avx avx2"), (1, 1_000, "avx"), (2, 50, "avx avx2 gfni")] {
        let mut beat = beat(n, 1, capacity, Vec::new());
        beat.offer.instruction_sets = sets(has);
        fleet.heartbeat(&beat, NOW, |_, _| ClaimedVersion::Unknown);
    }
    let id = ready(&mut fleet, "i-1", &hello, NOW);
    let named = fleet
        .plan_move(&id, Some(&worker(1)), &MigrationKind::Move)
        .unwrap_err();
    assert!(named.message.contains("lacks avx2"), "{named:?}");
    assert_eq!(fleet.plan_move(&id, None, &MigrationKind::Move).unwrap().to, worker(2));
}

#[test]
fn an_instance_of_an_older_version_is_not_used() {
    let old = live(spec("hello", 1, 10, 1, 5));
    let new = live(spec("hello", 2, 10, 1, 5));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-old", &old, Millis(1));
    fleet.switch(&old.spec.function, |version| version == new.spec.version);
    assert!(matches!(
        place(&fleet, &new, &ask(0), Millis(1)),
        Decision::Start { .. }
    ));
    assert_eq!(
        fleet
            .due(Millis(2), |_, _| parked(0))
            .first()
            .map(|r| r.instance.clone()),
        Some(id)
    );
}

#[test]
fn a_function_at_its_maximum_gives_up_one_instance_at_a_time() {
    let hello = live(spec("hello", 1, 10, 1, 3));
    let mut fleet = fleet(100);
    for (n, id) in ["i-a", "i-b", "i-c"].into_iter().enumerate() {
        ready(&mut fleet, id, &hello, Millis(1 + n as u64));
    }
    let forced = SlotRequest {
        force: Some(StartKind::Booted),
        ..ask(0)
    };
    let freed = |fleet: &Fleet| match place(fleet, &hello, &forced, Millis(5)) {
        Decision::Wait { shortage, free_up } => {
            assert_eq!(shortage, Shortage::Instances);
            free_up
        }
        other => panic!("{other:?}"),
    };
    let first = freed(&fleet).unwrap();
    fleet.free_up(&first).unwrap();
    assert_eq!(freed(&fleet), None, "one is on its way out");
    // Its worker found it busy.
    fleet.kept(&first, true, Millis(5));
    assert!(freed(&fleet).is_some());
}

#[test]
fn a_function_at_its_maximum_waits() {
    let hello = live(spec("hello", 1, 10, 1, 1));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &gateway(0), &hello, Millis(1));
    let mut other = ask(1);
    let decision = place(&fleet, &hello, &other, Millis(2));
    // Another gateway's unused lease is what could be freed.
    let wait = Decision::Wait {
        shortage: Shortage::Instances,
        free_up: Some(id),
    };
    assert_eq!(decision, wait);
    other.force = Some(StartKind::Booted);
    assert_eq!(place(&fleet, &hello, &other, Millis(2)), wait);
}

#[test]
fn a_full_worker_gives_up_its_least_recently_used_instance_that_nobody_uses() {
    let idle = live(spec("idle", 1, 40, 1, 5));
    let busy = live(spec("busy", 1, 40, 1, 5));
    let wanted = live(spec("wanted", 1, 40, 1, 5));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-idle", &idle, Millis(5));
    let used = ready(&mut fleet, "i-busy", &busy, Millis(1));
    fleet.grant(&used, &gateway(0), &busy, Millis(1));
    let decision = place(&fleet, &wanted, &ask(0), Millis(6));
    assert_eq!(
        decision,
        Decision::Wait {
            shortage: Shortage::Memory,
            free_up: Some(id.clone())
        }
    );
    assert!(fleet.free_up(&id).is_some());
    fleet.forget(&id, Millis(7));
    assert!(matches!(
        place(&fleet, &wanted, &ask(0), Millis(7)),
        Decision::Start { .. }
    ));
}

#[test]
fn a_function_larger_than_every_worker_is_told_so() {
    let decision = place(&fleet(100), &live(spec("big", 1, 101, 1, 1)), &ask(0), Millis(1));
    assert_eq!(decision, Decision::TooBig { largest: 100 });
}

#[test]
fn a_silent_worker_gets_nothing() {
    let mut fleet = fleet(100);
    let hello = live(spec("hello", 1, 10, 1, 5));
    ready(&mut fleet, "i-a", &hello, Millis(1));
    assert!(fleet.note_silence(NOW));
    let decision = place(&fleet, &hello, &ask(0), NOW);
    assert_eq!(
        decision,
        Decision::Wait {
            shortage: Shortage::Workers,
            free_up: None
        }
    );
}

#[test]
fn a_lease_whose_answer_was_lost_is_granted_again_to_the_same_gateway_only() {
    let hello = live(spec("hello", 1, 10, 1, 1));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    // An idle time of 4 s makes leases of 2 s; a longer one shows the rule.
    fleet.grant(&id, &gateway(0), &hello, Millis(1));
    fleet.instances.get_mut(&id).unwrap().lease.as_mut().unwrap().expires_at = NOW;
    let soon = Millis(1).plus(LOST_ANSWER);
    let later = soon.plus(Millis(1));
    assert!(matches!(place(&fleet, &hello, &ask(0), soon), Decision::Wait { .. }));
    assert_eq!(place(&fleet, &hello, &ask(0), later), Decision::Use(id.clone()));
    assert!(matches!(place(&fleet, &hello, &ask(1), later), Decision::Wait { .. }));
    let knows = SlotRequest {
        held: vec![id],
        ..ask(0)
    };
    assert!(matches!(place(&fleet, &hello, &knows, later), Decision::Wait { .. }));
}

#[test]
fn a_worker_that_was_not_reached_is_passed_over_while_there_is_another() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    let unreached = SlotRequest {
        avoid: vec![fleet.workers[&worker(0)].address.clone()],
        avoid_until: NOW.plus(AVOID_FOR),
        ..ask(0)
    };
    assert_eq!(
        place(&fleet, &hello, &unreached, NOW),
        Decision::Use(id.clone()),
        "there is no other"
    );
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), NOW, |_, _| ClaimedVersion::Unknown);
    let elsewhere = place(&fleet, &hello, &unreached, NOW);
    assert!(matches!(elsewhere, Decision::Start { worker: w, .. } if w == worker(1)));
    let later = unreached.avoid_until;
    assert_eq!(place(&fleet, &hello, &unreached, later), Decision::Use(id));
}

#[test]
fn a_worker_short_of_disk_or_memory_is_the_last_resort() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let short_of: [fn(&mut Heartbeat, bool); 2] = [
        |said, short| said.levels.disk_free_bytes = Some(if short { 0 } else { 1 << 40 }),
        |said, short| said.pressure.full = Some(if short { 50.0 } else { 0.0 }),
    ];
    for short_of in short_of {
        let mut fleet = fleet(100);
        let say = |n: usize, short: bool, fleet: &mut crate::fleet::Fleet| {
            let mut said = beat(n, 1, 100, Vec::new());
            short_of(&mut said, short);
            fleet.heartbeat(&said, NOW, |_, _| ClaimedVersion::Unknown);
            place(fleet, &hello, &ask(0), NOW)
        };
        let on =
            |decision: &Decision, n: usize| matches!(decision, Decision::Start { worker: w, .. } if *w == worker(n));
        assert!(on(&say(0, true, &mut fleet), 0), "there is no other");
        assert!(on(&say(1, false, &mut fleet), 1));
        say(0, false, &mut fleet);
        assert!(on(&say(1, true, &mut fleet), 0));
    }
    // Of the two, the one short of memory is preferred.
    for (disk, memory) in [(0, 1), (1, 0)] {
        let mut fleet = fleet(100);
        for (n, short_of) in [(disk, short_of[0]), (memory, short_of[1])] {
            let mut said = beat(n, 1, 100, Vec::new());
            short_of(&mut said, true);
            fleet.heartbeat(&said, NOW, |_, _| ClaimedVersion::Unknown);
        }
        let placed = place(&fleet, &hello, &ask(0), NOW);
        assert!(matches!(placed, Decision::Start { worker: w, .. } if w == worker(memory)));
    }
}
