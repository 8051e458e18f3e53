//! What nothing uses any more goes: memory of what was replaced or deleted, layers beyond what they may take.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::time::Duration;

use rekindle_e2e::{Folder, Options, Platform, until};

const SOON: Duration = Duration::from_secs(60);
/// Some 10 MB, of another content in each version.
const CODE: &str = "DATA = [(VERSION * n).to_bytes(8, 'little') for n in range(100_000)]\n\
    def handler(event, context):\n    return VERSION\n";

/// Resident memory of the platform's process, MiB.
fn resident(platform: &Platform) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", platform.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() >> 10
}

fn deploy(platform: &Platform, name: &str, version: u32) {
    platform.deploy(&Folder::python(name, "", &format!("VERSION = {version}\n{CODE}")));
    assert_eq!(platform.fresh("restored", name, "/").ok().text(), version.to_string());
}

fn delete(platform: &Platform, name: &str) {
    assert!(platform.cli(&["delete", name, "--yes"]).status.success());
    until("no template is left", SOON, || {
        let left = ["rekindle_templates", "rekindle_templates_memory_bytes"].map(|m| platform.worker_metric(m));
        (left == [0.0; 2]).then_some(())
    });
}

#[test]
fn after_fifty_versions_and_a_delete_the_platform_is_as_small_as_after_one() {
    let platform = Platform::start();
    deploy(&platform, "first", 1);
    delete(&platform, "first");
    let first = resident(&platform);
    for version in 1..=50 {
        deploy(&platform, "many", version);
    }
    // Those of versions that were replaced go meanwhile.
    until("the last version's template is the only one", SOON, || {
        (platform.worker_metric("rekindle_templates") <= 1.0).then_some(())
    });
    delete(&platform, "many");
    until("its memory is back", SOON, || {
        let now = resident(&platform);
        println!("{first} MiB at first, {now} now");
        (now * 5 <= first * 6).then_some(())
    });
}

#[test]
fn layers_that_nothing_uses_go_when_others_need_their_room() {
    let mut options = Options::default();
    options.args.extend(["--layer-cache".into(), "120MiB".into()]);
    let platform = Platform::start_with(options);
    let names = ["layer-one", "layer-two", "layer-three", "layer-four"];
    for (n, name) in names.iter().enumerate() {
        let code = "import os\ndef handler(event, context):\n    return os.path.getsize('/app/data')\n";
        let folder = Folder::python(name, "idle = \"1s\"\npark = \"0s\"", code);
        // Not the same in any two.
        let data: Vec<u8> = (0..30_u32 << 18)
            .flat_map(|at| (at * 4 + n as u32).to_le_bytes())
            .collect();
        fs::write(folder.path().join("data"), data).unwrap();
        platform.deploy(&folder);
        platform.until_gone(name, SOON);
    }
    assert!(platform.worker_metric("rekindle_layers_evicted_bytes_total") >= f64::from(30 << 20));
    assert!(platform.worker_metric("rekindle_layers_bytes") <= f64::from(120 << 20));
    // What went is fetched again.
    for name in names {
        assert_eq!(platform.get(name, "/").ok().text(), (30 << 20).to_string());
        platform.until_gone(name, SOON);
    }
}
