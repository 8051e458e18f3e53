//! A pager as small as can be: it registers the memory that a hollow process has mapped, and answers its faults.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs::File, thread};

use anyhow::{Result, ensure};
use restore_program::{Code, PAGE, Program, source};

/// Fork, remap, remove and unmap events.
const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
const MISSING_AND_MINOR: u64 = 1 | 4;
const API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const CONTINUE: u64 = 0xc020_aa07;
const FAULT: u8 = 0x12;

/// The ranges of a program that map the template: address, length, offset.
pub fn ranges(program: &[u8]) -> Vec<(u64, u64, u64)> {
    let Ok(program) = Program::parse(program) else {
        return Vec::new();
    };
    let maps = program
        .ops()
        .iter()
        .filter(|op| op.code == Code::Map as u32 && op.a == source::TEMPLATE);
    let mut ranges: Vec<(u64, u64, u64)> = Vec::new();
    for op in maps {
        let [start, length, _, _, offset] = op.args;
        match ranges.last_mut() {
            // What is adjacent in memory and in the file is registered at once.
            Some(last) if last.0 + last.1 == start && last.2 + last.1 == offset => last.1 += length,
            _ => ranges.push((start, length, offset)),
        }
    }
    ranges
}

/// A pager of one process.
pub struct Pager {
    stop: Arc<AtomicBool>,
    faults: Arc<AtomicUsize>,
    thread: Option<thread::JoinHandle<()>>,
    /// How long it took to agree on events and register everything.
    pub registered: Duration,
}

/// Issues one of userfaultfd's ioctls. Returns the kernel's error, or 0.
fn tell(userfault: RawFd, request: u64, arguments: &mut [u64]) -> i32 {
    // SAFETY: the caller's numbers are the request's structure, which outlives the call.
    let done = unsafe { libc::ioctl(userfault, request, arguments.as_mut_ptr()) };
    if done < 0 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(-1)
    } else {
        0
    }
}

impl Pager {
    /// Registers these ranges and serves their faults: a page is copied from `full` to `template`, which the process
    /// maps, and let in.
    pub fn start(userfault: OwnedFd, ranges: Vec<(u64, u64, u64)>, full: &File, template: &File) -> Result<Self> {
        let began = Instant::now();
        let error = tell(userfault.as_raw_fd(), API, &mut [0xaa, EVENTS, 0]);
        ensure!(error == 0, "agree on events: {error}");
        for (start, length, _) in &ranges {
            let error = tell(
                userfault.as_raw_fd(),
                REGISTER,
                &mut [*start, *length, MISSING_AND_MINOR, 0],
            );
            ensure!(error == 0, "register {start:x}: {error}");
        }
        let registered = began.elapsed();
        let (stop, faults) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (full, template) = (full.try_clone()?, template.try_clone()?);
        let (stopping, counted) = (Arc::clone(&stop), Arc::clone(&faults));
        let offsets: BTreeMap<u64, (u64, u64)> = ranges.into_iter().map(|(s, l, o)| (s, (l, o))).collect();
        let thread = thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                if let Some(address) = fault(userfault.as_raw_fd()) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let page = address & !(PAGE - 1);
                    let Some((start, (_, offset))) = offsets.range(..=page).next_back() else {
                        continue;
                    };
                    let at = offset + page - start;
                    let mut bytes = [0; PAGE as usize];
                    let copied = full
                        .read_exact_at(&mut bytes, at)
                        .and_then(|()| template.write_all_at(&bytes, at));
                    if copied.is_ok() {
                        tell(userfault.as_raw_fd(), CONTINUE, &mut [page, PAGE, 0, 0]);
                    }
                }
            }
        });
        Ok(Self {
            stop,
            faults,
            thread: Some(thread),
            registered,
        })
    }

    /// Number of faults so far.
    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for an event, for a moment. Returns the address if it is a fault.
fn fault(userfault: RawFd) -> Option<u64> {
    let mut waits = libc::pollfd {
        fd: userfault,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut message = [0u64; 4];
    // SAFETY: the structures outlive the calls.
    unsafe {
        if libc::poll(&raw mut waits, 1, 50) <= 0 {
            return None;
        }
        if libc::read(userfault, message.as_mut_ptr().cast(), size_of_val(&message)) <= 0 {
            return None;
        }
    }
    (message[0] as u8 == FAULT).then_some(message[2])
}
