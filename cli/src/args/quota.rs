//! Options of `fn quota` and `fn usage`, and the limits of namespaces that have none of their own.

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use rekindle_wire::api::{Quota, QuotaKind, UsageBy};
use rekindle_wire::function_config::{ByteSize, parse_duration};
use rekindle_wire::{FunctionName, Namespace};

use super::Listing;

/// `fn quota`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn quota set team --memory 8GiB --rate 100 --stored 20GiB
  fn quota set team --rate none                remove one limit
  fn quota show team
  fn quota clear team                          what holds for namespaces without limits of their own

What is in use when a limit is set stays in use. Limits for namespaces without any are options of `fn up` and
`fn scheduler` (--quota-memory and others), and keys of rekindle.toml.")]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    pub(crate) command: QuotaCommand,
}

/// The commands of `fn quota`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Show a namespace's limits, and what is in use.
    Show {
        /// The namespace; by default that of -n.
        name: Option<Namespace>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Set limits of a namespace. Those that are not named stay as they are.
    Set(SetQuotaArgs),
    /// Remove the limits that were set for a namespace.
    Clear {
        /// The namespace.
        name: Namespace,
        #[command(flatten)]
        listing: Listing,
    },
}

/// `fn quota set`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SetQuotaArgs {
    /// The namespace.
    pub(crate) name: Namespace,
    /// Memory that its instances may reserve together, such as 8GiB.
    #[arg(long, value_name = "SIZE|none")]
    pub(crate) memory: Option<Limit<ByteSize>>,
    /// Number of its instances, parked ones included.
    #[arg(long, value_name = "N|none")]
    pub(crate) instances: Option<Limit<u64>>,
    /// Invocations a second.
    #[arg(long, value_name = "N|none")]
    pub(crate) rate: Option<Limit<u64>>,
    /// Deploys under way.
    #[arg(long, value_name = "N|none")]
    pub(crate) builds: Option<Limit<u64>>,
    /// Bytes of its uploaded folders, layers and snapshots.
    #[arg(long, value_name = "SIZE|none")]
    pub(crate) stored: Option<Limit<ByteSize>>,
    /// Asynchronous invocations that wait.
    #[arg(long, value_name = "N|none")]
    pub(crate) backlog: Option<Limit<u64>>,
    /// Bytes of answers' bodies in a day (UTC).
    #[arg(long, value_name = "SIZE|none")]
    pub(crate) egress: Option<Limit<ByteSize>>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// A limit, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit<T>(Option<T>);

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Limit<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => match text.parse() {
                Ok(limit) => Ok(Self(Some(limit))),
                Err(e) => Err(format!("{e}; or none for no limit")),
            },
        }
    }
}

impl SetQuotaArgs {
    /// The limits with what is said here; `None` if nothing is.
    pub(crate) fn applied(&self, mut limits: Quota) -> Option<Quota> {
        let sizes = [
            (QuotaKind::Memory, self.memory),
            (QuotaKind::Stored, self.stored),
            (QuotaKind::Egress, self.egress),
        ];
        let counts = [
            (QuotaKind::Instances, self.instances),
            (QuotaKind::Rate, self.rate),
            (QuotaKind::Builds, self.builds),
            (QuotaKind::Backlog, self.backlog),
        ];
        let sizes = sizes.map(|(kind, limit)| (kind, limit.map(|Limit(size)| size.map(|ByteSize(bytes)| bytes))));
        let counts = counts.map(|(kind, limit)| (kind, limit.map(|Limit(count)| count)));
        let mut is_any = false;
        for (kind, limit) in sizes.into_iter().chain(counts) {
            if let Some(limit) = limit {
                limits.set(kind, limit);
                is_any = true;
            }
        }
        is_any.then_some(limits)
    }
}

/// Limits of namespaces for which none were set with `fn quota set`, but for the default one.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct DefaultQuotaArgs {
    /// Memory that a namespace's instances may reserve together. This and the other quotas hold for namespaces without
    /// any of their own (`fn quota set`), but for the default one.
    #[arg(long, value_name = "SIZE", env = "FN_QUOTA_MEMORY")]
    pub(crate) quota_memory: Option<ByteSize>,
    /// Number of a namespace's instances, parked ones included.
    #[arg(long, value_name = "N", env = "FN_QUOTA_INSTANCES")]
    pub(crate) quota_instances: Option<u64>,
    /// Invocations a second of a namespace.
    #[arg(long, value_name = "N", env = "FN_QUOTA_RATE")]
    pub(crate) quota_rate: Option<u64>,
    /// Deploys that a namespace may have under way.
    #[arg(long, value_name = "N", env = "FN_QUOTA_BUILDS")]
    pub(crate) quota_builds: Option<u64>,
    /// Bytes of a namespace's uploaded folders, layers and snapshots.
    #[arg(long, value_name = "SIZE", env = "FN_QUOTA_STORED")]
    pub(crate) quota_stored: Option<ByteSize>,
    /// Asynchronous invocations of a namespace that may wait.
    #[arg(long, value_name = "N", env = "FN_QUOTA_BACKLOG")]
    pub(crate) quota_backlog: Option<u64>,
    /// Bytes of answers' bodies of a namespace in a day (UTC).
    #[arg(long, value_name = "SIZE", env = "FN_QUOTA_EGRESS")]
    pub(crate) quota_egress: Option<ByteSize>,
}

impl From<DefaultQuotaArgs> for Quota {
    fn from(args: DefaultQuotaArgs) -> Self {
        let bytes = |size: Option<ByteSize>| size.map(|size| size.0);
        Self {
            memory_bytes: bytes(args.quota_memory),
            instances: args.quota_instances,
            requests_per_s: args.quota_rate,
            builds: args.quota_builds,
            stored_bytes: bytes(args.quota_stored),
            async_backlog: args.quota_backlog,
            egress_bytes_per_day: bytes(args.quota_egress),
        }
    }
}

/// `fn usage`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn usage                           the functions of the namespace, by day, of seven days
  fn usage hello --since 30d --by day
  fn usage -n team --by version
  fn usage -n team --since 400d --csv > usage.csv

A gigabyte-second is an instance's memory limit times the duration of an invocation, of 1,024 MiB for a second.")]
pub(crate) struct UsageArgs {
    /// Only this function, which may be deleted by now.
    pub(crate) name: Option<FunctionName>,
    /// How far back, in whole days with today; 7d by default, at most 400d.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_duration)]
    pub(crate) since: Duration,
    /// What lines are apart by: day, function and version, separated by commas.
    #[arg(long, value_name = "PARTS", default_value = "day,function")]
    pub(crate) by: UsageBy,
    /// Print CSV, with all columns.
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_not_named_stay() {
        let args = SetQuotaArgs {
            name: "team".parse().unwrap(),
            memory: Some("8GiB".parse().unwrap()),
            instances: None,
            rate: Some("none".parse().unwrap()),
            builds: None,
            stored: None,
            backlog: None,
            egress: None,
            listing: Listing { json: false },
        };
        let before = Quota {
            requests_per_s: Some(9),
            builds: Some(2),
            ..Quota::default()
        };
        let after = args.applied(before).unwrap();
        assert_eq!(
            (after.memory_bytes, after.requests_per_s, after.builds),
            (Some(8 << 30), None, Some(2))
        );
        let nothing = SetQuotaArgs {
            memory: None,
            rate: None,
            ..args
        };
        assert_eq!(nothing.applied(before), None);
        "much".parse::<Limit<u64>>().unwrap_err();
    }
}
