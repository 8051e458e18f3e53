//! What workers leave of networks on their host. Modules run in processes of their own, each with a host of its own:
//! here no other test's platform comes or goes.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::world::{self, ECHO, HOST, WORLD};
use rekindle_e2e::{Folder, Platform, until};

use crate::network::{PROBE, ask, router_links, tcp, udp};

#[test]
fn a_killed_worker_leaves_nothing_after_the_next_start_and_a_stopped_one_nothing_at_all() {
    world::enter();
    let before = left_on_host();
    let mut platform = Platform::start();
    platform.deploy(&Folder::python(
        "probe",
        "memory = \"32MiB\"\nmax_instances = 300\nidle = \"1s\"",
        PROBE,
    ));
    // Two hundred instances come and go.
    for _ in 0..200 {
        let (_, got) = ask(&platform, "restored", "probe", &[udp(WORLD, ECHO)]);
        assert_eq!(got[0]["got"], format!("ping from {HOST}"));
    }
    platform.until_gone("probe", Duration::from_secs(60));
    until("links of sandboxes made ahead only", Duration::from_secs(60), || {
        let links = router_links(platform.pid());
        let empty = platform.worker_metric("rekindle_sandboxes_ready");
        let furnished = platform.worker_metric("rekindle_sandboxes_furnished");
        (links as f64 <= empty + furnished).then_some(links)
    });
    platform.kill9();
    until(
        "the interface of the killed worker gone",
        Duration::from_secs(20),
        || {
            let now = left_on_host();
            (now.0 == before.0).then_some(())
        },
    );
    platform.restart();
    let (_, got) = ask(&platform, "restored", "probe", &[tcp(WORLD, ECHO)]);
    assert_eq!(got[0]["got"], format!("ping from {HOST}"));
    let during = left_on_host();
    assert_eq!(during.0.len(), before.0.len() + 1, "one interface: {during:?}");
    assert_eq!(during.1.len(), before.1.len() + 1, "one table: {during:?}");
    platform.stop();
    assert_eq!(left_on_host(), before);
}

/// Interfaces and tables of workers on the host.
fn left_on_host() -> (Vec<String>, Vec<String>) {
    let mut interfaces: Vec<String> = world::on_host("ip", &["-o", "link"])
        .lines()
        .filter_map(|l| Some(l.split(": ").nth(1)?.split('@').next()?.to_owned()))
        .filter(|name| name.starts_with("rk"))
        .collect();
    let mut tables: Vec<String> = world::on_host("nft", &["list", "tables"])
        .lines()
        .filter(|l| l.contains("rekindle"))
        .map(str::to_owned)
        .collect();
    interfaces.sort();
    tables.sort();
    (interfaces, tables)
}
