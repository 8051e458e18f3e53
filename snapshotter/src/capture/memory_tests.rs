//! A capture of much memory needs little memory, measured in its own process.

use std::io::Write as _;
use std::process::Command;

use rekindle_store_s3::connect;

use super::*;
use crate::testing::{TestStore, config, dump_without_pages, meta, noise};

const DUMP: usize = 1 << 30;
/// Maximum memory of the capturing process, including the program and the runtime.
const BOUND_KIB: u64 = 200 << 10;

/// The store's address and the dump's path, for the child.
const ADDRESS: &str = "REKINDLE_TEST_CAPTURE_STORE";
const DIR: &str = "REKINDLE_TEST_CAPTURE_DIR";

/// Peak memory of this process in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// 1 GiB: noise, text and zeros in turns of 1 MiB each, all distinct.
fn write_dump(dir: &Path) {
    let mut pages = dump_without_pages(dir, DUMP as u64 / 4096);
    for at in 0..(DUMP >> 20) as u64 {
        let mut piece = noise(1 << 20, at);
        match at % 4 {
            0 => piece.fill(0),
            1 | 2 => piece.iter_mut().for_each(|byte| *byte = b'a' + *byte % 5),
            _ => {}
        }
        pages.write_all(&piece).unwrap();
    }
    pages.write_all(&[0; 4096]).unwrap();
}

/// Captures in the child. Otherwise starts the child.
#[tokio::test(flavor = "multi_thread")]
async fn a_capture_of_one_gib_needs_less_than_200_mib() {
    if let (Ok(address), Ok(dir)) = (std::env::var(ADDRESS), std::env::var(DIR)) {
        let store = connect(config(address.parse().unwrap())).await;
        let mut meta = meta();
        meta.options.consume = true;
        let before = peak_kib();
        let published = publish(&store, &RegionIndex::new(), Path::new(&dir), meta)
            .await
            .unwrap();
        assert_eq!(published.manifest.totals.memory_bytes, DUMP as u64 + 4096);
        println!("peak {} KiB, {before} before", peak_kib());
        assert!(peak_kib() < BOUND_KIB, "{} KiB", peak_kib());
        return;
    }
    let server = TestStore::start().await;
    let dump = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = dump.path().to_owned();
    tokio::task::spawn_blocking(move || write_dump(&dir)).await.unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([
            "--exact",
            "--nocapture",
            "capture::memory_tests::a_capture_of_one_gib_needs_less_than_200_mib",
        ])
        .env(ADDRESS, server.address.to_string())
        .env(DIR, dump.path());
    let ended = tokio::task::spawn_blocking(move || child.output())
        .await
        .unwrap()
        .unwrap();
    let told = String::from_utf8_lossy(&ended.stdout);
    println!("{told}");
    assert!(
        ended.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}
