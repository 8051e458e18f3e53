//! A scheduler that is killed and started again.

use std::sync::atomic::Ordering;

use rekindle_scheduler::ObjectStore as _;
use rekindle_wire::ErrorCode;
use rekindle_wire::api::VersionState;

use crate::harness::{KEY, Platform, until};

#[tokio::test]
async fn no_function_and_no_instance_is_lost() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.deploy("other", "").await;
    let before = platform.function("hello").send().await.unwrap().headers()["x-fn-instance"].clone();
    platform.restart_scheduler().await;
    let status = platform.status().await;
    assert_eq!(status.functions, 2);
    until("the instances are taken back", async || {
        platform.status().await.instances.len() == 2
    })
    .await;
    let after = platform.function("hello").send().await.unwrap();
    assert_eq!(after.headers()["x-fn-instance"], before);
    assert_eq!(
        platform.function("other").send().await.unwrap().headers()["x-fn-start"],
        "warm"
    );
    assert_eq!(platform.worker.running(), 2);
    assert!(platform.worker.starts.lock().is_empty());
}

#[tokio::test]
async fn a_version_that_was_being_prepared_is_failed_and_can_be_deployed_again() {
    let mut platform = Platform::start().await;
    platform.worker.prepare_hangs.store(true, Ordering::SeqCst);
    platform
        .upload("name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n")
        .await;
    until("it is under way", async || platform.worker.prepared.lock().len() == 1).await;
    platform.restart_scheduler().await;
    let version = platform.describe("hello").await.versions.swap_remove(0);
    assert_eq!(version.state, VersionState::Failed);
    let error = version.error.unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("deploy again"), "{error}");
    platform.worker.prepare_hangs.store(false, Ordering::SeqCst);
    assert_eq!(platform.deploy("hello", "").await.version.0, 2);
}

/// As with versions of before digests were kept, and with workers of before: the one here tells none.
#[tokio::test]
async fn orders_name_the_digest_of_a_snapshot_as_the_scheduler_has_read_it_once() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 8\n").await;
    let ordered = async |platform: &Platform| {
        let call = platform.function("hello").header("x-fn-force-start", "restored");
        assert!(call.bearer_auth(KEY).send().await.unwrap().status().is_success());
        platform.worker.starts.lock().last().unwrap().spec.clone()
    };
    let mut read = None;
    until("the digest is known", async || {
        read = ordered(&platform).await.snapshot_digest;
        read.is_some()
    })
    .await;
    // What is put there later is another.
    let snapshot = ordered(&platform).await.snapshot.unwrap();
    let key = format!("snapshots/{snapshot}/manifest.json");
    platform.objects.0.lock().insert(key, b"another".to_vec());
    assert_ne!(platform.objects.manifest_digest(&snapshot).await.ok(), read);
    platform.restart_scheduler().await;
    until("the instances are taken back", async || {
        !platform.status().await.instances.is_empty()
    })
    .await;
    assert_eq!(ordered(&platform).await.snapshot_digest, read);
}
