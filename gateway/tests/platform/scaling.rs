//! More instances, and room for them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use rekindle_wire::ErrorCode;

use crate::harness::{Platform, error, until};

#[tokio::test]
async fn a_burst_gets_as_many_instances_as_allowed_and_no_more() {
    let platform = Platform::start().await;
    platform
        .deploy("hello", "max_instances = 4\nmemory = \"16MiB\"\n")
        .await;
    let answers = join_all((0..40).map(|_| platform.function("hello/slow/50").send())).await;
    assert!(answers.into_iter().all(|a| a.unwrap().status() == 200));
    // The one that was prepared, and three more.
    assert_eq!(platform.worker.starts.lock().len(), 3);
}

#[tokio::test]
async fn an_unused_instance_of_another_function_makes_room() {
    // The worker has 1 GiB.
    let platform = Platform::start().await;
    platform.deploy("first", "memory = \"600MiB\"\n").await;
    assert_eq!(platform.function("first").send().await.unwrap().status(), 200);
    platform.deploy("second", "memory = \"600MiB\"\n").await;
    assert_eq!(platform.function("second").send().await.unwrap().status(), 200);
    assert_eq!(platform.function("first").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn no_room_on_any_worker_is_503_with_retry_after() {
    let platform = Platform::start_with(|c| c.place_wait = Duration::from_millis(500)).await;
    platform.deploy("first", "memory = \"600MiB\"\n").await;
    platform.deploy("second", "memory = \"600MiB\"\n").await;
    let busy = tokio::spawn(platform.function("second/slow/4000").send());
    until("it is busy", async || {
        platform.worker.invocations.load(Ordering::SeqCst) == 1
    })
    .await;
    let refused = error(platform.function("first").send().await.unwrap()).await;
    assert_eq!((refused.code, refused.retry_after_s), (ErrorCode::NoCapacity, Some(1)));
    assert_eq!(busy.await.unwrap().unwrap().status(), 200);
    until("there is room", async || {
        platform.function("first").send().await.unwrap().status() == 200
    })
    .await;
}
