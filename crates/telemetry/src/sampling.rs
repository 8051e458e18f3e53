//! Which traces are sampled at their head, as OpenTelemetry's variables say. The others are recorded all the same, so
//! that the tail can decide (`tail`).

use opentelemetry::trace::{Link, SpanKind, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

use crate::environment::set;

/// The sampler of `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`; by default every trace, or what the client's
/// `traceparent` says.
pub(crate) fn head() -> Sampler {
    let name = set("OTEL_TRACES_SAMPLER").unwrap_or_default();
    let ratio = set("OTEL_TRACES_SAMPLER_ARG").and_then(|text| text.parse().ok());
    sampler(&name, ratio)
}

fn sampler(name: &str, ratio: Option<f64>) -> Sampler {
    let root = match name.trim_start_matches("parentbased_") {
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio.unwrap_or(1.0)),
        "always_on" | "" => Sampler::AlwaysOn,
        other => {
            tracing::warn!(
                sampler = other,
                "OTEL_TRACES_SAMPLER names no sampler: every trace is sampled"
            );
            Sampler::AlwaysOn
        }
    };
    if name.is_empty() || name.starts_with("parentbased_") {
        Sampler::ParentBased(Box::new(root))
    } else {
        root
    }
}

/// Records what the head's sampler does not want, without the flag that tells others.
#[derive(Debug, Clone)]
pub(crate) struct RecordAll(pub(crate) Sampler);

impl ShouldSample for RecordAll {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut result = self.0.should_sample(parent, trace_id, name, kind, attributes, links);
        if result.decision == SamplingDecision::Drop {
            result.decision = SamplingDecision::RecordOnly;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(sampler: &Sampler, trace: u128) -> SamplingDecision {
        let all = RecordAll(sampler.clone());
        all.should_sample(None, TraceId::from(trace), "x", &SpanKind::Server, &[], &[])
            .decision
    }

    #[test]
    fn the_head_samples_its_share_and_the_rest_is_recorded() {
        let half = sampler("parentbased_traceidratio", Some(0.5));
        let trace = |n: u128| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834) | 1;
        let decisions: Vec<_> = (1..=1000).map(|n| decision(&half, trace(n))).collect();
        let sampled = decisions
            .iter()
            .filter(|d| **d == SamplingDecision::RecordAndSample)
            .count();
        assert!((300..700).contains(&sampled), "{sampled}");
        assert!(!decisions.contains(&SamplingDecision::Drop));
        assert_eq!(decision(&sampler("", None), 1), SamplingDecision::RecordAndSample);
        assert_eq!(decision(&sampler("always_off", None), 1), SamplingDecision::RecordOnly);
    }
}
