//! Quotas of namespaces: what each may have at once, and the refusal of more.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorCode};
use crate::function_config::ByteSize;
use crate::ids::Namespace;

/// What a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaKind {
    /// Memory reserved by instances, in bytes.
    Memory,
    /// Instances in any state.
    Instances,
    /// Invocations a second.
    Rate,
    /// Deploys under way.
    Builds,
    /// Bytes of uploaded folders, layers and snapshots.
    Stored,
    /// Asynchronous invocations that wait.
    Backlog,
    /// Bytes of answers' bodies in a day, by UTC.
    Egress,
}

impl QuotaKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::Instances,
        Self::Rate,
        Self::Builds,
        Self::Stored,
        Self::Backlog,
        Self::Egress,
    ];

    /// The kind as one word: an option of `fn quota set`, and a label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Instances => "instances",
            Self::Rate => "rate",
            Self::Builds => "builds",
            Self::Stored => "stored",
            Self::Backlog => "backlog",
            Self::Egress => "egress",
        }
    }

    /// The kind in words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Memory => "memory reserved by instances",
            Self::Instances => "instances",
            Self::Rate => "invocations a second",
            Self::Builds => "deploys under way",
            Self::Stored => "stored bytes",
            Self::Backlog => "waiting asynchronous invocations",
            Self::Egress => "bytes of answers a day",
        }
    }

    /// Whether it counts bytes.
    pub fn is_bytes(self) -> bool {
        matches!(self, Self::Memory | Self::Stored | Self::Egress)
    }

    /// An amount of it, for people.
    pub fn shown(self, amount: u64) -> String {
        match self.is_bytes() {
            true => ByteSize(amount).to_string(),
            false => amount.to_string(),
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Memory => "stop what is not needed, lower memory in fn.toml, or try again",
            Self::Instances => "raise concurrency or lower min_warm in fn.toml, or try again",
            Self::Rate => "send less, or try again",
            Self::Builds => "wait for them (`fn list`), and deploy again",
            Self::Stored => "delete functions, or have fewer versions kept (--keep-versions), and deploy again",
            Self::Backlog => "send less, or raise max_instances in fn.toml",
            Self::Egress => "answer with less, or wait for the next day (UTC)",
        }
    }
}

/// Limits of a namespace. What is absent has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Memory that its instances may reserve together, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How many instances it may have, parked ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// How many invocations a second its functions may get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u64>,
    /// How many deploys it may have under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builds: Option<u64>,
    /// How much its uploaded folders, layers and snapshots may take, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// How many of its asynchronous invocations may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub async_backlog: Option<u64>,
    /// How many bytes of bodies its functions may answer with in a day (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_bytes_per_day: Option<u64>,
}

impl Quota {
    /// The limit of a kind.
    pub fn limit(&self, kind: QuotaKind) -> Option<u64> {
        match kind {
            QuotaKind::Memory => self.memory_bytes,
            QuotaKind::Instances => self.instances,
            QuotaKind::Rate => self.requests_per_s,
            QuotaKind::Builds => self.builds,
            QuotaKind::Stored => self.stored_bytes,
            QuotaKind::Backlog => self.async_backlog,
            QuotaKind::Egress => self.egress_bytes_per_day,
        }
    }

    /// Sets or removes the limit of a kind.
    pub fn set(&mut self, kind: QuotaKind, limit: Option<u64>) {
        let place = match kind {
            QuotaKind::Memory => &mut self.memory_bytes,
            QuotaKind::Instances => &mut self.instances,
            QuotaKind::Rate => &mut self.requests_per_s,
            QuotaKind::Builds => &mut self.builds,
            QuotaKind::Stored => &mut self.stored_bytes,
            QuotaKind::Backlog => &mut self.async_backlog,
            QuotaKind::Egress => &mut self.egress_bytes_per_day,
        };
        *place = limit;
    }

    /// The limits that there are.
    pub fn limits(&self) -> impl Iterator<Item = (QuotaKind, u64)> + '_ {
        let limits = QuotaKind::ALL.into_iter();
        limits.filter_map(|kind| Some((kind, self.limit(kind)?)))
    }

    /// What stands in the way of `asked` more of a kind, of which `used` is in use.
    pub fn exceeded(&self, kind: QuotaKind, used: u64, asked: u64) -> Option<QuotaExceeded> {
        let limit = self.limit(kind)?;
        (used.saturating_add(asked) > limit).then_some(QuotaExceeded {
            kind,
            limit,
            used,
            asked,
        })
    }
}

/// Why a quota refuses something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// What is limited.
    pub kind: QuotaKind,
    /// The limit.
    pub limit: u64,
    /// How much is in use.
    pub used: u64,
    /// How much more was asked for.
    pub asked: u64,
}

impl QuotaExceeded {
    /// Whether it would be refused even if nothing was in use.
    pub fn never_fits(&self) -> bool {
        self.asked > self.limit
    }

    /// The error for the user. `retry_after_s` says when a retry makes sense.
    pub fn error(&self, namespace: &str, retry_after_s: Option<u32>) -> ApiError {
        let Self {
            kind,
            limit,
            used,
            asked,
        } = *self;
        let more = match asked {
            0 => String::new(),
            asked => format!(", and {} more asked for", kind.shown(asked)),
        };
        let message = format!(
            "the namespace {namespace} reaches its quota of {}: {} allowed, {} in use{more}: {}; an admin raises it \
             by `fn quota set {namespace} --{} N`",
            kind.in_words(),
            kind.shown(limit),
            kind.shown(used),
            kind.remedy(),
            kind.as_str(),
        );
        ApiError {
            retry_after_s,
            ..ApiError::new(ErrorCode::QuotaExceeded, message)
        }
    }
}

/// A namespace's quota, and what of it is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaStatus {
    /// The namespace.
    pub namespace: Namespace,
    /// Whether the limits were set for it. Otherwise they are those for namespaces without any.
    pub is_own: bool,
    /// Its limits.
    pub limits: Quota,
    /// What is in use.
    pub used: QuotaUse,
}

/// What a namespace uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaUse {
    /// Memory reserved by its instances, in bytes.
    pub memory_bytes: u64,
    /// Number of its instances.
    pub instances: u64,
    /// Number of its deploys under way.
    pub builds: u64,
    /// Bytes of its uploaded folders, layers and snapshots.
    pub stored_bytes: u64,
    /// Number of its asynchronous invocations that wait.
    pub async_backlog: u64,
    /// Bytes of bodies that its functions have answered with today (UTC).
    pub egress_bytes_today: u64,
}

impl QuotaUse {
    /// How much of a kind is in use. `None` for what is no amount.
    pub fn of(&self, kind: QuotaKind) -> Option<u64> {
        match kind {
            QuotaKind::Memory => Some(self.memory_bytes),
            QuotaKind::Instances => Some(self.instances),
            QuotaKind::Rate => None,
            QuotaKind::Builds => Some(self.builds),
            QuotaKind::Stored => Some(self.stored_bytes),
            QuotaKind::Backlog => Some(self.async_backlog),
            QuotaKind::Egress => Some(self.egress_bytes_today),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_set_and_found_by_its_kind() {
        for (kind, n) in QuotaKind::ALL.into_iter().zip(1..) {
            let mut quota = Quota::default();
            quota.set(kind, Some(n));
            assert_eq!(quota.limits().collect::<Vec<_>>(), [(kind, n)]);
            assert_eq!(quota.exceeded(kind, n - 1, 1), None);
            assert!(quota.exceeded(kind, n, 1).is_some());
        }
        assert_eq!(Quota::default().exceeded(QuotaKind::Memory, u64::MAX, 1), None);
    }

    #[test]
    fn a_refusal_names_the_limit_what_is_in_use_and_what_to_do() {
        let quota = Quota {
            memory_bytes: Some(1 << 30),
            ..Quota::default()
        };
        let exceeded = quota.exceeded(QuotaKind::Memory, 768 << 20, 512 << 20).unwrap();
        assert!(!exceeded.never_fits());
        let error = exceeded.error("team", Some(1));
        assert_eq!((error.code, error.retry_after_s), (ErrorCode::QuotaExceeded, Some(1)));
        for part in [
            "team",
            "1GiB allowed",
            "768MiB in use",
            "512MiB more",
            "fn quota set team --memory",
        ] {
            assert!(error.message.contains(part), "{part}: {error}");
        }
    }
}
