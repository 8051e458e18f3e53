//! Puts a copy back to the point where it was ready, so that it serves the next request of a function with `fresh`.
//!
//! The point is saved while nobody waits, when the copy has taken its connection. A copy that has done what cannot be
//! undone is not put back: another one is restored. See `rekindle_rewind`.

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_pager::address_map::{AddressMap, Origin};
use rekindle_pager::{Layout, PAGE, PageLookup, PageRef, PageSource as _, pin};
use rekindle_rewind::{Behind, Exchanged, Point, Surroundings, ToldCalls, Unfit, Waiting};
use rekindle_wire::internal::VersionSpec;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle};
use tracing::Span;

use super::counted::ByteCounts;
use super::hooks::is_called_after_restore;
use super::lifecycle::Instance;
use super::randomness;
use super::reset_point::ResetPoint;
use super::running::RunningInstance;
use crate::host::host_pids::{HostPids, processes_in};
use crate::host::sandbox::Sandbox;
use crate::metrics::Metrics;

/// How long a copy may take to be at rest, before its point is saved and after a request.
const REST_LIMIT: Duration = Duration::from_millis(20);
/// How often it is looked at without a pause. A pause is at least as long as the timer's step.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);
/// For how long a copy is put back to the same point: its clocks go on, so what it waited for then is overdue.
const AGE_MAX: Duration = Duration::from_secs(60);
/// The same for a server of the function's own. It closes connections that have been idle for two seconds, or longer.
const AGE_OF_SERVER_MAX: Duration = Duration::from_secs(1);
/// How long a copy may be traced.
const TRACED_MAX: Duration = Duration::from_secs(3);
/// Memory that a worker keeps for all points, in MiB.
const ROOM: usize = 512;
/// The sandbox's own process.
const INIT: u32 = 1;
/// How long the pager may take to answer.
const PAGER_LIMIT: Duration = Duration::from_millis(200);

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
    fn owns(&self, pid: i32) -> bool {
        self.running.cgroup.pids().is_ok_and(|pids| pids.contains(&pid))
    }

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

/// Saves points of copies, and puts copies back to them.
pub struct Resetter {
    metrics: Arc<Metrics>,
    /// Memory for all points, in MiB.
    room: Arc<Semaphore>,
}

impl Resetter {
    /// Creates one that counts in `metrics`.
    pub fn new(metrics: &Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics: Arc::clone(metrics),
            room: Arc::new(Semaphore::new(ROOM)),
        })
    }

    /// Returns the memory that points take, and what they may grow into, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        (ROOM - self.room.available_permits()) << 20
    }

    /// Saves the point where this copy is, if it can be put back to it. Marks it as used if it must serve nobody.
    pub(super) async fn save_point(self: &Arc<Self>, instance: &Arc<Instance>, running: &Arc<RunningInstance>) {
        if !running.client.is_http1() || !instance.resets.is_due() {
            return;
        }
        let mut rest = Rest::default();
        let saved = loop {
            let (resetter, of, copy) = (Arc::clone(self), Arc::clone(instance), Arc::clone(running));
            let saving = tokio::task::spawn_blocking(move || resetter.save(&of.spec, &copy));
            match in_time(saving, &running.sandbox).await {
                // What it has open may be on its way out: its restorer's, or the snapshot's last connection.
                Ok(Err(Unfit::Busy(_) | Unfit::Descriptors(_))) if rest.may_come().await => {}
                Ok(saved) => break saved,
                Err(e) => break Err(Unfit::Filter(Box::new(Unfit::Last(e.to_string())))),
            }
        };
        let watched = saved.and_then(|(mut point, told)| {
            watch(told, &running.sandbox)?;
            point.age_max = match instance.spec.config.streams() {
                true => AGE_OF_SERVER_MAX,
                false => AGE_MAX,
            };
            Ok(point)
        });
        match watched {
            Ok(point) => *running.reset.lock() = Some(point),
            Err(unfit) => {
                let instance_id = &instance.id;
                tracing::debug!(instance = %instance_id, error = %unfit, "a copy has no point to be put back to");
                instance.resets.failed();
                if matches!(unfit, Unfit::Filter(_)) {
                    running.use_once();
                }
            }
        }
    }

    /// Blocks for some milliseconds.
    fn save(&self, spec: &VersionSpec, running: &RunningInstance) -> Result<(ResetPoint, Arc<ToldCalls>), Unfit> {
        let unfit = |why: &str| Unfit::Memory(why.to_owned());
        let snapshot = running.snapshot.as_ref().ok_or_else(|| unfit("it was booted"))?;
        if is_called_after_restore(spec, snapshot) {
            return Err(Unfit::Last("its hook after a restore makes copies differ".to_owned()));
        }
        let layout = snapshot.template.layout();
        let layout = layout.ok_or_else(|| unfit("some of it has no pager"))?;
        let hosts = processes_in(&running.cgroup).map_err(|e| Unfit::Threads(e.to_string()))?;
        let room = self.take_room(Point::BYTES_MAX)?;
        let counts = running.client.at_rest();
        let counts = counts.ok_or_else(|| Unfit::Busy("its connection is not there".to_owned()))?;
        let of_function: Vec<_> = hosts.iter().filter(|(pid, _)| **pid != INIT).collect();
        let [(pid, host)] = of_function[..] else {
            return Err(Unfit::Threads(format!("it has {} processes", of_function.len())));
        };
        let (pid, host) = (pid.cast_signed(), *host);
        let around = CopySurroundings {
            running,
            metrics: &self.metrics,
            hosts: &hosts,
            pid,
            layout: &layout,
            counts: &counts,
            map: OnceCell::new(),
        };
        let (point, told) = Point::save(host, running.client.port(), &around)?;
        let mut point = ResetPoint {
            room,
            point,
            pid,
            secrets_revision: running.sandbox.secrets_revision(),
            hosts,
            layout,
            counts,
            saved: Instant::now(),
            age_max: AGE_MAX,
        };
        let spare = point.room.num_permits().saturating_sub(mebibytes(point.point.bytes()));
        drop(point.room.split(spare));
        Ok((point, told))
    }

    /// Takes room for this much memory.
    fn take_room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Unfit> {
        let count = u32::try_from(mebibytes(bytes)).unwrap_or(u32::MAX);
        let taken = Arc::clone(&self.room).try_acquire_many_owned(count);
        taken.map_err(|_| Unfit::Memory(format!("the worker keeps {ROOM} MiB for all copies")))
    }

    /// Puts a used copy back. Returns the number of pages that were written, and `None` if it has no point, or none
    /// any more.
    ///
    /// # Errors
    /// Returns why it cannot be put back: it must serve nobody any more.
    pub(super) async fn put_back(self: &Arc<Self>, running: &Arc<RunningInstance>) -> Option<Result<usize, Unfit>> {
        let mut reset = running.reset.lock().take()?;
        let is_outdated = reset.saved.elapsed() > reset.age_max;
        let has_other_secrets = running.sandbox.secrets_revision() != reset.secrets_revision;
        if is_outdated || has_other_secrets || running.is_frozen() {
            return None;
        }
        // Whoever gets the answer's last byte may be faster than the connection.
        let mut rest = Rest::default();
        let counts = loop {
            match running.client.at_rest() {
                Some(counts) => break Some(counts),
                None if reset.counts.is_closed() || !rest.may_come().await => break None,
                None => {}
            }
        };
        // Connections that were idle for long are not used again.
        if !counts.is_some_and(|counts| Arc::ptr_eq(&counts, &reset.counts)) {
            return None;
        }
        let (resetter, copy, span) = (Arc::clone(self), Arc::clone(running), Span::current());
        let resetting = tokio::task::spawn_blocking(move || {
            let _in = span.enter();
            let written = resetter.rewind(&mut reset, &copy)?;
            *copy.reset.lock() = Some(reset);
            Ok(written)
        });
        let reset = in_time(resetting, &running.sandbox).await;
        let reset = reset.unwrap_or_else(|e| Err(Unfit::Last(e.to_string())));
        if reset.is_ok() {
            running.is_put_back();
        }
        Some(reset)
    }

    /// Blocks for about a millisecond.
    fn rewind(&self, reset: &mut ResetPoint, running: &RunningInstance) -> Result<usize, Unfit> {
        let around = CopySurroundings {
            running,
            metrics: &self.metrics,
            hosts: &reset.hosts,
            pid: reset.pid,
            layout: &reset.layout,
            counts: &reset.counts,
            map: OnceCell::new(),
        };
        let written = reset.point.rewind(&around)?;
        let held = reset.room.num_permits() << 20;
        if let Some(lacks @ 1..) = reset.point.bytes().checked_sub(held) {
            reset.room.merge(self.take_room(lacks)?);
        }
        Ok(written)
    }
}

/// Waits for what was begun on a copy. Kills the copy if it takes too long: nothing holds up whoever traces it then.
async fn in_time<T>(mut begun: JoinHandle<T>, sandbox: &Sandbox) -> Result<T, JoinError> {
    match tokio::time::timeout(TRACED_MAX, &mut begun).await {
        Ok(done) => done,
        Err(_) => {
            tracing::error!("a copy is killed: it could not be looked at in time");
            sandbox.kill();
            begun.await
        }
    }
}

/// Waits until a copy is at rest, for a limited time.
struct Rest {
    began: Instant,
    looks: u32,
}

impl Default for Rest {
    fn default() -> Self {
        let began = Instant::now();
        Self { began, looks: 0 }
    }
}

impl Rest {
    /// Waits a little. Returns whether to look again.
    async fn may_come(&mut self) -> bool {
        self.looks += 1;
        match self.looks <= LOOKS {
            true => tokio::task::yield_now().await,
            false => tokio::time::sleep(PAUSE).await,
        }
        self.began.elapsed() < REST_LIMIT
    }
}

fn mebibytes(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// Lets the calls go on that a copy's filter tells of, until the copy ends.
fn watch(told: Arc<ToldCalls>, sandbox: &Arc<Sandbox>) -> Result<(), Unfit> {
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

async fn let_all_go(told: &AsyncFd<Arc<ToldCalls>>) -> io::Result<()> {
    loop {
        let mut ready = told.readable().await?;
        match told.get_ref().let_go()? {
            Waiting::Nothing => ready.clear_ready(),
            Waiting::More => tokio::task::yield_now().await,
            Waiting::Ended => return Ok(()),
        }
    }
}
