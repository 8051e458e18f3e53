//! Why a request has no response that can be passed on.

use std::time::Duration;

use rekindle_relay::{HeadLimits, SendError};
use rekindle_wire::function_config::Protocol;
use rekindle_wire::{ApiError, ErrorCode};

use super::lifecycle::{Instance, InstanceStage, gone};

impl Instance {
    /// Returns why a request has no response. If the connection broke, waits briefly for the news that the process
    /// ended. A request that was not sent can go to another instance, unless it is the `first` here: its instance may
    /// end whenever it starts, which is to be told.
    pub async fn no_answer(&self, error: &SendError, first: bool) -> ApiError {
        if matches!(error, SendError::Malformed(_) | SendError::HeadTooLarge) {
            return self.broke_off(error);
        }
        let is_unsent = matches!(error, SendError::Connect(_));
        let is_unseen = is_unsent || matches!(error, SendError::Refused(_));
        let may_go_elsewhere = is_unseen || self.spec.config.idempotent;
        match self.end_soon().await {
            Some(_) if is_unsent && !first => gone(),
            Some(why) if why.code == ErrorCode::InstanceGone && !may_go_elsewhere => ApiError::new(
                ErrorCode::FunctionCrashed,
                "the instance was stopped before it had answered: the invocation may have run",
            ),
            Some(why) => why,
            None => self.broke_off(error),
        }
    }

    /// Waits briefly for its end, and returns the reason.
    pub(super) async fn end_soon(&self) -> Option<ApiError> {
        let mut stage = self.stages();
        let ended = stage.wait_for(|s| matches!(s, InstanceStage::Ended(_)));
        match tokio::time::timeout(Duration::from_millis(500), ended).await {
            Ok(Ok(stage)) => match &*stage {
                InstanceStage::Ended(Some(why)) => Some(why.clone()),
                _ => Some(gone()),
            },
            _ => None,
        }
    }

    /// Builds the response for a request whose instance keeps running.
    fn broke_off(&self, error: &SendError) -> ApiError {
        let HeadLimits { lines, bytes } = HeadLimits::FUNCTION;
        match error {
            SendError::Connect(_) => ApiError::new(
                ErrorCode::FunctionCrashed,
                "the function takes no connections any more; look at `fn logs`",
            ),
            SendError::HeadTooLarge => self.invalid_response(format!(
                "an answer's headers are above {} KiB or {lines} lines, the limit, or its content-length is no \
                 length: put large values into the body",
                bytes >> 10
            )),
            SendError::Malformed(cause) => self.invalid_response(format!(
                "an answer is no HTTP/1.1: {cause}; a function that serves HTTP/2 needs protocol = \"h2c\" in fn.toml"
            )),
            SendError::Broken(cause) | SendError::Refused(cause) if self.spec.config.protocol == Protocol::H2c => {
                let cause = std::error::Error::source(cause).map_or_else(|| cause.to_string(), ToString::to_string);
                self.invalid_response(format!(
                    "the function ended a request before it had answered ({cause}): look at `fn logs`, and whether it \
                     serves HTTP/2 in clear, as protocol = \"h2c\" in fn.toml says"
                ))
            }
            SendError::Broken(_) | SendError::Refused(_) => {
                self.invalid_response("the function closed a connection before it had answered; look at `fn logs`")
            }
        }
    }

    /// Builds the response for a request whose own response cannot be passed on, and logs why.
    pub fn invalid_response(&self, message: impl Into<String>) -> ApiError {
        let message = message.into();
        self.sink.platform(&message);
        ApiError::new(ErrorCode::InvalidResponse, message)
    }
}
