use rekindle_wire::api::AliasTarget;
use rekindle_wire::function_config::Cors;

use super::*;
use crate::fixture::spec;

#[test]
fn a_snapshot_of_several_versions_retires_with_the_last_of_them() {
    let mut catalog = Catalog::default();
    let version = |number| {
        let mut spec = spec("hello", number, 10, 1, 2);
        spec.snapshot = Some("s-1".parse().unwrap());
        spec
    };
    let (hello, shared) = ("hello".parse().unwrap(), "s-1".parse().unwrap());
    for number in 1..=3 {
        catalog.release(version(number));
        assert!(!catalog.retired().has(&shared), "version {number}");
    }
    catalog.set_alias(&hello, Alias::of(AliasName::live(), VersionNumber(1)));
    catalog.remove_version(&hello, VersionNumber(3));
    assert!(!catalog.retired().has(&shared));
    let mut renewed = version(1);
    renewed.snapshot = Some("s-2".parse().unwrap());
    catalog.exchange(&renewed);
    assert!(catalog.retired().has(&shared), "no alias names who is left");
}

#[test]
fn a_snapshot_retires_with_its_version_or_when_another_takes_its_place() {
    let mut catalog = Catalog::default();
    let version = |number, snapshot: &str| {
        let mut spec = spec("hello", number, 10, 1, 2);
        spec.snapshot = Some(snapshot.parse().unwrap());
        spec
    };
    let retired = |catalog: &Catalog| {
        let all = ["s-1", "s-2", "s-3"].into_iter();
        all.filter(|id| catalog.retired().has(&id.parse().unwrap()))
            .collect::<Vec<_>>()
    };
    catalog.release(version(1, "s-1"));
    catalog.release(version(1, "s-1"));
    assert!(retired(&catalog).is_empty());
    catalog.release(version(2, "s-2"));
    assert_eq!(retired(&catalog), ["s-1"]);
    catalog.exchange(&version(2, "s-3"));
    assert_eq!(retired(&catalog), ["s-1", "s-2"]);
    catalog.set_alias(
        &"hello".parse().unwrap(),
        Alias::of(AliasName::live(), VersionNumber(1)),
    );
    assert_eq!(retired(&catalog), ["s-2", "s-3"], "the first serves again");
    catalog.remove(&"hello".parse().unwrap());
    assert_eq!(retired(&catalog).len(), 3);
}

#[test]
fn what_live_names_serves_and_what_any_alias_names_is_kept() {
    let name: FunctionId = "hello".parse().unwrap();
    let mut catalog = Catalog::default();
    (1..=4).for_each(|version| catalog.add(spec("hello", version, 10, 1, 2)));
    assert!(catalog.live(&name).is_none() && catalog.has(&name));
    let alias = |name: &str, targets: &[(u32, u32)]| Alias {
        name: name.parse().unwrap(),
        targets: targets
            .iter()
            .map(|(version, weight)| AliasTarget {
                version: VersionNumber(*version),
                weight: *weight,
            })
            .collect(),
    };
    catalog.set_alias(&name, alias("live", &[(1, 90), (2, 10)]));
    catalog.set_alias(&name, alias("next", &[(3, 100)]));
    assert_eq!(catalog.live(&name).unwrap().spec.version, VersionNumber(1));
    let serve: Vec<_> = catalog.all_live(&name).map(|live| live.spec.version.0).collect();
    assert_eq!(serve, [1, 2]);
    let named = |version| catalog.is_named(&name, VersionNumber(version));
    assert_eq!([1, 2, 3, 4].map(named), [true, true, true, false]);
    let known = |version| catalog.known(&name, VersionNumber(version));
    assert!(matches!(known(3), ClaimedVersion::Live(_)) && matches!(known(4), ClaimedVersion::Older(_)));
    assert!(matches!(known(5), ClaimedVersion::Unknown));
    let wanted = |version: Option<u32>| {
        let wanted = catalog.wanted(&name, version.map(VersionNumber));
        wanted.map(|live| live.spec.version.0).map_err(|error| error.code)
    };
    assert_eq!([wanted(None), wanted(Some(4))], [Ok(1), Ok(4)]);
    assert_eq!(wanted(Some(5)), Err(ErrorCode::NotFound));
}

#[test]
fn a_gateway_is_told_what_has_changed_since_it_asked_and_of_functions_that_are_gone() {
    let mut catalog = Catalog::default();
    catalog.release(spec("a", 1, 10, 1, 2));
    catalog.release(spec("b", 1, 10, 1, 2));
    let told = |catalog: &Catalog, since| {
        let routes = catalog.routes_since(since).into_iter();
        routes
            .map(|r| (r.function.to_string(), r.aliases.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(told(&catalog, 0), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    let seen = catalog.revision();
    assert_eq!(told(&catalog, seen), []);
    let a: FunctionId = "a".parse().unwrap();
    catalog.set_alias(&a, Alias::of("next".parse().unwrap(), VersionNumber(1)));
    catalog.set_alias(&a, Alias::of("prev".parse().unwrap(), VersionNumber(1)));
    assert_eq!(told(&catalog, seen), [("a".to_owned(), 3)]);
    catalog.remove_alias(&a, &"next".parse().unwrap());
    assert_eq!(told(&catalog, seen), [("a".to_owned(), 2)]);
    catalog.remove(&a);
    assert_eq!(told(&catalog, seen), [("a".to_owned(), 0)]);
}

#[test]
fn what_the_live_version_asks_of_callers_is_asked_at_every_address() {
    let mut catalog = Catalog::default();
    let hello: FunctionId = "hello".parse().unwrap();
    let version = |number, auth| {
        let mut spec = spec("hello", number, 10, 1, 2);
        spec.config.auth = auth;
        spec
    };
    let asked = |catalog: &Catalog, since| catalog.routes_since(since).first().and_then(|told| told.auth);
    catalog.add(version(1, Auth::None));
    assert_eq!(asked(&catalog, 0), Some(Auth::None));
    let seen = catalog.revision();
    catalog.add(version(2, Auth::Key));
    assert_eq!(
        asked(&catalog, seen),
        Some(Auth::Key),
        "none serves, and a version asks for one"
    );
    let seen = catalog.revision();
    let mut serve = |targets: &[(u32, u32)]| {
        let target = |(number, weight): &(u32, u32)| AliasTarget {
            version: VersionNumber(*number),
            weight: *weight,
        };
        let name = AliasName::live();
        let targets = targets.iter().map(target).collect();
        catalog.set_alias(&hello, Alias { name, targets });
        asked(&catalog, seen)
    };
    assert_eq!(serve(&[(1, 1)]), Some(Auth::None));
    assert_eq!(serve(&[(1, 90), (2, 10)]), Some(Auth::Key));
    assert_eq!(serve(&[(2, 1)]), Some(Auth::Key));
    catalog.remove(&hello);
    assert_eq!(asked(&catalog, 0), None);
}

#[test]
fn a_token_meets_the_rules_of_all_versions_that_serve_and_is_not_enough_where_one_asks_for_a_key() {
    let mut catalog = Catalog::default();
    let hello: FunctionId = "hello".parse().unwrap();
    let rule = |audience: &str| TokenRule {
        issuer: "https://id.example.com".to_owned(),
        audience: vec![audience.to_owned()],
        claims: BTreeMap::new(),
    };
    let cors = |origin: &str| Cors {
        origins: vec![origin.to_owned()],
        methods: Vec::new(),
        headers: Vec::new(),
        expose: Vec::new(),
        credentials: false,
        max_age_ms: 1_000,
    };
    let given = [
        (Auth::Jwt, Some("a")),
        (Auth::Jwt, Some("b")),
        (Auth::Jwt, Some("a")),
        (Auth::Key, None),
    ];
    for (number, (auth, audience)) in (1..).zip(given) {
        let mut spec = spec("hello", number, 10, 1, 2);
        spec.config.auth = auth;
        spec.config.jwt = audience.map(rule);
        spec.config.cors = Some(cors(&format!("https://{number}.example")));
        catalog.add(spec);
    }
    for (serving, auth, tokens) in [
        (&[1][..], Auth::Key, vec![rule("a")]),
        (&[2, 1], Auth::Key, vec![rule("a"), rule("b")]),
        (&[1, 3], Auth::Key, vec![rule("a")]),
        (&[3, 4], Auth::Key, Vec::new()),
    ] {
        let target = |number: &u32| AliasTarget {
            version: VersionNumber(*number),
            weight: 1,
        };
        let name = AliasName::live();
        let targets = serving.iter().map(target).collect();
        catalog.set_alias(&hello, Alias { name, targets });
        let told = catalog.routes_since(0).remove(0);
        let newest = serving.iter().max().unwrap();
        assert_eq!((told.auth, told.tokens), (Some(auth), tokens), "{serving:?}");
        assert_eq!(told.cors, Some(cors(&format!("https://{newest}.example"))));
    }
}

#[test]
fn what_is_missing_is_the_function_or_its_namespace() {
    let catalog = Catalog::new(BTreeSet::from([Namespace::default()]));
    let missing = |id: &str| catalog.missing(&id.parse().unwrap());
    assert_eq!(missing("hello").code, ErrorCode::FunctionNotFound);
    let error = missing("hello.team");
    assert_eq!(error.code, ErrorCode::NamespaceNotFound);
    assert!(error.message.contains("fn namespace create team"), "{error}");
}

#[test]
fn a_digest_is_taken_for_the_snapshot_that_it_was_read_of() {
    let mut catalog = Catalog::default();
    let mut with = spec("hello", 1, 10, 1, 2);
    with.snapshot = Some("s-1".parse().unwrap());
    catalog.release(with.clone());
    catalog.release(spec("hello", 2, 10, 1, 2));
    let [before] = &catalog.without_digest()[..] else {
        panic!("one has a snapshot")
    };
    let mut other = with.clone();
    other.snapshot = Some("s-2".parse().unwrap());
    assert!(catalog.set_digest(&other, "ab".to_owned()).is_none());
    let noted = catalog.set_digest(before, "ab".to_owned()).unwrap();
    assert_eq!(noted.snapshot_digest.as_deref(), Some("ab"));
    assert!(catalog.without_digest().is_empty(), "it is known from now on");
    let damaged = DamagedSnapshot {
        snapshot: "s-1".parse().unwrap(),
        function: with.function.clone(),
        version: with.version,
        why: String::new(),
    };
    let lost = catalog.drop_snapshot(&damaged).unwrap();
    assert_eq!((&lost.snapshot, &lost.snapshot_digest), (&None, &None));
    assert!(
        catalog.set_digest(&with, "ab".to_owned()).is_none(),
        "it has none any more"
    );
}

#[test]
fn a_function_stands_by_as_its_live_version_says() {
    let name: FunctionId = "hello".parse().unwrap();
    let mut catalog = Catalog::default();
    let mut standing = |change: &mut dyn FnMut(&mut Catalog)| {
        change(&mut catalog);
        catalog.standing().count()
    };
    let mut told = spec("hello", 2, 10, 1, 2);
    told.config.min_parked = 1;
    assert_eq!(standing(&mut |c| c.release(spec("hello", 1, 10, 1, 2))), 0);
    assert_eq!(standing(&mut |c| c.release(told.clone())), 1);
    let first = || Alias::of(AliasName::live(), VersionNumber(1));
    assert_eq!(standing(&mut |c| c.set_alias(&name, first())), 0);
    assert_eq!(standing(&mut |c| c.release(told.clone())), 1);
    assert_eq!(standing(&mut |c| c.release(spec("hello", 3, 10, 1, 2))), 0);
    assert_eq!(standing(&mut |c| c.release(spec("hello", 3, 10, 1, 2))), 0);
    told.version = VersionNumber(4);
    assert_eq!(standing(&mut |c| c.release(told.clone())), 1);
    assert_eq!(standing(&mut |c| c.remove(&name)), 0);
}
