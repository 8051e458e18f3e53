//! Snapshots that are made anew: with what each was made, and why another is to take its place.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a worker makes snapshots with. A snapshot that was made with anything else is outdated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeWith {
    /// The system call filter of functions: BLAKE3 of its program, in hexadecimal.
    pub filter: String,
    /// The form of the images, which counts what else of them has changed.
    pub form: u32,
}

impl MadeWith {
    /// Why a snapshot that was `made` with that is outdated where snapshots are made with this; `None` if it is not.
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

/// Why a snapshot is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RenewalReason {
    /// It does not say what it was made with: an earlier version made it.
    Unrecorded,
    /// Its processes are under another system call filter than functions get now.
    Filter,
    /// Its images are of another form.
    Form,
    /// A worker refused its images, so that its version is booted.
    Refused,
    /// Somebody asked for it.
    Asked,
}

impl RenewalReason {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Unrecorded, Self::Filter, Self::Form, Self::Refused, Self::Asked];

    /// The reason in a word.
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

/// No reason is called so.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is no reason to make a snapshot anew")]
pub struct UnknownReason(String);

/// A version whose snapshot is to be made anew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Renewal {
    /// The cause.
    pub reason: RenewalReason,
    /// The same in a sentence.
    pub why: String,
    /// Since when, seconds since the Unix epoch.
    pub since_unix_s: i64,
    /// Not before, seconds since the Unix epoch.
    pub due_unix_s: i64,
    /// Attempts that failed.
    pub attempts: u32,
    /// Whether there have been so many that none follows by itself.
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
