//! Names, ids and what they refuse.

use super::*;

#[test]
fn names_that_fit_in_a_host_name_are_taken() {
    for name in ["a", "hello", "resize-2x", &"a".repeat(FUNCTION_NAME_MAX)] {
        assert_eq!(name.parse::<FunctionName>().unwrap().as_str(), name);
    }
}

#[test]
fn names_that_do_not_fit_are_refused_with_the_rule() {
    for name in ["", "Hello", "a_b", "-a", "a-", "1a", "a.b", "../a", &"a".repeat(49)] {
        let error = name.parse::<FunctionName>().unwrap_err().to_string();
        assert!(error.contains("use 1 to 48"), "{error}");
    }
}

#[test]
fn an_alias_fits_in_a_host_name_before_a_functions() {
    let longest = format!("{}--{}", "a".repeat(ALIAS_MAX), "b".repeat(FUNCTION_NAME_MAX));
    assert_eq!(longest.len(), 63);
    for name in ["live", "a", "canary-2", &"a".repeat(ALIAS_MAX)] {
        assert_eq!(name.parse::<AliasName>().unwrap().is_live(), name == LIVE);
    }
    for name in ["", "8", "8a", "Live", "a--b", "a-", "a.b", &"a".repeat(ALIAS_MAX + 1)] {
        assert!(name.parse::<AliasName>().is_err(), "{name}");
    }
}

#[test]
fn a_version_or_an_alias_is_selected_in_one_way() {
    for text in ["8", "1234", "canary", "live"] {
        assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
    }
    assert_eq!("live".parse::<Selector>().unwrap(), Selector::default());
    for text in ["", "08", "8a", "+8", "-8", "99999999999", "Canary", "a@b"] {
        assert!(text.parse::<Selector>().is_err(), "{text}");
    }
}

#[test]
fn a_functions_id_is_its_name_alone_in_the_default_namespace() {
    let table = [
        ("hello", "hello", "default", "hello"),
        ("hello.default", "hello", "default", "hello"),
        ("hello.team-a", "hello", "team-a", "hello.team-a"),
        ("default.team", "default", "team", "default.team"),
    ];
    for (text, name, namespace, printed) in table {
        let id: FunctionId = text.parse().unwrap();
        assert_eq!((id.name(), id.namespace(), id.as_str()), (name, namespace, printed));
        let composed = FunctionId::new(&namespace.parse().unwrap(), &name.parse().unwrap());
        assert_eq!(id, composed);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("{printed:?}"));
        assert_eq!(serde_json::from_str::<FunctionId>(&json).unwrap(), id);
    }
    let longest = format!("{}.{}", "a".repeat(FUNCTION_NAME_MAX), "b".repeat(NAMESPACE_MAX));
    assert_eq!(longest.parse::<FunctionId>().unwrap().as_str(), longest);
    for text in [
        "",
        ".",
        "a.",
        ".a",
        "a.b.c",
        "a/b",
        "a.b--c",
        "a.B",
        "a. b",
        &format!("a.{}", "b".repeat(64)),
    ] {
        assert!(text.parse::<FunctionId>().is_err(), "{text}");
    }
}

#[test]
fn an_asynchronous_invocations_id_has_128_random_bits_and_sorts_by_its_time() {
    let ids: Vec<u128> = (0..2_000)
        .map(|_| {
            let id = CallId::generate();
            let digits = id.as_str().strip_prefix("a-").unwrap();
            assert_eq!(digits.len(), 12 + 32, "{id}");
            u128::from_str_radix(&digits[12..], 16).unwrap()
        })
        .collect();
    // A bit that is not random stays the same in all of them. By chance that happens once in 2^1999 times.
    let (ever, always) = ids.iter().fold((0, u128::MAX), |(or, and), id| (or | id, and & id));
    assert_eq!((ever, always), (u128::MAX, 0));
    // Sorts among ids in the format of earlier versions.
    let later = CallId::generate();
    assert!("a-0192f0c1a2b37c4d8e5f60718293a4b5".parse::<CallId>().unwrap() < later);
    assert!(later < "a-fff2f0c1a2b37c4d8e5f60718293a4b5".parse::<CallId>().unwrap());
}

#[test]
fn ids_keep_their_prefix_and_refuse_anothers() {
    let id = InstanceId::generate();
    assert_eq!(id.as_str().parse::<InstanceId>().unwrap(), id);
    assert!(id.as_str().parse::<SnapshotId>().is_err());
    let quick = RequestId::quick();
    assert_eq!(quick.as_str().parse::<RequestId>().unwrap(), quick);
    assert_ne!(quick, RequestId::quick());
    assert!("i-../../etc".parse::<InstanceId>().is_err());
}
