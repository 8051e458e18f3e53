//! The scheduler's metrics of asynchronous invocations.

use std::time::Duration;

use rekindle_telemetry::metrics::{Counter, Desc, Family, Histogram, Registry};

use super::FUNCTION;

const ACCEPTED: Desc = Desc::new(
    "rekindle.async.accepted",
    "{invocation}",
    &[FUNCTION],
    "Asynchronous invocations that were accepted; one sent again with its idempotency key is not counted again.",
);
const ATTEMPTS: Desc = Desc::new(
    "rekindle.async.attempts",
    "{attempt}",
    &[FUNCTION, "outcome"],
    "Attempts at them that are over: `answered`, `answered_5xx`, `failed`, `unreached` (no slot, no worker), \
     `released` (by a gateway that ended), `lost` (with their gateway).",
);
const DEAD: Desc = Desc::new(
    "rekindle.async.dead",
    "{invocation}",
    &[FUNCTION, "error.type"],
    "Asynchronous invocations that were given up, by the error of their last attempt.",
);
const DURATION: Desc = Desc::new(
    "rekindle.async.duration",
    "s",
    &[FUNCTION, "outcome"],
    "From their acceptance until they were `done` or `dead`.",
);
const CALLBACKS: Desc = Desc::new(
    "rekindle.async.callbacks",
    "{attempt}",
    &["outcome"],
    "Attempts at callbacks: `delivered`, `again`, or `failed`, the last one; `dropped` is one whose call was \
     forgotten before.",
);
const DESTINATIONS: Desc = Desc::new(
    "rekindle.async.destinations",
    "{attempt}",
    &["outcome"],
    "Attempts to tell destinations how a call ended: `delivered`, `again`, or `failed`, the last one; `dropped` \
     is an event whose call was forgotten before.",
);
pub(crate) struct AsyncMetrics {
    accepted: Family<Counter, 1>,
    attempts: Family<Counter, 2>,
    dead: Family<Counter, 2>,
    duration: Family<Histogram, 2>,
    callbacks: Family<Counter, 1>,
    destinations: Family<Counter, 1>,
}

impl AsyncMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            accepted: registry.family(&ACCEPTED),
            attempts: registry.family(&ATTEMPTS),
            dead: registry.family(&DEAD),
            duration: registry.family(&DURATION),
            callbacks: registry.family(&CALLBACKS),
            destinations: registry.family(&DESTINATIONS),
        }
    }

    pub(crate) fn accepted(&self, function: &str) {
        self.accepted.with([function]).inc();
    }

    /// Counts a finished attempt.
    pub(crate) fn attempted(&self, function: &str, outcome: &'static str) {
        self.attempts.with([function, outcome]).inc();
    }

    /// Counts a call that was given up.
    pub(crate) fn dead(&self, function: &str, code: &'static str) {
        self.dead.with([function, code]).inc();
    }

    /// Records a call that ended `took` after it was accepted.
    pub(crate) fn finished(&self, function: &str, outcome: &'static str, took: Duration) {
        self.duration.with([function, outcome]).record(took);
    }

    /// Counts a finished attempt to tell a destination.
    pub(crate) fn told(&self, outcome: &'static str) {
        self.destinations.with([outcome]).inc();
    }

    /// Counts a finished attempt at a callback.
    pub(crate) fn called_back(&self, outcome: &'static str) {
        self.callbacks.with([outcome]).inc();
    }
}
