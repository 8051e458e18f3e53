//! The certificate for each host: the one that has its name, otherwise the one with a wildcard for it, otherwise the
//! default one. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::pair::Pair;

#[derive(Debug)]
pub(super) struct Table {
    /// Never empty; the first is the default one.
    pairs: Vec<Arc<Pair>>,
    exact: HashMap<String, usize>,
    /// Keyed by what follows `*.`.
    wildcards: HashMap<String, usize>,
}

impl Table {
    /// Builds the table from at least one pair. If several have a name, the first of them counts.
    pub(super) fn of(pairs: Vec<Arc<Pair>>) -> Self {
        let (mut exact, mut wildcards) = (HashMap::new(), HashMap::new());
        for (n, pair) in pairs.iter().enumerate() {
            for host in &pair.hosts {
                match host.strip_prefix("*.") {
                    Some(rest) => wildcards.entry(rest.to_owned()).or_insert(n),
                    None => exact.entry(host.clone()).or_insert(n),
                };
            }
        }
        Self {
            pairs,
            exact,
            wildcards,
        }
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = &Arc<Pair>> {
        self.pairs.iter()
    }

    /// The pair for a host's name.
    pub(super) fn pair_for(&self, host: Option<&str>) -> &Arc<Pair> {
        let found = host.and_then(|host| {
            let host = host.to_ascii_lowercase();
            let by_wildcard = || {
                // The wildcard stands for one label.
                let (_, rest) = host.split_once('.')?;
                self.wildcards.get(rest)
            };
            self.exact.get(&host).or_else(by_wildcard).copied()
        });
        &self.pairs[found.unwrap_or(0)]
    }
}
