//! Schedules of functions: cron expressions, read in a time zone.
//!
//! The rules of Vixie cron hold where clocks change. A fixed time (`30 2 * * *`) that is left out runs at the first
//! moment after the gap, and one that comes twice runs the first time. An interval (`*/10 * * * *`) follows the time
//! that passes: it has no run in the gap, and goes on through an hour that comes twice.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use chrono::{DateTime, TimeZone as _};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::ids::{ParseIdError, SCHEDULE_NAME_MAX, is_label, text_type};

/// Maximum number of a function's schedules.
pub const SCHEDULES_MAX: usize = 20;
/// Maximum size of a payload as JSON, in bytes.
pub const PAYLOAD_MAX: usize = 16 << 10;
/// Maximum length of a cron expression.
pub const CRON_MAX: usize = 200;
/// The name of a function's only schedule.
pub const DEFAULT_SCHEDULE: &str = "default";
/// The time zone of a schedule that names none.
pub const DEFAULT_TIMEZONE: &str = "UTC";

/// A schedule's name, unique in its function: `[a-z][a-z0-9-]*`, at most [`SCHEDULE_NAME_MAX`] characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "nightly")]
pub struct ScheduleName(Arc<str>);

text_type!(ScheduleName);

impl FromStr for ScheduleName {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match is_label(text, SCHEDULE_NAME_MAX) {
            true => Ok(Self(text.into())),
            false => Err(ParseIdError::Schedule(text.to_owned())),
        }
    }
}

impl Default for ScheduleName {
    fn default() -> Self {
        Self(DEFAULT_SCHEDULE.into())
    }
}

/// What happens to a run that is due while the one before goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// It is left out.
    #[default]
    Skip,
    /// It waits for the one before.
    Queue,
}

/// What happens to runs that were due while no scheduler led.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Missed {
    /// They are left out.
    Skip,
    /// The newest of them is run.
    #[default]
    Once,
    /// Each is run, within bounds.
    Each,
}

impl Overlap {
    /// Its name in `fn.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
        }
    }
}

impl Missed {
    /// Its name in `fn.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::Each => "each",
        }
    }
}

/// A schedule of a function, as its `fn.toml` has it. Its expression and its zone have been checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// The cron expression: five fields, or six with seconds first.
    pub cron: String,
    /// The IANA time zone that it is read in.
    pub timezone: String,
    /// What the function gets, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// What happens to a run that is due while the one before goes on.
    #[serde(default)]
    pub overlap: Overlap,
    /// What happens to runs that were missed.
    #[serde(default)]
    pub missed: Missed,
}

impl Schedule {
    /// What its due times follow from. A schedule with another rule begins anew.
    pub fn rule(&self) -> String {
        format!("{} {}", self.cron, self.timezone)
    }
}

/// Why an expression and a zone give no times.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ScheduleError {
    /// The expression cannot be read.
    #[error("cron = \"{cron}\" cannot be read ({why}): write MINUTE HOUR DAY MONTH WEEKDAY, as in \"*/5 * * * *\"")]
    Cron {
        /// The expression.
        cron: String,
        /// What is wrong with it.
        why: String,
    },
    /// No date matches the expression.
    #[error("cron = \"{0}\" never fires: write a day that one of its months has, as in \"0 0 28 2 *\"")]
    Never(String),
    /// There is no such zone.
    #[error("timezone = \"{0}\" is not known: write an IANA name, as in \"Europe/Berlin\" or \"UTC\"")]
    Zone(String),
}

/// An expression and a zone, ready to give times.
#[derive(Clone)]
pub struct Timetable {
    cron: Cron,
    zone: Tz,
}

impl fmt::Debug for Timetable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.cron.as_str(), self.zone)
    }
}

impl Timetable {
    /// Reads an expression and the name of a zone.
    ///
    /// # Errors
    /// If either cannot be read. Whether it ever comes is for [`Self::check_comes`] to say.
    pub fn new(cron: &str, timezone: &str) -> Result<Self, ScheduleError> {
        let refused = |why: String| ScheduleError::Cron {
            cron: cron.to_owned(),
            why,
        };
        if cron.len() > CRON_MAX {
            return Err(refused(format!("it has more than {CRON_MAX} characters")));
        }
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build();
        Ok(Self {
            cron: parser.parse(cron).map_err(|error| refused(error.to_string()))?,
            zone: timezone.parse().map_err(|_| ScheduleError::Zone(timezone.to_owned()))?,
        })
    }

    /// Checks that it has any due time. That is dear where there is none: thousands of years are searched.
    ///
    /// # Errors
    /// If no date matches it.
    pub fn check_comes(&self) -> Result<(), ScheduleError> {
        // Dates repeat after 400 years, so the start does not matter.
        match self.next_after(0) {
            Some(_) => Ok(()),
            None => Err(ScheduleError::Never(self.cron.as_str().to_owned())),
        }
    }

    /// The first due time after this one, both in milliseconds since the Unix epoch. Due times are whole seconds.
    /// `None` if there is none.
    pub fn next_after(&self, unix_ms: i64) -> Option<i64> {
        let second = unix_ms.div_euclid(1_000);
        let after: DateTime<Tz> = self.zone.timestamp_opt(second, 0).single()?;
        let next = self.cron.find_next_occurrence(&after, false).ok()?;
        // Whatever the library thinks of a clock that changes: time passes.
        Some(next.timestamp()).filter(|next| *next > second)?.checked_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(cron: &str, zone: &str) -> Timetable {
        Timetable::new(cron, zone).unwrap()
    }

    fn ms(utc: &str) -> i64 {
        DateTime::parse_from_rfc3339(utc).unwrap().timestamp_millis()
    }

    /// The next due times in the table's own zone.
    fn due(cron: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let table = table(cron, zone);
        let mut at = ms(after);
        let mut all = Vec::new();
        for _ in 0..count {
            let Some(next) = table.next_after(at) else { break };
            at = next;
            let local = table.zone.timestamp_millis_opt(at).unwrap();
            all.push(local.format("%m-%d %H:%M:%S %:z").to_string());
        }
        all
    }

    #[test]
    fn an_expression_is_read_in_its_zone() {
        assert_eq!(
            due("30 2 * * MON-FRI", "Europe/Berlin", "2026-11-27T00:00:00Z", 3),
            [
                "11-27 02:30:00 +01:00",
                "11-30 02:30:00 +01:00",
                "12-01 02:30:00 +01:00"
            ]
        );
        assert_eq!(
            due("*/20 * * * *", "Asia/Kolkata", "2026-11-27T00:00:00.500Z", 2),
            ["11-27 05:40:00 +05:30", "11-27 06:00:00 +05:30"]
        );
        assert_eq!(
            due("*/30 * * * * *", "UTC", "2026-11-27T00:00:00Z", 2),
            ["11-27 00:00:30 +00:00", "11-27 00:01:00 +00:00"]
        );
        assert_eq!(
            due("0 0 29 2 *", "UTC", "2026-11-27T00:00:00Z", 1),
            ["02-29 00:00:00 +00:00"]
        );
    }

    #[test]
    fn a_fixed_time_that_is_left_out_runs_after_the_gap_and_one_that_comes_twice_runs_once() {
        // In Berlin 02:00 is followed by 03:00 on 29 March 2026, and 03:00 by 02:00 on 25 October.
        assert_eq!(
            due("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3),
            [
                "03-28 02:30:00 +01:00",
                "03-29 03:00:00 +02:00",
                "03-30 02:30:00 +02:00"
            ]
        );
        assert_eq!(
            due("30 2 * * *", "Europe/Berlin", "2026-10-24T01:00:00Z", 2),
            ["10-25 02:30:00 +02:00", "10-26 02:30:00 +01:00"]
        );
    }

    #[test]
    fn an_interval_follows_the_time_that_passes() {
        assert_eq!(
            due("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:15:00Z", 3),
            [
                "03-29 01:30:00 +01:00",
                "03-29 03:00:00 +02:00",
                "03-29 03:30:00 +02:00"
            ]
        );
        assert_eq!(
            due("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45:00Z", 6),
            [
                "10-25 02:00:00 +02:00",
                "10-25 02:30:00 +02:00",
                "10-25 02:00:00 +01:00",
                "10-25 02:30:00 +01:00",
                "10-25 03:00:00 +01:00",
                "10-25 03:30:00 +01:00"
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for cron in [
            "",
            "* * * *",
            "61 * * * *",
            "* * * * * * 2030",
            "every day",
            "@reboot",
            &"* ".repeat(101),
        ] {
            let error = Timetable::new(cron, "UTC").unwrap_err();
            assert!(matches!(error, ScheduleError::Cron { .. }), "{cron}: {error}");
        }
        for zone in ["", "Berlin", "UTC+1", "../etc/passwd"] {
            assert_eq!(
                Timetable::new("@daily", zone).unwrap_err(),
                ScheduleError::Zone(zone.to_owned())
            );
        }
    }

    #[test]
    fn what_never_comes_is_never_due() {
        let never = table("0 0 31 2 *", "UTC");
        assert_eq!(never.next_after(ms("2026-11-27T00:00:00Z")), None);
        assert_eq!(
            never.check_comes().unwrap_err(),
            ScheduleError::Never("0 0 31 2 *".to_owned())
        );
        for rare in ["0 0 29 2 *", "59 59 23 31 12 *", "30 2 * * *"] {
            assert_eq!(table(rare, "Europe/Berlin").check_comes(), Ok(()), "{rare}");
        }
    }

    proptest! {
        #[test]
        fn the_next_time_is_later_matches_the_minute_and_leaves_none_out(
            step in 1u32..=30, zone in 0usize..6, start in 1_700_000_000_000i64..1_900_000_000_000,
        ) {
            let zones = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu",
                "Pacific/Chatham"];
            let table = table(&format!("*/{step} * * * *"), zones[zone]);
            let mut at = start;
            for _ in 0..200 {
                let next = table.next_after(at).unwrap();
                prop_assert!(next > at && next % 60_000 == 0);
                // No longer than a gap of the clock and the step.
                prop_assert!(next - at <= 3_600_000 + i64::from(step) * 60_000, "{at} {next}");
                prop_assert_eq!(table.next_after(next - 1), Some(next));
                at = next;
            }
        }

        #[test]
        fn each_day_has_one_run_of_a_daily_schedule(
            minute in 0u32..60, hour in 0u32..24, zone in 0usize..4, start in 1_700_000_000_000i64..1_900_000_000_000,
        ) {
            let zones = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham"];
            let table = table(&format!("{minute} {hour} * * *"), zones[zone]);
            let local = |ms: i64| table.zone.timestamp_millis_opt(ms).unwrap().date_naive();
            let mut at = table.next_after(start).unwrap();
            for _ in 0..400 {
                let next = table.next_after(at).unwrap();
                prop_assert_eq!(local(next), local(at).succ_opt().unwrap());
                at = next;
            }
        }
    }
}
