//! One workload on one backing: a process is set up as CRIU would restore it, and does its work. The results add what
//! it and the pager saw.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rekindle_pager::{Handover, Layout, PageRange, Pager, PagerConfig};

use super::child::Restored;
use super::content::{Content, FIRST};
use super::kinds::{Backing, Workload, name};
use super::workload::Seen;
use crate::record::{Record, Row};

/// Limit for the pager's part of starting a process.
const LIMIT: Duration = Duration::from_secs(10);

/// One workload on one backing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) backing: Backing,
    /// Whether others kept every core busy.
    pub(super) machine: &'static str,
}

impl Case {
    /// Its row in a table about this.
    fn row(self, what: &str) -> Row {
        let (workload, backing) = (name(self.workload), name(self.backing));
        let labels: [(&str, &dyn std::fmt::Display); 3] = [
            ("machine", &self.machine),
            ("workload", &workload),
            ("memory", &backing),
        ];
        Row::of(format!("{what}: {}", self.machine), &labels)
    }

    /// Runs one round.
    pub(super) fn run(self, record: &mut Record, pages: u64, millis: u64) -> Result<()> {
        let content = Arc::new(Content::new(self.backing, pages)?);
        let dir = tempfile::tempdir().context("no directory for the socket")?;
        let socket = dir.path().join("lazy-pages.socket");
        let listener = UnixListener::bind(&socket).context("the pager cannot listen")?;
        let pager = match self.backing.is_served() {
            true => Some(self.serve(&content, listener, pages)?),
            false => None,
        };
        let mut restored = Restored::start(&[
            "pager-process".to_owned(),
            "--workload".to_owned(),
            name(self.workload),
            "--backing".to_owned(),
            name(self.backing),
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
        for (what, touches) in [
            (
                "Faults that waited for the pager, as their thread sees them",
                &seen.waited,
            ),
            ("First touches of restored pages", &seen.first_touches),
        ] {
            if !touches.is_empty() {
                let touches = touches.iter().map(|(ns, count)| (*ns as f64 / 1e3, *count));
                record.series(&self.row(what), "took", "µs").values.add(touches);
            }
        }
        let row = self.row("Work done, and what the pager took for it");
        record.push(&row, "units", "a second", seen.units as f64 / seen.seconds);
        if let Some(pager) = &pager {
            record.push(&row, "pager user", "%", (after.0 - before.0) / took * 100.0);
            record.push(&row, "pager sys", "%", (after.1 - before.1) / took * 100.0);
            let stats = pager.stats();
            let sum = |counters: &[&AtomicU64]| counters.iter().map(|c| c.load(Ordering::Relaxed)).sum::<u64>() as f64;
            record.push(&row, "faults", "", sum(&[&stats.faults]));
            let pages = [&stats.let_in, &stats.copied, &stats.zeroed, &stats.around];
            record.push(&row, "pages", "", sum(&pages));
            record.push(&row, "events", "", sum(&[&stats.events]));
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
                mapped: if self.backing.is_mapped() {
                    vec![all]
                } else {
                    Vec::new()
                },
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

/// Seconds of this process, in its own code and in the kernel. While it waits for a workload, only the pager works in
/// it.
fn processor_time() -> Result<(f64, f64)> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    Ok((seconds(usage.user_time()), seconds(usage.system_time())))
}
