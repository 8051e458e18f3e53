//! A function, as the command line names it.

use std::str::FromStr;

use rekindle_wire::ids::ParseIdError;
use rekindle_wire::{FunctionId, FunctionName, Namespace};

/// `NAME`, in the namespace of `--namespace`, or `NAME.NAMESPACE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FunctionArg {
    Name(FunctionName),
    Id(FunctionId),
}

impl FunctionArg {
    /// The function, given the namespace of those that name none.
    pub(crate) fn within(&self, namespace: &Namespace) -> FunctionId {
        match self {
            Self::Name(name) => FunctionId::new(namespace, name),
            Self::Id(id) => id.clone(),
        }
    }
}

impl FromStr for FunctionArg {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        match text.contains('.') {
            true => text.parse().map(Self::Id),
            false => text.parse().map(Self::Name),
        }
    }
}
