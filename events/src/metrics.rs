//! What this program measures.

use std::time::Duration;

use rekindle_telemetry::metrics::{Counter, Desc, Family, Gauge, Histogram, Registry, observe_process};
use rekindle_wire::{FunctionId, SourceName};

const FUNCTION: &str = "faas.invoked_name";
const SOURCE: &str = "source";

const MESSAGES: Desc = Desc::new(
    "rekindle.events.messages",
    "{message}",
    &[FUNCTION, SOURCE, "outcome"],
    "Deliveries by what became of them: `succeeded`; `failed`, and delivered again; `dead`, a dead letter; \
     `given_back` as the function could not be called or the program was stopped.",
);
const REFUSED: Desc = Desc::new(
    "rekindle.events.refused",
    "{batch}",
    &[FUNCTION, SOURCE, "reason"],
    "Calls that are made again later: the platform or the function is `busy`, or it is `unreachable`: no gateway, no \
     such function, or the key is not enough.",
);
const DESTINATIONS: Desc = Desc::new(
    "rekindle.events.destinations",
    "{message}",
    &[FUNCTION, SOURCE, "outcome"],
    "Messages that destinations were to be told of: `delivered`, or `failed` when that was given up.",
);
const DURATION: Desc = Desc::new(
    "rekindle.events.batch.duration",
    "s",
    &[FUNCTION],
    "From when a batch was complete until all its messages were settled.",
);
const LAG: Desc = Desc::new(
    "rekindle.events.lag",
    "{message}",
    &[FUNCTION, SOURCE],
    "Messages that wait in the queue. Every reader of a source sees the same.",
);
const IN_FLIGHT: Desc = Desc::new(
    "rekindle.events.in_flight",
    "{message}",
    &[FUNCTION, SOURCE],
    "Messages that this reader has and that are not settled.",
);
const CONCURRENCY: Desc = Desc::new(
    "rekindle.events.concurrency",
    "{batch}",
    &[FUNCTION, SOURCE],
    "Batches that may be in flight at the moment.",
);
const QUEUE_ERRORS: Desc = Desc::new(
    "rekindle.events.queue.errors",
    "{error}",
    &[FUNCTION, SOURCE],
    "What queues' servers refused or did not answer.",
);
const FOLLOWS: Desc = Desc::new(
    "rekindle.events.follows",
    "{ask}",
    &["outcome"],
    "Asks for the list of sources: `answered` or `failed`. While they fail, the sources of before are read on.",
);

pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    messages: Family<Counter, 3>,
    refused: Family<Counter, 3>,
    destinations: Family<Counter, 3>,
    duration: Family<Histogram, 1>,
    lag: Family<Gauge, 2>,
    in_flight: Family<Gauge, 2>,
    concurrency: Family<Gauge, 2>,
    queue_errors: Family<Counter, 2>,
    follows: Family<Counter, 1>,
}

impl Metrics {
    /// The instruments, with a registry of their own.
    pub(crate) fn new() -> Self {
        let registry = Registry::new("events");
        let metrics = Self {
            messages: registry.family(&MESSAGES),
            refused: registry.family(&REFUSED),
            destinations: registry.family(&DESTINATIONS),
            duration: registry.family(&DURATION),
            lag: registry.family(&LAG),
            in_flight: registry.family(&IN_FLIGHT),
            concurrency: registry.family(&CONCURRENCY),
            queue_errors: registry.family(&QUEUE_ERRORS),
            follows: registry.family(&FOLLOWS),
            registry,
        };
        observe_process(&metrics.registry);
        metrics
    }

    pub(crate) fn settled(&self, function: &FunctionId, source: &SourceName, outcome: &'static str, messages: u64) {
        if messages > 0 {
            let labels = [function.as_str(), source.as_str(), outcome];
            self.messages.with(labels).add(messages);
        }
    }

    pub(crate) fn refused(&self, function: &FunctionId, source: &SourceName, is_busy: bool) {
        let reason = if is_busy { "busy" } else { "unreachable" };
        self.refused.with([function.as_str(), source.as_str(), reason]).inc();
    }

    pub(crate) fn told(&self, function: &FunctionId, source: &SourceName, outcome: &'static str) {
        let labels = [function.as_str(), source.as_str(), outcome];
        self.destinations.with(labels).inc();
    }

    pub(crate) fn took(&self, function: &FunctionId, took: Duration) {
        self.duration.with([function.as_str()]).record(took);
    }

    pub(crate) fn queue_failed(&self, function: &FunctionId, source: &SourceName) {
        self.queue_errors.with([function.as_str(), source.as_str()]).inc();
    }

    pub(crate) fn followed(&self, is_answered: bool) {
        let outcome = if is_answered { "answered" } else { "failed" };
        self.follows.with([outcome]).inc();
    }

    /// Sets what a reader of a source says of itself.
    pub(crate) fn look(&self, (function, source): (&FunctionId, &SourceName), lag: Option<u64>, held: u32, limit: u32) {
        let labels = [function.as_str(), source.as_str()];
        if let Some(lag) = lag {
            self.lag.with(labels).set(i64::try_from(lag).unwrap_or(i64::MAX));
        }
        self.in_flight.with(labels).set(held.into());
        self.concurrency.with(labels).set(limit.into());
    }

    /// Drops the series of a function that has no source any more.
    pub(crate) fn forget(&self, function: &FunctionId) {
        self.registry.forget(FUNCTION, function.as_str());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rekindle_telemetry::metrics::documented;

    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        assert_eq!(documented(&Metrics::new().registry, &page), Ok(()));
    }
}
