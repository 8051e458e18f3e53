//! What becomes of an instance of which a page is lost.

use std::sync::Arc;

use rekindle_pager::LostPage;
use rekindle_wire::{ApiError, ErrorCode};

use super::lifecycle::Instance;
use crate::criu::memory::OnLost;
use crate::host::sandbox::Sandbox;
use crate::metrics::Metrics;

/// Returns what kills the instance in `sandbox` when a page of it is lost. `owner` is the name of the memory's owner,
/// and `code` the error code that the instance dies with.
pub(crate) fn kill_on_lost_page(
    metrics: &Arc<Metrics>,
    instance: &Arc<Instance>,
    sandbox: &Arc<Sandbox>,
    owner: String,
    code: ErrorCode,
) -> OnLost {
    let (judged, sandbox) = (Arc::downgrade(instance), Arc::downgrade(sandbox));
    let metrics = Arc::clone(metrics);
    Box::new(move |lost: LostPage| {
        tracing::error!(of = owner, error = %lost, "a page is lost; the instance is killed");
        metrics.page_lost();
        let message = match code {
            // Callers see this. Where the memory was to come from is the operator's to know.
            ErrorCode::MigrationLost => format!("memory of {owner} cannot be read, so the instance was killed"),
            _ => format!("memory of {owner} cannot be read, so the instance was killed: {lost}"),
        };
        if let Some(instance) = judged.upgrade() {
            instance.judge(ApiError::new(code, message));
        }
        if let Some(sandbox) = sandbox.upgrade() {
            sandbox.kill();
        }
    })
}
