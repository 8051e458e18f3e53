//! Workers that are silent, drained, leave or are revoked.

use super::*;

#[test]
fn a_silent_worker_gives_its_leases_back_and_keeps_its_instances_until_it_is_gone() {
    let hello = hello();
    let mut fleet = two_workers();
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &gateway("g-a"), &hello, Millis(1));
    let (silent, gone) = (SILENCE.plus(Millis(1)), GONE.plus(Millis(1)));
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), silent, |_, _| ClaimedVersion::Unknown);
    assert!(fleet.note_silence(silent) && !fleet.note_silence(silent));
    assert_eq!(fleet.untold_recalls(&gateway("g-a")), std::slice::from_ref(&id));
    assert_eq!(states(&fleet, silent), [WorkerState::Silent, WorkerState::Ready]);
    assert!(fleet.instances.contains_key(&id));
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), gone, |_, _| ClaimedVersion::Unknown);
    assert!(fleet.note_silence(gone));
    assert_eq!(states(&fleet, gone), [WorkerState::Gone, WorkerState::Ready]);
    assert!(fleet.instances.is_empty());
    // When the worker returns, it brings its instances; one of a live version is kept.
    let back = beat(0, 1, 100, vec![info(&id, &hello.spec, 0, 0, 0)]);
    let stop = fleet.heartbeat(&back, gone, |_, _| ClaimedVersion::Live(hello.clone()));
    assert!(stop.is_empty() && fleet.instances.contains_key(&id));
    assert_eq!(states(&fleet, gone), [WorkerState::Ready, WorkerState::Ready]);
}

fn states(fleet: &Fleet, now: Millis) -> Vec<WorkerState> {
    fleet.worker_infos(now).iter().map(|w| w.state).collect()
}

#[test]
fn a_scheduler_that_stood_still_takes_nobody_for_silent() {
    let mut fleet = two_workers();
    fleet.forgive(Millis(60_000));
    assert!(!fleet.note_silence(Millis(60_000)));
    assert!(fleet.note_silence(Millis(70_001)));
}

#[test]
fn a_drained_worker_finishes_and_its_idle_instances_go() {
    let hello = hello();
    let at = |ms: u64| Millis(20_000 + ms);
    let mut fleet = two_workers();
    let idle = ready(&mut fleet, "i-idle", &hello, Millis(1));
    let held = ready(&mut fleet, "i-held", &hello, Millis(1));
    fleet.grant(&held, &gateway("g-a"), &hello, Millis(1));
    fleet.drain(&worker(0), true, at(0));
    assert!(fleet.untold_recalls(&gateway("g-a")).is_empty(), "it is to move");
    fleet.leave_behind(&held);
    assert_eq!(fleet.untold_recalls(&gateway("g-a")), std::slice::from_ref(&held));
    let (give_back, _) = fleet.report(&report("g-a", &[&held], &[]), at(2));
    assert_eq!(give_back, std::slice::from_ref(&held));
    let due: Vec<_> = fleet
        .due(at(2), |_, _| parked(1))
        .into_iter()
        .map(|r| r.instance)
        .collect();
    assert_eq!(due, std::slice::from_ref(&idle));
    fleet.forget(&idle, at(3));
    fleet.report(&report("g-a", &[], &[&held]), at(3));
    assert_eq!(fleet.due(at(3), |_, _| parked(1)).len(), 1);
    assert_eq!(states(&fleet, at(3)), [WorkerState::Draining, WorkerState::Ready]);
    fleet.forget(&held, at(4));
    assert_eq!(states(&fleet, at(4)), [WorkerState::Drained, WorkerState::Ready]);
    // A restart of the worker changes nothing; only its operator can.
    fleet.heartbeat(&beat(0, 2, 100, Vec::new()), at(5), |_, _| ClaimedVersion::Unknown);
    assert_eq!(states(&fleet, at(5)), [WorkerState::Drained, WorkerState::Ready]);
    fleet.drain(&worker(0), false, at(5));
    assert_eq!(states(&fleet, at(5)), [WorkerState::Ready, WorkerState::Ready]);
}

#[test]
fn a_worker_that_leaves_is_drained_and_gone_once_it_has_left() {
    let hello = hello();
    let mut fleet = two_workers();
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &gateway("g-a"), &hello, Millis(1));
    let mut leaving = beat(0, 1, 100, vec![info(&id, &hello.spec, 0, 1, 0)]);
    leaving.presence = Presence::Leaving;
    fleet.heartbeat(&leaving, Millis(2), |_, _| ClaimedVersion::Unknown);
    assert!(fleet.untold_recalls(&gateway("g-a")).is_empty(), "it is to move");
    fleet.leave_behind(&id);
    assert_eq!(fleet.untold_recalls(&gateway("g-a")), [id]);
    assert_eq!(states(&fleet, Millis(2)), [WorkerState::Draining, WorkerState::Ready]);
    let mut left = beat(0, 1, 100, Vec::new());
    left.presence = Presence::Left;
    fleet.heartbeat(&left, Millis(3), |_, _| ClaimedVersion::Unknown);
    assert_eq!(states(&fleet, Millis(3)), [WorkerState::Gone, WorkerState::Ready]);
    assert!(fleet.instances.is_empty());
    fleet.heartbeat(&beat(0, 2, 100, Vec::new()), Millis(4), |_, _| ClaimedVersion::Unknown);
    assert_eq!(states(&fleet, Millis(4)), [WorkerState::Ready, WorkerState::Ready]);
}

#[test]
fn a_name_of_an_operator_s_means_workers_by_id_address_or_host() {
    let mut fleet = two_workers();
    let mut named = beat(1, 1, 100, Vec::new());
    named.offer.host = "b".to_owned();
    fleet.heartbeat(&named, Millis(1), |_, _| ClaimedVersion::Unknown);
    for (name, found) in [
        ("w-0", vec![worker(0)]),
        ("127.0.0.1:7001", vec![worker(1)]),
        ("b", vec![worker(1)]),
        ("127.0.0.1", vec![worker(0), worker(1)]),
        ("nobody", vec![]),
    ] {
        assert_eq!(fleet.workers_called(name), found, "{name}");
    }
}

#[test]
fn a_worker_that_is_revoked_is_gone_at_once_with_what_ran_there_and_is_heard_no_more() {
    let hello = hello();
    let mut fleet = two_workers();
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &gateway("g-a"), &hello, Millis(1));
    fleet.expel(&worker(0), Millis(2));
    assert_eq!(states(&fleet, Millis(2)), [WorkerState::Gone, WorkerState::Ready]);
    assert!(!fleet.instances.contains_key(&id));
    assert_eq!(
        fleet.untold_recalls(&gateway("g-a")),
        std::slice::from_ref(&id),
        "its gateway is told"
    );
    // A heartbeat that was already in flight, and one from a restarted worker.
    for incarnation in [1, 2] {
        let late = beat(0, incarnation, 100, vec![info(&id, &hello.spec, 0, 0, 0)]);
        fleet.heartbeat(&late, Millis(3), |_, _| ClaimedVersion::Live(hello.clone()));
    }
    assert_eq!(states(&fleet, Millis(3)), [WorkerState::Gone, WorkerState::Ready]);
    assert!(!fleet.instances.contains_key(&id));
}
