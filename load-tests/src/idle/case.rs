//! One workload with one kind of eviction: a process writes its memory and is told to go. The results add what it, the
//! evictor and the kernel saw.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rekindle_pager::PAGE;
use rekindle_worker::idle::damon::{self, DamonMonitor};
use rekindle_worker::idle::kernel;
use rekindle_worker::idle::policy::{Ledger, ProcessActivity};
use rekindle_worker::idle::throttle::Throttle;
use rekindle_worker::idle::visit::visit;

use super::group::Group;
use super::process::Seen;
use super::{BACK, BACKGROUND, IdleArgs, KERNEL, OUT, RESIDENT, THROUGHPUT, TOOK, TOUCHES, WORK};
use crate::pager::child::Restored;
use crate::pager::kinds::{Workload, name};
use crate::record::{Record, Row};

/// Interval between two samples of the process's memory.
const SAMPLING: Duration = Duration::from_millis(50);

/// How idle memory is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// It is not.
    Stays,
    /// By the worker's evictor, which treats pages that come back as in use.
    Evictor,
    /// By the worker's evictor, with DAMON reporting what is untouched.
    Watched,
    /// By the kernel, which reclaims at a limit.
    Kernel,
}

impl Eviction {
    /// The kinds that this kernel supports. The kernel alone comes last, since it may keep as much as the kind before
    /// it kept.
    pub(super) fn known() -> Vec<Self> {
        let watches = damon::probe(Path::new(damon::ADMIN)).is_ok();
        let all = [Self::Stays, Self::Evictor, Self::Watched, Self::Kernel];
        all.into_iter()
            .filter(|eviction| watches || *eviction != Self::Watched)
            .collect()
    }

    pub(super) fn told(self) -> &'static str {
        match self {
            Self::Stays => "stays",
            Self::Evictor => "evictor",
            Self::Watched => "evictor, DAMON",
            Self::Kernel => "kernel alone",
        }
    }
}

/// One workload with one kind of eviction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) eviction: Eviction,
}

impl Case {
    /// Its row in a table.
    pub(super) fn row(self, table: &str) -> Row {
        let workload = name(self.workload);
        Row::of(
            table,
            &[("workload", &workload), ("idle memory", &self.eviction.told())],
        )
    }

    /// Runs one round; the kernel alone may keep `limit` bytes. Returns how many were in memory on average.
    pub(super) fn run(self, record: &mut Record, args: &IdleArgs, after: Duration, limit: u64) -> Result<u64> {
        let mut process = Restored::start(&[
            "idle-process".to_owned(),
            "--workload".to_owned(),
            name(self.workload),
            "--pages".to_owned(),
            args.pages.to_string(),
            "--millis".to_owned(),
            args.millis.to_string(),
        ])?;
        let pid = process.pid();
        let group = (self.eviction == Eviction::Kernel)
            .then(|| Group::of(pid))
            .transpose()?;
        process.go()?;
        ensure!(process.line()? == "ready", "the process did not get ready");
        let (before, started) = ((counter("pswpout ")?, counter("pswpin ")?), Instant::now());
        let mut limiting = Throttle::new(1.0);
        if let Some(group) = &group {
            group.limit(limit)?;
        }
        let mut background = limiting.spent().0;
        process.go()?;
        let ended = &AtomicBool::new(false);
        let (line, resident) = thread::scope(|scope| {
            let sampler = scope.spawn(|| sample(pid, ended));
            let evicts = matches!(self.eviction, Eviction::Evictor | Eviction::Watched);
            let watched = self.eviction == Eviction::Watched;
            let evictor = evicts.then(|| scope.spawn(move || evict(pid, args.share, after, watched, ended)));
            let line = process.line();
            ended.store(true, Ordering::Relaxed);
            if let Some(spent) = evictor.and_then(|e| e.join().ok()) {
                background += spent;
            }
            (line, sampler.join().unwrap_or_default())
        });
        let took = started.elapsed().as_secs_f64();
        let seen: Seen = serde_json::from_str(&line?).context("the process does not say what it saw")?;
        process.end()?;
        drop(group);
        let touching: u64 = seen.brought.iter().map(|(ns, count)| ns * count).sum();
        let row = self.row(WORK);
        for (name, unit, value) in [
            (THROUGHPUT, "a second", seen.units as f64 / seen.seconds),
            (RESIDENT, "MiB", resident),
            // Of the evictor's thread, or of whoever set the limit.
            (BACKGROUND, "% of a processor", background.as_secs_f64() / took * 100.0),
            (KERNEL, "% of a processor", seen.kernel / took * 100.0),
            ("its time in touches", "%", touching as f64 / 1e7 / seen.seconds),
            ("faults", "", seen.faults as f64),
            // In the whole machine.
            (OUT, "pages", (counter("pswpout ")? - before.0) as f64),
            (BACK, "pages", (counter("pswpin ")? - before.1) as f64),
        ] {
            record.push(&row, name, unit, value);
        }
        if !seen.brought.is_empty() {
            let brought = seen.brought.iter().map(|(ns, count)| (*ns as f64 / 1e3, *count));
            record.series(&self.row(TOUCHES), TOOK, "µs").values.add(brought);
        }
        Ok((resident * 1_048_576.0) as u64)
    }
}

/// Does what the worker's evictor does with a running instance, until that has ended. Returns its processor time.
fn evict(pid: i32, share: f64, after: Duration, watched: bool, ended: &AtomicBool) -> Duration {
    let (begun, mut sum) = (Instant::now(), Duration::ZERO);
    let mut throttle = Throttle::new(share);
    let mut ledger = Ledger::new(after);
    let goes_on = |_| !ended.load(Ordering::Relaxed);
    // Without it nothing is evicted, and the figures show that.
    let Ok(host) = kernel::probe() else { return sum };
    let mut watch = watched
        .then(|| DamonMonitor::open(Path::new(damon::ADMIN), after).ok())
        .flatten();
    while goes_on(0) {
        thread::sleep(after / 4);
        let account = || {
            let (spent, rest) = throttle.spent();
            sum += spent;
            thread::sleep(rest);
        };
        let untouched = watch.as_mut().and_then(|w| w.untouched(pid));
        let chosen = (ProcessActivity::Warm, untouched.as_deref());
        // It has ended meanwhile.
        let _ = visit(&host, pid, &mut ledger, chosen, begun.elapsed(), goes_on, account);
        if let Some(watch) = &mut watch {
            watch.follow(&[(pid, ledger.present())]);
        }
    }
    sum + throttle.spent().0
}

/// Average resident private memory, MiB, without that of files.
fn sample(pid: i32, ended: &AtomicBool) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    while !ended.load(Ordering::Relaxed) {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let mut fields = statm.split(' ').skip(1).map_while(|field| field.parse::<u64>().ok());
        if let (Some(resident), Some(of_files)) = (fields.next(), fields.next()) {
            sum += (resident.saturating_sub(of_files) * PAGE) as f64 / f64::from(1 << 20);
            count += 1.0;
        }
        thread::sleep(SAMPLING);
    }
    sum / f64::max(count, 1.0)
}

/// One of the kernel's memory counters.
fn counter(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("no /proc/vmstat")?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    value.with_context(|| format!("/proc/vmstat has no {name}"))
}
