//! Invocations that run past their timeout. Nobody waits for them, but they occupy the instance:
//!
//! ```text
//! timed out ──ends after all──────────────────────────> left
//!     └──goes on for OVERDUE_LIMIT──> overdue ──others have left──> the instance is stopped
//! ```
//!
//! An instance with an overdue invocation is reported as stopping, so that it receives nothing new.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt as _;
use rekindle_relay::SendError;
use rekindle_wire::internal::OVERDUE_LIMIT;

use super::client::FunctionBody;
use super::lifecycle::Instance;
use super::registry::Instances;
use super::usage::InFlight;

/// Interval between checks whether the other requests have left.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The other requests have timeouts of their own, all shorter than this.
const OTHERS_LIMIT: Duration = Duration::from_secs(1_000);

/// Waits for an invocation that has run into its timeout. `answering` is the function's pending response.
pub async fn wait(
    instances: Arc<Instances>,
    instance: Arc<Instance>,
    mut in_flight: InFlight,
    answering: impl Future<Output = Result<Response<FunctionBody>, SendError>>,
) {
    let end = async {
        if let Ok(answer) = answering.await {
            let mut body = answer.into_body();
            while let Some(Ok(_)) = body.frame().await {}
        }
    };
    if tokio::time::timeout(OVERDUE_LIMIT, end).await.is_ok() {
        return;
    }
    tracing::warn!(
        instance = %instance.id, function = %instance.spec.function,
        "an invocation goes on long past its timeout"
    );
    in_flight.is_overdue();
    instances.changed.notify_one();
    let alone = async {
        while !instance.usage.is_only_overdue() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    // The outcome does not matter: the instance has had its time.
    let _ = tokio::time::timeout(OTHERS_LIMIT, alone).await;
    instance.stop("an invocation went on long past its timeout").await;
    instances.remove_this(&instance);
}
