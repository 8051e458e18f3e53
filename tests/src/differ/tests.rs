use super::*;

fn picture(facts: &[(&str, &str)]) -> Picture {
    let facts = facts
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Picture {
        facts: facts.collect(),
        ..Picture::default()
    }
}

#[test]
fn every_fact_that_changes_comes_or_goes_is_told() {
    let before = picture(&[
        ("501/thread 501 CapEff", "0"),
        ("501/fd 3", "pipe 1"),
        ("501/cwd", "/app"),
    ]);
    let after = picture(&[
        ("501/thread 501 CapEff", "1"),
        ("501/fd 4", "pipe 1"),
        ("501/cwd", "/app"),
    ]);
    let told = compare(&before, &after);
    assert_eq!(
        told.differences,
        [
            "501/fd 3: pipe 1 is gone",
            "501/fd 4: pipe 1 is new",
            "501/thread 501 CapEff: 0 became 1"
        ]
    );
    assert!(compare(&before, &before).differences.is_empty());
}

#[test]
fn a_thread_made_since_may_have_what_the_first_has_and_no_more() {
    let before = picture(&[("501/thread 501 NSpid", "501"), ("501/thread 501 Uid", "7 7 7 7")]);
    let mut after = before.clone();
    after.say("501/thread 600 NSpid".into(), "600");
    after.say("501/thread 600 Uid".into(), "7 7 7 7");
    assert!(compare(&before, &after).differences.is_empty());
    after.say("501/thread 600 Uid".into(), "7 0 7 7");
    assert_eq!(
        compare(&before, &after).differences,
        ["501/thread 600 Uid: 7 0 7 7 is new"]
    );
}

fn mapping(start: u64, end: u64, access: &str, source: Source) -> Mapping {
    Mapping {
        start,
        end,
        access: access.to_owned(),
        flags: String::new(),
        source,
    }
}

fn ranges(before: &[Mapping], after: &[Mapping]) -> Vec<String> {
    mappings::compare(before, after)
        .into_iter()
        .map(|range| range.told)
        .collect()
}

#[test]
fn a_template_stands_for_private_memory_of_the_same_access() {
    let library = Source::File("/usr/lib/libc.so.6".into(), 0x1000);
    let before = [
        mapping(0x1000, 0x3000, "r-xp", library.clone()),
        mapping(0x3000, 0x4000, "rw-p", library.clone()),
        mapping(0x4000, 0x6000, "rw-p", Source::Anonymous),
    ];
    let code = mapping(0x1000, 0x3000, "r-xp", library);
    let joined = mapping(0x3000, 0x6000, "rw-p", Source::Template);
    assert_eq!(ranges(&before, &[code.clone(), joined.clone()]), [""; 0]);
    let wider = mapping(0x3000, 0x6000, "rwxp", Source::Template);
    assert_eq!(ranges(&before, &[code, wider]).len(), 2);
    let other = mapping(0x1000, 0x3000, "r-xp", Source::Template);
    let told = ranges(&before, &[other, joined]);
    assert!(told[0].starts_with("1000-3000: r-xp"), "{told:?}");
}

#[test]
fn one_residue_of_a_restore_is_a_copy_s_own() {
    let residue = |at: u64| {
        [
            mapping(at, at + 0x1000, "r-xp", Source::Anonymous),
            mapping(at + 0x1000, at + 0x4000, "rw-p", Source::Anonymous),
        ]
    };
    let (own, other, elsewhere) = (residue(2 << 40), residue(3 << 40), residue(0x7f00_0000_0000));
    assert_eq!(ranges(&[], &own), [""; 0]);
    assert_eq!(ranges(&own, &[own.clone(), other.clone()].concat()), [""; 0]);
    assert_eq!(ranges(&[], &[own.clone(), other].concat()).len(), 2);
    assert_eq!(ranges(&[], &elsewhere).len(), 2);
    assert_eq!(ranges(&[], &own[..1]).len(), 1);
}

#[test]
fn a_heap_may_grow_into_what_it_had_reserved_and_a_guard_may_not_be_opened() {
    const HEAP: u64 = 64 << 20;
    let at = |base: u64, used: u64| {
        [
            mapping(base, base + used, "rw-p", Source::Anonymous),
            mapping(base + used, base + HEAP, "---p", Source::Anonymous),
        ]
    };
    assert_eq!(ranges(&at(5 * HEAP, 0x21000), &at(5 * HEAP, 0x42000)), [""; 0]);
    assert_eq!(ranges(&at(5 * HEAP, 0x42000), &at(5 * HEAP, 0x21000)).len(), 1);
    // No heap begins there.
    assert_eq!(
        ranges(&at(5 * HEAP + 0x1000, 0x21000), &at(5 * HEAP + 0x1000, 0x42000)).len(),
        1
    );
    let stack = [
        mapping(0x7000, 0x8000, "---p", Source::Anonymous),
        mapping(0x8000, 0x9000, "rw-p", Source::Anonymous),
    ];
    let open = [mapping(0x7000, 0x9000, "rw-p", Source::Anonymous)];
    assert_eq!(ranges(&stack, &open).len(), 1);
}

#[test]
fn what_a_function_may_never_have_is_told() {
    let bounds = Bounds {
        user: "7".into(),
        cores: "1 1 bytes".into(),
    };
    let mut seen = picture(&[
        ("501/thread 501 Uid", "7 7 0 7"),
        ("501/fd 3", "/proc/1/maps"),
        ("501/fd 4", "/tmp/x"),
        ("501/fd 5", "/etc/shadow"),
        ("501/fd 6", "anon_inode:[userfaultfd]"),
        ("501/fd 7", "/dev/null"),
    ]);
    for (fd, mount) in [(3, "/proc"), (4, "/tmp"), (7, "/dev")] {
        seen.mounts.insert(format!("501/fd {fd}"), Some(mount.into()));
    }
    let told = beyond(&seen, &bounds);
    let has = |begin: &str| told.iter().any(|line| line.starts_with(begin));
    for begin in [
        "501/thread 501 Uid: 7 7 0 7",
        "501/fd 3:",
        "501/fd 5:",
        "501/fd 6:",
        " CapEff: seen of nobody",
    ] {
        assert!(has(begin), "{begin}: {told:#?}");
    }
    for begin in ["501/fd 4:", "501/fd 7:"] {
        assert!(!has(begin), "{begin}: {told:#?}");
    }
}
