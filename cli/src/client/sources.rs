//! Calls about sources of events.

use anyhow::Result;
use rekindle_wire::FunctionId;
use rekindle_wire::api::SourceInfo;
use rekindle_wire::interface::users::ListSources;

use super::Client;

impl Client {
    /// The sources of a function, or of all of the namespace.
    pub(crate) async fn sources(&self, function: Option<&FunctionId>) -> Result<Vec<SourceInfo>> {
        let wanted = match function.map(FunctionId::split) {
            Some((name, namespace)) => ListSources {
                function: Some(name),
                namespace,
            },
            None => ListSources {
                function: None,
                namespace: self.other_namespace(),
            },
        };
        self.ask(&wanted).await
    }
}
