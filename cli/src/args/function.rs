//! A function or a version of it, as the command line names them.

use std::str::FromStr;

use rekindle_wire::ids::ParseIdError;
use rekindle_wire::{FunctionId, FunctionName, Namespace, Selector};

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

/// A function, or `FUNCTION@8` for a version and `FUNCTION@canary` for an alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionArg {
    pub(crate) function: FunctionArg,
    pub(crate) selector: Option<Selector>,
}

impl FromStr for VersionArg {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (function, selector) = match text.split_once('@') {
            None => (text, None),
            Some((function, selector)) => (function, Some(selector.parse()?)),
        };
        Ok(Self {
            function: function.parse()?,
            selector,
        })
    }
}
