//! Threads that bring absent pages, so that a fault whose page is far away delays no fault whose page is here. They touch no
//! process's memory: what is brought is answered by the pager's own thread, which alone knows what happened meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sys::eventfd::EventFd;
use parking_lot::Mutex;

use crate::source::{PageRef, PageSource};
use crate::thread::Pending;

/// Threads of one instance at most: pages that may be on their way at once. Further ones queue; there are never more of them than
/// the instance has threads.
const THREADS: usize = 4;

/// A fault whose page was brought, or why it cannot be.
pub(crate) struct Fetched {
    pub(crate) pending: Pending,
    pub(crate) wanted: PageRef,
    pub(crate) outcome: Result<(), String>,
}

/// The threads, started when they are first needed.
pub(crate) struct Fetching {
    source: Arc<dyn PageSource>,
    bell: Arc<EventFd>,
    orders: Sender<(PageRef, Pending)>,
    queue: Arc<Mutex<Receiver<(PageRef, Pending)>>>,
    done: Sender<Fetched>,
    /// What was brought.
    pub(crate) fetched: Receiver<Fetched>,
    /// Faults whose pages are on their way.
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

    /// Has a page brought for a fault. It comes back through `fetched`, with the bell rung.
    pub(crate) fn order(&mut self, wanted: PageRef, pending: Pending) {
        if self.under_way >= self.threads && self.threads < THREADS {
            self.start();
        }
        self.under_way += 1;
        if self.threads == 0 {
            // No thread can be had: then here.
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
                // Whoever holds the lock waits for all.
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

    /// What was brought and not taken yet.
    pub(crate) fn next(&mut self) -> Option<Fetched> {
        let fetched = self.fetched.try_recv().ok()?;
        self.under_way -= 1;
        Some(fetched)
    }
}

fn fetch(source: &dyn PageSource, wanted: PageRef, pending: Pending) -> Fetched {
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
