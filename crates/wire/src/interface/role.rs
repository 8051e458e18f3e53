//! The roles of the platform.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A role in the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Decides who does what, and signs certificates.
    Scheduler,
    /// Accepts requests.
    Gateway,
    /// Runs functions.
    Worker,
}

impl Role {
    /// The role as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Gateway => "gateway",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Scheduler, Self::Gateway, Self::Worker]
            .into_iter()
            .find(|r| r.as_str() == text)
            .ok_or_else(|| format!("\"{text}\" is not a role: use worker or gateway"))
    }
}
