//! Where the memory of a snapshot's copies comes from.

use std::collections::HashMap;
use std::sync::Arc;

use rekindle_pager::{AheadPage, PageSource};
use rekindle_wire::{ApiError, ErrorCode, FunctionId};

use crate::criu::memory::{OnLost, RestoredMemory};
use crate::snapshots::{MAPPED_MAX, OpenSnapshot, WorkingSetUse};

/// Returns where the memory of a copy comes from: the snapshot's template.
///
/// # Errors
/// Returns `restore_failed` when no pager can serve it.
pub(super) fn restored_memory(
    snapshot: &OpenSnapshot,
    function: &FunctionId,
    working_set: WorkingSetUse,
    ahead: Arc<[AheadPage]>,
    on_lost: OnLost,
) -> Result<RestoredMemory, ApiError> {
    let template = &snapshot.template;
    let layout = template.layout().ok_or_else(|| {
        let message = match template.pids().len() {
            count if count > MAPPED_MAX => {
                format!("it has {count} processes: copies of at most {MAPPED_MAX} are made")
            }
            _ => "some of its memory is neither anonymous nor of a file: no pager can serve that".to_owned(),
        };
        ApiError::new(ErrorCode::RestoreFailed, message)
    })?;
    Ok(RestoredMemory {
        function: function.clone(),
        source: Arc::clone(template) as Arc<dyn PageSource>,
        pids: template.pids(),
        layout,
        maps: HashMap::new(),
        record: working_set.records,
        on_lost,
        ahead: Box::new(|| ahead),
    })
}
