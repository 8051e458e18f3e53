//! What aliases name, and canaries.

use super::*;

on_either! {
    a_rollback_goes_to_the_version_that_served_before_and_outlives_a_restart,
    what_an_alias_names_must_be_there_and_able_to_serve,
    a_canary_outlives_a_restart_and_is_over_with_whatever_else_sets_live,
}

async fn a_canary_outlives_a_restart_and_is_over_with_whatever_else_sets_live(place: &TestDatabase) {
    let store = open(place).await;
    let name: FunctionId = "hello".parse().unwrap();
    for _ in 0..2 {
        add_live(&store, "hello", None).await;
    }
    let mut canary = Canary {
        from: VersionNumber(2),
        to: VersionNumber(3),
        steps: "10,50".parse().unwrap(),
        step_s: 60,
        step: 0,
        since_unix_ms: 7,
        state: CanaryState::Growing,
        why: None,
        looks: 0,
        looked_unix_ms: 7,
        checks: Vec::new(),
    };
    let refused = store.begin_canary(&name, &canary).await.unwrap();
    assert!(matches!(refused, Err(AliasError::NoVersion { .. })), "{refused:?}");
    let added = store
        .add_version(&name, &parsed("hello"), "sources/b", 7)
        .await
        .unwrap();
    let third = spec("hello", added.info.version.0, 10, 1, 1);
    let ready = store.set_live(&third, None, None, &[], Rollout::Share(&canary)).await;
    assert!(ready.unwrap());
    store.close().await;

    let store = open(place).await;
    let open = async || store.open_canaries().await.unwrap();
    assert_eq!(open().await, [(name.clone(), canary.clone())]);
    let live = async || {
        let aliases = store.aliases(&name).await.unwrap().into_iter();
        aliases.filter(|alias| alias.name.is_live()).collect::<Vec<_>>()
    };
    assert_eq!(live().await, [canary.alias()]);
    canary.looks = 1;
    store.note_canary(&name, &canary).await.unwrap();
    canary.step = 1;
    assert!(store.move_canary(&name, &canary).await.unwrap().unwrap());
    assert_eq!(
        (open().await, live().await),
        (vec![(name.clone(), canary.clone())], vec![canary.alias()])
    );
    let mut back = canary.clone();
    back.state = CanaryState::RolledBack;
    assert!(store.move_canary(&name, &back).await.unwrap().unwrap());
    assert_eq!(store.canary(&name).await.unwrap(), Some(back));
    assert_eq!(
        (open().await, live().await),
        (vec![], vec![Alias::of(AliasName::live(), VersionNumber(2))])
    );
    // Not to the third version, which was worse.
    let rolled_back = store.roll_back(&name, None, |_| None).await.unwrap().unwrap();
    assert_eq!(rolled_back.to, VersionNumber(1));

    store.begin_canary(&name, &canary).await.unwrap().unwrap();
    store
        .roll_back(&name, Some(VersionNumber(2)), |_| None)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(store.canary(&name).await.unwrap().unwrap().state, CanaryState::Replaced);
    canary.step = 0;
    assert!(!store.move_canary(&name, &canary).await.unwrap().unwrap(), "it is over");
    store.note_canary(&name, &canary).await.unwrap();
    assert_eq!(
        store.canary(&name).await.unwrap().unwrap().step,
        1,
        "nothing of it is written"
    );
    store.delete_function(&name, 7).await.unwrap();
    assert_eq!(store.canary(&name).await.unwrap(), None);
}

async fn a_rollback_goes_to_the_version_that_served_before_and_outlives_a_restart(place: &TestDatabase) {
    let store = open(place).await;
    let name: FunctionId = "a".parse().unwrap();
    let back = async |store: &Store, to: Option<u32>| {
        let done = store.roll_back(&name, to.map(VersionNumber), |_| None).await.unwrap();
        done.map(|done| (done.from.iter().map(|t| t.version.0).collect::<Vec<_>>(), done.to.0))
    };
    assert_eq!(back(&store, None).await, Err(AliasError::NoFunction));
    add_live(&store, "a", Some("s-1")).await;
    assert_eq!(back(&store, None).await, Err(AliasError::NothingBefore));
    for snapshot in ["s-2", "s-3"] {
        add_live(&store, "a", Some(snapshot)).await;
    }
    assert_eq!(back(&store, None).await, Ok((vec![3], 2)));
    store.close().await;

    let store = open(place).await;
    let live = |version| (name.clone(), Alias::of(AliasName::live(), VersionNumber(version)));
    assert_eq!(store.all_aliases().await.unwrap(), [live(2)]);
    assert_eq!(back(&store, None).await, Ok((vec![2], 3)), "the third served before");
    assert_eq!(back(&store, Some(1)).await, Ok((vec![3], 1)));
    assert_eq!(back(&store, None).await, Ok((vec![1], 3)));
    assert_eq!(back(&store, Some(3)).await, Err(AliasError::Serves(VersionNumber(3))));
    // Of two that share the invocations, the newcomer is rolled back.
    let shared = alias("live", &[(2, 10), (3, 90)]);
    assert_eq!(store.set_alias(&name, &shared).await.unwrap(), Ok(()));
    assert_eq!(back(&store, None).await, Ok((vec![2, 3], 3)));
    // A version without traffic has not served.
    let added = store.add_version(&name, &parsed("a"), "sources/a", 7).await.unwrap();
    let ready = spec("a", added.info.version.0, 10, 1, 1);
    store.set_live(&ready, None, None, &[], false).await.unwrap();
    assert_eq!(store.aliases(&name).await.unwrap(), [live(3).1]);
    assert_eq!(back(&store, None).await, Ok((vec![3], 2)));
    assert_eq!(back(&store, Some(4)).await, Ok((vec![2], 4)));
    store.delete_function(&name, 7).await.unwrap().unwrap();
    assert_eq!(store.all_aliases().await.unwrap(), []);
}

async fn what_an_alias_names_must_be_there_and_able_to_serve(place: &TestDatabase) {
    let store = open(place).await;
    let name: FunctionId = "a".parse().unwrap();
    for _ in 0..4 {
        add_live(&store, "a", None).await;
    }
    let set = async |named: Alias| store.set_alias(&name, &named).await.unwrap();
    assert_eq!(set(alias("next", &[(1, 1)])).await, Ok(()));
    assert_eq!(
        store.remove_too_old(1).await.unwrap().len(),
        1,
        "an alias names the first, and a rollback goes to the third"
    );
    let missing = |version: u32, was_there| {
        let version = VersionNumber(version);
        Err(AliasError::NoVersion { version, was_there })
    };
    assert_eq!(set(alias("next", &[(1, 1), (2, 1)])).await, missing(2, true));
    assert_eq!(set(alias("next", &[(5, 1)])).await, missing(5, false));
    assert_eq!(set(alias("next", &[(0, 1)])).await, missing(0, false));
    let failed = store
        .add_version(&name, &parsed("a"), "sources/a", 7)
        .await
        .unwrap()
        .info
        .version;
    let error = ApiError::new(ErrorCode::BuildFailed, "no");
    store.set_failed(&name, failed, &error, &[]).await.unwrap();
    let state = VersionState::Failed;
    let cannot = Err(AliasError::CannotServe { version: failed, state });
    assert_eq!(set(alias("next", &[(5, 1)])).await, cannot);
    let all = store.aliases(&name).await.unwrap();
    assert_eq!(
        all,
        [alias("live", &[(4, 100)]), alias("next", &[(1, 1)])],
        "nothing has changed"
    );
}

fn alias(name: &str, targets: &[(u32, u32)]) -> Alias {
    let targets = targets.iter().map(|(version, weight)| AliasTarget {
        version: VersionNumber(*version),
        weight: *weight,
    });
    Alias {
        name: name.parse().unwrap(),
        targets: targets.collect(),
    }
}
