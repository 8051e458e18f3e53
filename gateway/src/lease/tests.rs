use super::*;

pub(crate) fn placement(instance: &str, slots: u32, start: StartKind) -> Placement {
    Placement {
        instance: instance.parse().unwrap(),
        worker_address: "127.0.0.1:1".to_owned(),
        version: VersionNumber(1),
        start,
        slots,
        timeout_ms: 1_000,
        boot_timeout_ms: 30_000,
        idempotent: false,
        fresh: false,
        lease_ms: 1_000,
        lease_number: 1,
        memory_bytes: 0,
    }
}

#[test]
fn a_lease_serves_its_version_and_whichever_serves_only_if_it_was_granted_for_that() {
    let now = Instant::now();
    let mut leases = Leases::default();
    let version = |n: u32| Some(VersionNumber(n));
    let of = |instance: &str, n: u32| Placement {
        version: VersionNumber(n),
        ..placement(instance, 1, StartKind::Warm)
    };
    leases.add(&of("i-a", 1), version(1), &gateway(), now);
    leases.add(&of("i-b", 2), None, &gateway(), now);
    assert!(leases.take(version(3), now, true).is_none());
    assert_eq!(leases.held(None).len(), 2);
    assert_eq!(leases.held(version(1)), [id("i-a")]);
    assert_eq!(leases.take(None, now, true).unwrap().instance, id("i-b"));
    assert!(
        leases.take(None, now, true).is_none(),
        "the first was granted for its version"
    );
    leases.release(&id("i-b"), Outcome::Free, now);
    assert_eq!(leases.take(version(2), now, true).unwrap().instance, id("i-b"));
    assert_eq!(leases.take(version(1), now, true).unwrap().instance, id("i-a"));
}

fn gateway() -> GatewayId {
    "g-own".parse().unwrap()
}

fn id(text: &str) -> InstanceId {
    text.parse().unwrap()
}

#[test]
fn the_oldest_instance_is_taken_first_so_that_the_other_idles_out() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 1, StartKind::Warm), None, &gateway(), at(0));
    leases.add(&placement("i-b", 1, StartKind::Warm), None, &gateway(), at(1));
    for ms in (10..900).step_by(10) {
        let leased = leases.take(None, at(ms), true).unwrap();
        assert_eq!(leased.instance, id("i-a"));
        leases.release(&leased.instance, Outcome::Free, at(ms + 5));
    }
    let back = leases.give_back(at(1_001));
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].instance, id("i-b"));
    assert_eq!(leases.held(None), [id("i-a")]);
    // At a peak the other serves too, and not for longer.
    leases.add(&placement("i-b", 1, StartKind::Warm), None, &gateway(), at(1_010));
    leases.confirm(&id("i-a"), at(1_010));
    let peak = [0, 0].map(|_| leases.take(None, at(1_020), true).unwrap().instance);
    assert_eq!(peak, [id("i-a"), id("i-b")]);
    for id in &peak {
        leases.release(id, Outcome::Free, at(1_030));
    }
    assert_eq!(leases.take(None, at(1_040), true).unwrap().instance, id("i-a"));
}

#[test]
fn no_more_slots_are_taken_than_were_granted() {
    let now = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
    // Granted twice, as after a lost answer: still the same slots.
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
    assert!(leases.take(None, now, true).is_some());
    assert!(leases.take(None, now, true).is_some());
    assert!(leases.take(None, now, true).is_none());
}

#[test]
fn everybody_who_waited_for_a_start_gets_its_kind_and_the_next_is_warm() {
    let now = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 3, StartKind::Restored), None, &gateway(), now);
    let first = leases.take(None, now, true).unwrap();
    let second = leases.take(None, now, true).unwrap();
    assert_eq!(
        (first.start(), second.start()),
        (StartKind::Restored, StartKind::Restored)
    );
    first.note_answer();
    assert_eq!(leases.take(None, now, true).unwrap().start(), StartKind::Warm);
}

#[test]
fn a_lease_wanted_back_takes_nothing_new_and_goes_when_its_last_slot_is_free() {
    let now = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
    let leased = leases.take(None, now, true).unwrap();
    assert!(leases.recall(&leased.instance, now));
    assert!(leases.take(None, now, true).is_none());
    assert!(leases.give_back(now).is_empty());
    assert!(leases.release(&leased.instance, Outcome::Free, now));
    assert_eq!(leases.give_back(now).len(), 1);
    assert!(leases.is_empty());
}

#[test]
fn a_lease_whose_recall_is_taken_back_takes_requests_again_while_a_stream_goes_on() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut leases = Leases::default();
    let long = Placement {
        lease_ms: 20_000,
        ..placement("i-a", 2, StartKind::Warm)
    };
    leases.add(&long, None, &gateway(), start);
    let stream = leases.take(None, start, true).unwrap();
    assert!(leases.recall(&stream.instance, at(10)));
    assert!(leases.take(None, at(20), true).is_none());
    // The scheduler is asked now and then.
    assert!(leases.due(at(20)).is_empty());
    assert_eq!(leases.due(at(600)), [(id("i-a"), 1)]);
    assert!(leases.due(at(700)).is_empty());
    // What it said before the recall does not count.
    leases.confirm(&stream.instance, at(5));
    assert!(leases.take(None, at(710), true).is_none());
    leases.confirm(&stream.instance, at(600));
    assert!(leases.take(None, at(720), true).is_some());
    assert!(
        leases.take(None, at(720), true).is_none(),
        "the stream has the other slot"
    );
}

#[test]
fn a_stuck_slot_ends_an_instance_that_has_no_other() {
    let now = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
    leases.add(&placement("i-b", 1, StartKind::Warm), None, &gateway(), now);
    let a = leases.take(None, now, true).unwrap();
    assert!(!leases.release(&id("i-a"), Outcome::Stuck, now));
    let b = leases.take_alone(&id("i-b"), now).unwrap();
    assert!(leases.release(&b.instance, Outcome::Stuck, now));
    let back = leases.give_back(now);
    assert_eq!(back.len(), 1);
    assert!(back[0].stuck);
    assert_eq!(a.instance, id("i-a"));
    assert_eq!(leases.held(None), [id("i-a")]);
}

#[test]
fn a_lost_slot_is_not_used_again_while_the_function_may_go_on() {
    let start = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), start);
    let a = leases.take(None, start, true).unwrap();
    assert!(!leases.release(&a.instance, Outcome::Stuck, start));
    assert!(leases.take(None, start, true).is_some(), "the other slot is good");
    assert!(leases.take(None, start, true).is_none(), "the lost slot was used again");
    leases.release(&a.instance, Outcome::Free, start);
    let later = start + OVERDUE_LIMIT;
    assert!(leases.take(None, later, false).is_some());
    assert!(leases.take(None, later, false).is_some());
}

#[test]
fn a_lease_with_only_lost_slots_is_returned_as_busy() {
    let now = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
    for last in [false, true] {
        let leased = leases.take(None, now, true).unwrap();
        assert_eq!(leases.release(&leased.instance, Outcome::Lost, now), last);
    }
    let back = leases.give_back(now);
    assert_eq!((back[0].busy, back[0].stuck), (2, false));
}

#[test]
fn an_unreachable_workers_lease_is_returned_and_nothing_sent_meanwhile() {
    let now = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
    let leased = leases.take(None, now, true).unwrap();
    assert!(leases.release(&leased.instance, Outcome::Unusable, now));
    assert!(leases.take(None, now, true).is_none());
    assert_eq!(leases.give_back(now).len(), 1);
}

#[test]
fn a_lease_that_is_granted_again_has_its_new_number() {
    let now = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
    assert_eq!(leases.take(None, now, true).unwrap().mark.unwrap(), "1 g-own");
    let mut again = placement("i-a", 2, StartKind::Warm);
    again.lease_number = 3;
    leases.add(&again, None, &gateway(), now);
    assert_eq!(leases.take(None, now, true).unwrap().mark.unwrap(), "3 g-own");
    assert_eq!(leases.due(now + Duration::from_secs(1)), [(id("i-a"), 3)]);
}

#[test]
fn a_lease_is_due_in_its_second_half_until_its_renewal_is_confirmed() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 1, StartKind::Warm), None, &gateway(), start);
    assert!(leases.due(at(400)).is_empty());
    assert_eq!(leases.due(at(600)), [(id("i-a"), 1)]);
    // That report was lost.
    assert_eq!(leases.due(at(700)), [(id("i-a"), 1)]);
    assert!(leases.confirm(&id("i-a"), at(700)));
    assert!(leases.due(at(800)).is_empty());
}

#[test]
fn a_lease_that_ran_out_unconfirmed_is_used_only_while_the_scheduler_is_away() {
    let start = Instant::now();
    let mut leases = Leases::default();
    leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), start);
    let later = start + Duration::from_secs(1);
    assert!(leases.take(None, later, true).is_none());
    assert!(leases.take(None, later, false).is_some());
    leases.confirm(&id("i-a"), later);
    assert!(leases.take(None, later, true).is_some());
}
