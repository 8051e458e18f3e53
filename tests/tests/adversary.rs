//! A function that does at random whatever it may, also while it is checkpointed: whatever comes of it, no copy has
//! more than a function may have.
//! `REKINDLE_ADVERSARY_ROUNDS` is how many of them; `REKINDLE_ADVERSARY_SEED` the first one's seed.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, SystemTime};
use std::{env, thread};

use rekindle_e2e::differ::{Bounds, Picture, beyond};
use rekindle_e2e::{Folder, host, shared};

const FUNCTION: &str = include_str!("../functions/adversary/main.py");
const ROUNDS: u64 = 6;
/// No further round begins after this, unless rounds were asked for.
const ENOUGH: Duration = Duration::from_secs(60);
const COPIES: usize = 2;
/// How often a copy is looked at, and when: it goes on with what it did.
const LOOKS: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(40);
const GONE: Duration = Duration::from_secs(20);

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn whatever_a_function_does_while_it_is_checkpointed_no_copy_has_more_than_it_may() {
    let now = SystemTime::now();
    let first = number("REKINDLE_ADVERSARY_SEED").unwrap_or_else(|| {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        since.as_millis() as u64
    });
    let asked = number("REKINDLE_ADVERSARY_ROUNDS");
    let mut copies = 0;
    for seed in (first..).take(asked.unwrap_or(ROUNDS) as usize) {
        if asked.is_none() && now.elapsed().unwrap() > ENOUGH {
            break;
        }
        copies += round(seed);
    }
    println!("{copies} copies were looked at");
}

/// Deploys one and looks at it and its copies. How many copies there were.
fn round(seed: u64) -> usize {
    let name = format!("adversary-{seed}");
    let settings = format!(
        "memory = \"256MiB\"\nmax_instances = 4\nnetwork = \"none\"\n[env]\nSEED = \"{seed}\"\n[[warmup]]\npath = \"/\""
    );
    let folder = Folder::python(&name, &settings, FUNCTION);
    let version = match shared().try_deploy(&folder) {
        Ok(version) => version,
        // It may end itself by what it does, in a way that is told.
        Err(told) => {
            println!("seed {seed}: not deployed: {told}");
            assert!(told.len() > 20 && !told.contains("internal"), "seed {seed}: {told}");
            return 0;
        }
    };
    println!("seed {seed}: {:?}", version.snapshot_error);
    let Some(bounds) = bounds(&name) else {
        println!("seed {seed}: the original has ended");
        return 0;
    };
    let mut copies = 0;
    if let Some(told) = &version.snapshot_error {
        assert!(
            told.starts_with("cannot snapshot the function: ") && told.len() > 50,
            "seed {seed}: {told}"
        );
    } else {
        for _ in 0..COPIES {
            copies += usize::from(copy(seed, &name, &bounds));
        }
    }
    let deleted = shared().admin("DELETE", &format!("/v1/functions/{name}")).send();
    assert!(deleted.status < 300, "seed {seed}: {}", deleted.text());
    shared().until_gone(&name, GONE);
    copies
}

/// What the original has of rights, as the boot gave them: it is looked at too.
fn bounds(name: &str) -> Option<Bounds> {
    let original = host::with_variable(&format!("FN_NAME={name}"));
    let picture = Picture::of_namespace(*original.first()?).ok()?;
    let user = picture.all(" Uid").next()?.1.split(' ').next()?.to_owned();
    assert_ne!(user, "0", "{name}");
    // 1, or 0 where the host does not let the platform set it (docs/security.md).
    let cores = picture.all("/limit Max core file size").next()?.1.to_owned();
    assert!(["1 1 bytes", "0 0 bytes"].contains(&cores.as_str()), "{name}: {cores}");
    let bounds = Bounds { user, cores };
    assert_eq!(beyond(&picture, &bounds), [""; 0], "{name}: the original");
    Some(bounds)
}

/// Looks at a copy while it goes on. Whether there was one: a restore may fail, in a way that is told.
fn copy(seed: u64, name: &str, bounds: &Bounds) -> bool {
    let answer = shared().fresh("restored", name, "/");
    if answer.status != 200 {
        println!("seed {seed}: {} {}", answer.status, answer.text());
        assert!(answer.message().len() > 10, "seed {seed}: {}", answer.text());
        return false;
    }
    if answer.start() == "booted" {
        // A restore that fails costs a boot, not the request; the worker logs why.
        let log = shared().log();
        let is_why = |line: &&str| line.contains("restore failed") && line.contains(name);
        let told = log.lines().rfind(is_why).and_then(|line| line.split_once("error="));
        let (_, told) = told.unwrap_or_else(|| panic!("seed {seed}: booted, and nobody says why"));
        println!("seed {seed}: not restored: {told}");
        return false;
    }
    assert_eq!(answer.start(), "restored", "seed {seed}");
    let processes = host::processes(shared(), answer.instance());
    let Some(main) = processes.values().next().copied() else {
        return false;
    };
    for _ in 0..LOOKS {
        let Ok(picture) = Picture::of_namespace(main) else {
            break;
        };
        let told = beyond(&picture, bounds);
        assert!(told.is_empty(), "seed {seed}: {told:#?}\n{:#?}", picture.facts);
        thread::sleep(BETWEEN);
    }
    shared().end_instance(answer.instance());
    true
}
