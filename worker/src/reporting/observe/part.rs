//! Values of one part of the worker.

use std::sync::Weak;

use rekindle_telemetry::metrics::{Desc, Kind, Registry};

/// One part of the worker. If it is gone, it has no values.
pub(super) struct ObservedComponent<'a, T> {
    pub(super) registry: &'a Registry,
    pub(super) part: Weak<T>,
}

impl<T: Send + Sync + 'static> ObservedComponent<'_, T> {
    pub(super) fn one(&self, kind: Kind, desc: &'static Desc, read: fn(&T) -> f64) {
        let part = Weak::clone(&self.part);
        self.registry
            .observe_one(kind, desc, move || part.upgrade().map_or(0.0, |part| read(&part)));
    }

    pub(super) fn many(&self, kind: Kind, desc: &'static Desc, read: fn(&T) -> Vec<(&'static str, u64)>) {
        let part = Weak::clone(&self.part);
        self.registry.observe(kind, desc, move || {
            let read = part.upgrade().map(|part| read(&part)).unwrap_or_default();
            read.into_iter()
                .map(|(label, n)| (vec![label.to_owned()], n as f64))
                .collect()
        });
    }
}
