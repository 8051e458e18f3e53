//! The life of a canary without a clock.

use rekindle_wire::stats::Outcomes;

use super::*;

const STEP_MS: i64 = 60_000;

fn canary() -> Canary {
    Canary {
        from: VersionNumber(7),
        to: VersionNumber(8),
        steps: "10,50".parse().unwrap(),
        step_s: 60,
        step: 0,
        since_unix_ms: 0,
        state: CanaryState::Growing,
        why: None,
        looks: 0,
        looked_unix_ms: 0,
        checks: Vec::new(),
    }
}

fn warm(answered: u64, failed: u64) -> OutcomesByStart {
    let latencies = [(1_000, answered)].into();
    let outcomes = Outcomes {
        answered,
        failed,
        latencies,
    };
    [("warm".to_owned(), outcomes)].into()
}

fn weights(canary: &Canary) -> Vec<(u32, u32)> {
    let targets = canary.alias().targets.into_iter();
    targets.map(|target| (target.version.0, target.weight)).collect()
}

#[test]
fn it_grows_when_a_step_is_over_and_enough_were_served_and_is_live_after_the_last() {
    let first = canary();
    assert_eq!(weights(&first), [(7, 90), (8, 10)]);
    let (old, few, enough) = (warm(900, 0), warm(19, 0), warm(20, 0));
    assert_eq!(next(&first, &old, &enough, STEP_MS / 10 - 1), None);
    let looked = next(&first, &old, &enough, STEP_MS / 10).unwrap();
    assert_eq!((looked.looks, looked.step, looked.checks.len()), (1, 0, 2));
    assert_eq!(next(&looked, &old, &enough, STEP_MS / 10 + 1), None);
    assert_eq!(next(&looked, &old, &enough, STEP_MS / 2), None, "nothing is new");
    let waits = next(&first, &old, &few, 5 * STEP_MS).unwrap();
    assert_eq!((waits.step, waits.state), (0, CanaryState::Growing), "too few to go on");
    let second = next(&looked, &old, &enough, STEP_MS).unwrap();
    assert_eq!(weights(&second), [(7, 50), (8, 50)]);
    assert_eq!((second.looks, second.since_unix_ms), (0, STEP_MS));
    assert_eq!(
        next(&second, &OutcomesByStart::new(), &OutcomesByStart::new(), STEP_MS + 1),
        None
    );
    let live = next(&second, &old, &enough, 2 * STEP_MS).unwrap();
    assert_eq!((weights(&live), live.state), (vec![(8, 100)], CanaryState::Live));
}

#[test]
fn it_is_rolled_back_as_soon_as_it_is_worse_and_says_why() {
    let (old, new) = (warm(900, 1), warm(94, 6));
    let back = next(&canary(), &old, &new, STEP_MS / 10).unwrap();
    assert_eq!((weights(&back), back.state), (vec![(7, 100)], CanaryState::RolledBack));
    let why = back.why.unwrap();
    assert!(
        why.starts_with("6 of 100 invocations failed, of the old version 1 of 901"),
        "{why}"
    );
    let same = next(&canary(), &old, &warm(99, 1), STEP_MS / 10).unwrap();
    assert_eq!(same.state, CanaryState::Growing);
}

#[test]
fn all_comparisons_of_a_canary_together_are_wrong_in_one_of_twenty_at_most() {
    let canary = canary();
    let looks = (1..100_000).map(|look| limit(&canary, look));
    let all = looks.sum::<f64>() * f64::from(CHECKS) * canary.steps.percents().len() as f64;
    assert!(all <= WRONG && all > WRONG * 0.99, "{all}");
    let mut waits = canary;
    waits.looks = 50;
    let looked = next(&waits, &warm(900, 0), &warm(9, 1), STEP_MS).unwrap();
    assert!((looked.checks[0].limit - limit(&waits, 51)).abs() < f64::EPSILON);
}
