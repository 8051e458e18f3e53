//! What namespaces have used, by day.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{FunctionName, VersionNumber};

/// Number of days for which usage is kept.
pub const USAGE_DAYS_MAX: u32 = 400;
/// Largest number of lines in an answer.
pub const USAGE_LINES_MAX: usize = 50_000;

/// What lines of usage are apart by: any of `day`, `function` and `version`, separated by commas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "day,function")]
pub struct UsageBy(u8);

impl UsageBy {
    /// A line for each day.
    pub const DAY: Self = Self(1);
    /// A line for each function.
    pub const FUNCTION: Self = Self(2);
    /// A line for each version.
    pub const VERSION: Self = Self(4);
    const WORDS: [(Self, &str); 3] = [
        (Self::DAY, "day"),
        (Self::FUNCTION, "function"),
        (Self::VERSION, "version"),
    ];

    /// Whether lines are apart by this part.
    pub fn has(self, part: Self) -> bool {
        self.0 & part.0 != 0
    }
}

impl Default for UsageBy {
    fn default() -> Self {
        Self(Self::DAY.0 | Self::FUNCTION.0)
    }
}

impl FromStr for UsageBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut by = Self(0);
        for word in text.split(',') {
            let known = Self::WORDS.iter().find(|(_, known)| *known == word.trim());
            let Some((part, _)) = known else {
                return Err(format!("\"{word}\" is no part of usage: use day, function or version"));
            };
            by.0 |= part.0;
        }
        if by.has(Self::VERSION) {
            // Each function has versions of its own.
            by.0 |= Self::FUNCTION.0;
        }
        Ok(by)
    }
}

impl TryFrom<String> for UsageBy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<UsageBy> for String {
    fn from(by: UsageBy) -> Self {
        by.to_string()
    }
}

impl fmt::Display for UsageBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Self::WORDS.iter().filter(|(part, _)| self.has(*part));
        let words: Vec<_> = words.map(|(_, word)| *word).collect();
        f.write_str(&words.join(","))
    }
}

/// What a namespace, or a part of it, has used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageLine {
    /// The day by UTC, such as `2026-11-26`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The function. It may be deleted by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionName>,
    /// The version. Storage belongs to no version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionNumber>,
    /// Number of invocations that were answered below 500.
    pub ok: u64,
    /// Number of invocations that an instance took, and that failed or were answered 500 or more.
    pub errors: u64,
    /// Memory limit of the instance times duration, by how the invocation's instance was obtained.
    pub gb_ms: GbMs,
    /// Bytes of answers' bodies.
    pub egress_bytes: u64,
    /// Bytes of uploaded folders, layers and snapshots, times hours, in GiB-hours.
    pub stored_gb_h: f64,
}

/// Gigabyte-milliseconds by start kind: a gigabyte is 1,024 MiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GbMs {
    /// In an idle instance.
    pub warm: f64,
    /// In a parked instance.
    pub parked: f64,
    /// In an instance restored for the invocation.
    pub restored: f64,
    /// In an instance booted for the invocation.
    pub booted: f64,
}

impl GbMs {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.warm + self.parked + self.restored + self.booted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lines_are_apart_by_is_read_back() {
        for text in [
            "day",
            "function",
            "day,function",
            "function,version",
            "day,function,version",
        ] {
            assert_eq!(text.parse::<UsageBy>().unwrap().to_string(), text);
        }
        assert_eq!("version".parse::<UsageBy>().unwrap().to_string(), "function,version");
        "".parse::<UsageBy>().unwrap_err();
        "week".parse::<UsageBy>().unwrap_err();
    }
}
