//! Steady load: one request after the other, each answered completely, and those that failed.

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

/// Clients that run until they are told to end.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts `threads` clients. Each sends to the first address, and to the next if that does not answer, as behind a
    /// balancer. A request that no address answers has failed.
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

    /// Waits for `more` further responses, at most `within`.
    #[track_caller]
    pub fn until_answered(&self, more: usize, within: Duration) {
        let before = self.shared.answered.load(Ordering::Relaxed);
        until(&format!("{more} more answers"), within, || {
            (self.shared.answered.load(Ordering::Relaxed) >= before + more).then_some(())
        });
    }

    /// What has failed since the last call.
    pub fn take_failed(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.failed.lock().unwrap())
    }

    /// Ends the load. Returns what has failed since the last call of `take_failed`.
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
