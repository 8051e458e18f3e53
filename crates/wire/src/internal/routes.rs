//! What gateways are told of functions.

use serde::{Deserialize, Serialize};

use crate::api::Alias;
use crate::function_config::{Auth, Cors, TokenRule};
use crate::ids::{FunctionId, VersionNumber};

/// What functions' aliases name, so that a gateway can choose a version for each invocation, and who may invoke them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutesResponse {
    /// The scheduler's lead. Revisions of different leads have nothing in common.
    pub epoch: String,
    /// The revision that the gateway has when it has applied this.
    pub revision: u64,
    /// The functions that have changed since the gateway's revision. All of them if it has none of this epoch.
    pub functions: Vec<FunctionRoutes>,
}

/// What a gateway knows of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionRoutes {
    /// The function.
    pub function: FunctionId,
    /// Its aliases.
    pub aliases: Vec<Alias>,
    /// What its callers must show. None if the function is gone, or from an earlier version of the scheduler.
    /// [`Auth::Key`] if tokens do as well, so that an earlier version of the gateway asks for a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// The tokens that do as well as a key: one that all of these rules are met by. None do if there is no rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenRule>,
    /// Whether functions of its own namespace may call it without a key or a token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open_to_functions: bool,
    /// Which pages of other origins may call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cors: Option<Cors>,
    /// Its versions that take bodies of any length. None from an earlier version of the scheduler.
    #[serde(default, skip_serializing_if = "StreamingVersions::is_empty")]
    pub streaming: StreamingVersions,
}

/// Versions that read a request's body while it comes, so that it may have any length. Since functions seldom change
/// how they take invocations, it is a list of changes. From the first number on versions do, from the second on they do
/// not, and so on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamingVersions(Vec<VersionNumber>);

impl StreamingVersions {
    /// The list for these versions, in the order of their numbers, each with whether it does.
    pub fn of(versions: impl IntoIterator<Item = (VersionNumber, bool)>) -> Self {
        let mut changes = Vec::new();
        for (version, streams) in versions {
            if streams != (changes.len() % 2 == 1) {
                changes.push(version);
            }
        }
        Self(changes)
    }

    /// Whether the version does.
    pub fn has(&self, version: VersionNumber) -> bool {
        self.0.partition_point(|change| *change <= version) % 2 == 1
    }

    /// Whether no version does.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_stream_are_listed_by_their_changes() {
        for (streams, listed) in [
            (&[][..], "[]"),
            (&[false, false], "[]"),
            (&[true, true, true], "[1]"),
            (&[false, true, true, false, true], "[2,4,5]"),
        ] {
            let numbered = || (1..).map(VersionNumber).zip(streams.iter().copied());
            let list = StreamingVersions::of(numbered());
            assert_eq!(serde_json::to_string(&list).unwrap(), listed);
            for (version, streams) in numbered() {
                assert_eq!(list.has(version), streams, "{version} of {listed}");
            }
        }
        assert!(!StreamingVersions::default().has(VersionNumber(1)));
    }
}
