//! Shares and limits, without a database.

use proptest::prelude::*;

use super::*;

fn queues(functions: &[(&str, u64, u64)]) -> Queues {
    let mut all = Queues::default();
    let counted = functions.iter().map(|(name, queued, running)| {
        let due = QueueCounts {
            queued: *queued,
            running: *running,
            ..QueueCounts::default()
        };
        (name.parse().unwrap(), due)
    });
    all.replace(counted.collect(), 0);
    all
}

fn shared(queues: &Queues, room: u32, at_once: u64) -> Vec<(String, u32)> {
    let shares = queues.share(room, Millis(1), |_| at_once);
    shares.into_iter().map(|(name, n)| (name.to_string(), n)).collect()
}

#[test]
fn a_function_with_few_calls_does_not_wait_behind_one_with_many() {
    let all = queues(&[("busy", 9_000, 6), ("calm", 2, 0)]);
    assert_eq!(shared(&all, 4, 100), [("busy".to_owned(), 2), ("calm".to_owned(), 2)]);
    assert_eq!(shared(&all, 4, 7), [("busy".to_owned(), 1), ("calm".to_owned(), 2)]);
}

#[test]
fn a_quarter_of_all_places_is_for_functions_that_have_few() {
    let (first, second) = ("g-1".parse().unwrap(), "g-2".parse().unwrap());
    let mut all = queues(&[("slow", 500, 90)]);
    let most = all.most_of_one(&first, 128, Millis(1));
    assert_eq!(most, 96);
    assert_eq!(shared(&all, 38, most), [("slow".to_owned(), 6)]);
    assert_eq!(all.most_of_one(&second, 128, Millis(2)), 192);
    all.renewed(&first, Millis(30_000));
    assert_eq!(all.most_of_one(&second, 128, Millis(60_001)), 192);
    assert_eq!(all.most_of_one(&second, 3, Millis(90_001)), 3);
    assert_eq!(all.most_of_one(&second, 1, Millis(90_002)), 1);
    // One of an older version does not say.
    assert_eq!(all.most_of_one(&first, 0, Millis(90_003)), u64::MAX);
}

/// Two gateways say that they run so many calls together.
fn with_places(queues: &mut Queues, places: u32) -> u64 {
    let (first, second) = ("g-1".parse().unwrap(), "g-2".parse().unwrap());
    queues.most_of_one(&first, places / 2, Millis(1));
    queues.most_of_one(&second, places - places / 2, Millis(1))
}

/// Calls that each namespace is given while none ends, 16 places at a time, the namespaces one after the other.
fn taken(namespaces: &[&[(&str, u64, u64)]], places: u32) -> Vec<u64> {
    let mut running: BTreeMap<String, u64> = BTreeMap::new();
    let mut taken: Vec<u64> = Vec::new();
    for (at, _) in namespaces.iter().enumerate() {
        let come: Vec<_> = namespaces[..=at].concat();
        loop {
            let left = places - u32::try_from(running.values().sum::<u64>()).unwrap();
            let now: Vec<_> = come
                .iter()
                .map(|(name, queued, _)| {
                    let running = running.get(*name).copied().unwrap_or(0);
                    (*name, queued - running, running)
                })
                .collect();
            let mut all = queues(&now);
            let most = with_places(&mut all, places);
            let given = shared(&all, left.min(16), most);
            if given.is_empty() {
                break;
            }
            for (name, n) in given {
                *running.entry(name).or_default() += u64::from(n);
            }
        }
        let own = namespaces[at].iter().map(|(name, ..)| running.get(*name).copied());
        taken.push(own.map(Option::unwrap_or_default).sum());
    }
    taken
}

#[test]
fn calls_of_one_namespace_that_hang_leave_places_to_others_and_to_its_own_functions() {
    let hang = [("hang0.rival", 300, 0), ("hang1.rival", 300, 0)];
    let rival2 = [("hang0.rival2", 300, 0), ("hang1.rival2", 300, 0)];
    assert_eq!(taken(&[&hang, &[("hello", 1, 0)]], 128), [112, 1]);
    assert_eq!(taken(&[&hang, &rival2, &[("hello", 300, 0)]], 128), [112, 14, 2]);
    assert_eq!(taken(&[&[hang, rival2].concat()], 128), [120]);
    assert_eq!(taken(&[&hang, &[("hello", 300, 0)]], 2), [2, 0]);
    // A namespace's other functions get some as well, while one of them has all that one may have.
    let mut all = queues(&[("slow", 500, 96), ("quick", 1, 0)]);
    let most = with_places(&mut all, 128);
    assert_eq!(shared(&all, 16, most), [("quick".to_owned(), 1)]);
}

#[test]
fn places_that_a_new_leader_has_not_heard_of_are_not_taken_for_none() {
    // A full gateway, which asks for nothing, runs 200; one that is idle asks.
    let mut all = queues(&[("slow", 10, 200), ("other.team", 10, 3)]);
    all.most_of_one(&"g-idle".parse().unwrap(), 64, Millis(1));
    assert_eq!(shared(&all, 4, 1_000), [("other.team".to_owned(), 4)]);
    // Where all is known, who runs some gets none of none.
    with_places(&mut all, 128);
    all.most_of_one(&"g-full".parse().unwrap(), 11, Millis(1));
    assert_eq!(shared(&all, 4, 1_000), []);
}

/// Who gets a place, six times, each of which ends before the next.
fn turns(all: &mut Queues) -> Vec<String> {
    let next = |_| {
        let (name, given) = all.share(1, Millis(1), |_| 100).remove(0);
        all.claimed(&name, u64::from(given), given, Millis(1));
        all.ended(&name, 0);
        name.to_string()
    };
    (0..6).map(next).collect()
}

#[test]
fn of_room_the_namespace_that_runs_the_fewest_gets_first_however_many_functions_it_has() {
    let mut all = queues(&[("a.many", 9, 2), ("b.many", 9, 2), ("c.many", 9, 0), ("one", 9, 3)]);
    with_places(&mut all, 128);
    let given = [("one".to_owned(), 2), ("c.many".to_owned(), 1)];
    assert_eq!(shared(&all, 3, 100), given);
    let mut all = queues(&[("a.many", 9, 0), ("b.many", 9, 0), ("one", 9, 0)]);
    assert_eq!(turns(&mut all), ["one", "a.many", "one", "b.many", "one", "a.many"]);
}

#[test]
fn with_room_for_one_the_functions_take_turns() {
    let mut all = queues(&[("a", 10, 0), ("b", 10, 0), ("c", 10, 0)]);
    assert_eq!(turns(&mut all), ["a", "b", "c", "a", "b", "c"]);
}

#[test]
fn a_function_whose_calls_are_for_later_is_left_alone_until_something_comes() {
    let mut all = queues(&[("a", 3, 0)]);
    let name = "a".parse().unwrap();
    all.claimed(&name, 0, 3, Millis(1));
    assert_eq!(shared(&all, 4, 100), []);
    all.added(&name, 1, 5);
    assert_eq!(shared(&all, 9, 100), [("a".to_owned(), 4)]);
}

#[test]
fn what_waits_is_bounded_for_each_function_and_for_all() {
    let (full, other) = ("full".parse().unwrap(), "other".parse().unwrap());
    let mut all = queues(&[("full", PER_FUNCTION, 0)]);
    assert_eq!(
        all.admit(&full, 1, Sender::Client),
        Err(QueueFull::Function(PER_FUNCTION))
    );
    assert_eq!(all.admit(&other, 1, Sender::Client), Ok(()));
    assert_eq!(
        all.admit(&other, BYTES_EACH + 1, Sender::Client),
        Err(QueueFull::Bytes(BYTES_EACH))
    );
    for n in 0..BYTES / BYTES_EACH {
        all.added(&format!("f{n}.n{n}").parse().unwrap(), BYTES_EACH, 0);
    }
    assert_eq!(all.admit(&other, 1, Sender::Client), Err(QueueFull::All));
    assert_eq!(all.admit(&other, 1, Sender::Platform), Err(QueueFull::All));
}

#[test]
fn a_namespace_s_calls_count_together_and_running_ones_do_not() {
    let mut all = queues(&[("a.team", 2, 7), ("b.team", 1, 0), ("a", 5, 0)]);
    let limits = Quota {
        async_backlog: Some(4),
        ..Quota::default()
    };
    let (team, other) = ("c.team".parse().unwrap(), "a".parse().unwrap());
    assert_eq!(all.backlog("team"), 3);
    assert_eq!(all.admit_to(&team, &limits), Ok(()));
    all.added(&team, 1, 0);
    assert!(matches!(all.admit_to(&team, &limits), Err(QueueFull::Quota(over)) if over.used == 4));
    assert_eq!(all.admit_to(&other, &Quota::default()), Ok(()));
}

#[test]
fn a_functions_large_calls_take_no_room_from_anothers_until_they_have_ended() {
    let (large, other) = ("large".parse().unwrap(), "other".parse().unwrap());
    let mut all = Queues::default();
    let call = 1 << 20;
    let mut taken = 0;
    while all.admit(&large, call, Sender::Client).is_ok() {
        all.added(&large, call, 0);
        taken += 1;
    }
    assert_eq!(taken, BYTES_EACH / call);
    assert_eq!(all.admit(&other, call, Sender::Client), Ok(()));
    // Running ones are kept as well; what has ended is not.
    all.claimed(&large, 2, 2, Millis(1));
    all.waits_again(&large);
    assert_eq!(
        all.admit(&large, call, Sender::Client),
        Err(QueueFull::Bytes(BYTES_EACH))
    );
    all.ended(&large, call);
    assert_eq!(all.admit(&large, call, Sender::Client), Ok(()));
}

/// Lets functions of a namespace take in as many calls of so many bytes as they may. Returns how many those were.
fn fill(all: &mut Queues, namespace: &str, bytes: u64) -> u64 {
    let (mut taken, mut n) = (0, 0);
    loop {
        let function = format!("f{n}.{namespace}").parse().unwrap();
        match all.admit(&function, bytes, Sender::Client) {
            Ok(()) => {
                all.added(&function, bytes, 0);
                taken += 1;
            }
            Err(QueueFull::Function(_) | QueueFull::Bytes(_)) => n += 1,
            Err(QueueFull::Namespace | QueueFull::All) => return taken,
            Err(QueueFull::Quota(over)) => panic!("there is no quota: {over:?}"),
        }
    }
}

#[test]
fn a_namespace_s_calls_leave_room_to_others_and_a_last_part_is_the_platform_s() {
    for (bytes, alone, after_it) in [(8, 70_313, 17_578), (1 << 20, 720, 180)] {
        let mut all = Queues::default();
        // Alone it has three quarters of what clients may use.
        assert_eq!(fill(&mut all, "rival", bytes), alone);
        // Its own schedules are more than its clients may send.
        let full: FunctionId = "f0.rival".parse().unwrap();
        let due: FunctionId = "due.rival".parse().unwrap();
        assert!(matches!(
            all.admit(&full, bytes, Sender::Platform),
            Err(QueueFull::Function(_) | QueueFull::Bytes(_))
        ));
        assert_eq!(all.admit(&due, bytes, Sender::Client), Err(QueueFull::Namespace));
        assert_eq!(all.admit(&due, bytes, Sender::Platform), Ok(()));
        // Another tenant has three quarters of the rest, and so on.
        assert_eq!(fill(&mut all, "second", bytes), after_it);
        for n in 3..40 {
            fill(&mut all, &format!("n{n}"), bytes);
        }
        let hello: FunctionId = "hello".parse().unwrap();
        assert_eq!(all.admit(&hello, bytes, Sender::Client), Err(QueueFull::All));
        // That is not all of it: what is due runs, also of the namespace that has the most.
        assert_eq!(all.admit(&due, bytes, Sender::Client), Err(QueueFull::All));
        let few = FEW.min(FEW_BYTES / bytes);
        let told: FunctionId = "told.rival".parse().unwrap();
        for _ in 0..few {
            assert_eq!(all.admit(&told, bytes, Sender::Platform), Ok(()));
            all.added(&told, bytes, 0);
        }
        assert_eq!(all.admit(&told, bytes, Sender::Platform), Err(QueueFull::Namespace));
        assert_eq!(all.admit(&due, bytes, Sender::Platform), Ok(()));
        assert_eq!(all.admit(&hello, bytes, Sender::Platform), Ok(()));
        // However many functions a namespace has.
        let mut admitted = 0;
        for n in 0..200 {
            let named: FunctionId = format!("many{n}.rival").parse().unwrap();
            for _ in 0..few {
                if all.admit(&named, bytes, Sender::Platform).is_ok() {
                    all.added(&named, bytes, 0);
                    admitted += 1;
                }
            }
        }
        assert!(admitted > 0 && admitted <= few * FEW_FUNCTIONS as u64, "{admitted}");
        assert_eq!(all.admit(&hello, bytes, Sender::Platform), Ok(()));
        let waiting = all.sum(|_| true);
        assert!(waiting.queued <= ALL && waiting.bytes <= BYTES);
    }
}

#[test]
fn older_counts_do_not_replace_newer_but_not_for_ever() {
    let mut all = queues(&[("a", 1, 0)]);
    let before = all.changes();
    all.added(&"a".parse().unwrap(), 1, 5);
    for _ in 0..SKIPS {
        all.replace(Vec::new(), before);
    }
    assert_eq!(all.backlog("default"), 2);
    all.replace(Vec::new(), before);
    assert_eq!(all.backlog("default"), 0);
}

proptest! {
    #[test]
    fn no_share_is_over_the_room_the_queue_or_what_may_run_at_once(
        levels in proptest::collection::vec((0u64..20, 0u64..20), 0..6), room in 0u32..30, at_once in 0u64..25,
    ) {
        let names: Vec<String> = (0..levels.len()).map(|n| format!("f{n}")).collect();
        let functions: Vec<_> = names.iter().zip(&levels).map(|(n, (q, r))| (n.as_str(), *q, *r)).collect();
        let shares = shared(&queues(&functions), room, at_once);
        let given: u32 = shares.iter().map(|(_, n)| n).sum();
        let mut could = 0;
        for (name, queued, running) in &functions {
            let own = shares.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| u64::from(*n));
            prop_assert!(own <= *queued && (own == 0 || running + own <= at_once));
            could += (*queued).min(at_once.saturating_sub(*running));
        }
        prop_assert_eq!(u64::from(given), could.min(u64::from(room)));
    }
}
