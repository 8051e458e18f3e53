//! Who is told what became of an invocation: a function of the same namespace, or an address in the web.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::asynchronous::CALLBACK_MAX;
use crate::ids::FunctionName;

/// The media type of what a destination is sent.
pub const EVENT: &str = "application/cloudevents+json";

/// A destination, written as a function's name or as a URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Destination {
    /// A function of the namespace, which is invoked asynchronously.
    Function(FunctionName),
    /// A URL that callbacks may reach.
    Url(String),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return check_callback(text).map(|()| Self::Url(text.to_owned()));
        }
        let name = text.parse().map(Self::Function);
        name.map_err(|e| format!("{e}; a destination is a function of the same namespace, or a URL"))
    }
}

impl TryFrom<String> for Destination {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Destination> for String {
    fn from(destination: Destination) -> Self {
        destination.to_string()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name) => name.fmt(f),
            Self::Url(url) => f.write_str(url),
        }
    }
}

/// Checks that a text is a valid callback URL: an absolute `http` or `https` URL without user and password.
///
/// # Errors
/// If the text is not valid. The message says why.
pub fn check_callback(text: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("\"{text}\" is no address for a callback: {why}"));
    if text.len() > CALLBACK_MAX {
        return Err(format!("a callback's address has at most {} bytes", CALLBACK_MAX));
    }
    let Ok(uri) = text.parse::<http::Uri>() else {
        return wrong("write http://HOST/PATH or https://HOST/PATH");
    };
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            wrong("leave out the user and the password")
        }
        (Some("http" | "https"), Some(authority)) if !authority.host().is_empty() => Ok(()),
        _ => wrong("write http://HOST/PATH or https://HOST/PATH"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_a_function_or_an_address() {
        for text in ["audit", "https://example.com/done"] {
            let read: Destination = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
            let json = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Destination>(&json).unwrap(), read);
        }
        for wrong in [
            "",
            "Audit",
            "audit.team",
            "ftp://example.com/",
            "https://u:p@example.com/",
        ] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }
}
