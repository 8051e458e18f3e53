//! Calls about asynchronous invocations.

use anyhow::Result;
use rekindle_wire::asynchronous::{AsyncCall, CallState, Changed};
use rekindle_wire::interface::users::{ListCalls, RemoveCall, RetryCall, RetryCalls, ShowCall};
use rekindle_wire::{CallId, FunctionId};

use super::Client;

impl Client {
    /// Asynchronous invocations, newest first.
    pub(crate) async fn calls(
        &self,
        function: Option<&FunctionId>,
        state: Option<CallState>,
        limit: u32,
    ) -> Result<Vec<AsyncCall>> {
        let wanted = ListCalls {
            function: function.cloned(),
            state,
            before: None,
            limit: Some(limit),
        };
        self.ask(&wanted).await
    }

    pub(crate) async fn async_call(&self, id: &CallId) -> Result<AsyncCall> {
        self.ask(&ShowCall { id: id.clone() }).await
    }

    /// Queues a dead letter again.
    pub(crate) async fn retry_call(&self, id: &CallId) -> Result<AsyncCall> {
        self.ask(&RetryCall { id: id.clone() }).await
    }

    /// Queues all dead letters of a function again.
    pub(crate) async fn retry_dead_calls(&self, name: &FunctionId) -> Result<Changed> {
        let (name, namespace) = name.split();
        self.ask(&RetryCalls { name, namespace }).await
    }

    pub(crate) async fn remove_call(&self, id: &CallId) -> Result<()> {
        self.ask(&RemoveCall { id: id.clone() }).await
    }
}
