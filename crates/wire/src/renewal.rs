//! Renewal of snapshots: what each was made with, and why it must be replaced.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a worker makes snapshots with. A snapshot that was made with anything else is outdated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeWith {
    /// The system call filter of functions: BLAKE3 of its program in hexadecimal.
    pub filter: String,
    /// The format number of the images, which increases with other changes to them.
    pub form: u32,
}

impl MadeWith {
    /// Why a snapshot made with `made` is outdated now that snapshots are made with `self`. `None` if it is not.
    #[must_use]
    pub fn outdates(&self, made: Option<&Self>) -> Option<RenewalReason> {
        match made {
            None => Some(RenewalReason::Unrecorded),
            Some(made) if made.form != self.form => Some(RenewalReason::Form),
            Some(made) if made.filter != self.filter => Some(RenewalReason::Filter),
            Some(_) => None,
        }
    }
}

impl fmt::Display for MadeWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filter = self.filter.get(..8).unwrap_or(&self.filter);
        write!(f, "form {} with filter {filter}", self.form)
    }
}

/// Why a snapshot must be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RenewalReason {
    /// An earlier version made it, which did not record what it was made with.
    Unrecorded,
    /// Its processes are under a different system call filter than functions get now.
    Filter,
    /// Its images have a different format.
    Form,
    /// A worker rejected its images, so its version is booted.
    Refused,
    /// A user requested it.
    Asked,
}

impl RenewalReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::Unrecorded, Self::Filter, Self::Form, Self::Refused, Self::Asked];

    /// The reason as one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unrecorded => "unrecorded",
            Self::Filter => "filter",
            Self::Form => "form",
            Self::Refused => "refused",
            Self::Asked => "asked",
        }
    }
}

impl fmt::Display for RenewalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RenewalReason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        let known = Self::ALL.into_iter().find(|reason| reason.as_str() == text);
        known.ok_or_else(|| UnknownReason(text.to_owned()))
    }
}

/// No reason has this name.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is no reason to make a snapshot anew")]
pub struct UnknownReason(String);

/// A version whose snapshot must be renewed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Renewal {
    /// The cause.
    pub reason: RenewalReason,
    /// The reason as a sentence.
    pub why: String,
    /// When this became necessary, in seconds since the Unix epoch.
    pub since_unix_s: i64,
    /// Earliest time of the next attempt, in seconds since the Unix epoch.
    pub due_unix_s: i64,
    /// Number of failed attempts.
    pub attempts: u32,
    /// Whether there were so many failures that no further attempt is made automatically.
    pub given_up: bool,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_outdated_by_what_it_was_made_with() {
        let made = |filter: &str, form| MadeWith {
            filter: filter.to_owned(),
            form,
        };
        let now = made("aa", 2);
        assert_eq!(now.outdates(Some(&made("aa", 2))), None);
        assert_eq!(now.outdates(Some(&made("ab", 2))), Some(RenewalReason::Filter));
        assert_eq!(now.outdates(Some(&made("aa", 1))), Some(RenewalReason::Form));
        assert_eq!(now.outdates(None), Some(RenewalReason::Unrecorded));
    }

    #[test]
    fn a_reason_is_read_as_it_is_written() {
        for reason in RenewalReason::ALL {
            assert_eq!(reason.as_str().parse::<RenewalReason>().unwrap(), reason);
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
        }
    }
}
