//! Threads that fetch absent pages, so that a fault on a remote page does not delay a fault on a local one. They do not
//! touch any process's memory: the pager's own thread answers the fault, because only it knows what has happened
//! meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use nix::sys::eventfd::EventFd;
use parking_lot::Mutex;

use crate::source::{PageRef, PageSource};
use crate::userfault::Fault;

/// Maximum number of threads per instance, and so of pages in flight. Further faults queue. Their number never exceeds
/// the number of the instance's threads.
const THREADS: usize = 4;

/// A fault that has to be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingFault {
    pub(crate) memory: u64,
    pub(crate) fault: Fault,
    pub(crate) attempts: u32,
    /// Number of times its page was fetched.
    pub(crate) brought: u32,
    /// When it was read.
    pub(crate) since: Instant,
}

/// A fault whose page was fetched, or the reason why it cannot be.
pub(crate) struct Fetched {
    pub(crate) pending: PendingFault,
    pub(crate) wanted: PageRef,
    pub(crate) outcome: Result<(), String>,
}

/// The threads, started on demand.
pub(crate) struct Fetching {
    source: Arc<dyn PageSource>,
    bell: Arc<EventFd>,
    orders: Sender<(PageRef, PendingFault)>,
    queue: Arc<Mutex<Receiver<(PageRef, PendingFault)>>>,
    done: Sender<Fetched>,
    pub(crate) fetched: Receiver<Fetched>,
    /// Number of faults whose pages are in flight.
    under_way: usize,
    threads: usize,
}

impl Fetching {
    pub(crate) fn new(source: Arc<dyn PageSource>, bell: Arc<EventFd>) -> Self {
        let (orders, queue) = channel();
        let (done, fetched) = channel();
        Self {
            source,
            bell,
            orders,
            queue: Arc::new(Mutex::new(queue)),
            done,
            fetched,
            under_way: 0,
            threads: 0,
        }
    }

    /// Orders the page of a fault. It comes back through `fetched`, and the bell is rung.
    pub(crate) fn order(&mut self, wanted: PageRef, pending: PendingFault) {
        if self.under_way >= self.threads && self.threads < THREADS {
            self.start();
        }
        self.under_way += 1;
        if self.threads == 0 {
            // No thread could be started, so the page is fetched on this thread.
            let fetched = fetch(self.source.as_ref(), wanted, pending);
            self.give(fetched);
        } else {
            // The queue lives as long as `self`.
            let _ = self.orders.send((wanted, pending));
        }
    }

    fn give(&self, fetched: Fetched) {
        let _ = self.done.send(fetched);
        let _ = self.bell.write(1);
    }

    fn start(&mut self) {
        let (source, bell) = (Arc::clone(&self.source), Arc::clone(&self.bell));
        let (queue, done) = (Arc::clone(&self.queue), self.done.clone());
        let name = thread::current().name().unwrap_or("pager").to_owned();
        let started = thread::Builder::new().name(name).stack_size(256 * 1024).spawn(move || {
            loop {
                // The thread that holds the lock waits on behalf of all.
                let order = queue.lock().recv();
                let Ok((wanted, pending)) = order else { return };
                let fetched = fetch(source.as_ref(), wanted, pending);
                if done.send(fetched).is_err() || bell.write(1).is_err() {
                    return;
                }
            }
        });
        match started {
            Ok(_) => self.threads += 1,
            Err(e) => tracing::warn!(error = %e, "no further thread to bring pages"),
        }
    }

    pub(crate) fn next(&mut self) -> Option<Fetched> {
        let fetched = self.fetched.try_recv().ok()?;
        self.under_way -= 1;
        Some(fetched)
    }
}

fn fetch(source: &dyn PageSource, wanted: PageRef, pending: PendingFault) -> Fetched {
    let outcome = match catch_unwind(AssertUnwindSafe(|| source.fetch(wanted))) {
        Ok(outcome) => outcome.map_err(|e| e.message),
        Err(_) => Err("bringing it panicked".to_owned()),
    };
    Fetched {
        pending,
        wanted,
        outcome,
    }
}
