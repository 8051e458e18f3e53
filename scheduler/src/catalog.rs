//! Live versions in memory, so that placement never waits for the database. Filled at start, changed when a version goes live or a
//! function is deleted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rekindle_wire::internal::{DamagedSnapshot, VersionSpec};
use rekindle_wire::{FunctionName, VersionNumber};

use crate::fleet::LiveVersion;
use crate::fleet::heartbeat::Known;

/// Every version that can serve or could once.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    functions: HashMap<FunctionName, BTreeMap<VersionNumber, Arc<VersionSpec>>>,
}

impl Catalog {
    pub(crate) fn add(&mut self, spec: VersionSpec) {
        self.functions
            .entry(spec.function.clone())
            .or_default()
            .insert(spec.version, Arc::new(spec));
    }

    /// Drops a version's snapshot if it is that one: it is booted from now on. Answers its specification then.
    pub(crate) fn drop_snapshot(&mut self, damaged: &DamagedSnapshot) -> Option<Arc<VersionSpec>> {
        let spec = self.functions.get_mut(&damaged.function)?.get_mut(&damaged.version)?;
        if spec.snapshot.as_ref() != Some(&damaged.snapshot) {
            return None;
        }
        Arc::make_mut(spec).snapshot = None;
        Some(spec.clone())
    }

    /// Drops a version that does not serve.
    pub(crate) fn remove_version(&mut self, function: &FunctionName, version: VersionNumber) {
        if let Some(versions) = self.functions.get_mut(function) {
            versions.remove(&version);
        }
    }

    pub(crate) fn remove(&mut self, function: &FunctionName) {
        self.functions.remove(function);
    }

    /// How many functions there are.
    pub(crate) fn len(&self) -> usize {
        self.functions.len()
    }

    /// Their names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &FunctionName> {
        let mut names: Vec<_> = self.functions.keys().collect();
        names.sort();
        names.into_iter()
    }

    /// Whether there is such a function.
    pub(crate) fn has(&self, function: &FunctionName) -> bool {
        self.functions.contains_key(function)
    }

    /// The version that serves a function's invocations: its newest live one.
    pub(crate) fn live(&self, function: &FunctionName) -> Option<LiveVersion> {
        let (_, spec) = self.functions.get(function)?.last_key_value()?;
        Some(LiveVersion { spec: spec.clone() })
    }

    /// This version, if it is the one that serves.
    pub(crate) fn serving(&self, function: &FunctionName, version: VersionNumber) -> Option<LiveVersion> {
        self.live(function).filter(|live| live.spec.version == version)
    }

    /// The live version of each function.
    pub(crate) fn all_live(&self) -> impl Iterator<Item = LiveVersion> {
        let live = self.functions.values().filter_map(|versions| versions.last_key_value());
        live.map(|(_, spec)| LiveVersion { spec: spec.clone() })
    }

    /// What a version claimed by an instance is.
    pub(crate) fn known(&self, function: &FunctionName, version: VersionNumber) -> Known {
        let Some(versions) = self.functions.get(function) else {
            return Known::Unknown;
        };
        match versions.get(&version) {
            None => Known::Unknown,
            Some(spec) => {
                let spec = LiveVersion { spec: spec.clone() };
                if versions.last_key_value().is_some_and(|(newest, _)| *newest == version) {
                    Known::Live(spec)
                } else {
                    Known::Older(spec)
                }
            }
        }
    }
}
