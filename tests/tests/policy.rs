//! The retention policy on a real platform, with small units of time and pressure that is played: one platform, on
//! which one thing comes after the other.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rekindle_e2e::{Folder, Options, Platform, until};
use rekindle_wire::api::InstanceState;

const LIMIT: Duration = Duration::from_secs(60);
/// Room for four instances of 64 MiB.
const MEMORY: &str = "256MiB";

const HELLO: &str = "def handler(event, context):\n    return {'ok': True}\n";
const LARGE: &str = "held = bytearray(b'x' * (48 << 20))\n\
    def handler(event, context):\n    for at in range(0, len(held), 4096):\n        held[at] = 1\n    \
    return {'ok': True}\n";
const SLOW: &str = "import time\ndef handler(event, context):\n    time.sleep(0.2)\n    return {'ok': True}\n";

/// Plays the kernel's figures of memory.
fn play(figures: &Path, some: f64, available: u32) {
    let write = |file: &str, text: &str| {
        let whole = figures.join(file);
        // Whoever reads meanwhile sees the one or the other.
        let part = whole.with_extension("part");
        fs::create_dir_all(whole.parent().unwrap()).unwrap();
        fs::write(&part, text).unwrap();
        fs::rename(&part, &whole).unwrap();
    };
    write("meminfo", &format!("MemTotal: 100 kB\nMemAvailable: {available} kB\n"));
    let psi = format!("some avg10={some} avg60=0 avg300=0 total=1\nfull avg10=0.00 avg60=0 avg300=0 total=1\n");
    write("pressure/memory", &psi);
}

fn gone(platform: &Platform, function: &str) {
    until(&format!("no instance of {function}"), LIMIT, || {
        platform.instances_of(function).is_empty().then_some(())
    });
}

fn decided(platform: &Platform, what: &str) -> u64 {
    let name = format!("rekindle_scheduler_retention_total{{decision=\"{what}\"}}");
    let metrics = platform.admin("GET", "/v1/metrics").send().text();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name.as_str()));
    value.map_or(0, |value| value.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn instances_are_kept_evicted_shared_out_and_started_ahead_as_the_policy_says() {
    let figures = tempfile::tempdir().unwrap();
    play(figures.path(), 0.0, 90);
    let mut platform = Platform::start_with(Options {
        env: vec![
            ("FN_MEMORY_FIGURES".into(), figures.path().display().to_string()),
            ("FN_IDLE_BIN".into(), "100ms".into()),
        ],
        args: vec!["--memory".into(), MEMORY.into()],
        ..Options::default()
    });
    under_pressure_what_is_worth_least_goes_first_and_starts_do_not_fail(&platform, figures.path());
    a_burst_does_not_keep_another_function_from_its_turn(&platform);
    what_is_called_steadily_stands_by_before_the_next_call(&platform);
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

fn under_pressure_what_is_worth_least_goes_first_and_starts_do_not_fail(platform: &Platform, figures: &Path) {
    let settings = "idle = \"600s\"\nmax_instances = 1";
    platform.deploy(&Folder::python(
        "large",
        &format!("{settings}\nmemory = \"112MiB\""),
        LARGE,
    ));
    platform.deploy(&Folder::python(
        "small",
        &format!("{settings}\nmemory = \"64MiB\""),
        HELLO,
    ));
    platform.deploy(&Folder::python(
        "held",
        &format!("{settings}\nmemory = \"64MiB\"\nmin_warm = 1"),
        HELLO,
    ));
    // A step takes one of them, and the next is seconds away: who looks only after that tries again.
    let seen_between = (0..5).any(|_| {
        for function in ["large", "small"] {
            platform.get(function, "/").ok();
        }
        play(figures, 50.0, 10);
        let first = until("one goes", LIMIT, || {
            let gone = |function: &&&str| platform.instances_of(function).is_empty();
            let gone: Vec<_> = ["large", "small"].iter().filter(gone).copied().collect();
            (!gone.is_empty()).then_some(gone)
        });
        play(figures, 0.0, 90);
        if first.len() == 1 {
            assert_eq!(first, ["large"], "it takes more, and is had back as fast");
        }
        first.len() == 1
    });
    assert!(seen_between);
    play(figures, 50.0, 10);
    gone(platform, "large");
    gone(platform, "small");
    // Under pressure still: what is asked for starts, and what shall stay whatever happens has stayed.
    platform.get("small", "/").ok();
    assert_eq!(platform.instances_of("held").len(), 1);
    assert!(decided(platform, "evicted_for_pressure") >= 2);
    play(figures, 0.0, 90);
    for function in ["large", "small", "held"] {
        platform.admin("DELETE", &format!("/v1/functions/{function}")).send();
        gone(platform, function);
    }
}

fn a_burst_does_not_keep_another_function_from_its_turn(platform: &Platform) {
    const REQUESTS: usize = 200;
    let settings = "idle = \"1s\"\nmemory = \"64MiB\"";
    platform.deploy(&Folder::python("other", settings, HELLO));
    gone(platform, "other");
    platform.deploy(&Folder::python("burst", settings, SLOW));
    let left = AtomicUsize::new(REQUESTS);
    thread::scope(|scope| {
        let burst = || {
            while left
                .try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
            {
                platform.get("burst", "/").ok();
            }
        };
        for _ in 0..16 {
            scope.spawn(burst);
        }
        until("the burst has all the room", LIMIT, || {
            let busy = platform.instances_of("burst");
            (busy.len() == 4 && busy.iter().all(|i| i.state == InstanceState::Ready)).then_some(())
        });
        platform.get("other", "/").ok();
        assert!(left.load(Ordering::Relaxed) > 0, "it waited for the whole burst");
    });
    until("an instance of the burst has made way", LIMIT, || {
        (decided(platform, "yielded") > 0).then_some(())
    });
    for function in ["burst", "other"] {
        platform.admin("DELETE", &format!("/v1/functions/{function}")).send();
        gone(platform, function);
    }
}

fn what_is_called_steadily_stands_by_before_the_next_call(platform: &Platform) {
    // Sixty bins: gone after one, and back after nine tenths of it.
    const EVERY: Duration = Duration::from_secs(6);
    // Nothing is said of how long it is kept.
    let config = "name = \"steady\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemory = \"64MiB\"\n";
    platform.deploy(&Folder::with_config(config).file("main.py", HELLO));
    for _ in 0..5 {
        platform.get("steady", "/").ok();
        thread::sleep(EVERY);
    }
    // On a machine that is busy with other things a call may come before what was started for it.
    let came_first = (0..6).any(|_| {
        platform.get("steady", "/").ok();
        gone(platform, "steady");
        let mut looks = 0;
        let ahead = until("an instance ahead of the call, or the call's time", LIMIT, || {
            looks += 1;
            let mut all = platform.instances_of("steady");
            all.retain(|i| i.state == InstanceState::Parked);
            match all.pop() {
                Some(instance) => Some(Some(instance)),
                None => (looks > 400).then_some(None),
            }
        });
        let Some(ahead) = ahead else { return false };
        let answer = platform.get("steady", "/").ok();
        (answer.start(), answer.instance()) == ("parked", ahead.id.as_str())
    });
    assert!(came_first);
    until("what was started ahead is counted as used", LIMIT, || {
        (decided(platform, "prewarm_used") >= 1).then_some(())
    });
    assert!(decided(platform, "prewarmed") >= decided(platform, "prewarm_used"));
}
