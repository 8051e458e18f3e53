//! Puts a copy back to the point where it was ready, so that it serves the next request of a function with `fresh`.
//!
//! The point is saved while nobody waits, when the copy has taken its connection. A copy that has done what cannot be
//! undone is not put back: another one is restored. See `rekindle_rewind`.

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rekindle_pager::address_map::{AddressMap, Origin};
use rekindle_pager::{Layout, PAGE, PageLookup, PageRef, PageSource as _, pin};
use rekindle_rewind::{Behind, Exchanged, Point, Surroundings, ToldCalls, Unfit};
use tokio::io::unix::AsyncFd;

use super::counted::ByteCounts;
use super::randomness;
use super::running::RunningInstance;
use crate::host::host_pids::{HostPids, processes_in};
use crate::host::sandbox::Sandbox;
use crate::metrics::Metrics;

/// How long a copy may take to be at rest, before its point is saved and after a request.
const REST_LIMIT: Duration = Duration::from_millis(20);
const REST_STEP: Duration = Duration::from_micros(200);
/// The sandbox's own process.
const INIT: u32 = 1;
/// How long the pager may take to answer.
const PAGER_LIMIT: Duration = Duration::from_millis(200);
/// After how many copies in a row that could not be put back fewer are tried.
const FAILED_MAX: u32 = 3;
/// The most copies that are not tried then is two to this power.
const SKIPPED_MAX: u32 = 8;

/// Whether resets of a function's copies are worth a try.
#[derive(Debug, Default)]
pub(super) struct ResetPolicy {
    failed: AtomicU32,
    skipped: AtomicU32,
}

impl ResetPolicy {
    /// Returns whether the point of the next copy is to be saved.
    fn is_due(&self) -> bool {
        let skip = |left: u32| left.checked_sub(1);
        self.skipped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, skip)
            .is_err()
    }

    pub(super) fn succeeded(&self) {
        self.failed.store(0, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        let before = self.failed.fetch_add(1, Ordering::Relaxed);
        if let Some(often) = (before + 1).checked_sub(FAILED_MAX) {
            self.skipped.store(1 << often.min(SKIPPED_MAX), Ordering::Relaxed);
        }
    }
}

/// Where a copy is put back to.
pub(super) struct ResetPoint {
    point: Point,
    /// Of the process, at the checkpoint.
    pid: i32,
    hosts: HostPids,
    layout: Layout,
    counts: Arc<ByteCounts>,
    secrets_revision: u64,
}

/// What surrounds a copy while it is stopped.
struct CopySurroundings<'a> {
    running: &'a RunningInstance,
    metrics: &'a Metrics,
    hosts: &'a HostPids,
    pid: i32,
    layout: &'a Layout,
    counts: &'a ByteCounts,
    /// What the pager says of the process's addresses, once it is asked.
    map: OnceCell<Option<AddressMap>>,
}

impl Surroundings for CopySurroundings<'_> {
    fn changes(&self) -> Result<u64, String> {
        let pager = self.running.pager.as_ref().ok_or("it has no pager")?;
        pager.changes(PAGER_LIMIT).map_err(|e| e.to_string())
    }

    fn behind(&self, page: u64) -> Behind {
        let at = |page| PageRef { pid: self.pid, page };
        let unknown = |e: &dyn std::fmt::Display| Behind::Unknown(e.to_string());
        let mut paged = self.layout.mapped.iter().chain(&self.layout.anonymous);
        if !paged.any(|range| range.contains(at(page))) {
            return Behind::Mapping;
        }
        let (Some(snapshot), Some(pager)) = (&self.running.snapshot, &self.running.pager) else {
            return Behind::Mapping;
        };
        let template = &snapshot.template;
        let map = self.map.get_or_init(|| {
            let maps = pager.maps(PAGER_LIMIT).unwrap_or_default();
            let map = maps.into_iter().find(|(pid, _)| *pid == self.pid);
            map.map(|(_, map)| map)
        });
        let Some(map) = map else {
            return unknown(&"the pager does not say what belongs there");
        };
        match map.origin(page) {
            Origin::Zero => Behind::Zero,
            Origin::File(page) => template.file_page(at(page)).map_or_else(|e| unknown(&e), Behind::Page),
            Origin::Snapshot(page) => {
                if template.held(at(page), &pin()) == PageLookup::Absent
                    && let Err(error) = template.fetch(at(page))
                {
                    return unknown(&error);
                }
                match template.held(at(page), &pin()) {
                    PageLookup::Zero => Behind::Zero,
                    PageLookup::Bytes(bytes) | PageLookup::Mapped(bytes) => Behind::Page(bytes[..PAGE as usize].into()),
                    PageLookup::Absent | PageLookup::Settled => unknown(&"its page was evicted"),
                }
            }
        }
    }

    fn exchanged(&self) -> Exchanged {
        self.counts.get()
    }

    fn before_it_runs(&self) -> Result<(), String> {
        let Some(snapshot) = &self.running.snapshot else {
            return Ok(());
        };
        let written = randomness::write(self.hosts, &snapshot.notes.generators, self.metrics);
        written.map(drop).map_err(|e| e.to_string())
    }
}

impl RunningInstance {
    /// Saves the point where this copy is, if it can be put back to it. Marks it as used if it must serve nobody.
    pub(super) async fn save_point(self: &Arc<Self>, policy: &ResetPolicy, metrics: &Arc<Metrics>) {
        if !policy.is_due() {
            return;
        }
        let began = Instant::now();
        let saved = loop {
            let (running, by) = (Arc::clone(self), Arc::clone(metrics));
            let saving = tokio::task::spawn_blocking(move || running.save(&by)).await;
            match saving {
                Ok(Err(Unfit::Busy(_))) if began.elapsed() < REST_LIMIT => tokio::time::sleep(REST_STEP).await,
                Ok(saved) => break saved,
                // It does not panic, so the worker ends.
                Err(_) => return,
            }
        };
        match saved.and_then(|(point, told)| Ok((point, watch(told, &self.sandbox)?))) {
            Ok((point, ())) => *self.reset.lock() = Some(point),
            Err(unfit) => {
                tracing::debug!(error = %unfit, "a copy has no point that it could be put back to");
                policy.failed();
                if matches!(unfit, Unfit::Filter(_)) {
                    self.use_once();
                }
            }
        }
    }

    /// Blocks for some milliseconds.
    fn save(&self, metrics: &Metrics) -> Result<(ResetPoint, ToldCalls), Unfit> {
        let unfit = |why: &str| Unfit::Memory(why.to_owned());
        let snapshot = self.snapshot.as_ref().ok_or_else(|| unfit("it was booted"))?;
        if snapshot.notes.is_hook_needed() {
            return Err(Unfit::Last("its hook after a restore makes copies differ".to_owned()));
        }
        let layout = snapshot
            .template
            .layout()
            .ok_or_else(|| unfit("some of it has no pager"))?;
        let hosts = processes_in(&self.cgroup).map_err(|e| Unfit::Threads(e.to_string()))?;
        let counts = self.client.at_rest();
        let counts = counts.ok_or_else(|| Unfit::Busy("its connection is not there".to_owned()))?;
        let of_function: Vec<_> = hosts.iter().filter(|(pid, _)| **pid != INIT).collect();
        let [(pid, host)] = of_function[..] else {
            return Err(Unfit::Threads(format!("it has {} processes", of_function.len())));
        };
        let (pid, host) = (pid.cast_signed(), *host);
        let around = CopySurroundings {
            running: self,
            metrics,
            hosts: &hosts,
            pid,
            layout: &layout,
            counts: &counts,
            map: OnceCell::new(),
        };
        let (point, told) = Point::save(host, self.client.port(), &around)?;
        let point = ResetPoint {
            point,
            pid,
            secrets_revision: self.sandbox.secrets_revision(),
            hosts,
            layout,
            counts,
        };
        Ok((point, told))
    }

    /// Puts a used copy back. Returns the number of pages that were written, and `None` if it has no point.
    ///
    /// # Errors
    /// Returns why it cannot be put back: it must serve nobody any more.
    pub(super) async fn put_back(self: &Arc<Self>, metrics: &Arc<Metrics>) -> Option<Result<usize, Unfit>> {
        let mut reset = self.reset.lock().take()?;
        if self.is_frozen() {
            return Some(Err(Unfit::Busy("it is parked".to_owned())));
        }
        let began = Instant::now();
        // Whoever gets the answer's last byte may be faster than the connection.
        let counts = loop {
            match self.client.at_rest() {
                Some(counts) => break Some(counts),
                None if began.elapsed() < REST_LIMIT => tokio::time::sleep(REST_STEP).await,
                None => break None,
            }
        };
        if !counts.is_some_and(|counts| Arc::ptr_eq(&counts, &reset.counts)) {
            return Some(Err(Unfit::Descriptors("its connection is another".to_owned())));
        }
        if self.sandbox.secrets_revision() != reset.secrets_revision {
            return Some(Err(Unfit::Last("its secrets have changed".to_owned())));
        }
        let (running, by) = (Arc::clone(self), Arc::clone(metrics));
        let resetting = tokio::task::spawn_blocking(move || {
            let written = reset.rewind(&running, &by);
            if written.is_ok() {
                *running.reset.lock() = Some(reset);
            }
            written
        });
        let reset = resetting.await.unwrap_or_else(|e| Err(Unfit::Last(e.to_string())));
        if reset.is_ok() {
            self.is_put_back();
        }
        Some(reset)
    }
}

impl ResetPoint {
    /// Blocks for about a millisecond.
    fn rewind(&mut self, running: &RunningInstance, metrics: &Metrics) -> Result<usize, Unfit> {
        let around = CopySurroundings {
            running,
            metrics,
            hosts: &self.hosts,
            pid: self.pid,
            layout: &self.layout,
            counts: &self.counts,
            map: OnceCell::new(),
        };
        self.point.rewind(&around)
    }
}

/// Lets the calls go on that a copy's filter tells of, until the copy ends.
fn watch(told: ToldCalls, sandbox: &Arc<Sandbox>) -> Result<(), Unfit> {
    // SAFETY: `ToldCalls` owns its descriptor, which stays open and the same as long as it lives.
    #[expect(unsafe_code, reason = "registering a descriptor asks for a promise about its life")]
    let told = unsafe { AsyncFd::register(told) };
    let told = told.map_err(|e| Unfit::Filter(Box::new(Unfit::Last(e.to_string()))))?;
    let sandbox = Arc::downgrade(sandbox);
    tokio::spawn(async move {
        if let Err(error) = let_all_go(&told).await {
            tracing::error!(%error, "a copy is killed: nobody can let its system calls go");
            if let Some(sandbox) = sandbox.upgrade() {
                sandbox.kill();
            }
        }
    });
    Ok(())
}

async fn let_all_go(told: &AsyncFd<ToldCalls>) -> io::Result<()> {
    loop {
        let mut ready = told.readable().await?;
        if !told.get_ref().let_go()? {
            return Ok(());
        }
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_function_that_cannot_be_put_back_are_tried_less_and_less() {
        let policy = ResetPolicy::default();
        let mut tried = Vec::new();
        for copy in 0..100 {
            if policy.is_due() {
                policy.failed();
                tried.push(copy);
            }
        }
        assert_eq!(tried, [0, 1, 2, 4, 7, 12, 21, 38, 71]);
        while !policy.is_due() {}
        policy.succeeded();
        assert!((0..100).all(|_| policy.is_due()));
        policy.failed();
        assert!(policy.is_due());
    }
}
