//! Clients that go away, do not read or ask for what is no path, workers out of reach, and functions that start slowly.
//! None of it may cost an instance that is well, or let more invocations into one than it takes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rekindle_wire::ErrorCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Platform, error, until};
use crate::played_worker::PlayedWorker;

/// A connection on which `head` was sent, and nothing read.
async fn send(platform: &Platform, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(platform.url.trim_start_matches("http://"))
        .await
        .unwrap();
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

async fn until_invoked(platform: &Platform, times: usize) {
    until("it runs", async || {
        platform.worker.invocations.load(Ordering::SeqCst) == times
    })
    .await;
}

#[tokio::test]
async fn what_is_no_path_is_refused_and_harms_no_instance() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let first = platform.function("hello").send().await.unwrap();
    for head in [
        "OPTIONS * HTTP/1.1\r\nHost: hello.localhost\r\nConnection: close",
        "CONNECT hello.localhost:80 HTTP/1.1\r\nHost: hello.localhost\r\nConnection: close",
    ] {
        let mut answer = String::new();
        send(&platform, head).await.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("\"bad_request\""), "{answer}");
    }
    assert_eq!(
        platform.worker.invocations.load(Ordering::SeqCst),
        1,
        "it got to the worker"
    );
    let next = platform.function("hello").send().await.unwrap();
    assert_eq!(next.headers()["x-fn-instance"], first.headers()["x-fn-instance"]);
}

#[tokio::test]
async fn a_worker_out_of_reach_costs_no_instance_and_another_serves() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.worker.unplug().await;
    let other = PlayedWorker::start(&platform.relay.address, 1 << 30).await;
    until("both workers are known", async || {
        platform.status().await.workers.len() == 2
    })
    .await;
    let answer = platform.function("hello").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(
        (platform.worker.invocations.load(Ordering::SeqCst), other.running()),
        (0, 1)
    );
    // Its own instance is well, and is not given up for a connection that failed.
    let beats = platform.relay.calls("/internal/heartbeat");
    until("it has been told what to stop", async || {
        platform.relay.calls("/internal/heartbeat") >= beats + 8
    })
    .await;
    assert_eq!(platform.worker.running(), 1);
    assert_eq!(platform.status().await.instances.len(), 2);
}

#[tokio::test]
async fn an_invocation_whose_client_went_away_keeps_its_slot_until_it_ends() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 1\n").await;
    // Before the answer begins.
    let call = tokio::spawn(platform.function("hello/slow/700").send());
    until_invoked(&platform, 1).await;
    call.abort();
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    // And in the middle of it.
    let mut begun = platform.function("hello/trickle/700").send().await.unwrap();
    assert_eq!(begun.chunk().await.unwrap().unwrap(), "begun");
    drop(begun);
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    assert_eq!(
        platform.worker.most_at_once.load(Ordering::SeqCst),
        1,
        "two were in it at once"
    );
    assert_eq!(platform.worker.cancelled.load(Ordering::SeqCst), 0);
    assert_eq!(platform.worker.running(), 1);
}

#[tokio::test]
async fn an_invocation_that_hangs_is_ended_at_its_timeout_though_its_client_went_away() {
    let platform = Platform::start().await;
    platform.deploy("hello", "timeout = \"1s\"\n").await;
    let call = tokio::spawn(platform.function("hello/hang").send());
    until_invoked(&platform, 1).await;
    call.abort();
    until("the instance is stopped", async || platform.worker.running() == 0).await;
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_at_the_timeout_and_holds_nothing() {
    let platform = Platform::start_with(|c| c.max_in_flight = 1).await;
    platform.deploy("hello", "timeout = \"1s\"\nmax_instances = 1\n").await;
    let mut idle = send(&platform, "GET /function/hello/flood HTTP/1.1\r\nHost: x").await;
    until_invoked(&platform, 1).await;
    until("its place is free", async || {
        platform.function("hello").send().await.unwrap().status() == 200
    })
    .await;
    // What was on its way still comes, and then the end.
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), idle.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "the connection is still open");
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it must not look whole");
    assert_eq!(
        platform.worker.running(),
        1,
        "an instance was given up for a client's fault"
    );
}

#[tokio::test]
async fn a_start_longer_than_the_functions_timeout_is_waited_for() {
    let platform = Platform::start().await;
    platform.deploy("hello", "timeout = \"1s\"\nidle = \"1s\"\n").await;
    platform.scale_to_zero().await;
    platform.worker.start_delay_ms.store(2_500, Ordering::SeqCst);
    let answer = platform.function("hello").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-fn-start"], "restored");
    assert_eq!(
        platform.worker.starts.lock().len(),
        1,
        "a start that was nearly done was given up"
    );
}

#[tokio::test]
async fn an_instance_that_is_busy_after_all_is_not_given_up() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 1\nconcurrency = 16\n").await;
    // It may stand still for a moment, with all its slots, while it is copied or moved.
    for times in [1, 8] {
        platform.worker.busy.store(times, Ordering::SeqCst);
        assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
        assert_eq!(platform.worker.running(), 1);
    }
    platform.worker.busy.store(usize::MAX, Ordering::SeqCst);
    let refused = error(platform.function("hello").send().await.unwrap()).await;
    assert!(
        [ErrorCode::Unavailable, ErrorCode::Throttled].contains(&refused.code),
        "{refused:?}"
    );
    assert_eq!(platform.worker.running(), 1);
}

#[tokio::test]
async fn a_lost_report_is_told_again() {
    let platform = Platform::start().await;
    platform.deploy("hello", "timeout = \"1s\"\n").await;
    let call = tokio::spawn(platform.function("hello/hang").send());
    until_invoked(&platform, 1).await;
    // The report that the instance is stuck does not arrive at first.
    platform.relay.lose("/internal/leases", 3);
    assert_eq!(
        error(call.await.unwrap().unwrap()).await.code,
        ErrorCode::FunctionTimeout
    );
    until("the instance is stopped", async || platform.worker.running() == 0).await;
}
