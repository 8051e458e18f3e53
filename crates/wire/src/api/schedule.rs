//! Schedules, as users see them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{CallId, FunctionId, VersionNumber};
use crate::schedule::{Missed, Overlap, ScheduleName};

/// A schedule of a version that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleInfo {
    /// The function.
    pub function: FunctionId,
    /// Its name.
    pub name: ScheduleName,
    /// The version whose fn.toml has it.
    pub version: VersionNumber,
    /// The cron expression.
    pub cron: String,
    /// The time zone that it is read in.
    pub timezone: String,
    /// What happens to a run that is due while the one before goes on.
    pub overlap: Overlap,
    /// What happens to runs that were missed.
    pub missed: Missed,
    /// Whether it is paused.
    pub paused: bool,
    /// When its next run is due, in milliseconds since the Unix epoch. `None` if it is paused, or never.
    pub next_unix_ms: Option<i64>,
    /// Number of runs that are due and wait for the one before.
    pub waiting: u32,
    /// Its last run. `run` is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduledRun>,
}

/// A run that was due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduledRun {
    /// When it was due, in milliseconds since the Unix epoch.
    pub due_unix_ms: i64,
    /// When it was queued, in milliseconds since the Unix epoch.
    pub fired_unix_ms: i64,
    /// Its asynchronous call. `None` if an earlier leader had queued it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
}
