//! A function that does at random whatever it may, also while it is checkpointed: whatever comes of it, no copy has
//! more than a function may have.
//! `REKINDLE_ADVERSARY_ROUNDS` is how many of them; `REKINDLE_ADVERSARY_SEED` the first one's seed.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;
use std::time::Duration;

use rekindle_e2e::adversary::{bounds, folder, look, seeds};
use rekindle_e2e::differ::{Bounds, Picture, beyond};
use rekindle_e2e::platform::Options;
use rekindle_e2e::{Platform, host, shared, skip, until};
use rekindle_wire::api::InstanceState;
use rekindle_worker::idle::zram::{self, ZramPaths};

const ROUNDS: u64 = 6;
const COPIES: usize = 2;
/// How often a copy is looked at, and when: it goes on with what it did.
const LOOKS: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(40);
const GONE: Duration = Duration::from_secs(20);
/// Rounds of those that are parked: each waits for seconds.
const PARKED_ROUNDS: u64 = 2;
const PARKED_TIMES: usize = 3;
const PARKED: Duration = Duration::from_secs(60);

#[test]
fn whatever_a_function_does_while_it_is_checkpointed_no_copy_has_more_than_it_may() {
    let copies: usize = seeds(ROUNDS).map(round).sum();
    println!("{copies} copies were looked at");
}

#[test]
fn whatever_a_copy_does_while_it_is_evicted_parked_and_goes_on_it_has_no_more_than_it_may() {
    if !zram::is_there(&ZramPaths::default()) {
        skip("this kernel has no zram, so nothing that was written can go");
        return;
    }
    let options = ["--memory", "2GiB", "--idle-swap", "zram:256MiB", "--idle-after", "1s"];
    let platform = Platform::start_with(Options {
        args: options.map(str::to_owned).to_vec(),
        ..Options::default()
    });
    let looks: usize = seeds(PARKED_ROUNDS).map(|seed| park(&platform, seed)).sum();
    println!("{looks} looks at what was parked, or had been");
}

/// Has a copy be parked and go on, again and again. How often it was looked at.
fn park(platform: &Platform, seed: u64) -> usize {
    let name = format!("parking-{seed}");
    let Ok(version) = platform.try_deploy(&folder(&name, seed, "idle = \"2s\"\npark = \"120s\"")) else {
        return 0;
    };
    println!("seed {seed}: {:?}", version.snapshot_error);
    let Some(bounds) = bounds(&name) else { return 0 };
    let mut looks = 0;
    for time in 0..PARKED_TIMES {
        let answer = platform.get(&name, "/");
        println!("seed {seed}: {} {}", answer.status, answer.start());
        looks += look(&name, &bounds, &format!("going on for the {time}. time"));
        if answer.status != 200 {
            assert!(answer.message().len() > 10, "seed {seed}: {}", answer.text());
            continue;
        }
        until("it is parked, or gone", PARKED, || {
            let all = platform.instances_of(&name);
            let stands = |state| matches!(state, InstanceState::Parked);
            all.iter().all(|i| stands(i.state)).then_some(())
        });
        looks += look(&name, &bounds, &format!("parked for the {time}. time"));
    }
    let deleted = platform.admin("DELETE", &format!("/v1/functions/{name}")).send();
    assert!(deleted.status < 300, "seed {seed}: {}", deleted.text());
    platform.until_gone(&name, GONE);
    looks
}

/// Deploys one and looks at it and its copies. How many copies there were.
fn round(seed: u64) -> usize {
    let name = format!("adversary-{seed}");
    let version = match shared().try_deploy(&folder(&name, seed, "")) {
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
        // Refused at the checkpoint, or by the rehearsal of its first restore.
        let forms = [
            "cannot snapshot the function: ",
            "it was taken, and could not be restored: ",
        ];
        assert!(
            forms.iter().any(|form| told.starts_with(form)) || told.contains("cannot move to another worker"),
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
