//! Small clusters, simulated for some minutes. The checks are the simulation's own, and each run is reproducible.

use super::*;

fn small(seed: u64) -> Setup {
    Setup {
        workers: 50,
        functions: 200,
        gateways: 4,
        rate: 150.0,
        seconds: 240,
        fail_every: 8.0,
        drain_every: 20.0,
        seed,
        ..Setup::default()
    }
}

#[test]
fn nothing_breaks_while_workers_fail_come_back_and_are_drained() {
    for seed in 1..4 {
        let report = simulate(&small(seed));
        assert!(
            report.failures > 10 && report.cut_off > 3 && report.drains > 3,
            "{report:?}"
        );
        let served: u64 = report.served().iter().map(|(_, n)| n).sum();
        // A request may be in flight when its worker fails, or at the end.
        assert!(
            served + report.refused + report.lost + 500 > report.requests,
            "{report:?}"
        );
        assert!(report.lost * 50 < report.requests, "{report:?}");
        assert!(report.refused * 50 < report.requests, "{report:?}");
        assert!(report.leased > report.requests / 2, "{report:?}");
        // The first of each function in each zone is from the store, and some after a failure.
        assert!(report.from_template * 3 > report.from_store, "{report:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = || {
        let mut report = simulate(&Setup {
            seconds: 60,
            ..small(7)
        });
        (report.placing_ns, report.real_ms) = (0, 0);
        report
    };
    assert_eq!(run(), run());
}

#[test]
fn a_small_cluster_under_more_than_it_can_take_refuses_and_breaks_nothing() {
    let report = simulate(&Setup {
        workers: 6,
        memory: 2 << 30,
        rate: 600.0,
        seconds: 60,
        ..small(3)
    });
    assert!(report.waited > 0 && report.refused > 0, "{report:?}");
    assert!(report.leased > 0, "{report:?}");
}

#[test]
fn placements_are_timed_on_a_view_of_the_size_asked_for() {
    let timed = time_placements(&Timing {
        setup: small(1),
        instances: 300,
        placements: 2_000,
    });
    assert_eq!(timed.placement_ns.len(), 2_000);
    assert_eq!(timed.used + timed.started + timed.waited, 2_000);
    assert!(timed.used > 0 && timed.started > 0, "{timed:?}");
    assert!((250..=300).contains(&timed.instances), "{}", timed.instances);
}
