//! Puts a process back to a point in its life, from outside, and time and again.
//!
//! ```text
//! at rest ──> Point::save: registers, mappings, pages of its own, descriptors; a filter from here on
//! it serves a request
//! Point::rewind: stopped ──> looked at ──> mappings, pages, registers as at the point ──> goes on
//! ```
//!
//! Nothing may be left of what the process did after the point. Its effects are of two kinds: those that can be seen
//! afterwards, and those of calls that the filter tells of ([`ToldCalls`]). A process that has any that cannot be
//! undone is unfit ([`Unfit`]): it must serve nobody any more.
//!
//! - `tracee`: threads, by ptrace. `mappings`, `pages`, `descriptors`: what the kernel shows of a process.
//! - [`scan`]: which pages it shows. `filter`: which calls are harmless. `told`: the others.
//!
//! What stays: counts that the kernel keeps of the process and its connection, and its clocks, which go on.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("registers and system calls are those of Linux on x86-64");

mod descriptors;
mod error;
mod filter;
mod mappings;
mod pages;
pub mod scan;
mod told;
mod tracee;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use rekindle_pager::PAGE;

pub use descriptors::Exchanged;
pub use error::Unfit;
pub use pages::Behind;
pub use told::{ToldCalls, Waiting};

use crate::descriptors::Descriptors;
use crate::error::kernel;
use crate::mappings::{Mappings, Wiped, read_again};
use crate::pages::Pages;
use crate::tracee::{Caller, RseqArea, Thread, Tracee};

/// Memory that is mapped into the process while its point is saved.
const SCRATCH: u64 = 64 << 10;
/// What `/proc/PID/status` says of a process that must stay as it is.
const STATUS: [&str; 10] = [
    "Uid:",
    "Gid:",
    "Groups:",
    "SigIgn:",
    "SigCgt:",
    "CapPrm:",
    "CapEff:",
    "NoNewPrivs:",
    "SigPnd:",
    "ShdPnd:",
];

/// What a process is in, as seen while its threads are stopped.
pub trait Surroundings {
    /// Returns whether the process with this id is still the one that is meant.
    fn owns(&self, pid: i32) -> bool;

    /// Returns how often the process has freed, unmapped or moved memory whose contents came from outside.
    ///
    /// # Errors
    /// Returns why that cannot be known.
    fn changes(&self) -> Result<u64, String>;

    /// What a page holds that the process has not written, by its number (address / 4096).
    fn behind(&self, page: u64) -> Behind;

    /// What went over the connection of the process.
    fn exchanged(&self) -> Exchanged;

    /// Does what is to be done in the process before it runs again.
    ///
    /// # Errors
    /// Returns why it must not run.
    fn before_it_runs(&self) -> Result<(), String>;
}

/// A point that a process can be put back to.
#[derive(Debug)]
pub struct Point {
    pid: Pid,
    threads: Vec<Thread>,
    mappings: Mappings,
    wiped: Wiped,
    program_break: u64,
    pages: Pages,
    descriptors: Descriptors,
    status: Vec<String>,
    changes: u64,
    told: Arc<ToldCalls>,
    files: ProcFiles,
}

/// Files of `/proc`, open: the kernel makes their contents anew whenever they are read.
#[derive(Debug)]
struct ProcFiles {
    maps: File,
    memory: File,
    pagemap: File,
    status: File,
}

impl ProcFiles {
    fn of(pid: Pid) -> Result<Self, Unfit> {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        let files = || -> io::Result<Self> {
            Ok(Self {
                maps: open("maps")?,
                memory: File::options()
                    .read(true)
                    .write(true)
                    .open(format!("/proc/{pid}/mem"))?,
                pagemap: open("pagemap")?,
                status: open("status")?,
            })
        };
        files().map_err(kernel("open its files in /proc"))
    }

    fn mappings(&self) -> Result<Mappings, Unfit> {
        Mappings::parse(read_again(&self.maps, "read its mappings")?)
    }

    fn status(&self) -> Result<Vec<String>, Unfit> {
        let status = read_again(&self.status, "read its status")?;
        let status = String::from_utf8_lossy(&status);
        let kept = status
            .lines()
            .filter(|line| STATUS.iter().any(|name| line.starts_with(name)));
        Ok(kept.map(str::to_owned).collect())
    }
}

impl Point {
    /// The most bytes of memory that a point keeps.
    pub const BYTES_MAX: usize = pages::BYTES_MAX;

    /// Saves the point where a process is, which waits for requests at `port` and has one connection. Its filter tells
    /// of calls from then on: someone must let them go. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Returns `Busy` if the process is not at rest yet, or why it has no such point. It runs as before then.
    /// Only after `Filter` it must serve nobody: nobody may let its calls go.
    pub fn save(pid: i32, port: u16, around: &dyn Surroundings) -> Result<(Self, Arc<ToldCalls>), Unfit> {
        let pid = Pid::from_raw(pid);
        let ended = || Unfit::Threads("it has ended".to_owned());
        if !around.owns(pid.as_raw()) {
            return Err(ended());
        }
        let tracee = Tracee::stop(pid)?;
        // Its id cannot become another's from here on.
        if !around.owns(pid.as_raw()) {
            return Err(ended());
        }
        let threads = tracee.state()?;
        if let Some(runs) = threads.iter().find(|thread| thread.waits_in().is_none()) {
            return Err(Unfit::Busy(format!("thread {} runs", runs.id)));
        }
        let caller = Caller::of(&tracee, &threads)?;
        let descriptors = Descriptors::of(pid, port)?;
        descriptors.check(pid, around.exchanged())?;
        if tracee.has_signals()? {
            return Err(Unfit::Signals("one waits for it".to_owned()));
        }
        look_for_timers_and_children(&tracee)?;
        let files = ProcFiles::of(pid)?;
        let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).map_err(kernel("read its mappings"))?;
        let wiped = mappings::wiped(&smaps)?;
        let mappings = files.mappings()?;
        let pages = Pages::read(&files.memory, &pages::own(&files.pagemap)?, &wiped)?;
        let changes = around.changes().map_err(Unfit::Memory)?;
        let status = files.status()?;
        let filter = Filter::for_those(&descriptors.numbers())?;
        let put = filter.put_on(&tracee, &caller, &descriptors);
        // The first thread has made calls.
        let set = tracee.set_state(&threads);
        set.map_err(|e| Unfit::Filter(Box::new(e)))?;
        let (told, program_break) = put?;
        let told = Arc::new(ToldCalls::new(told));
        let point = Self {
            pid,
            mappings,
            wiped,
            program_break,
            pages,
            descriptors,
            status,
            changes,
            told: Arc::clone(&told),
            threads,
            files,
        };
        Ok((point, told))
    }

    /// Bytes of memory that it keeps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// Puts the process back. Blocks for about a millisecond. Returns the number of pages that were written.
    ///
    /// # Errors
    /// Returns why it is unfit: it must serve nobody any more. It goes on running, or is killed.
    pub fn rewind(&mut self, around: &dyn Surroundings) -> Result<usize, Unfit> {
        let told = Arc::clone(&self.told);
        // A program that is being replaced, or a parent that waits for its child, cannot be stopped.
        let held = told.hold();
        self.look()?;
        let tracee = Tracee::stop(self.pid)?;
        self.look()?;
        // No call waits, and none comes before they go on. One that came then would be told of to nobody.
        drop(held);
        if !tracee.ids().eq(self.threads.iter().map(|thread| thread.id)) {
            return Err(Unfit::Threads("they are others".to_owned()));
        }
        tracee.check_flags(&self.threads)?;
        self.descriptors.check(self.pid, around.exchanged())?;
        if tracee.has_signals()? {
            return Err(Unfit::Signals("one waits for it".to_owned()));
        }
        if self.files.status()? != self.status {
            return Err(Unfit::Signals("its status has changed".to_owned()));
        }
        let changed = self.change(&tracee, around);
        if changed.is_err() {
            // Half of it is of before, half of now.
            let _ = kill(self.pid, Signal::SIGKILL);
        }
        changed
    }

    /// Looks whether the process is there, and has made harmless calls alone.
    fn look(&self) -> Result<(), Unfit> {
        if !self.descriptors.is_alive() {
            return Err(Unfit::Threads("it has ended".to_owned()));
        }
        let first = self.told.first().map_err(kernel("ask its filter"))?;
        first.map_or(Ok(()), |call| Err(Unfit::Call(call)))
    }

    /// Puts a process back that is as it was in all that cannot be put back.
    fn change(&mut self, tracee: &Tracee, around: &dyn Surroundings) -> Result<usize, Unfit> {
        let mappings = self.files.mappings()?;
        let caller = Caller::of(tracee, &self.threads)?;
        if mappings.text != self.mappings.text {
            self.mappings.put_back(&mappings, self.program_break, &caller)?;
            if self.files.mappings()?.text != self.mappings.text {
                return Err(Unfit::Memory("its mappings cannot be made as they were".to_owned()));
            }
        }
        self.wiped.mark(tracee, &caller)?;
        // Where the heap ends is in no mapping, if its end was unmapped.
        if caller.call("ask for the end of the heap", libc::SYS_brk, &[0])? != self.program_break {
            return Err(Unfit::Memory("its heap ends elsewhere".to_owned()));
        }
        // The pager hears of these before the call ends that makes them.
        if around.changes().map_err(Unfit::Memory)? != self.changes {
            return Err(Unfit::Memory(
                "it has freed or moved what came from its snapshot".to_owned(),
            ));
        }
        let own = pages::own(&self.files.pagemap)?;
        self.pages.add(&own, &self.mappings, |page| around.behind(page))?;
        let areas = self.read_rseq()?;
        let written = self.pages.write(self.pid, &self.files.memory, &self.mappings)?;
        self.write_rseq(&areas)?;
        around.before_it_runs().map_err(Unfit::Last)?;
        tracee.set_state(&self.threads)?;
        Ok(written)
    }

    /// Reads what the kernel has told the threads of their processors (`rseq(2)`).
    fn read_rseq(&self) -> Result<Vec<(RseqArea, [u8; 32])>, Unfit> {
        let areas = self.threads.iter().filter_map(|thread| thread.rseq);
        let read = |area: RseqArea| {
            let mut bytes = [0; 32];
            let length = area.bytes.min(bytes.len());
            let remote = RemoteIoVec {
                base: area.address as usize,
                len: length,
            };
            process_vm_readv(self.pid, &mut [io::IoSliceMut::new(&mut bytes[..length])], &[remote])
                .map_err(kernel("read a thread's processor"))?;
            // The kernel writes them to be equal. The process could have written something else.
            match bytes[..4] == bytes[4..8] {
                true => Ok((area, bytes)),
                false => Err(Unfit::Memory("a thread's processor is not the kernel's".to_owned())),
            }
        };
        areas.map(read).collect()
    }

    /// Writes that back: the kernel writes what has changed alone.
    fn write_rseq(&self, areas: &[(RseqArea, [u8; 32])]) -> Result<(), Unfit> {
        // The processor, and behind the pointer to a sequence and its flags, node and number of the processor in the
        // process.
        for (area, bytes) in areas {
            for part in [0..8, 20..28] {
                let part: Range<usize> = part.start..part.end.min(area.bytes);
                if part.is_empty() {
                    continue;
                }
                let remote = RemoteIoVec {
                    base: area.address as usize + part.start,
                    len: part.len(),
                };
                process_vm_writev(self.pid, &[io::IoSlice::new(&bytes[part])], &[remote])
                    .map_err(kernel("write a thread's processor"))?;
            }
        }
        Ok(())
    }
}

/// Refuses timers that expire by themselves, and children.
fn look_for_timers_and_children(tracee: &Tracee) -> Result<(), Unfit> {
    let pid = tracee.pid;
    let timers = fs::read(format!("/proc/{pid}/timers")).map_err(kernel("look for timers"))?;
    if !timers.is_empty() {
        return Err(Unfit::Timers("it has some".to_owned()));
    }
    for thread in tracee.ids() {
        let children = fs::read(format!("/proc/{pid}/task/{thread}/children")).map_err(kernel("look for children"))?;
        if !children.is_empty() {
            return Err(Unfit::Threads("it has children".to_owned()));
        }
    }
    Ok(())
}

/// The filter that tells of calls, as it lies in the process's memory while it is put on.
struct Filter {
    bytes: Vec<u8>,
    header: usize,
}

impl Filter {
    /// Prepares the filter of a process with these descriptors.
    fn for_those(descriptors: &[RawFd]) -> Result<Self, Unfit> {
        let program = filter::program(descriptors)?;
        let mut bytes = Vec::with_capacity(program.len() * 8 + 64);
        for instruction in &program {
            bytes.extend_from_slice(&instruction.code.to_ne_bytes());
            bytes.extend_from_slice(&[instruction.jt, instruction.jf]);
            bytes.extend_from_slice(&instruction.k.to_ne_bytes());
        }
        let header = bytes.len().next_multiple_of(16);
        bytes.resize(header, 0);
        // `struct sock_fprog`: the number of instructions, and where they are, which is not known yet.
        bytes.extend_from_slice(&(program.len() as u64).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        // Behind it is room for what calls answer.
        match bytes.len() + 64 <= SCRATCH as usize {
            true => Ok(Self { bytes, header }),
            false => Err(Unfit::Descriptors("no filter covers so many".to_owned())),
        }
    }

    /// Puts all threads under it. Returns its other end, and where the heap ends.
    fn put_on(
        mut self,
        tracee: &Tracee,
        caller: &Caller<'_>,
        descriptors: &Descriptors,
    ) -> Result<(OwnedFd, u64), Unfit> {
        let program_break = caller.call("ask for the end of the heap", libc::SYS_brk, &[0])?;
        if !program_break.is_multiple_of(PAGE) {
            return Err(Unfit::Memory("its heap ends within a page".to_owned()));
        }
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let scratch = caller.call(
            "map memory",
            libc::SYS_mmap,
            &[0, SCRATCH, rights, anonymous, u64::MAX, 0],
        )?;
        self.bytes[self.header + 8..].copy_from_slice(&scratch.to_ne_bytes());
        caller.write(scratch, &self.bytes)?;
        let answer = scratch + self.bytes.len() as u64;
        for timer in [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF] {
            caller.call("ask for a timer", libc::SYS_getitimer, &[timer as u64, answer])?;
            if caller.read(answer)? != [0; 32] {
                let unmapped = caller.call("unmap memory", libc::SYS_munmap, &[scratch, SCRATCH]);
                return Err(unmapped
                    .err()
                    .unwrap_or(Unfit::Timers("an interval timer runs".to_owned())));
            }
        }
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC
            | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
            | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
        let arguments = [
            u64::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            scratch + self.header as u64,
        ];
        tracee.suspend_filters(true)?;
        let number = caller.call("put a filter on it", libc::SYS_seccomp, &arguments)?;
        // From here on it must not run without whoever lets its calls go.
        let taken = || -> Result<OwnedFd, Unfit> {
            let told = descriptors.copy(i32::try_from(number).unwrap_or(-1))?;
            caller.call("close the filter there", libc::SYS_close, &[number])?;
            caller.call("unmap memory", libc::SYS_munmap, &[scratch, SCRATCH])?;
            tracee.suspend_filters(false)?;
            Ok(told)
        };
        let told = taken().map_err(|e| Unfit::Filter(Box::new(e)))?;
        Ok((told, program_break))
    }
}
