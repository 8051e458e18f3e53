//! Time series of one name, distinguished by their labels. Their number is bounded: all beyond it share one series.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::description::{Desc, Kind, Value};

/// Maximum number of series of one name.
const SERIES_MAX: usize = 2_000;
/// Label value of the series shared by all beyond the maximum.
const OTHER: &str = "(other)";

/// A time series of a family.
pub trait Series: Send + Sync + 'static {
    /// Its type in Prometheus.
    const KIND: Kind;

    /// A new series of this description.
    fn new(desc: &Desc) -> Self;

    /// Its current value.
    fn value(&self) -> Value;
}

impl Series for super::Counter {
    const KIND: Kind = Kind::Counter;

    fn new(_: &Desc) -> Self {
        Self::default()
    }

    fn value(&self) -> Value {
        Value::Number(self.get() as f64)
    }
}

impl Series for super::Gauge {
    const KIND: Kind = Kind::Gauge;

    fn new(_: &Desc) -> Self {
        Self::default()
    }

    fn value(&self) -> Value {
        Value::Number(self.get() as f64)
    }
}

impl Series for super::Histogram {
    const KIND: Kind = Kind::Histogram;

    fn new(desc: &Desc) -> Self {
        Self::new(desc.bounds)
    }

    fn value(&self) -> Value {
        Value::Histogram(self.read())
    }
}

/// Series of one name, with `N` labels each. Clones share them.
#[derive(Debug)]
pub struct Family<S, const N: usize> {
    shared: Arc<Shared<S>>,
}

impl<S, const N: usize> Clone for Family<S, N> {
    fn clone(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        Self { shared }
    }
}

#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) desc: &'static Desc,
    /// By label values, each followed by a zero byte.
    series: RwLock<HashMap<Box<str>, Arc<S>>>,
}

fn key(labels: &[&str]) -> String {
    let mut key = String::with_capacity(labels.iter().map(|l| l.len() + 1).sum());
    for label in labels {
        key.push_str(label);
        key.push('\0');
    }
    key
}

fn labels_of(key: &str) -> Vec<String> {
    let mut labels: Vec<String> = key.split('\0').map(str::to_owned).collect();
    labels.pop();
    labels
}

impl<S: Series, const N: usize> Family<S, N> {
    pub(super) fn new(desc: &'static Desc) -> Self {
        debug_assert_eq!(desc.labels.len(), N, "{}", desc.name);
        Self {
            shared: Arc::new(Shared {
                desc,
                series: RwLock::default(),
            }),
        }
    }

    pub(super) fn shared(&self) -> Arc<Shared<S>> {
        Arc::clone(&self.shared)
    }

    /// The series with these labels, in the order in which the family was described.
    pub fn with(&self, labels: [&str; N]) -> Arc<S> {
        let key = key(&labels);
        if let Some(series) = self.shared.series.read().get(key.as_str()) {
            return Arc::clone(series);
        }
        self.shared.make(key)
    }

    /// Passes every series to `see`, with its labels.
    pub fn each(&self, mut see: impl FnMut([&str; N], &S)) {
        for (key, series) in self.shared.series.read().iter() {
            let mut parts = key.split('\0');
            see(std::array::from_fn(|_| parts.next().unwrap_or_default()), series);
        }
    }
}

impl<S: Series> Shared<S> {
    fn make(&self, key: String) -> Arc<S> {
        let mut all = self.series.write();
        let key = if all.len() >= SERIES_MAX && !all.contains_key(key.as_str()) {
            OTHER.to_owned() + "\0" + &(OTHER.to_owned() + "\0").repeat(self.desc.labels.len().saturating_sub(1))
        } else {
            key
        };
        let series = all.entry(key.into());
        Arc::clone(series.or_insert_with(|| Arc::new(S::new(self.desc))))
    }

    pub(super) fn points(&self) -> Vec<(Vec<String>, Value)> {
        let all = self.series.read();
        let mut points: Vec<_> = all.iter().map(|(key, s)| (labels_of(key), s.value())).collect();
        points.sort_by(|a, b| a.0.cmp(&b.0));
        points
    }

    /// Drops the series whose label `name` is `value`.
    pub(super) fn forget(&self, name: &str, value: &str) {
        let Some(index) = self.desc.labels.iter().position(|l| *l == name) else {
            return;
        };
        self.series
            .write()
            .retain(|key, _| key.split('\0').nth(index) != Some(value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Counter;
    use super::*;

    const DESC: Desc = Desc::new("a.b", "{thing}", &["x", "y"], "Things.");

    #[test]
    fn series_are_told_apart_by_their_labels_and_forgotten_by_one() {
        let family: Family<Counter, 2> = Family::new(&DESC);
        family.with(["a", "1"]).inc();
        family.with(["a", "1"]).inc();
        family.with(["b", "1"]).inc();
        let labels = |points: Vec<(Vec<String>, Value)>| points.into_iter().map(|p| p.0.join(",")).collect::<Vec<_>>();
        assert_eq!(labels(family.shared.points()), ["a,1", "b,1"]);
        assert_eq!(family.with(["a", "1"]).get(), 2);
        family.shared.forget("x", "a");
        assert_eq!(labels(family.shared.points()), ["b,1"]);
        family.shared.forget("no such label", "b");
        assert_eq!(family.with(["b", "1"]).get(), 1);
    }

    #[test]
    fn what_comes_beyond_the_limit_shares_one_series() {
        let family: Family<Counter, 2> = Family::new(&DESC);
        for n in 0..SERIES_MAX + 10 {
            family.with([&n.to_string(), ""]).inc();
        }
        assert_eq!(family.shared.points().len(), SERIES_MAX + 1);
        assert_eq!(family.with([OTHER, OTHER]).get(), 10);
    }
}
