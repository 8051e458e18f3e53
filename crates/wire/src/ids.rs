//! Ids and names, one type each, validated when parsed. Copies share their text, because the scheduler keeps the same
//! id in several places.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Maximum length of a function name: it must fit in a DNS label with a prefix.
pub const FUNCTION_NAME_MAX: usize = 48;

/// Maximum length of a namespace: it is a DNS label.
pub const NAMESPACE_MAX: usize = 63;

/// Maximum length of an alias: with `--` and a function's name it must fit in a DNS label.
pub const ALIAS_MAX: usize = 13;

/// Maximum length of a secret's name.
pub const SECRET_NAME_MAX: usize = 64;

/// Maximum length of a schedule's name.
pub const SCHEDULE_NAME_MAX: usize = 48;

/// Maximum length of a source's name.
pub const SOURCE_NAME_MAX: usize = 48;

/// The alias of what a function's plain URL serves.
pub const LIVE: &str = "live";

/// The namespace of whatever names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Why a name or id was rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseIdError {
    /// A function name is empty, too long, or has a character that is not valid in a host name.
    #[error(
        "function name \"{0}\" is not usable: use 1 to {FUNCTION_NAME_MAX} of a-z, 0-9 and '-', starting with a letter \
         and not ending with '-'"
    )]
    FunctionName(String),
    /// A namespace is empty, too long, or has a character that is not valid in a host name.
    #[error(
        "namespace \"{0}\" is not usable: use 1 to {NAMESPACE_MAX} of a-z, 0-9 and '-', starting with a letter, not \
        ending with '-' and without \"--\""
    )]
    Namespace(String),
    /// An alias is empty, too long, or has a character that is not valid in a host name.
    #[error(
        "alias \"{0}\" is not usable: use 1 to {ALIAS_MAX} of a-z, 0-9 and '-', starting with a letter, not ending \
        with '-' and without \"--\""
    )]
    Alias(String),
    /// A schedule's name is empty, too long, or has a character that is none of a path's.
    #[error(
        "schedule \"{0}\" is not usable: use 1 to {SCHEDULE_NAME_MAX} of a-z, 0-9 and '-', starting with a letter and \
        not ending with '-'"
    )]
    Schedule(String),
    /// A source's name is empty, too long, or has a character that is none of a path's.
    #[error(
        "source \"{0}\" is not usable: use 1 to {SOURCE_NAME_MAX} of a-z, 0-9 and '-', starting with a letter and \
        not ending with '-'"
    )]
    Source(String),
    /// A secret's name is empty, too long, taken by the platform, or no environment variable's.
    #[error(
        "secret \"{0}\" is not usable: use 1 to {SECRET_NAME_MAX} of A-Z, 0-9 and '_', not starting with a \
        digit; PORT and FN_… are the platform's"
    )]
    Secret(String),
    /// A version is no number.
    #[error("\"{0}\" is no version: use a number that `fn versions` lists, without zeros before it")]
    Version(String),
    /// An id lacks its prefix or does not have the prefix's format.
    #[error("\"{0}\" is not an id of the form {1}-…")]
    Id(String, &'static str),
}

/// Whether the text is `[a-z][a-z0-9-]*` without a hyphen at its end.
pub(crate) fn is_label(text: &str, max: usize) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=max).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.chars().all(allowed)
}

/// Implements conversions of a type that is a text, given its `FromStr`.
macro_rules! text_type {
    ($name:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(named: $name) -> Self {
                named.as_str().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// A function's name: `[a-z][a-z0-9-]*`, at most [`FUNCTION_NAME_MAX`] characters, because it must fit in a host name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "hello")]
pub struct FunctionName(Arc<str>);

pub(crate) use text_type;

text_type!(FunctionName);

impl FromStr for FunctionName {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match is_label(text, FUNCTION_NAME_MAX) {
            true => Ok(Self(text.into())),
            false => Err(ParseIdError::FunctionName(text.to_owned())),
        }
    }
}

/// A set of functions, within which each has its own name: like a function's name, at most [`NAMESPACE_MAX`] characters
/// and without `--`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "default")]
pub struct Namespace(Arc<str>);

text_type!(Namespace);

impl Default for Namespace {
    fn default() -> Self {
        Self(DEFAULT_NAMESPACE.into())
    }
}

impl FromStr for Namespace {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match is_label(text, NAMESPACE_MAX) && !text.contains("--") {
            true => Ok(Self(text.into())),
            false => Err(ParseIdError::Namespace(text.to_owned())),
        }
    }
}

/// Another name of one version of a function, or of several that share its invocations: like a function's name, at most
/// [`ALIAS_MAX`] characters and without `--`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "live")]
pub struct AliasName(Arc<str>);

text_type!(AliasName);

impl AliasName {
    /// The alias of what the function's plain URL serves.
    pub fn live() -> Self {
        Self(LIVE.into())
    }

    /// Whether it is the alias of what the function's plain URL serves.
    pub fn is_live(&self) -> bool {
        &*self.0 == LIVE
    }
}

impl FromStr for AliasName {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `xn--NAME` is how hosts write other alphabets.
        match is_label(text, ALIAS_MAX) && !text.contains("--") && text != "xn" {
            true => Ok(Self(text.into())),
            false => Err(ParseIdError::Alias(text.to_owned())),
        }
    }
}

/// A function's identity. As text it is `NAME` in the default namespace and `NAME.NAMESPACE` in any other, as in its
/// host. That is safe in a path, a file's name and a key of the store, and is parsed back; `NAME.default` is `NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "hello")]
pub struct FunctionId(Arc<str>);

text_type!(FunctionId);

impl FunctionId {
    /// The function with this name in this namespace.
    pub fn new(namespace: &Namespace, name: &FunctionName) -> Self {
        match namespace.as_str() {
            DEFAULT_NAMESPACE => Self(Arc::clone(&name.0)),
            namespace => Self(format!("{name}.{namespace}").into()),
        }
    }

    /// Its name, unique in its namespace.
    pub fn name(&self) -> &str {
        self.parts().0
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.parts().1
    }

    /// Its name and its namespace, if that is not the default one: as in a path of the admin API.
    pub fn split(&self) -> (FunctionName, Option<Namespace>) {
        let (name, namespace) = self.parts();
        let in_other = (namespace != DEFAULT_NAMESPACE).then(|| Namespace(namespace.into()));
        (FunctionName(name.into()), in_other)
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once('.').unwrap_or((&self.0, DEFAULT_NAMESPACE))
    }
}

impl FromStr for FunctionId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('.') {
            None => Ok(Self::new(&Namespace::default(), &text.parse()?)),
            Some((name, namespace)) => Ok(Self::new(&namespace.parse()?, &name.parse()?)),
        }
    }
}

/// A version of a function, counted from 1. What it refers to never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct VersionNumber(pub u32);

impl fmt::Display for VersionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which versions of a function an invocation is for: what follows `@` in `NAME@8` and `NAME@canary`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// This version.
    Version(VersionNumber),
    /// One of those that this alias names.
    Alias(AliasName),
}

impl Default for Selector {
    fn default() -> Self {
        Self::Alias(AliasName::live())
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => version.fmt(f),
            Self::Alias(alias) => alias.fmt(f),
        }
    }
}

impl FromStr for Selector {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return text.parse().map(Self::Alias);
        }
        // Exactly as it is printed: one version has one address.
        let number = text.parse().ok().filter(|n: &u32| n.to_string() == text);
        let number = number.ok_or_else(|| ParseIdError::Version(text.to_owned()))?;
        Ok(Self::Version(VersionNumber(number)))
    }
}

/// 128 bits, starting with the time, as hexadecimal digits.
fn timed() -> String {
    Uuid::now_v7().simple().to_string()
}

/// Milliseconds since the Unix epoch and 128 random bits, as hexadecimal digits. Later ids sort after earlier ones, and
/// nobody can guess one.
fn unguessable() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ms = now.map_or(0, |now| now.as_millis()) & 0xffff_ffff_ffff;
    format!("{ms:012x}{:032x}", rand::random::<u128>())
}

macro_rules! prefixed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        prefixed_id!($(#[$doc])* $name, $prefix, timed);
    };
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $digits:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String)]
        pub struct $name(Arc<str>);

        impl $name {
            /// A new id: the prefix and hexadecimal digits, starting with the time.
            pub fn generate() -> Self {
                Self(format!(concat!($prefix, "-{}"), $digits()).into())
            }
        }

        text_type!($name);

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let rest = text.strip_prefix(concat!($prefix, "-"));
                let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
                match rest {
                    Some(rest) if (1..=64).contains(&rest.len()) && rest.chars().all(allowed) => {
                        Ok(Self(text.into()))
                    }
                    _ => Err(ParseIdError::Id(text.to_owned(), $prefix)),
                }
            }
        }
    };
}

prefixed_id!(
    /// A running copy of a function version.
    InstanceId,
    "i"
);
prefixed_id!(
    /// A snapshot: manifest, page maps and chunks.
    SnapshotId,
    "s"
);
prefixed_id!(
    /// A host that runs sandboxes.
    WorkerId,
    "w"
);
prefixed_id!(
    /// A migration of an instance to another host.
    MigrationId,
    "m"
);
prefixed_id!(
    /// A running gateway. Leases belong to it, and a restart gives it another id.
    GatewayId,
    "g"
);
prefixed_id!(
    /// An invocation, as reported to the user in `X-Request-Id`.
    RequestId,
    "r"
);

prefixed_id!(
    /// An asynchronous invocation. Anyone who knows the id may fetch the result of the call: it has 128 random bits.
    CallId,
    "a",
    unguessable
);

impl RequestId {
    /// Like [`Self::generate`], without a system call: each request gets one, and they need not be sorted.
    pub fn quick() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        let id = uuid::Builder::from_unix_timestamp_millis(ms, &rand::random()).into_uuid();
        Self(format!("r-{}", id.simple()).into())
    }
}

#[cfg(test)]
mod tests;
