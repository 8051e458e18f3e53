//! The root filesystems of runtimes, by name.

use rekindle_snapshotter::{Store, StoreError};
use rekindle_wire::internal::RuntimeAlias;
use rekindle_wire::{ApiError, ErrorCode};

use crate::errors::unavailable;

/// Returns a root filesystem as the store has it now, and the packages in it.
pub(crate) async fn runtime_alias(store: &Store, name: &str) -> Result<RuntimeAlias, ApiError> {
    let key = format!("runtimes/{name}.json");
    let bytes = store.get(&key).await.map_err(|e| {
        let error = unavailable("find the runtime's root filesystem", &e);
        match e {
            StoreError::NotFound { .. } => ApiError::new(
                ErrorCode::BuildFailed,
                format!("{}: the operator must add it: fn runtimes add {name}", error.message),
            ),
            // Another worker may reach the store.
            _ => error,
        }
    })?;
    serde_json::from_slice(&bytes).map_err(|e| unavailable(&format!("read {key}"), &e))
}
