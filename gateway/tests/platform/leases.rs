//! The warm path, start kinds, and leases that end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use rekindle_wire::ErrorCode;
use reqwest::Method;

use crate::harness::{KEY, Platform, error, start_gateway, until};

const PLACEMENTS: &str = "/internal/placements";

fn start_of(answer: &reqwest::Response) -> String {
    answer.headers()["x-fn-start"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_warm_path_asks_the_scheduler_once() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    for _ in 0..50 {
        let answer = platform.function("hello").send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(start_of(&answer), "warm");
    }
    assert_eq!(platform.relay.calls(PLACEMENTS), 1);
    assert_eq!(platform.worker.running(), 1);
}

#[tokio::test]
async fn all_who_waited_for_a_start_get_its_kind_and_later_ones_are_warm() {
    let platform = Platform::start().await;
    platform.deploy("hello", "concurrency = 10\nidle = \"1s\"\n").await;
    platform.scale_to_zero().await;
    platform
        .worker
        .start_delay_ms
        .store(300, std::sync::atomic::Ordering::SeqCst);
    let answers = join_all((0..5).map(|_| platform.function("hello").send())).await;
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(start_of(&answer), "restored");
        let timing = answer.headers()["server-timing"].to_str().unwrap();
        let names: Vec<_> = timing.split(", ").map(|p| p.split(';').next().unwrap()).collect();
        assert_eq!(names, ["route", "place", "restore", "function"]);
    }
    assert_eq!(platform.worker.starts.lock().len(), 1);
    let answer = platform.function("hello").send().await.unwrap();
    assert_eq!(start_of(&answer), "warm");
}

#[tokio::test]
async fn a_restore_that_became_a_boot_is_told_as_one() {
    let platform = Platform::start().await;
    platform.deploy("hello", "idle = \"1s\"\n").await;
    platform.scale_to_zero().await;
    platform
        .worker
        .falls_back
        .store(true, std::sync::atomic::Ordering::SeqCst);
    platform
        .worker
        .start_delay_ms
        .store(50, std::sync::atomic::Ordering::SeqCst);
    let answer = platform.function("hello").send().await.unwrap();
    assert_eq!(start_of(&answer), "booted");
}

#[tokio::test]
async fn an_instance_that_is_gone_is_replaced_and_the_request_sent_again() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let first = platform.function("hello").send().await.unwrap();
    // It vanishes without anybody being told.
    platform.worker.silent.store(true, std::sync::atomic::Ordering::SeqCst);
    platform.worker.instances.lock().clear();
    let body = "x".repeat(60_000);
    let answer = platform.post("hello/swallow").body(body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(start_of(&answer), "restored");
    assert_ne!(answer.headers()["x-fn-instance"], first.headers()["x-fn-instance"]);
    assert_eq!(answer.text().await.unwrap(), "60000");
}

#[tokio::test]
async fn of_many_instances_that_are_gone_none_costs_an_attempt() {
    const MANY: usize = 12;
    let platform = Platform::start().await;
    platform
        .deploy("hello", "max_instances = 20\nmemory = \"16MiB\"\n")
        .await;
    let all = join_all((0..MANY).map(|_| platform.function("hello/slow/1000").send())).await;
    assert!(all.into_iter().all(|answer| answer.unwrap().status() == 200));
    assert_eq!(platform.worker.running(), MANY);
    // They vanish without anybody being told, and their slots are free in the gateway.
    platform.worker.silent.store(true, Ordering::SeqCst);
    platform.worker.instances.lock().clear();
    let answer = platform.function("hello").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), start_of(&answer).as_str()),
        (200, "restored")
    );
}

#[tokio::test]
async fn a_gateway_is_told_of_an_instance_that_was_stopped() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let answer = platform.function("hello").send().await.unwrap();
    let path = format!("/v1/instances/{}", answer.headers()["x-fn-instance"].to_str().unwrap());
    // No heartbeat tells of it.
    platform.worker.silent.store(true, Ordering::SeqCst);
    let stopped = platform.admin(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(stopped.status(), 204);
    let since = std::time::Instant::now();
    until("the gateway has let its lease go", async || {
        let told = platform.admin(Method::GET, "/metrics").send().await.unwrap();
        told.text()
            .await
            .unwrap()
            .lines()
            .any(|line| line == "rekindle_gateway_leases 0")
    })
    .await;
    let length = Duration::from_secs(10);
    assert!(since.elapsed() < length / 2, "it was renewed in vain, and so let go");
    // A body that could not be sent again.
    let body = reqwest::Body::from(vec![b'x'; 2 << 20]);
    let answer = platform.post("hello/swallow").body(body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn a_body_that_was_partly_sent_is_not_sent_again() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.function("hello").send().await.unwrap();
    platform.worker.silent.store(true, std::sync::atomic::Ordering::SeqCst);
    platform.worker.instances.lock().clear();
    let body = reqwest::Body::from(vec![b'x'; 2 << 20]);
    let refused = error(platform.post("hello/swallow").body(body).send().await.unwrap()).await;
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert!(refused.message.contains("try again"), "{refused}");
}

#[tokio::test]
async fn an_idle_instance_goes_and_the_next_invocation_starts_another() {
    let platform = Platform::start().await;
    platform.deploy("hello", "idle = \"1s\"\n").await;
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    let since = std::time::Instant::now();
    platform.scale_to_zero().await;
    assert!(
        since.elapsed() >= Duration::from_millis(800),
        "it went before its idle time"
    );
    let answer = platform.function("hello").send().await.unwrap();
    assert_eq!(start_of(&answer), "restored");
}

#[tokio::test]
async fn an_instance_in_use_does_not_go() {
    let platform = Platform::start().await;
    platform.deploy("hello", "idle = \"1s\"\n").await;
    let long = tokio::spawn(platform.function("hello/slow/2500").send());
    let answer = long.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    for _ in 0..25 {
        // Used every tenth of a second, for longer than its lease and its idle time.
        assert_eq!(start_of(&platform.function("hello").send().await.unwrap()), "warm");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(platform.worker.starts.lock().is_empty());
}

#[tokio::test]
async fn a_new_version_serves_at_once_and_the_old_one_goes_when_it_is_free() {
    let platform = Platform::start().await;
    platform.deploy("hello", "concurrency = 5\n").await;
    let first = platform.function("hello").send().await.unwrap();
    let old = first.headers()["x-fn-instance"].clone();
    let long = tokio::spawn(platform.function("hello/slow/1500").send());
    until("it runs", async || {
        platform.worker.invocations.load(std::sync::atomic::Ordering::SeqCst) == 2
    })
    .await;
    assert_eq!(platform.deploy("hello", "concurrency = 5\n").await.version.0, 2);
    // The recall reaches the gateway by its watch, not by a lease running out.
    until("the new version serves", async || {
        platform.function("hello").send().await.unwrap().headers()["x-fn-instance"] != old
    })
    .await;
    let long = long.await.unwrap().unwrap();
    assert_eq!((long.status().as_u16(), &long.headers()["x-fn-instance"]), (200, &old));
    until("the old instance is gone", async || platform.worker.running() == 1).await;
    let detail = platform.describe("hello").await;
    assert_eq!(detail.summary.live.unwrap().0, 2);
    assert_eq!(detail.instances[0].version.0, 2);
}

#[tokio::test]
async fn a_start_can_be_forced_with_the_key() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 2\n").await;
    for kind in ["booted", "restored", "booted", "restored"] {
        let call = platform
            .function("hello")
            .header("x-fn-force-start", kind)
            .bearer_auth(KEY);
        let answer = call.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(start_of(&answer), kind);
        let told: serde_json::Value = answer.json().await.unwrap();
        assert!(
            told["headers"].get("authorization").is_none(),
            "the function learned the key"
        );
    }
    let refused = error(
        platform
            .function("hello")
            .header("x-fn-force-start", "booted")
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(refused.code, ErrorCode::Unauthorized);
    let odd = platform
        .function("hello")
        .header("x-fn-force-start", "warm")
        .bearer_auth(KEY);
    assert_eq!(error(odd.send().await.unwrap()).await.code, ErrorCode::BadRequest);
    platform.deploy("plain", "snapshot = false\n").await;
    let call = platform.admin(Method::POST, "/v1/functions/plain/invocations");
    let refused = error(call.header("x-fn-force-start", "restored").send().await.unwrap()).await;
    assert_eq!(refused.code, ErrorCode::BadRequest);
    assert!(refused.message.contains("snapshot = true"), "{refused}");
}

#[tokio::test]
async fn two_gateways_take_turns_on_the_only_instance() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 1\n").await;
    let (other, _gateway) = start_gateway(&platform.relay, |_| {}).await;
    let call = |url: &str| platform.http.get(format!("{url}/function/hello/slow/20")).send();
    // The lease is ten seconds long, the wait for a slot as well: without a recall the second would wait in vain.
    let since = std::time::Instant::now();
    for _ in 0..3 {
        for url in [&platform.url, &other] {
            assert_eq!(call(url).await.unwrap().status(), 200);
        }
    }
    assert!(since.elapsed() < Duration::from_secs(8), "leases were not recalled");
    // Nor does one that never rests keep the other out.
    let busy = tokio::spawn({
        let (client, url) = (
            platform.http.clone(),
            format!("{}/function/hello/slow/200", platform.url),
        );
        async move {
            for _ in 0..30 {
                assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
            }
        }
    });
    for _ in 0..5 {
        assert_eq!(call(&other).await.unwrap().status(), 200);
    }
    assert!(!busy.is_finished(), "it only had its turn afterwards");
    busy.await.unwrap();
    assert_eq!(platform.worker.running(), 1);
}

#[tokio::test]
async fn a_gateway_that_is_cut_off_serves_on_until_another_has_a_newer_lease() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 1\nidle = \"4s\"\n").await;
    let there = platform.relay.beside().await;
    let (other, _gateway) = start_gateway(&there, |_| {}).await;
    let call = |url: &str| platform.http.get(format!("{url}/function/hello")).send();
    assert_eq!(call(&platform.url).await.unwrap().status(), 200);
    let cut = |calls| {
        for path in ["/internal/leases", PLACEMENTS, "/internal/recalls"] {
            platform.relay.lose(path, calls);
        }
    };
    cut(usize::MAX);
    // Its lease is two seconds long.
    let since = std::time::Instant::now();
    while since.elapsed() < Duration::from_millis(3_500) {
        assert_eq!(call(&platform.url).await.unwrap().status(), 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(platform.worker.fenced.load(Ordering::SeqCst), 0);
    until("the other has the instance", async || {
        call(&other).await.unwrap().status() == 200
    })
    .await;
    let refused = error(call(&platform.url).await.unwrap()).await;
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert!(platform.worker.fenced.load(Ordering::SeqCst) > 0);
    assert_eq!(call(&other).await.unwrap().status(), 200);
    // It is turned away once, and has no scheduler to ask; then it has.
    cut(0);
    until("it serves again", async || {
        call(&platform.url).await.unwrap().status() == 200
    })
    .await;
    assert_eq!((platform.worker.running(), platform.worker.starts.lock().len()), (1, 0));
}

#[tokio::test]
async fn lease_numbers_go_on_after_a_restart_of_the_scheduler() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 1\n").await;
    let (other, _gateway) = start_gateway(&platform.relay, |_| {}).await;
    let number = async |platform: &Platform| platform.status().await.instances[0].lease_number;
    for url in [&platform.url, &other, &platform.url] {
        let answer = platform.http.get(format!("{url}/function/hello")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let before = number(&platform).await;
    assert!(before >= 3, "{before}");
    platform.restart_scheduler().await;
    for url in [&other, &platform.url] {
        let answer = platform.http.get(format!("{url}/function/hello")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    assert!(number(&platform).await > before);
}

#[tokio::test]
async fn a_gateway_that_ends_returns_its_leases() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 1\n").await;
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    let leases = platform.relay.calls("/internal/leases");
    platform.gateway.ask_to_end();
    (&mut platform.gateway.task).await.unwrap();
    assert_eq!(platform.relay.calls("/internal/leases"), leases + 1);
    let (other, _gateway) = start_gateway(&platform.relay, |c| c.place_wait = Duration::ZERO).await;
    let answer = platform
        .http
        .get(format!("{other}/function/hello"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
}

/// Not a test: prints what the gateway adds to a warm invocation. Run it with `--ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure_what_a_warm_invocation_costs() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let first = platform.function("hello").send().await.unwrap();
    let instance = first.headers()["x-fn-instance"].to_str().unwrap().to_owned();
    let direct = format!(
        "http://{}/invoke/{instance}/",
        platform.status().await.workers[0].address
    );
    let through = format!("{}/function/hello/", platform.url);
    for (what, url) in [
        ("worker alone", &direct),
        ("through gateway", &through),
        ("worker alone", &direct),
        ("through gateway", &through),
    ] {
        let mut took = Vec::new();
        for _ in 0..2_000 {
            let since = std::time::Instant::now();
            let call = platform.http.get(url).header("x-rekindle-token", crate::harness::TOKEN);
            assert!(!call.send().await.unwrap().bytes().await.unwrap().is_empty());
            took.push(since.elapsed());
        }
        took.sort();
        println!("{what}: median {:?}, p99 {:?}", took[1_000], took[1_980]);
    }
}
