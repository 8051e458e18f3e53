//! Usage: counted once, whatever is restarted.

use rekindle_wire::api::UsageLine;
use reqwest::Method;

use crate::harness::{Platform, start_gateway, until};

async fn usage(platform: &Platform, query: &str) -> Vec<UsageLine> {
    let answer = platform.admin(Method::GET, &format!("/v1/usage{query}")).send().await;
    answer.unwrap().json().await.unwrap_or_default()
}

/// Answered invocations and failed ones.
async fn counted(platform: &Platform) -> (u64, u64) {
    let lines = usage(platform, "?by=function").await;
    lines.first().map_or((0, 0), |line| (line.ok, line.errors))
}

#[tokio::test]
async fn invocations_are_counted_with_their_time_and_bytes() {
    let platform = Platform::start().await;
    let version = platform.deploy("hello", "memory = \"512MiB\"\n").await.version;
    let mut bytes = 0;
    for path in ["hello", "hello/slow/100", "hello/any"] {
        bytes += platform
            .function(path)
            .send()
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            .len();
    }
    platform.function("hello/throw").send().await.unwrap();
    until("they are reported", async || counted(&platform).await == (3, 1)).await;
    let lines = usage(&platform, "?by=day,version").await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert_eq!((line.version, line.egress_bytes), (Some(version), bytes as u64));
    assert!(line.day.as_ref().is_some_and(|day| day.len() == 10));
    // Half a gigabyte for a tenth of a second is the least; the instance of the deploy serves.
    assert!(line.gb_ms.warm >= 50.0 && line.gb_ms.warm < 5_000.0, "{line:?}");
    assert!(usage(&platform, "?function=other").await.is_empty());
    let bad = platform.admin(Method::GET, "/v1/usage?days=401").send().await.unwrap();
    assert_eq!(bad.status(), 400);
    let bad = platform.admin(Method::GET, "/v1/usage?by=week").send().await.unwrap();
    assert_eq!(bad.status(), 400);
}

#[tokio::test]
async fn nothing_is_lost_or_counted_twice_while_schedulers_are_killed() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let mut sent = 0;
    for _ in 0..4 {
        for _ in 0..20 {
            assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
            sent += 1;
        }
        // Reports are under way or refused meanwhile.
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        platform.restart_scheduler().await;
    }
    until("everything is reported", async || counted(&platform).await.0 >= sent).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(counted(&platform).await, (sent, 0));
}

#[tokio::test]
async fn a_killed_gateway_loses_what_it_has_not_reported_and_no_more() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let (url, role) = start_gateway(&platform.relay, |_| {}).await;
    let call = async || {
        let answer = platform.http.get(format!("{url}/function/hello")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    };
    for _ in 0..10 {
        call().await;
    }
    until("they are reported", async || counted(&platform).await.0 == 10).await;
    for _ in 0..5 {
        call().await;
    }
    drop(role);
    for _ in 0..3 {
        assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    }
    until("the other gateway has reported", async || {
        counted(&platform).await.0 >= 13
    })
    .await;
    let (ok, _) = counted(&platform).await;
    assert!((13..=18).contains(&ok), "{ok} of 18");
}
