//! What users are told when something goes wrong.

use std::sync::atomic::Ordering;

use rekindle_wire::ErrorCode;
use reqwest::Method;

use crate::harness::{Platform, error, until};
use crate::played_worker::PlayedWorker;

#[tokio::test]
async fn a_function_that_does_not_exist_is_404() {
    let platform = Platform::start().await;
    for path in ["nobody", "Not_a_name/x"] {
        let refused = error(platform.function(path).send().await.unwrap()).await;
        assert_eq!(refused.code, ErrorCode::FunctionNotFound);
    }
    let refused = error(
        platform
            .http
            .get(format!("{}/elsewhere", platform.url))
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(refused.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn what_a_handler_throws_is_502_with_its_words_for_readers_and_the_instance_lives_on() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let thrown = error(platform.function("hello/throw").send().await.unwrap()).await;
    assert_eq!(thrown.code, ErrorCode::FunctionError);
    assert!(!thrown.message.contains("order"), "{thrown}");
    assert!(thrown.message.contains("fn logs hello"), "{thrown}");
    let read = platform
        .admin(Method::GET, "/function/hello/throw")
        .send()
        .await
        .unwrap();
    let thrown = error(read).await;
    assert_eq!(thrown.code, ErrorCode::FunctionError);
    assert!(thrown.message.contains("ValueError: no such order"), "{thrown}");
    assert_eq!(
        platform.function("hello").send().await.unwrap().headers()["x-fn-start"],
        "warm"
    );
    assert_eq!(platform.relay.calls("/internal/placements"), 1);
}

#[tokio::test]
async fn a_crash_is_502_with_the_workers_reason_and_the_next_invocation_gets_another_instance() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let crashed = error(platform.function("hello/crash").send().await.unwrap()).await;
    assert_eq!(crashed.code, ErrorCode::FunctionCrashed);
    assert!(!crashed.message.contains("SIGSEGV"), "{crashed}");
    let read = platform
        .admin(Method::GET, "/function/hello/crash")
        .send()
        .await
        .unwrap();
    let crashed = error(read).await;
    assert!(crashed.message.contains("SIGSEGV"), "{crashed}");
    let next = platform.function("hello").send().await.unwrap();
    assert_eq!(next.headers()["x-fn-start"], "restored");
}

#[tokio::test]
async fn a_timeout_is_504_and_the_stuck_instance_is_stopped() {
    let platform = Platform::start().await;
    platform.deploy("hello", "timeout = \"1s\"\n").await;
    let late = error(platform.function("hello/hang").send().await.unwrap()).await;
    assert_eq!(late.code, ErrorCode::FunctionTimeout);
    assert!(late.message.contains("1s"), "{late}");
    until("the instance is stopped", async || platform.worker.running() == 0).await;
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_timeout_that_the_worker_notices_first_is_the_same() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let late = error(platform.function("hello/late").send().await.unwrap()).await;
    assert_eq!(late.code, ErrorCode::FunctionTimeout);
    until("the instance is stopped", async || platform.worker.running() == 0).await;
}

#[tokio::test]
async fn an_answer_that_stalls_past_the_deadline_is_cut_off() {
    let platform = Platform::start().await;
    platform.deploy("hello", "timeout = \"1s\"\n").await;
    let answer = platform.function("hello/stall").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let rest = tokio::time::timeout(std::time::Duration::from_secs(10), answer.bytes()).await;
    assert!(rest.expect("it was not cut off").is_err(), "it must not look whole");
}

#[tokio::test]
async fn a_scheduler_that_is_away_is_503_while_leases_go_on_serving() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.function("hello").send().await.unwrap();
    platform.stop_scheduler().await;
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    let ready = error(
        platform
            .http
            .get(format!("{}/readyz", platform.url))
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(ready.code, ErrorCode::Unavailable);
    let refused = platform.function("other").send().await.unwrap();
    // The relay answers in the scheduler's place; the gateway must not take that for an answer.
    assert!(refused.status().is_server_error());
    assert_eq!(
        platform
            .http
            .get(format!("{}/healthz", platform.url))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
}

#[tokio::test]
async fn a_version_that_cannot_be_prepared_is_failed_and_the_old_one_serves() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.worker.prepare_fails.store(true, Ordering::SeqCst);
    platform
        .upload("name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n")
        .await;
    until("it has failed", async || {
        let newest = platform.describe("hello").await.versions.swap_remove(0);
        newest
            .error
            .is_some_and(|e| e.code == ErrorCode::BootFailed && e.message.contains("main.py"))
    })
    .await;
    assert_eq!(platform.describe("hello").await.summary.live.unwrap().0, 1);
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    // What was set aside for it is free again.
    until("nothing is left over", async || {
        platform.status().await.instances.len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_answers_a_deploy_with_another_user_than_the_orders_has_failed_it() {
    let platform = Platform::start().await;
    platform.worker.lies.store(true, Ordering::SeqCst);
    platform
        .upload("name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n")
        .await;
    until("it has failed", async || {
        let newest = platform.describe("hello").await.versions.swap_remove(0);
        newest.error.is_some_and(|e| e.message.contains("another user"))
    })
    .await;
}

#[tokio::test]
async fn what_is_a_workers_fault_is_prepared_on_another_and_fails_where_there_is_none() {
    let platform = Platform::start().await;
    platform.worker.disk_is_full.store(true, Ordering::SeqCst);
    let config = "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n";
    platform.upload(config).await;
    until("it has failed", async || {
        let newest = platform.describe("hello").await.versions.swap_remove(0);
        newest.error.is_some_and(|e| e.message.contains("no space left"))
    })
    .await;
    assert_eq!(platform.worker.prepared.lock().len(), 1, "there is no other");

    // The other has room for one instance, which would crowd it: the full one is asked first.
    let other = PlayedWorker::start(&platform.relay.address, 260 << 20).await;
    until("it is there", async || platform.status().await.workers.len() == 2).await;
    platform.deploy("other", "").await;
    assert_eq!(
        (platform.worker.prepared.lock().len(), other.prepared.lock().len()),
        (2, 1)
    );
    assert_eq!((platform.worker.running(), other.running()), (0, 1));
}

#[tokio::test]
async fn a_version_is_prepared_where_there_is_room_for_its_snapshot_if_there_is_such_a_worker() {
    let platform = Platform::start().await;
    platform.worker.has_no_room.store(true, Ordering::SeqCst);
    // It serves, and says why it is slow to start.
    let alone = platform.deploy("alone", "").await;
    assert!(alone.snapshot_error.is_some_and(|e| e.contains("no space left")));
    let other = PlayedWorker::start(&platform.relay.address, 16 << 30).await;
    until("it is there", async || platform.status().await.workers.len() == 2).await;
    for n in 0..4 {
        let version = platform.deploy(&format!("hello-{n}"), "").await;
        assert_eq!(version.snapshot_error, None);
    }
    assert_eq!(other.prepared.lock().len(), 4);
    until("nothing is left over", async || platform.worker.running() == 1).await;
}

#[tokio::test]
async fn a_worker_that_vanishes_while_it_prepares_a_version_is_not_waited_for() {
    let platform = Platform::start().await;
    platform.worker.prepare_hangs.store(true, Ordering::SeqCst);
    let config = "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n";
    assert_eq!(platform.upload(config).await.status(), 202);
    until("it is asked", async || !platform.worker.prepared.lock().is_empty()).await;
    let other = PlayedWorker::start(&platform.relay.address, 16 << 30).await;
    // Its connection stands, and nothing comes any more.
    platform.worker.silent.store(true, Ordering::SeqCst);
    until("another has made it live", async || {
        platform.describe("hello").await.summary.live.is_some()
    })
    .await;
    assert_eq!(
        (platform.worker.prepared.lock().len(), other.prepared.lock().len()),
        (1, 1)
    );
}

#[tokio::test]
async fn only_one_version_is_prepared_at_a_time_and_a_delete_waits_for_it() {
    let platform = Platform::start().await;
    platform.worker.prepare_hangs.store(true, Ordering::SeqCst);
    let config = "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n";
    assert_eq!(platform.upload(config).await.status(), 202);
    assert_eq!(error(platform.upload(config).await).await.code, ErrorCode::Conflict);
    let delete = platform
        .admin(Method::DELETE, "/v1/functions/hello")
        .send()
        .await
        .unwrap();
    assert_eq!(error(delete).await.code, ErrorCode::Conflict);
}
