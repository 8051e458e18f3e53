//! Readings in OTLP's form.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar as OtlpExemplar, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, exemplar, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::description::{Kind, Value};
use super::instruments::{Exemplar, HistogramValue};
use super::registry::{Reading, Registry};

/// The current readings of these registries; each role is a resource of its own.
pub(crate) fn request(registries: &[Registry], resource: &[(String, String)]) -> ExportMetricsServiceRequest {
    let now = nanoseconds(SystemTime::now());
    let of = |registry: &Registry| {
        let role = ("rekindle.role".to_owned(), registry.role().to_owned());
        let attributes = resource.iter().chain([&role]).map(|(k, v)| attribute(k, v)).collect();
        let (started, readings) = (nanoseconds(registry.started()), registry.read());
        ResourceMetrics {
            resource: Some(Resource {
                attributes,
                ..Resource::default()
            }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(InstrumentationScope {
                    name: "rekindle".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    ..InstrumentationScope::default()
                }),
                metrics: readings.iter().map(|r| metric(r, started, now)).collect(),
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }
    };
    ExportMetricsServiceRequest {
        resource_metrics: registries.iter().map(of).collect(),
    }
}

fn metric(reading: &Reading, started: u64, now: u64) -> Metric {
    let temporality = AggregationTemporality::Cumulative.into();
    let labels = |values: &[String]| -> Vec<KeyValue> {
        let names = reading.desc.labels.iter();
        names.zip(values).map(|(name, value)| attribute(name, value)).collect()
    };
    let numbers = || {
        let points = reading.points.iter();
        let points = points.filter_map(|(values, value)| match value {
            Value::Number(n) => Some(NumberDataPoint {
                attributes: labels(values),
                start_time_unix_nano: started,
                time_unix_nano: now,
                value: Some(number_data_point::Value::AsDouble(*n)),
                ..NumberDataPoint::default()
            }),
            Value::Histogram(_) => None,
        });
        points.collect()
    };
    let data = match reading.kind {
        Kind::Counter => Data::Sum(Sum {
            data_points: numbers(),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        Kind::Gauge => Data::Gauge(Gauge { data_points: numbers() }),
        Kind::Histogram => {
            let points = reading.points.iter();
            let points = points.filter_map(|(values, value)| match value {
                Value::Histogram(h) => Some(histogram(h, labels(values), started, now)),
                Value::Number(_) => None,
            });
            Data::Histogram(Histogram {
                data_points: points.collect(),
                aggregation_temporality: temporality,
            })
        }
    };
    Metric {
        name: reading.desc.name.to_owned(),
        description: reading.desc.help.to_owned(),
        unit: reading.desc.unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn histogram(value: &HistogramValue, attributes: Vec<KeyValue>, started: u64, now: u64) -> HistogramDataPoint {
    HistogramDataPoint {
        attributes,
        start_time_unix_nano: started,
        time_unix_nano: now,
        count: value.count(),
        sum: Some(value.sum),
        bucket_counts: value.counts.clone(),
        explicit_bounds: value.bounds.to_vec(),
        exemplars: value.exemplars.iter().flatten().map(of_trace).collect(),
        ..HistogramDataPoint::default()
    }
}

fn of_trace(exemplar: &Exemplar) -> OtlpExemplar {
    OtlpExemplar {
        time_unix_nano: nanoseconds(exemplar.at),
        span_id: exemplar.trace.span_id.to_vec(),
        trace_id: exemplar.trace.trace_id.to_vec(),
        value: Some(exemplar::Value::AsDouble(exemplar.value)),
        ..OtlpExemplar::default()
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Any::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
