//! Queues, sizes and numbers that end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rekindle_wire::ErrorCode;

use crate::harness::{Platform, error, until};

#[tokio::test]
async fn a_function_at_its_maximum_is_429_with_retry_after() {
    let platform = Platform::start_with(|c| c.place_wait = Duration::from_millis(300)).await;
    platform.deploy("hello", "max_instances = 1\n").await;
    let busy = tokio::spawn(platform.function("hello/slow/3000").send());
    until("it is busy", async || {
        platform.worker.invocations.load(Ordering::SeqCst) == 1
    })
    .await;
    let refused = error(platform.function("hello").send().await.unwrap()).await;
    assert_eq!(refused.code, ErrorCode::Throttled);
    assert_eq!(refused.retry_after_s, Some(1));
    assert!(refused.message.contains("max_instances"), "{refused}");
    assert_eq!(busy.await.unwrap().unwrap().status(), 200);
    assert_eq!(platform.worker.running(), 1);
}

#[tokio::test]
async fn invocations_that_wait_are_served_in_turn_when_a_slot_gets_free() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 2\n").await;
    let calls = (0..12).map(|_| platform.function("hello/slow/100").send());
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert!(platform.worker.running() <= 2);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_by_its_length_or_when_it_shows() {
    let platform = Platform::start_with(|c| c.max_body_bytes = 1 << 20).await;
    platform.deploy("hello", "").await;
    let fits = platform
        .post("hello/swallow")
        .body(vec![b'x'; 1 << 20])
        .send()
        .await
        .unwrap();
    assert_eq!(fits.text().await.unwrap(), (1 << 20).to_string());
    let known = platform
        .post("hello/swallow")
        .body(vec![b'x'; (1 << 20) + 1])
        .send()
        .await
        .unwrap();
    assert_eq!(error(known).await.code, ErrorCode::TooLarge);
    assert_eq!(
        platform.worker.invocations.load(Ordering::SeqCst),
        1,
        "it was refused up front"
    );
    let chunks = futures::stream::iter((0..64).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 64 << 10])));
    let call = platform.post("hello/swallow").body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(error(call.send().await.unwrap()).await.code, ErrorCode::TooLarge);
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_body_that_its_function_reads_while_it_comes_has_no_limit_and_takes_no_memory() {
    const LARGE: usize = 64 << 20;
    let platform = Platform::start_with(|c| (c.max_body_bytes, c.body_memory_bytes) = (1 << 20, 1 << 20)).await;
    let server = "runtime = \"http\"\ncommand = [\"./server\"]\n";
    platform.deploy_as("api", server, "").await;
    let chunks = || {
        let chunks = (0..LARGE >> 16).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 64 << 10]));
        reqwest::Body::wrap_stream(futures::stream::iter(chunks))
    };
    let swallowed = async |at: &str, body: reqwest::Body| {
        let answer = platform.post(&format!("{at}/swallow")).body(body).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{at}");
        answer.text().await.unwrap()
    };
    assert_eq!(swallowed("api", chunks()).await, LARGE.to_string());
    assert_eq!(swallowed("api", vec![b'x'; LARGE].into()).await, LARGE.to_string());
    // As an event it is in memory as a whole.
    let event = platform.admin(reqwest::Method::POST, "/v1/functions/api/invocations");
    let refused = error(event.body(chunks()).send().await.unwrap()).await;
    assert_eq!(refused.code, ErrorCode::TooLarge);
    assert!(refused.message.contains("1MiB (--max-body)"), "{refused}");
    // Another version may be of another kind.
    platform.deploy("api", "").await;
    let call = platform.post("api/swallow").body(chunks());
    assert_eq!(error(call.send().await.unwrap()).await.code, ErrorCode::TooLarge);
    assert_eq!(swallowed("api@1", chunks()).await, LARGE.to_string());
}

#[tokio::test]
async fn more_requests_in_flight_than_allowed_are_503() {
    let platform = Platform::start_with(|c| c.max_in_flight = 1).await;
    platform.deploy("hello", "timeout = \"2s\"\n").await;
    let mut begun = platform.function("hello/stall").send().await.unwrap();
    assert_eq!(begun.chunk().await.unwrap().unwrap(), "begun");
    let refused = error(platform.function("hello").send().await.unwrap()).await;
    assert_eq!((refused.code, refused.retry_after_s), (ErrorCode::Unavailable, Some(1)));
    // Its client goes away; it is over at its timeout.
    drop(begun);
    until("there is room again", async || {
        platform.function("hello").send().await.unwrap().status() == 200
    })
    .await;
}

#[tokio::test]
async fn more_or_longer_headers_than_allowed_are_431_with_the_limit() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let asked = |lines: usize, length: usize| {
        let value = "v".repeat(length);
        let named = (0..lines).map(|n| format!("x-{n}"));
        named
            .fold(platform.function("hello"), |call, name| call.header(name, &value))
            .send()
    };
    assert_eq!(asked(80, 700).await.unwrap().status(), 200);
    let many = error(asked(300, 1).await.unwrap()).await;
    assert_eq!(many.code, ErrorCode::HeadersTooLarge);
    assert!(many.message.contains("more than 256"), "{many}");
    let long = error(asked(8, 9000).await.unwrap()).await;
    assert_eq!(long.code, ErrorCode::HeadersTooLarge);
    assert!(long.message.contains("more than 65536"), "{long}");
    // What is far above is not read to its end.
    assert_eq!(asked(600, 1).await.unwrap().status(), 431);
    assert_eq!(asked(1, 0).await.unwrap().status(), 200);
}

/// Longer than a connection to a worker that acknowledges nothing is kept; the body is more than sockets hold.
#[tokio::test]
async fn a_function_may_pause_before_it_reads_a_long_body() {
    let platform = Platform::start().await;
    platform.deploy("other", "timeout = \"60s\"\n").await;
    let body = vec![b'x'; 24 << 20];
    let sent = reqwest::Client::new()
        .post(format!("{}/function/other/later/8000", platform.url))
        .body(body.clone());
    let answer = sent.send().await.unwrap();
    let (status, told) = (answer.status().as_u16(), answer.text().await.unwrap());
    assert_eq!((status, told), (200, body.len().to_string()));
}
