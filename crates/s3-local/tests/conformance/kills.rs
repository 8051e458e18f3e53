//! The embedded server in a process of its own: killed at bad moments, and measured.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_s3::primitives::ByteStream;
use rekindle_s3_local::serve;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::target::{BUCKET, Process, SECRET_KEY, client, config, get, noise, put, refusal};

/// Directory of the child's files.
const CHILD_ROOT: &str = "REKINDLE_S3_LOCAL_TEST_CHILD_ROOT";

/// The server of these tests, in a process of its own. Without the variable it is no test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_server() {
    let Some(root) = std::env::var_os(CHILD_ROOT) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nlistening on {}", listener.local_addr().unwrap());
    serve(config(Path::new(&root)), listener, std::future::pending())
        .await
        .unwrap();
}

fn start_child(root: &Path) -> (SocketAddr, Process) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kills::child_server", "--exact", "--nocapture"])
        .env(CHILD_ROOT, root)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let process = Process(child);
    let mut lines = output.lines().map(|line| line.unwrap());
    let address = lines.find_map(|line| {
        line.strip_prefix("listening on ")
            .map(|address| address.parse().unwrap())
    });
    (address.expect("the child says where it listens"), process)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_middle_of_a_put_leaves_no_half_object() {
    let root = tempfile::tempdir().unwrap();
    let temp_dir = root.path().join("tmp");
    let written = || -> u64 {
        let entries = std::fs::read_dir(&temp_dir).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.metadata().ok())
            .map(|metadata| metadata.len())
            .sum()
    };
    let (address, mut process) = start_child(root.path());
    let before = client(address, SECRET_KEY);
    put(&before, "replaced", noise(1, 1000)).await;
    let mut puts = Vec::new();
    for key in ["replaced", "new"] {
        let client = before.clone();
        puts.push(tokio::spawn(async move {
            let body = ByteStream::from(noise(2, 200_000_000));
            client.put_object().bucket(BUCKET).key(key).body(body).send().await
        }));
    }
    let end = Instant::now() + Duration::from_secs(60);
    while written() < 4_000_000 {
        assert!(Instant::now() < end, "the puts do not get going");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    process.0.kill().unwrap();
    process.0.wait().unwrap();
    for put in puts {
        assert!(put.await.unwrap().is_err(), "the kill must come before the answer");
    }
    assert!(written() > 0, "the kill must come in the middle");

    let (address, _process) = start_child(root.path());
    let after = client(address, SECRET_KEY);
    assert!(get(&after, "replaced").await == noise(1, 1000));
    assert_eq!(
        refusal(after.get_object().bucket(BUCKET).key("new").send().await),
        (404, "NoSuchKey".to_owned())
    );
    let listed = after.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(listed.contents().len(), 1);
    assert_eq!(written(), 0);
}

/// What writer `writer` puts in its `n`th round, with a length between zero and a few blocks.
fn version(writer: u64, n: u64) -> Vec<u8> {
    let seed = writer * 1_000_003 + n;
    noise(seed, usize::try_from(seed % 7 * 40_000).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_any_time_lose_nothing_that_was_answered() {
    const WRITERS: u64 = 8;
    let root = tempfile::tempdir().unwrap();
    // For each key, the last round that was answered. Each writer overwrites its one key and makes a new one every
    // round.
    let mut answered: HashMap<u64, u64> = HashMap::new();
    for kill in 0..5_u32 {
        let (address, mut process) = start_child(root.path());
        let client = client(address, SECRET_KEY);
        check_answered(&client, &answered).await;
        let answers = Arc::new(Semaphore::new(0));
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let (client, answers) = (client.clone(), answers.clone());
            let begin = answered.get(&writer).map_or(0, |n| n + 1);
            writers.spawn(async move {
                let mut last = None;
                for n in begin.. {
                    for key in [format!("over/{writer}"), format!("new/{writer}/{n}")] {
                        let body = ByteStream::from(version(writer, n));
                        let put = client.put_object().bucket(BUCKET).key(key).body(body);
                        if put.send().await.is_err() {
                            return (writer, last);
                        }
                    }
                    last = Some(n);
                    answers.add_permits(1);
                }
                (writer, last)
            });
        }
        // A moment that depends on the work, a different one each time.
        let enough = answers.acquire_many(30 + 17 * kill);
        drop(
            tokio::time::timeout(Duration::from_secs(60), enough)
                .await
                .expect("the puts go on"),
        );
        process.0.kill().unwrap();
        process.0.wait().unwrap();
        while let Some(finished) = writers.join_next().await {
            if let (writer, Some(last)) = finished.unwrap() {
                answered.insert(writer, last);
            }
        }
    }
    let (address, _process) = start_child(root.path());
    check_answered(&client(address, SECRET_KEY), &answered).await;
}

async fn check_answered(client: &aws_sdk_s3::Client, answered: &HashMap<u64, u64>) {
    for (&writer, &last) in answered {
        for n in 0..=last {
            assert!(get(client, &format!("new/{writer}/{n}")).await == version(writer, n));
        }
        let over = get(client, &format!("over/{writer}")).await;
        // The next round may have been stored without being answered.
        assert!(over == version(writer, last) || over == version(writer, last + 1));
    }
    // Objects whose put was not answered are complete all the same.
    let mut pages = client.list_objects_v2().bucket(BUCKET).into_paginator().send();
    while let Some(page) = pages.next().await {
        for object in page.unwrap().contents() {
            assert_eq!(
                get(client, object.key().unwrap()).await.len() as i64,
                object.size().unwrap()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_take_little_memory() {
    let root = tempfile::tempdir().unwrap();
    let (address, process) = start_child(root.path());
    let client = client(address, SECRET_KEY);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(100_000_000).unwrap();
    let mut transfers = JoinSet::new();
    for key in ["a", "b", "c"] {
        let (client, body) = (client.clone(), ByteStream::from_path(file.path()).await.unwrap());
        transfers.spawn(async move {
            client
                .put_object()
                .bucket(BUCKET)
                .key(key)
                .body(body)
                .send()
                .await
                .unwrap();
            let mut got = client.get_object().bucket(BUCKET).key(key).send().await.unwrap().body;
            let mut len = 0;
            while let Some(bytes) = got.try_next().await.unwrap() {
                len += bytes.len();
            }
            assert_eq!(len, 100_000_000);
        });
    }
    transfers.join_all().await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 64 * 1024, "the server took {peak_kib} KiB");
}
