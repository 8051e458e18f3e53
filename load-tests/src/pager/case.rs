//! One workload in one way: a process is set up as CRIU would restore it, and does its work. The results add what it
//! and the pager saw.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use rekindle_pager::{Handover, Layout, PageRange, Pager, PagerConfig};
use serde::Serialize;

use super::child::Restored;
use super::content::{Content, FIRST};
use super::kinds::{Way, Workload, name};
use super::process::Seen;

/// Limit for the pager's part of starting a process.
const LIMIT: Duration = Duration::from_secs(10);

/// One workload in one way, over all rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) way: Way,
    /// Whether others kept every core busy.
    pub(super) busy: bool,
    /// Units of work a second, by round.
    pub(super) throughput: Vec<f64>,
    /// First touches of restored pages.
    pub(super) first_touches: Latency,
    /// First touches that waited for the pager.
    pub(super) waited: Latency,
    /// Processor time of the pager over the time of the workload, by round.
    pub(super) pager_user: Vec<f64>,
    pub(super) pager_sys: Vec<f64>,
    /// Faults, pages and events as the pager counts them, summed.
    pub(super) pager: BTreeMap<&'static str, u64>,
}

/// Microseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    #[serde(skip)]
    pub(crate) histogram: Histogram<u64>,
}

impl Case {
    pub(super) fn new(workload: Workload, way: Way, busy: bool) -> Result<Self> {
        Ok(Self {
            workload,
            way,
            busy,
            throughput: Vec::new(),
            first_touches: Latency::new()?,
            waited: Latency::new()?,
            pager_user: Vec::new(),
            pager_sys: Vec::new(),
            pager: BTreeMap::new(),
        })
    }

    /// Runs one round.
    pub(super) fn run(&mut self, pages: u64, millis: u64) -> Result<()> {
        let content = Arc::new(Content::new(self.way, pages)?);
        let dir = tempfile::tempdir().context("no directory for the socket")?;
        let socket = dir.path().join("lazy-pages.socket");
        let listener = UnixListener::bind(&socket).context("the pager cannot listen")?;
        let pager = match self.way.is_served() {
            true => Some(self.serve(&content, listener, pages)?),
            false => None,
        };
        let mut restored = Restored::start(&[
            "pager-process".to_owned(),
            "--workload".to_owned(),
            name(self.workload),
            "--way".to_owned(),
            name(self.way),
            "--pages".to_owned(),
            pages.to_string(),
            "--millis".to_owned(),
            millis.to_string(),
            "--socket".to_owned(),
            socket.display().to_string(),
            "--file".to_owned(),
            content.path(),
        ])?;
        ensure!(restored.line()? == "ready", "the process did not get ready");
        if let Some(pager) = &pager {
            pager.prepare(Vec::new(), Arc::new([]))?.done(LIMIT)?;
        }
        let (before, started) = (processor_time()?, Instant::now());
        restored.go()?;
        let seen: Seen = serde_json::from_str(&restored.line()?).context("the process does not say what it saw")?;
        let (after, took) = (processor_time()?, started.elapsed().as_secs_f64());
        restored.end()?;
        self.throughput.push(seen.units as f64 / seen.seconds);
        self.first_touches.add(&seen.first_touches)?;
        self.waited.add(&seen.waited)?;
        if let Some(pager) = &pager {
            self.pager_user.push((after.0 - before.0) / took);
            self.pager_sys.push((after.1 - before.1) / took);
            let stats = pager.stats();
            for (name, counter) in [
                ("faults", &stats.faults),
                ("let_in", &stats.let_in),
                ("copied", &stats.copied),
                ("zeroed", &stats.zeroed),
                ("around", &stats.around),
                ("fetched", &stats.fetched),
                ("events", &stats.events),
            ] {
                *self.pager.entry(name).or_default() += counter.load(Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn serve(&self, content: &Arc<Content>, listener: UnixListener, pages: u64) -> Result<Pager> {
        let all = PageRange { first: FIRST, pages };
        let pager = Pager::start(PagerConfig {
            name: "pager-bench".to_owned(),
            handover: Handover::Socket(listener),
            source: Arc::clone(content) as Arc<_>,
            layout: Layout {
                mapped: if self.way.is_mapped() { vec![all] } else { Vec::new() },
                ..Layout::default()
            },
            record: false,
            maps: std::collections::HashMap::new(),
            handshake_limit: LIMIT,
            on_lost: Box::new(|lost| {
                eprintln!("rekindle-bench: {lost}");
                std::process::abort();
            }),
        })?;
        Ok(pager)
    }
}

impl Latency {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            count: 0,
            p50: 0.0,
            p95: 0.0,
            p99: 0.0,
            p999: 0.0,
            max: 0.0,
            histogram: Histogram::new(3).context("no histogram")?,
        })
    }

    /// Adds pairs of nanoseconds and counts.
    pub(crate) fn add(&mut self, counts: &[(u64, u64)]) -> Result<()> {
        for (value, count) in counts {
            self.histogram.record_n(*value, *count)?;
        }
        Ok(())
    }

    /// Reads the figures from the histogram.
    pub(crate) fn read(&mut self) {
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        (self.p50, self.p95, self.p99, self.p999) = (at(0.5), at(0.95), at(0.99), at(0.999));
        self.count = self.histogram.len();
        self.max = self.histogram.max() as f64 / 1_000.0;
    }
}

/// Seconds of this process, in its own code and in the kernel. While it waits for a workload, only the pager works in
/// it.
fn processor_time() -> Result<(f64, f64)> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    Ok((seconds(usage.user_time()), seconds(usage.system_time())))
}
