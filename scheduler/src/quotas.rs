//! Quotas of namespaces: the limits in force, and the deploys under way. What instances hold is counted by
//! [`crate::fleet::quota`], waiting calls by [`crate::async_calls`], and the day's egress by [`crate::metering`].

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_wire::api::{Quota, QuotaExceeded, QuotaKind};
use rekindle_wire::{DEFAULT_NAMESPACE, Namespace};

/// The limits of namespaces.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    /// For namespaces without any of their own, but for the default one.
    others: Quota,
    own: HashMap<String, Quota>,
    none: Quota,
}

impl Quotas {
    /// The limits that were set, and those for namespaces without any.
    pub(crate) fn new(own: HashMap<String, Quota>, others: Quota) -> Self {
        Self {
            others,
            own,
            none: Quota::default(),
        }
    }

    /// A namespace's limits, and whether they were set for it.
    pub(crate) fn of(&self, namespace: &str) -> (&Quota, bool) {
        match self.own.get(namespace) {
            Some(own) => (own, true),
            None if namespace == DEFAULT_NAMESPACE => (&self.none, false),
            None => (&self.others, false),
        }
    }

    /// Sets a namespace's limits, or clears them.
    pub(crate) fn set(&mut self, namespace: &Namespace, limits: Option<Quota>) {
        match limits {
            Some(limits) => drop(self.own.insert(namespace.as_str().to_owned(), limits)),
            None => drop(self.own.remove(namespace.as_str())),
        }
    }
}

/// Numbers of deploys under way, by namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Builds(Arc<Mutex<HashMap<String, u64>>>);

/// A deploy under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Build {
    all: Builds,
    namespace: String,
}

impl Builds {
    /// Number of deploys of a namespace.
    pub(crate) fn of(&self, namespace: &str) -> u64 {
        self.0.lock().get(namespace).copied().unwrap_or(0)
    }

    /// Begins a deploy, unless that is one too many.
    pub(crate) fn begin(&self, namespace: &str, limits: &Quota) -> Result<Build, QuotaExceeded> {
        let mut all = self.0.lock();
        let count = all.entry(namespace.to_owned()).or_default();
        match limits.exceeded(QuotaKind::Builds, *count, 1) {
            Some(exceeded) => Err(exceeded),
            None => {
                *count += 1;
                Ok(Build {
                    all: self.clone(),
                    namespace: namespace.to_owned(),
                })
            }
        }
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.namespace) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                all.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_without_limits_have_the_others_but_the_default_one() {
        let limits = |n| Quota {
            instances: Some(n),
            ..Quota::default()
        };
        let team = "team".parse().unwrap();
        let mut quotas = Quotas::new(HashMap::new(), limits(5));
        assert_eq!(quotas.of("team"), (&limits(5), false));
        assert_eq!(quotas.of("default"), (&Quota::default(), false));
        quotas.set(&team, Some(limits(2)));
        assert_eq!(quotas.of("team"), (&limits(2), true));
        quotas.set(&team, None);
        quotas.set(&Namespace::default(), Some(limits(1)));
        assert_eq!(quotas.of("team"), (&limits(5), false));
        assert_eq!(quotas.of("default"), (&limits(1), true));
    }

    #[test]
    fn deploys_count_until_they_are_over() {
        let builds = Builds::default();
        let limits = Quota {
            builds: Some(1),
            ..Quota::default()
        };
        let first = builds.begin("team", &limits).unwrap();
        assert_eq!(builds.begin("team", &limits).unwrap_err().used, 1);
        let _other = builds.begin("other", &limits).unwrap();
        drop(first);
        builds.begin("team", &limits).unwrap();
        assert_eq!((builds.of("team"), builds.of("other")), (0, 1));
    }
}
