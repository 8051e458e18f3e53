//! The secrets of an instance. Whatever takes its sandbox gives it these.

use std::sync::Arc;

use rekindle_wire::{ApiError, ErrorCode, Secret};

use super::lifecycle::Instance;
use crate::errors::unavailable;

impl Instance {
    /// Gives it secrets in place of any others. Each sandbox that it takes from then on has them.
    pub(crate) fn give_secrets(&self, secrets: Vec<Secret>) {
        *self.secrets.lock() = secrets.into();
    }

    /// Returns the secrets that it was given.
    pub(crate) fn secrets(&self) -> Arc<[Secret]> {
        Arc::clone(&self.secrets.lock())
    }

    /// Returns the revision of the secrets in its sandbox, if it runs and has any.
    pub(crate) fn secrets_revision(&self) -> Option<u64> {
        self.running()
            .map(|running| running.sandbox.secrets_revision())
            .filter(|revision| *revision > 0)
    }

    /// Gives it other secrets while it runs, and each sandbox that it takes from then on.
    ///
    /// # Errors
    /// Returns `conflict` while it starts, and what the sandbox refuses.
    pub(crate) async fn change_secrets(&self, secrets: Vec<Secret>) -> Result<(), ApiError> {
        let Some(running) = self.running() else {
            let message = format!("instance {} is starting", self.id);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        };
        self.give_secrets(secrets);
        let given = running.sandbox.set_secrets(&self.secrets()).await;
        given.map_err(|e| unavailable("give the function its secrets", &e))
    }
}
