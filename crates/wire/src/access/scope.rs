//! What a role reaches, and what an operation touches.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{FunctionId, FunctionName, Namespace, ParseIdError};

/// A part of the platform. As text it is `*`, `*.NAMESPACE`, or a function's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// All of it: every namespace, and the hosts.
    Platform,
    /// A namespace with all that is in it.
    Namespace(Namespace),
    /// One function.
    Function(FunctionId),
}

/// The text is no scope.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no scope: use *, *.NAMESPACE, NAME or NAME.NAMESPACE")]
pub struct ParseScopeError(String);

impl Scope {
    /// The scope that a namespace and a function's name give. A function without a namespace is in the default one.
    pub fn of(namespace: Option<Namespace>, function: Option<&FunctionName>) -> Self {
        match (namespace, function) {
            (None, None) => Self::Platform,
            (Some(namespace), None) => Self::Namespace(namespace),
            (namespace, Some(name)) => Self::Function(FunctionId::new(&namespace.unwrap_or_default(), name)),
        }
    }

    /// Whether all of `other` is in it.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Platform, _) => true,
            (Self::Namespace(own), Self::Namespace(other)) => own == other,
            (Self::Namespace(own), Self::Function(other)) => own.as_str() == other.namespace(),
            (Self::Function(own), Self::Function(other)) => own == other,
            _ => false,
        }
    }

    /// Whether any of the namespace is in it.
    pub fn meets(&self, namespace: &Namespace) -> bool {
        match self {
            Self::Platform => true,
            Self::Namespace(own) => own == namespace,
            Self::Function(own) => own.namespace() == namespace.as_str(),
        }
    }

    /// Its namespace, unless it is the platform.
    pub fn namespace(&self) -> Option<Namespace> {
        match self {
            Self::Platform => None,
            Self::Namespace(namespace) => Some(namespace.clone()),
            Self::Function(function) => Some(function.split().1.unwrap_or_default()),
        }
    }

    /// Its place among scopes by how wide they are, the widest first.
    pub(super) fn breadth(&self) -> u8 {
        match self {
            Self::Platform => 0,
            Self::Namespace(_) => 1,
            Self::Function(_) => 2,
        }
    }

    /// The name of its function, if it is one.
    pub fn function(&self) -> Option<FunctionName> {
        match self {
            Self::Function(function) => Some(function.split().0),
            Self::Platform | Self::Namespace(_) => None,
        }
    }

    /// The scope in words.
    pub fn in_words(&self) -> String {
        match self {
            Self::Platform => "the whole platform".to_owned(),
            Self::Namespace(namespace) => format!("the namespace {namespace}"),
            Self::Function(function) => format!("the function {function}"),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform => f.write_str("*"),
            Self::Namespace(namespace) => write!(f, "*.{namespace}"),
            Self::Function(function) => function.fmt(f),
        }
    }
}

impl FromStr for Scope {
    type Err = ParseScopeError;

    fn from_str(text: &str) -> Result<Self, ParseScopeError> {
        let refused = |_: ParseIdError| ParseScopeError(text.to_owned());
        match (text, text.strip_prefix("*.")) {
            ("*", _) => Ok(Self::Platform),
            (_, Some(namespace)) => namespace.parse().map(Self::Namespace).map_err(refused),
            (function, None) => function.parse().map(Self::Function).map_err(refused),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = ParseScopeError;

    fn try_from(text: String) -> Result<Self, ParseScopeError> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_covers_what_is_in_it_and_nothing_beside_it() {
        let texts = ["*", "*.default", "*.team", "hello", "other", "hello.team"];
        let covers = |own: &str, other: &str| {
            let [own, other] = [own, other].map(|text| text.parse::<Scope>().unwrap());
            own.covers(&other)
        };
        let table = [
            ("*", texts.to_vec()),
            ("*.default", vec!["*.default", "hello", "other"]),
            ("*.team", vec!["*.team", "hello.team"]),
            ("hello", vec!["hello"]),
            ("hello.team", vec!["hello.team"]),
        ];
        for (own, all) in table {
            let covered: Vec<_> = texts.into_iter().filter(|other| covers(own, other)).collect();
            assert_eq!(covered, all, "{own}");
        }
    }

    #[test]
    fn a_scope_is_read_back_from_its_text() {
        for text in ["*", "*.default", "*.team-a", "hello", "hello.team"] {
            let scope: Scope = text.parse().unwrap();
            assert_eq!(scope.to_string(), text);
            assert_eq!(Scope::of(scope.namespace(), scope.function().as_ref()), scope);
        }
        for text in ["", "*.", "**", "*.a.b", "Hello", "a b", "*.*"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
    }
}
