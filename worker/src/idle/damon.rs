//! Processes that the kernel watches: DAMON (Linux 6.2, with `DAMON_VADDR` and `DAMON_SYSFS`) checks the accessed bits
//! of a few pages of each region of a process many times a second. It reports for how long each region has been
//! untouched. Where it is available, only regions that it reports as untouched are tried
//! ([`super::policy::Ledger::choose`]).
//!
//! ```text
//! admin/kdamonds/N ── one kernel thread for each process that is watched
//!     contexts/0/targets/0/pid_target         the process
//!     contexts/0/monitoring_attrs             how often it looks, and at how many regions
//! contexts/0/schemes/0                    "stat": regions without an access for so many aggregations, told in
//! tried_regions
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use rekindle_pager::PAGE;

use crate::host::pagemap::{PagemapRun, PagemapRuns};

/// The kernel's interface to DAMON.
pub const ADMIN: &str = "/sys/kernel/mm/damon/admin";
/// The operation set that watches virtual addresses of a process.
const WAY: &str = "vaddr";
/// Maximum number of processes watched at once, the largest ones: each takes a kernel thread.
const SLOTS: usize = 16;
/// Minimum size of a process worth watching, in pages.
const LEAST: u64 = 1_024;
/// Minimum and maximum number of regions of one process, which determines the cost of one sampling.
const REGIONS: (u64, u64) = (100, 500);
/// Minimum and maximum interval between samplings.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));
/// Samplings of one aggregation. They are so few that a single access makes a region young again: the kernel ignores
/// changes of up to a fifth.
const LOOKS: u32 = 4;
/// Number of attempts, since the interface has one lock for all its users.
const ATTEMPTS: u32 = 10;

/// Why nobody watches.
#[derive(Debug, thiserror::Error)]
pub enum DamonUnavailable {
    /// This kernel does not support it.
    #[error("{0}")]
    Unknown(String),
    /// Somebody else uses it at the moment.
    #[error("DAMON is in use by somebody else")]
    Busy,
}

impl DamonUnavailable {
    fn of(what: &str, e: &io::Error) -> Self {
        match e.raw_os_error() {
            Some(libc::EBUSY) => Self::Busy,
            _ => Self::Unknown(format!("{what}: {e}")),
        }
    }
}

/// Locks the interface, of which the kernel has one for the whole host. A killed process releases the lock.
fn alone(admin: &Path) -> Result<Flock<File>, DamonUnavailable> {
    let directory = File::open(admin).map_err(|e| DamonUnavailable::of("the kernel has no DAMON", &e))?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|_| DamonUnavailable::Busy)
}

/// Checks that the kernel can watch processes. Leaves everything as it was.
///
/// # Errors
/// Returns an error when it cannot, or when somebody else uses it.
pub fn probe(admin: &Path) -> Result<(), DamonUnavailable> {
    let _alone = alone(admin)?;
    let kdamonds = admin.join("kdamonds");
    if count(&kdamonds)? != 0 {
        return Err(of_others(&kdamonds));
    }
    let known = make(&kdamonds, 1).and_then(|()| knows(&kdamonds.join("0")));
    make(&kdamonds, 0)?;
    known
}

fn count(kdamonds: &Path) -> Result<usize, DamonUnavailable> {
    let read = fs::read_to_string(kdamonds.join("nr_kdamonds"));
    let read = read.and_then(|text| text.trim().parse().map_err(io::Error::other));
    read.map_err(|e| DamonUnavailable::of("DAMON does not tell how much it does", &e))
}

/// Returns whether it is worth waiting for somebody else's use to end.
fn of_others(kdamonds: &Path) -> DamonUnavailable {
    match fs::read_to_string(kdamonds.join("0/contexts/0/avail_operations")) {
        Ok(known) if !known.lines().any(|way| way == WAY) => no_processes(),
        _ => DamonUnavailable::Busy,
    }
}

fn no_processes() -> DamonUnavailable {
    DamonUnavailable::Unknown("DAMON of this kernel watches no processes".to_owned())
}

fn make(kdamonds: &Path, count: usize) -> Result<(), DamonUnavailable> {
    write(&kdamonds.join("nr_kdamonds"), count).map_err(|e| DamonUnavailable::of("DAMON has no room", &e))
}

/// Gives a kernel thread a context, if this kernel watches processes.
fn knows(kdamond: &Path) -> Result<(), DamonUnavailable> {
    let lacks = |e: io::Error| DamonUnavailable::of("DAMON is not as it is known", &e);
    write(&kdamond.join("contexts/nr_contexts"), 1).map_err(lacks)?;
    let known = fs::read_to_string(kdamond.join("contexts/0/avail_operations")).map_err(lacks)?;
    if known.lines().any(|way| way == WAY) {
        return Ok(());
    }
    Err(no_processes())
}

/// The kernel's watch over the largest processes of a worker. It ends on drop, or when its processes end.
#[derive(Debug)]
pub struct DamonMonitor {
    kdamonds: PathBuf,
    slots: Vec<Slot>,
    _alone: Flock<File>,
}

#[derive(Debug)]
struct Slot {
    dir: PathBuf,
    watched: Option<(i32, u64)>,
    /// Whether the kernel rejected the last order, so that its state is unknown.
    doubtful: bool,
}

impl DamonMonitor {
    /// Prepares to watch processes for memory that was not touched for `rest`. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Returns an error when the kernel cannot watch, or does so for somebody else.
    pub fn open(admin: &Path, rest: Duration) -> Result<Self, DamonUnavailable> {
        let alone = alone(admin)?;
        let kdamonds = admin.join("kdamonds");
        let slots = (0..SLOTS).map(|n| Slot {
            dir: kdamonds.join(n.to_string()),
            watched: None,
            doubtful: false,
        });
        let slots: Vec<Slot> = slots.collect();
        match count(&kdamonds)? {
            0 => {}
            // They belong to a killed worker, and may run until its instances are gone.
            SLOTS => slots.iter().for_each(|slot| drop(slot.order("off"))),
            _ => return Err(of_others(&kdamonds)),
        }
        make(&kdamonds, SLOTS)?;
        // Dropping the watch removes what was created.
        let watch = Self {
            kdamonds,
            slots,
            _alone: alone,
        };
        for slot in &watch.slots {
            knows(&slot.dir)?;
            slot.set_up(rest)
                .map_err(|e| DamonUnavailable::of("DAMON of this kernel does not watch as it is to", &e))?;
        }
        Ok(watch)
    }

    /// Watches the largest of these processes, given with their numbers of pages, and no others.
    pub fn follow(&mut self, processes: &[(i32, u64)]) {
        for slot in &mut self.slots {
            if slot.doubtful {
                slot.leave();
            }
            let Some((pid, _)) = slot.watched else { continue };
            match processes.iter().find(|(other, _)| *other == pid) {
                Some((_, pages)) => slot.watched = Some((pid, *pages)),
                None => slot.leave(),
            }
        }
        let is_new = |(pid, pages): &&(i32, u64)| *pages >= LEAST && !self.watched().any(|own| own == *pid);
        let mut new: Vec<(i32, u64)> = processes.iter().filter(is_new).copied().collect();
        new.sort_unstable_by_key(|(_, pages)| std::cmp::Reverse(*pages));
        for (pid, pages) in new {
            let usable = self.slots.iter_mut().filter(|slot| !slot.doubtful);
            let least = usable.min_by_key(|slot| slot.watched.map_or(0, |(_, pages)| pages));
            let Some(slot) = least else { return };
            // It takes a while until anything is known, so another process must be much larger to replace it.
            if slot.watched.is_some_and(|(_, own)| own * 2 > pages) {
                return;
            }
            slot.leave();
            if let Err(error) = slot.watch(pid, pages) {
                tracing::debug!(pid, %error, "DAMON does not watch it");
            }
        }
    }

    /// Returns the memory of this process that has been untouched for the configured time, by address. Returns `None`
    /// if the process is not watched. Blocks until an aggregation ends: 0.4 s, or two of them before Linux 6.7.
    pub fn untouched(&mut self, pid: i32) -> Option<Vec<PagemapRun>> {
        let is_it = |slot: &&mut Slot| slot.watched.is_some_and(|(own, _)| own == pid);
        let slot = self.slots.iter_mut().find(is_it)?;
        match slot.untouched() {
            Ok(runs) => Some(runs),
            // It still watches, but its observations are not available now.
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Some(Vec::new()),
            Err(error) => {
                tracing::debug!(pid, %error, "DAMON does not tell what is untouched");
                slot.leave();
                None
            }
        }
    }

    /// Returns the processes that are watched.
    pub fn watched(&self) -> impl Iterator<Item = i32> {
        self.slots.iter().filter_map(|slot| Some(slot.watched?.0))
    }
}

impl Drop for DamonMonitor {
    fn drop(&mut self) {
        self.slots.iter_mut().for_each(Slot::leave);
        if let Err(lack) = make(&self.kdamonds, 0) {
            tracing::debug!(%lack, "DAMON keeps its empty places");
        }
    }
}

impl Slot {
    fn set_up(&self, rest: Duration) -> io::Result<()> {
        let look = (rest / (10 * LOOKS)).clamp(LOOK.0, LOOK.1);
        let aggregation = look * LOOKS;
        let us = |time: Duration| time.as_micros().to_string();
        let context = self.dir.join("contexts/0");
        write(&context.join("operations"), WAY)?;
        let attributes = context.join("monitoring_attrs");
        for (name, value) in [
            ("intervals/sample_us", us(look)),
            ("intervals/aggr_us", us(aggregation)),
            ("intervals/update_us", us(aggregation * 5)),
            ("nr_regions/min", REGIONS.0.to_string()),
            ("nr_regions/max", REGIONS.1.to_string()),
        ] {
            write(&attributes.join(name), value)?;
        }
        write(&context.join("targets/nr_targets"), 1)?;
        write(&context.join("schemes/nr_schemes"), 1)?;
        let scheme = context.join("schemes/0");
        write(&scheme.join("action"), "stat")?;
        let ages = rest.as_micros().div_ceil(aggregation.as_micros());
        for (name, value) in [
            ("sz/min", 0),
            ("sz/max", u128::from(u64::MAX)),
            ("nr_accesses/min", 0),
            ("nr_accesses/max", 0),
            ("age/min", ages),
            ("age/max", u128::from(u32::MAX)),
        ] {
            write(&scheme.join("access_pattern").join(name), value)?;
        }
        Ok(())
    }

    fn watch(&mut self, pid: i32, pages: u64) -> io::Result<()> {
        write(&self.dir.join("contexts/0/targets/0/pid_target"), pid)?;
        let taken = self.order("on");
        self.doubtful = taken.is_err();
        if taken.is_ok() {
            self.watched = Some((pid, pages));
        }
        taken
    }

    /// The kernel thread may have ended by itself, with its process, which has the same effect.
    fn leave(&mut self) {
        if self.watched.take().is_none() && !self.doubtful {
            return;
        }
        self.doubtful = self
            .order("off")
            .is_err_and(|e| matches!(e.raw_os_error(), Some(libc::EBUSY)));
    }

    fn untouched(&self) -> io::Result<Vec<PagemapRun>> {
        self.order("update_schemes_tried_regions")?;
        let tried = self.dir.join("contexts/0/schemes/0/tried_regions");
        let mut regions = Vec::new();
        for entry in fs::read_dir(tried)? {
            let entry = entry?;
            // Apart from the regions, the directory contains the sum of their sizes.
            if entry.file_type()?.is_dir() {
                let bound = |name| -> io::Result<u64> {
                    let text = fs::read_to_string(entry.path().join(name))?;
                    text.trim().parse().map_err(io::Error::other)
                };
                regions.push((bound("start")?.div_ceil(PAGE), bound("end")? / PAGE));
            }
        }
        regions.sort_unstable();
        let mut runs = PagemapRuns::default();
        for (first, end) in regions {
            runs.add(PagemapRun {
                first,
                pages: end.saturating_sub(first),
                present: true,
            });
        }
        Ok(runs.0)
    }

    /// Gives the kernel an order, and repeats it briefly while somebody else's order interferes.
    fn order(&self, what: &str) -> io::Result<()> {
        let state = self.dir.join("state");
        for _ in 1..ATTEMPTS {
            match write(&state, what) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(LOOK.0 / 10),
                done => return done,
            }
        }
        write(&state, what)
    }
}

/// Writes into an existing file. If there is none, the kernel would refuse to create one with another error.
fn write(path: &Path, value: impl ToString) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(value.to_string().as_bytes())
}

#[cfg(test)]
mod tests;
