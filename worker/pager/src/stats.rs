//! A pager's counters.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::latency::Latency;

/// A pager's counters, in pages and events.
#[derive(Debug, Default)]
pub struct Stats {
    /// Faults received.
    pub faults: AtomicU64,
    /// Pages copied to answer faults.
    pub copied: AtomicU64,
    /// Pages of the mapped file let in to answer faults.
    pub let_in: AtomicU64,
    /// Pages filled with zeros.
    pub zeroed: AtomicU64,
    /// Pages copied ahead of any fault.
    pub prefetched: AtomicU64,
    /// Faults that had to wait for the source.
    pub fetched: AtomicU64,
    /// Pages let in or filled with zeros because a neighbour was touched.
    pub around: AtomicU64,
    /// Remove, unmap, remap and fork events.
    pub events: AtomicU64,
    /// Held from before events are read until they are known.
    pub(crate) taking: Mutex<()>,
    /// Latency of the faults.
    pub latency: Latency,
    /// Times of one-time events.
    pub marks: Mutex<Milestones>,
}

/// Times of one-time events in a pager's life, each with its duration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Milestones {
    /// All processes' memory was handed over. The duration is from CRIU's connection to the last descriptor, or from
    /// the kernel's event until the memory was taken.
    pub handshake: Option<(Instant, Duration)>,
    /// The first fault was answered.
    pub first_fault: Option<(Instant, Duration)>,
}
