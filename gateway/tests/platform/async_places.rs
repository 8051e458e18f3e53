//! Places for asynchronous invocations: whom calls that do not end keep waiting, and whom not.

use std::sync::atomic::Ordering;

use rekindle_wire::asynchronous::CallState;

use crate::async_calls::accepted;
use crate::harness::{Platform, until};

#[tokio::test]
async fn functions_of_a_namespace_that_hang_keep_no_other_namespace_from_running() {
    let platform = Platform::start_with(|config| config.async_in_flight = 16).await;
    platform.deploy("hello", "").await;
    for name in ["hang0", "hang1"] {
        platform
            .deploy_to(
                "rival",
                name,
                "max_instances = 1\nconcurrency = 20\ntimeout = \"300s\"\n",
            )
            .await;
        for _ in 0..20 {
            let sent = platform.later(&format!("{name}.rival/hang")).send().await.unwrap();
            assert_eq!(sent.status(), 202);
        }
    }
    let running = || platform.worker.invocations.load(Ordering::SeqCst);
    until("they have all places that they may have", async || running() == 14).await;
    for _ in 0..3 {
        let call = accepted(platform.later("hello").send().await.unwrap()).await;
        until("another's call runs", async || {
            platform.call(&call).await.state == CallState::Done
        })
        .await;
    }
    assert_eq!(running(), 17, "what hangs got no more places");
}
