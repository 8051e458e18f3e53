//! Steady load: a request after the other, each answered in full, and what did not succeed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{Call, until};

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

/// Clients that go on until they are told to end.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts so many. Each asks the first of the addresses, and the next when there is no answer from it, as behind a balancer: what gets an answer
    /// from none has failed.
    pub fn start(urls: Vec<String>, threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let one = |_| {
            let (urls, shared) = (urls.clone(), shared.clone());
            thread::spawn(move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    match ask(&urls) {
                        Ok(()) => drop(shared.answered.fetch_add(1, Ordering::Relaxed)),
                        Err(why) => {
                            shared.failed.lock().unwrap().push(why);
                            thread::sleep(Duration::from_millis(20));
                        }
                    }
                }
            })
        };
        let threads = (0..threads).map(one).collect();
        Self { shared, threads }
    }

    /// Waits for so many more answers, which must be there within this time.
    #[track_caller]
    pub fn until_answered(&self, more: usize, within: Duration) {
        let before = self.shared.answered.load(Ordering::Relaxed);
        until(&format!("{more} more answers"), within, || {
            (self.shared.answered.load(Ordering::Relaxed) >= before + more).then_some(())
        });
    }

    /// What failed since this was asked last.
    pub fn take_failed(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.failed.lock().unwrap())
    }

    /// Ends it; answers what failed since that was asked last.
    pub fn end(self) -> Vec<String> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        std::mem::take(&mut *self.shared.failed.lock().unwrap())
    }
}

fn ask(urls: &[String]) -> Result<(), String> {
    let mut last = String::new();
    for url in urls {
        match Call::get(url).try_send() {
            Ok(answer) if answer.status == 200 => return Ok(()),
            Ok(answer) => return Err(format!("{} {}", answer.status, answer.text())),
            Err(e) => last = format!("{e:?}"),
        }
    }
    Err(last)
}
