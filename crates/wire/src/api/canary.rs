//! Canaries: a new version that takes invocations over step by step, as long as it is no worse than the old one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Alias, AliasTarget};
use crate::ids::{AliasName, VersionNumber};

/// Maximum number of steps.
const STEPS_MAX: usize = 20;
/// Steps that follow a first one that is given alone, in percent.
const USUAL: [u32; 3] = [10, 25, 50];
/// Default duration of a step in seconds.
pub const STEP_S: u64 = 60;
/// Longest step in seconds.
pub const STEP_MAX_S: u64 = 86_400;

/// The shares of the invocations that a new version has, one after the other, before it has all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "10,25,50")]
pub struct CanarySteps(Vec<u32>);

/// A text that names no steps.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "\"{0}\" names no steps: write the first share, such as 10%, or up to {STEPS_MAX} that grow, such as 10,25,50; \
     each is 1 to 99 percent"
)]
pub struct ParseStepsError(String);

impl CanarySteps {
    /// The shares in percent.
    pub fn percents(&self) -> &[u32] {
        &self.0
    }
}

impl FromStr for CanarySteps {
    type Err = ParseStepsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseStepsError(text.to_owned());
        let percents = text.split(',').map(|part| part.trim().trim_end_matches('%').parse());
        let mut percents: Vec<u32> = percents.collect::<Result<_, _>>().map_err(|_| wrong())?;
        // All is what comes after the last.
        let are_all = percents.pop_if(|last| *last == 100).is_some();
        if let [first] = percents[..]
            && !are_all
        {
            percents.extend(USUAL.into_iter().filter(|usual| *usual > first));
        }
        let grow = percents.windows(2).all(|pair| pair[0] < pair[1]);
        let are_shares = percents.iter().all(|percent| (1..=99).contains(percent));
        match grow && are_shares && (1..=STEPS_MAX).contains(&percents.len()) {
            true => Ok(Self(percents)),
            false => Err(wrong()),
        }
    }
}

impl TryFrom<String> for CanarySteps {
    type Error = ParseStepsError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CanarySteps> for String {
    fn from(steps: CanarySteps) -> Self {
        steps.to_string()
    }
}

impl fmt::Display for CanarySteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A share alone would be read as the first of the usual ones.
        let all = if self.0.len() == 1 { ",100" } else { "" };
        let steps: Vec<String> = self.0.iter().map(u32::to_string).collect();
        write!(f, "{}{all}", steps.join(","))
    }
}

/// State of a canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CanaryState {
    /// The new version has a share.
    Growing,
    /// The new version has all invocations.
    Live,
    /// The new version was worse: the old one has all invocations again.
    RolledBack,
    /// Another deploy, a rollback, or a change of the alias ended it.
    Replaced,
}

impl CanaryState {
    /// The state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Growing => "growing",
            Self::Live => "live",
            Self::RolledBack => "rolled_back",
            Self::Replaced => "replaced",
        }
    }
}

/// A new version that takes invocations over from an old one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Canary {
    /// The old version.
    pub from: VersionNumber,
    /// The new version.
    pub to: VersionNumber,
    /// Its shares, one after the other.
    pub steps: CanarySteps,
    /// How long each lasts at least, in seconds.
    pub step_s: u64,
    /// The current step, from 0 on.
    pub step: u32,
    /// When it began, in milliseconds since the Unix epoch.
    pub since_unix_ms: i64,
    /// State.
    pub state: CanaryState,
    /// Why the new version was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How often both were compared in this step.
    pub looks: u32,
    /// When they were last compared, in milliseconds since the Unix epoch.
    pub looked_unix_ms: i64,
    /// The last comparison.
    pub checks: Vec<CanaryCheck>,
}

impl Canary {
    /// The new version's share in percent.
    pub fn percent(&self) -> u32 {
        let step = usize::try_from(self.step).unwrap_or(usize::MAX);
        match self.state {
            CanaryState::Growing => self.steps.percents().get(step).copied().unwrap_or(100),
            CanaryState::Live => 100,
            CanaryState::RolledBack | CanaryState::Replaced => 0,
        }
    }

    /// What the alias `live` names.
    pub fn alias(&self) -> Alias {
        let percent = self.percent();
        let targets = [(self.from, 100 - percent), (self.to, percent)];
        let targets = targets.into_iter().filter(|(_, weight)| *weight > 0);
        let mut targets: Vec<_> = targets
            .map(|(version, weight)| AliasTarget { version, weight })
            .collect();
        targets.sort_by_key(|target| target.version);
        Alias {
            name: AliasName::live(),
            targets,
        }
    }
}

/// A comparison of the two versions by Fisher's exact test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CanaryCheck {
    /// `errors`, or the start kind whose slow invocations are compared.
    pub what: String,
    /// Above how many milliseconds an invocation is slow: a quarter and 10 ms more than the old version's p99.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_ms: Option<f64>,
    /// The old version.
    pub old: Compared,
    /// The new version.
    pub new: Compared,
    /// The chance of at least such a difference between versions that are alike.
    pub p: f64,
    /// Below this the new version is rolled back.
    pub limit: f64,
    /// Whether it is below.
    pub worse: bool,
}

/// A version's side of a comparison, since the step began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Compared {
    /// Number of invocations that failed, or were slow.
    pub hits: u64,
    /// Of how many.
    pub of: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_to_all() {
        for (text, percents) in [
            ("10%", &[10, 25, 50][..]),
            ("1", &[1, 10, 25, 50]),
            ("60", &[60]),
            ("5,20%,80,100", &[5, 20, 80]),
            ("30,100", &[30]),
        ] {
            let steps: CanarySteps = text.parse().unwrap();
            assert_eq!(steps.percents(), percents, "{text}");
        }
        for text in ["", "0", "100", "10,10", "50,25", "a", "10,120", "-1"] {
            assert!(text.parse::<CanarySteps>().is_err(), "{text}");
        }
    }
}
