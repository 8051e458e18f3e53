//! Quotas of namespaces that gateways keep: invocations a second, and bytes of answers in a day.
//!
//! Each gateway keeps an equal share of a limit a second, as the scheduler tells it with the number of gateways. So all
//! of them together let in no more than the limit, once they have heard how many they are. A namespace whose clients
//! all come to one gateway of N gets an Nth of it.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use rekindle_wire::api::{QuotaExceeded, QuotaKind};
use rekindle_wire::clock::unix_s;
use rekindle_wire::internal::{GatewayQuota, GatewayQuotas};
use rekindle_wire::{ApiError, FunctionId};

/// Seconds' worth of the rate that may come at once.
const BURST_S: f64 = 1.0;
/// Seconds of a day.
const DAY_S: u64 = 86_400;

#[derive(Debug, Default)]
pub(crate) struct Quotas {
    namespaces: RwLock<HashMap<String, NamespaceLimit>>,
}

#[derive(Debug)]
struct NamespaceLimit {
    quota: GatewayQuota,
    bucket: Mutex<Bucket>,
}

/// A token bucket with a rate that may be below one.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn take(&mut self, rate: f64, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * rate).min(depth(rate));
        // Those who come at once may come here in another order.
        self.at = self.at.max(now);
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }
}

/// How many may come at once.
fn depth(rate: f64) -> f64 {
    match rate > 0.0 {
        true => (rate * BURST_S).max(1.0),
        false => 0.0,
    }
}

/// This gateway's share of a limit.
fn share(quota: &GatewayQuota) -> Option<f64> {
    Some(quota.requests_per_s? as f64 / quota.gateways.max(1) as f64)
}

impl Quotas {
    /// Applies what the scheduler tells. A bucket stays as it is while its limit does.
    pub(crate) fn apply(&self, told: GatewayQuotas, now: Instant) {
        let mut all = self.namespaces.write();
        let mut before = std::mem::take(&mut *all);
        for (namespace, quota) in told {
            let known = before.remove(namespace.as_str());
            let tokens = depth(share(&quota).unwrap_or(0.0));
            let bucket = known.map_or(Bucket { tokens, at: now }, |known| known.bucket.into_inner());
            let bucket = Mutex::new(bucket);
            all.insert(namespace.as_str().to_owned(), NamespaceLimit { quota, bucket });
        }
    }

    /// Takes the place of an invocation.
    ///
    /// # Errors
    /// `quota_exceeded` if its namespace has reached a limit.
    pub(crate) fn admit(&self, function: &FunctionId) -> Result<(), ApiError> {
        self.admit_at(function, Instant::now(), unix_s().cast_unsigned())
    }

    fn admit_at(&self, function: &FunctionId, now: Instant, unix_s: u64) -> Result<(), ApiError> {
        let all = self.namespaces.read();
        if all.is_empty() {
            return Ok(());
        }
        let namespace = function.namespace();
        let Some(NamespaceLimit { quota, bucket }) = all.get(namespace) else {
            return Ok(());
        };
        if let Some(egress) = quota.egress.filter(|egress| u64::from(egress.day) == unix_s / DAY_S) {
            let exceeded = QuotaExceeded {
                kind: QuotaKind::Egress,
                limit: egress.limit,
                used: egress.used,
                asked: 0,
            };
            let left = DAY_S - unix_s % DAY_S;
            return Err(exceeded.error(namespace, u32::try_from(left).ok()));
        }
        match (quota.requests_per_s, share(quota)) {
            (Some(limit), Some(rate)) if !bucket.lock().take(rate, now) => {
                let exceeded = QuotaExceeded {
                    kind: QuotaKind::Rate,
                    limit,
                    used: limit,
                    asked: 1,
                };
                Err(exceeded.error(namespace, Some(if rate < 1.0 { 10 } else { 1 })))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rekindle_wire::ErrorCode;
    use rekindle_wire::internal::ReachedEgress;

    use super::*;

    const NOW_S: u64 = 3 * DAY_S + 100;

    fn quotas(quota: GatewayQuota, now: Instant) -> Quotas {
        let quotas = Quotas::default();
        quotas.apply([("team".parse().unwrap(), quota)].into(), now);
        quotas
    }

    fn rate(requests_per_s: u64, gateways: u64) -> GatewayQuota {
        GatewayQuota {
            requests_per_s: Some(requests_per_s),
            gateways,
            egress: None,
        }
    }

    /// How many of a thousand invocations, one a millisecond, are let in.
    fn admitted(quotas: &Quotas, function: &str, from: Instant) -> usize {
        let function = function.parse().unwrap();
        let at = |ms| from + Duration::from_millis(ms);
        (0..1_000)
            .filter(|ms| quotas.admit_at(&function, at(*ms), NOW_S).is_ok())
            .count()
    }

    #[test]
    fn a_namespace_gets_its_share_a_second_and_others_are_not_hurt() {
        let now = Instant::now();
        let quotas = quotas(rate(100, 2), now);
        let first = admitted(&quotas, "a.team", now);
        assert!((98..=101).contains(&first), "{first}: a burst of 50, and 50 a second");
        let next = admitted(&quotas, "b.team", now + Duration::from_secs(1));
        assert!((49..=51).contains(&next), "{next}");
        assert_eq!(admitted(&quotas, "a", now), 1_000);
        let refused = quotas.admit_at(&"a.team".parse().unwrap(), now, NOW_S).unwrap_err();
        assert_eq!(
            (refused.code, refused.retry_after_s),
            (ErrorCode::QuotaExceeded, Some(1))
        );
        // Told again: nobody gets a burst anew.
        quotas.apply([("team".parse().unwrap(), rate(100, 2))].into(), now);
        assert!(admitted(&quotas, "a.team", now + Duration::from_secs(2)) <= 51);
        quotas.apply(GatewayQuotas::new(), now);
        assert_eq!(admitted(&quotas, "a.team", now), 1_000);
    }

    #[test]
    fn a_share_below_one_a_second_and_a_limit_of_none_are_kept() {
        let now = Instant::now();
        assert_eq!(admitted(&quotas(rate(1, 4), now), "a.team", now), 1);
        assert_eq!(admitted(&quotas(rate(0, 1), now), "a.team", now), 0);
    }

    #[test]
    fn a_day_s_egress_is_refused_until_the_day_ends() {
        let now = Instant::now();
        let egress = Some(ReachedEgress {
            limit: 5,
            used: 7,
            day: 3,
        });
        let quotas = quotas(
            GatewayQuota {
                egress,
                ..GatewayQuota::default()
            },
            now,
        );
        let function = "a.team".parse().unwrap();
        let refused = quotas.admit_at(&function, now, NOW_S).unwrap_err();
        assert_eq!(refused.retry_after_s, Some(86_300));
        assert!(refused.message.contains("5B allowed, 7B in use"), "{refused}");
        quotas.admit_at(&function, now, 4 * DAY_S).unwrap();
    }
}
