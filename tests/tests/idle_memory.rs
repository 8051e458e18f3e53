//! What an instance does not touch goes away, warm or parked, into a swap that the worker makes; what it holds is as it
//! was, and its limit holds.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rekindle_e2e::leftovers::group_name;
use rekindle_e2e::platform::Options;
use rekindle_e2e::{Folder, Platform, Reply, skip, until};
use rekindle_wire::api::{InstanceInfo, InstanceState};
use rekindle_worker::idle::zram::{self, ZramDevice, ZramOwner, ZramPaths};

/// For what goes at a twentieth of a processor, on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(120);
/// Most of the 32 MiB that the functions write.
const MOST: u64 = 24 << 20;

/// Writes 32 MiB that compress at its first request, and answers the digest of all of them at each. With `?more` it
/// wants as much as its limit again.
const CODE: &str = "import hashlib\nDATA = None\nMORE = []\n\
    def handler(event, context):\n    global DATA\n\
    \x20   if DATA is None:\n        DATA = bytearray(32 << 20)\n\
    \x20       for at in range(0, len(DATA), 4096):\n            DATA[at:at + 4096] = at.to_bytes(8, 'little') * 512\n\
    \x20   if 'more' in str(event):\n        MORE.append(b'x' * (80 << 20))\n\
    \x20   return hashlib.sha256(DATA).hexdigest()\n";

/// Has 32 MiB before its snapshot that do not compress to nothing, and answers the digest of all of them.
const CLEAN: &str = "import hashlib, random\n\
    DATA = random.Random(1).randbytes(32 << 20)\n\
    def handler(event, context):\n    return hashlib.sha256(DATA).hexdigest()\n";

fn instance(platform: &Platform, function: &str) -> Option<InstanceInfo> {
    let all = platform.instances_of(function);
    all.into_iter().next()
}

/// Waits until the function's only instance is in `state` and takes so much less than `before`; answers how much it
/// takes.
fn shrunk(platform: &Platform, function: &str, state: InstanceState, before: u64) -> u64 {
    until(&format!("{function} has shrunk by {MOST} from {before}"), LIMIT, || {
        let found = instance(platform, function)?;
        (found.state == state && found.memory_bytes + MOST <= before).then_some(found.memory_bytes)
    })
}

/// What the function's only instance takes while it has all in memory: told with a heartbeat, soon after the answer.
fn filled(platform: &Platform, function: &str, answer: &Reply) -> u64 {
    until(&format!("{function} takes what it wrote"), LIMIT, || {
        let found = instance(platform, function)?;
        assert_eq!(found.id.as_str(), answer.instance());
        (found.memory_bytes >= 32 << 20).then_some(found.memory_bytes)
    })
}

/// Devices of this platform that are swapped on.
fn swaps(owner: ZramOwner) -> Vec<PathBuf> {
    let on = fs::read_to_string("/proc/swaps").unwrap();
    // By its name: the mount namespace that it was swapped on in may be gone, and its path with it.
    let name = |line: &str| Some(Path::new(line.split_whitespace().next()?).file_name()?.to_owned());
    let is_on = |node: &PathBuf| on.lines().any(|l| name(l).as_deref() == node.file_name());
    let devices = zram::devices(&ZramPaths::default(), owner);
    devices.iter().map(ZramDevice::node).filter(is_on).collect()
}

#[test]
fn clean_memory_goes_from_the_template_and_comes_back_from_the_chunks() {
    let platform = Platform::start_with(Options {
        args: ["--memory", "1GiB", "--idle-swap", "none", "--idle-after", "1s"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    });
    platform.deploy(&Folder::python(
        "idle-clean",
        "memory = \"192MiB\"\nidle = \"600s\"\nmax_instances = 1",
        CLEAN,
    ));
    let first = platform.fresh("restored", "idle-clean", "/").ok();
    let templates = || platform.worker_metric("rekindle_templates_memory_bytes");
    let full = templates();
    assert!(full >= MOST as f64, "the template holds what it read: {full}");
    let gone = || platform.worker_metric("rekindle_idle_templates_bytes_total");
    // All of it, its working set too, after sixty times as long as it must not have been used.
    let told = Cell::new((0, 0));
    until("the template has shrunk", LIMIT, || {
        let (gone, there) = (gone(), templates());
        let now = ((gone as u64) >> 20, (there as u64) >> 20);
        if told.replace(now) != now {
            println!("{} MiB have gone, {} are there", now.0, now.1);
        }
        (gone >= MOST as f64 && there + MOST as f64 <= full).then_some(())
    });
    let again = platform.get("idle-clean", "/").ok();
    assert_eq!(
        (again.instance(), again.text(), again.start()),
        (first.instance(), first.text(), "warm")
    );
}

#[test]
fn what_is_not_touched_goes_and_comes_back_as_it_was() {
    if !zram::is_there(&ZramPaths::default()) {
        skip("this kernel has no zram, so nothing that was written can go");
        return;
    }
    let mut platform = Platform::start_with(Options {
        args: ["--memory", "4GiB", "--idle-swap", "zram:256MiB", "--idle-after", "2s"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    });
    let owner = ZramOwner::of(&group_name(&platform.directory("run")));
    if platform.worker_metric("rekindle_idle_swap{kind=\"own_zram\"}") < 1.0 {
        skip("this host has a swap of its own, which the platform does not add to");
        return;
    }
    assert_eq!(swaps(owner).len(), 1);

    for (name, settings, state) in [
        ("idle-warm", "idle = \"600s\"\nmax_instances = 1", InstanceState::Ready),
        (
            "idle-parked",
            "idle = \"1s\"\npark = \"600s\"\nmax_instances = 1",
            InstanceState::Parked,
        ),
    ] {
        platform.deploy(&Folder::python(name, settings, CODE));
        let first = platform.get(name, "/").ok();
        let before = filled(&platform, name, &first);
        let after = shrunk(&platform, name, state, before);
        println!("{name}: {} MiB, then {} MiB", before >> 20, after >> 20);
        until("it says that much of it is evicted", LIMIT, || {
            let found = instance(&platform, name)?;
            (found.evicted_bytes >= MOST).then_some(())
        });
        let again = platform.get(name, "/").ok();
        assert_eq!(
            (again.instance(), again.text()),
            (first.instance(), first.text()),
            "{name}"
        );
        let expected = if state == InstanceState::Parked {
            "parked"
        } else {
            "warm"
        };
        assert_eq!(again.start(), expected);
    }
    let evicted =
        |state: &str| platform.worker_metric(&format!("rekindle_idle_evicted_bytes_total{{state=\"{state}\"}}"));
    let (warm, parked) = (evicted("warm"), evicted("parked"));
    assert!(warm >= MOST as f64, "{warm} bytes");
    // An instance may be parked while it is being evicted as a warm one, if the machine is slow to park it.
    assert!(
        parked > 0.0 && warm + parked >= 2.0 * MOST as f64,
        "{warm} and {parked} bytes"
    );

    // What is out counts as well: with half of its limit there, it cannot have all of it once more.
    let warm = instance(&platform, "idle-warm").unwrap();
    shrunk(
        &platform,
        "idle-warm",
        InstanceState::Ready,
        warm.memory_bytes.max(40 << 20),
    );
    platform.get("idle-warm", "/?more").error(502, "function_out_of_memory");

    platform.kill9();
    assert_eq!(swaps(owner).len(), 1, "kill -9 left it");
    platform.restart();
    assert!(platform.log().contains("removed the swap that a killed worker left"));
    assert_eq!(swaps(owner).len(), 1);
    platform.stop();
    assert_eq!(zram::devices(&ZramPaths::default(), owner).len(), 0);
}
