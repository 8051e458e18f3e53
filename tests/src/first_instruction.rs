//! Copies as they are before their first instruction. A tracer follows the hollow processes of a worker through a
//! restore. It stops each thread where `rt_sigreturn` has given it the snapshot's registers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{Platform, host, until};

const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_micros(100);
/// Between looks for new hollow processes.
const SEIZE_EVERY: Duration = Duration::from_millis(20);

/// The hollow processes of a worker, each followed until one of them has become a copy.
pub struct Followed(JoinHandle<BTreeMap<i32, i32>>);

impl Followed {
    /// Follows those that wait in sandboxes of the platform's worker, once it has as many as it wants.
    ///
    /// # Panics
    /// If they do not come.
    #[must_use]
    pub fn hollows_of(platform: &Platform) -> Self {
        until("all sandboxes that are kept ready", LIMIT, || {
            let level = |name: &str| platform.worker_metric(&format!("rekindle_sandboxes_{name}"));
            (level("ready") >= level("wanted")).then_some(())
        });
        let (sender, seized) = mpsc::channel();
        let worker = platform.pid();
        // A thread of its own: it waits for those that it traces, and for no other child of this process.
        let follower = thread::spawn(move || Follower::default().follow(worker, sender));
        seized.recv().unwrap();
        Self(follower)
    }

    /// Waits for a copy, all of whose threads have the snapshot's registers. A signal has stopped them, and nobody
    /// traces them. Returns its processes, by their ids inside.
    ///
    /// # Panics
    /// If none comes.
    #[must_use]
    pub fn stopped(self) -> BTreeMap<i32, i32> {
        let processes = self.0.join().unwrap();
        until("the copy, stopped", LIMIT, || {
            processes.values().all(|pid| host::is_stopped(*pid)).then_some(())
        });
        processes
    }
}

/// Sends `SIGSTOP` to each thread of a process: none of them runs on until it is taken.
pub fn stop(process: i32) {
    for thread in host::threads(process) {
        stop_thread(process, thread);
    }
}

#[allow(unsafe_code, reason = "no library has it for a thread of another process")]
fn stop_thread(process: i32, thread: i32) {
    // SAFETY: the call has no pointers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGSTOP) };
    Errno::result(sent).unwrap();
}

/// Where a system call of a traced thread is.
enum Call {
    Entry(u64),
    Exit,
}

/// Who traces.
#[derive(Default)]
struct Follower {
    /// The hollow process from which each task descends.
    roots: BTreeMap<Pid, Pid>,
    /// Tasks that have stopped for the tracer.
    met: BTreeSet<Pid>,
    /// Those that have begun to return.
    returning: BTreeSet<Pid>,
    /// Those that have returned, and are stopped there.
    returned: BTreeSet<Pid>,
}

impl Follower {
    /// Follows the hollow processes of the worker in process `worker`, also those that it makes meanwhile.
    fn follow(mut self, worker: i32, seized: Sender<()>) -> BTreeMap<i32, i32> {
        let end = Instant::now() + LIMIT;
        let (mut seize_at, mut seized) = (Instant::now(), Some(seized));
        loop {
            if Instant::now() >= seize_at {
                self.seize(worker);
                seize_at = Instant::now() + SEIZE_EVERY;
            }
            let own = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOHANG;
            match waitpid(None, Some(own)).unwrap() {
                WaitStatus::StillAlive => thread::sleep(PAUSE),
                status => self.take(status),
            }
            let all_met = !self.roots.is_empty() && self.roots.keys().all(|task| self.met.contains(task));
            if let Some(seized) = seized.take_if(|_| all_met) {
                seized.send(()).unwrap();
            }
            if let Some(root) = self.whole() {
                return self.let_go(root);
            }
            assert!(Instant::now() < end, "no copy has come: {:?}", self.roots);
        }
    }

    fn seize(&mut self, worker: i32) {
        let makes = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK;
        for hollow in host::hollows(worker).into_iter().map(Pid::from_raw) {
            if self.roots.contains_key(&hollow) {
                continue;
            }
            // One that is not needed any more may end meanwhile.
            let seized = ptrace::seize(hollow, makes | Options::PTRACE_O_TRACESYSGOOD);
            if seized.and_then(|()| ptrace::interrupt(hollow)).is_ok() {
                self.roots.insert(hollow, hollow);
            }
        }
    }

    fn take(&mut self, status: WaitStatus) {
        let goes_on = match status {
            WaitStatus::PtraceSyscall(task) => match call_of(task) {
                Call::Entry(number) if number == libc::SYS_rt_sigreturn.cast_unsigned() => {
                    self.returning.insert(task);
                    Some((task, None))
                }
                Call::Exit if self.returning.contains(&task) => {
                    self.returned.insert(task);
                    None
                }
                _ => Some((task, None)),
            },
            WaitStatus::PtraceEvent(task, _, event) => {
                let makes = [
                    Event::PTRACE_EVENT_CLONE,
                    Event::PTRACE_EVENT_FORK,
                    Event::PTRACE_EVENT_VFORK,
                ];
                if makes.iter().any(|made| *made as i32 == event) {
                    let made = Pid::from_raw(i32::try_from(ptrace::getevent(task).unwrap()).unwrap());
                    self.roots.insert(made, self.roots[&task]);
                    if self.met.contains(&made) {
                        ptrace::syscall(made, None).unwrap();
                    }
                }
                self.met.insert(task);
                // One whose maker is not heard of yet waits for that.
                self.roots.contains_key(&task).then_some((task, None))
            }
            WaitStatus::Stopped(task, signal) => Some((task, Some(signal))),
            WaitStatus::Exited(task, _) | WaitStatus::Signaled(task, ..) => {
                self.roots.remove(&task);
                self.met.remove(&task);
                None
            }
            other => panic!("{other:?}"),
        };
        if let Some((task, signal)) = goes_on {
            ptrace::syscall(task, signal).unwrap();
        }
    }

    /// The hollow process all of whose tasks have returned.
    fn whole(&self) -> Option<Pid> {
        let root = self.roots[self.returned.first()?];
        let mut tasks = self.roots.iter().filter(|(_, other)| **other == root);
        tasks.all(|(task, _)| self.returned.contains(task)).then_some(root)
    }

    /// Leaves the copy stopped, and all others as they are: the kernel lets go what a thread traces when that ends.
    fn let_go(self, root: Pid) -> BTreeMap<i32, i32> {
        let tasks = self.roots.into_iter().filter(|(_, other)| *other == root);
        let mut processes = BTreeSet::new();
        let tasks: Vec<Pid> = tasks.map(|(task, _)| task).collect();
        for task in &tasks {
            let process = host::status_line(task.as_raw(), "Tgid:").unwrap().parse().unwrap();
            stop_thread(process, task.as_raw());
            processes.insert(process);
        }
        for task in tasks {
            ptrace::detach(task, None).unwrap();
        }
        host::by_inner_pid(processes.into_iter()).collect()
    }
}

#[allow(unsafe_code, reason = "the library does not have it")]
fn call_of(task: Pid) -> Call {
    const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
    const ENTRY: u64 = 1;
    // `struct ptrace_syscall_info`: in the first byte where it is, from byte 24 the call's number.
    let mut told = [0_u64; 11];
    let bytes = size_of_val(&told);
    // SAFETY: the kernel writes at most so many bytes there.
    let result = unsafe { libc::ptrace(GET_SYSCALL_INFO, task.as_raw(), bytes, told.as_mut_ptr()) };
    Errno::result(result).unwrap();
    match told[0] & 0xff {
        ENTRY => Call::Entry(told[3]),
        _ => Call::Exit,
    }
}
