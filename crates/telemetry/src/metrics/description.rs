//! The description of a metric, and the values that it has.

use super::instruments::HistogramValue;

/// Type of a metric in Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts values between bounds.
    Histogram,
}

impl Kind {
    /// The type's name in the exposition formats.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The description of a metric.
#[derive(Debug)]
pub struct Desc {
    /// OpenTelemetry's name: words joined by dots.
    pub name: &'static str,
    /// OpenTelemetry's unit: `s`, `By`, `1`, or a word in braces for what is counted.
    pub unit: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning, in a sentence.
    pub help: &'static str,
    /// Bounds of a histogram.
    pub bounds: &'static [f64],
}

impl Desc {
    /// A description; a histogram gets [`super::buckets::COARSE`] bounds.
    pub const fn new(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            unit,
            labels,
            help,
            bounds: super::buckets::COARSE,
        }
    }

    /// Replaces the bounds.
    #[must_use]
    pub const fn bounds(mut self, bounds: &'static [f64]) -> Self {
        self.bounds = bounds;
        self
    }

    /// The name as Prometheus writes it, without a counter's `_total`.
    pub fn prometheus_name(&self) -> String {
        let mut name = prometheus(self.name);
        let unit = match self.unit {
            "s" => "_seconds",
            "By" => "_bytes",
            _ => "",
        };
        if !name.ends_with(unit) {
            name.push_str(unit);
        }
        name
    }
}

/// A name as Prometheus writes it.
pub(super) fn prometheus(name: &str) -> String {
    name.replace(['.', '-'], "_")
}

/// A measured value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Value of a counter or a gauge.
    Number(f64),
    /// Value of a histogram.
    Histogram(HistogramValue),
}
