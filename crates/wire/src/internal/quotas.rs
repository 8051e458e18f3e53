//! Quotas that gateways keep, and usage that they count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::StartKind;
use crate::ids::{FunctionId, GatewayId, Namespace, VersionNumber};

/// What a gateway keeps of the quotas of namespaces. A namespace that is absent has no limit there.
pub type GatewayQuotas = BTreeMap<Namespace, GatewayQuota>;

/// What a gateway keeps of a namespace's quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayQuota {
    /// Its limit of invocations a second, at all gateways together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u64>,
    /// Number of gateways that share that limit, each alike.
    #[serde(default)]
    pub gateways: u64,
    /// Its limit of bytes of answers a day, and how many they were, if it has reached that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<ReachedEgress>,
}

/// A namespace has answered with as many bytes as it may in a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedEgress {
    /// The limit.
    pub limit: u64,
    /// How many there were.
    pub used: u64,
    /// The day, in days since the Unix epoch.
    pub day: u32,
}

/// What a version's invocations have used in a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCounts {
    /// Number of invocations answered below 500.
    pub ok: u64,
    /// Number of those that failed, or were answered 500 or more.
    pub errors: u64,
    /// Memory limit times duration in MiB-microseconds, in an idle instance.
    #[serde(default)]
    pub warm: u64,
    /// The same in a parked instance.
    #[serde(default)]
    pub parked: u64,
    /// The same in one that was restored.
    #[serde(default)]
    pub restored: u64,
    /// The same in one that was booted.
    #[serde(default)]
    pub booted: u64,
    /// Bytes of answers' bodies.
    pub egress_bytes: u64,
}

impl UsageCounts {
    /// MiB-microseconds of a start kind.
    pub fn time(&mut self, start: StartKind) -> &mut u64 {
        match start {
            StartKind::Warm => &mut self.warm,
            StartKind::Parked => &mut self.parked,
            StartKind::Restored => &mut self.restored,
            StartKind::Booted => &mut self.booted,
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.errors += other.errors;
        self.warm = self.warm.saturating_add(other.warm);
        self.parked = self.parked.saturating_add(other.parked);
        self.restored = self.restored.saturating_add(other.restored);
        self.booted = self.booted.saturating_add(other.booted);
        self.egress_bytes = self.egress_bytes.saturating_add(other.egress_bytes);
    }
}

/// What a version has used in a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageEntry {
    /// The day by UTC, in days since the Unix epoch.
    pub day: u32,
    /// The function.
    pub function: FunctionId,
    /// Its version.
    pub version: VersionNumber,
    /// What was used since the report before.
    pub counts: UsageCounts,
}

/// What a gateway has counted since its last report that was answered. It repeats a report with the same number until
/// it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// The gateway. It has a new id after each start.
    pub gateway: GatewayId,
    /// Number of the report since that start, from 1 on.
    pub sequence: u64,
    /// The counts.
    pub entries: Vec<UsageEntry>,
}
