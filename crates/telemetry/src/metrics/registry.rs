//! What a role measures: descriptions, and where each value is read at a scrape.

use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;

use super::description::{Desc, Kind, Value};
use super::family::{Family, Series, Shared};
use super::instruments::HistogramValue;

/// A metric with all its series at one moment.
#[derive(Debug)]
pub struct Reading {
    /// The metric's description.
    pub desc: &'static Desc,
    /// The metric's type.
    pub kind: Kind,
    /// Label values and value of each series.
    pub points: Vec<(Vec<String>, Value)>,
}

type Forget = Box<dyn Fn(&str, &str) + Send + Sync>;

struct Metric {
    desc: &'static Desc,
    kind: Kind,
    read: Box<dyn Fn() -> Vec<(Vec<String>, Value)> + Send + Sync>,
    forget: Option<Forget>,
}

/// All metrics of one role. Clones share them.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    role: &'static str,
    started: SystemTime,
    metrics: Mutex<Vec<Metric>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("role", &self.inner.role)
            .finish_non_exhaustive()
    }
}

/// The registries of this process, for the exporter.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// Every registry of this process that is still in use.
pub(crate) fn all() -> Vec<Registry> {
    let mut all = ALL.lock();
    all.retain(|weak| weak.strong_count() > 0);
    all.iter()
        .filter_map(Weak::upgrade)
        .map(|inner| Registry { inner })
        .collect()
}

impl Registry {
    /// An empty registry for a role of this process. Its metrics are exported from now on, if an endpoint is
    /// configured.
    pub fn new(role: &'static str) -> Self {
        let inner = Arc::new(Inner {
            role,
            started: SystemTime::now(),
            metrics: Mutex::default(),
        });
        ALL.lock().push(Arc::downgrade(&inner));
        Self { inner }
    }

    /// The role.
    pub fn role(&self) -> &'static str {
        self.inner.role
    }

    /// When its counters started.
    pub(crate) fn started(&self) -> SystemTime {
        self.inner.started
    }

    /// Registers counters, gauges or histograms that are written as things happen. A family without labels has its one
    /// series from the beginning: a counter that was never incremented reads as zero.
    pub fn family<S: Series, const N: usize>(&self, desc: &'static Desc) -> Family<S, N> {
        let family = Family::new(desc);
        self.add_family(&family);
        family
    }

    /// Registers a family that another part of the program made.
    pub fn add_family<S: Series, const N: usize>(&self, family: &Family<S, N>) {
        if N == 0 {
            family.with(std::array::from_fn(|_| ""));
        }
        let (shared, forgetting): (Arc<Shared<S>>, _) = (family.shared(), family.shared());
        self.inner.metrics.lock().push(Metric {
            desc: shared.desc,
            kind: S::KIND,
            read: Box::new(move || shared.points()),
            forget: Some(Box::new(move |name, value| forgetting.forget(name, value))),
        });
    }

    /// Registers a metric that is read at each scrape: `read` returns label values and numbers. It must not block.
    pub fn observe(
        &self,
        kind: Kind,
        desc: &'static Desc,
        read: impl Fn() -> Vec<(Vec<String>, f64)> + Send + Sync + 'static,
    ) {
        let read = move || read().into_iter().map(|(l, v)| (l, Value::Number(v))).collect();
        self.push(kind, desc, Box::new(read));
    }

    /// Registers a single number without labels that is read at each scrape.
    pub fn observe_one(&self, kind: Kind, desc: &'static Desc, read: impl Fn() -> f64 + Send + Sync + 'static) {
        self.observe(kind, desc, move || vec![(Vec::new(), read())]);
    }

    /// Registers a histogram that another part of the program keeps, read at each scrape.
    pub fn observe_histogram(&self, desc: &'static Desc, read: impl Fn() -> HistogramValue + Send + Sync + 'static) {
        let read = move || vec![(Vec::new(), Value::Histogram(read()))];
        self.push(Kind::Histogram, desc, Box::new(read));
    }

    fn push(&self, kind: Kind, desc: &'static Desc, read: Box<dyn Fn() -> Vec<(Vec<String>, Value)> + Send + Sync>) {
        self.inner.metrics.lock().push(Metric {
            desc,
            kind,
            read,
            forget: None,
        });
    }

    /// Drops every series whose label `name` is `value`, since what it counted is gone, such as a deleted function.
    pub fn forget(&self, name: &str, value: &str) {
        for metric in self.inner.metrics.lock().iter() {
            if let Some(forget) = &metric.forget {
                forget(name, value);
            }
        }
    }

    /// Reads all metrics.
    pub fn read(&self) -> Vec<Reading> {
        let one = |m: &Metric| Reading {
            desc: m.desc,
            kind: m.kind,
            points: (m.read)(),
        };
        self.inner.metrics.lock().iter().map(one).collect()
    }

    /// All metrics, in the order of their registration.
    pub fn descriptions(&self) -> Vec<(&'static Desc, Kind)> {
        self.inner.metrics.lock().iter().map(|m| (m.desc, m.kind)).collect()
    }
}
