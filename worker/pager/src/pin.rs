//! Protects readers of a source's memory while its host evicts pages.
//!
//! ```text
//! reader    pin ──► page is there ──► COPY or CONTINUE ──► unpin
//! evictor   mark the page as absent ──► wait until earlier pins are released ──► punch the hole
//! ```
//!
//! The cost for a reader is a word of its own thread and a fence: no lock, and nothing written by another instance.
//! Based on epoch-based reclamation (K. Fraser, "Practical lock-freedom", 2004).

use std::sync::mpsc::{TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// While a pin is held, results of [`crate::PageSource::held`] stay valid. To be held for microseconds.
pub type Pin = crossbeam_epoch::Guard;

/// Interval at which progress of the readers is checked.
const PAUSE: Duration = Duration::from_micros(20);

/// Pins this thread.
pub fn pin() -> Pin {
    crossbeam_epoch::pin()
}

/// Waits until every pin held now has been released, at most `limit`. Returns whether all were. Later pins see what the
/// caller wrote before.
pub fn unpinned(limit: Duration) -> bool {
    let (done, told) = sync_channel(1);
    {
        let guard = crossbeam_epoch::pin();
        guard.defer(move || {
            let _ = done.try_send(());
        });
        guard.flush();
    }
    let deadline = Instant::now() + limit;
    loop {
        match told.try_recv() {
            Ok(()) => return true,
            Err(TryRecvError::Disconnected) => return false,
            Err(TryRecvError::Empty) if Instant::now() >= deadline => return false,
            Err(TryRecvError::Empty) => {}
        }
        // Each of these may advance the epoch by one.
        crossbeam_epoch::pin().flush();
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn waits_for_who_is_pinned_and_not_for_who_pins_later() {
        let (pinned, is_pinned) = channel();
        let (let_go, may_go) = channel::<()>();
        let reader = thread::spawn(move || {
            let pin = pin();
            pinned.send(()).unwrap();
            may_go.recv().unwrap();
            drop(pin);
        });
        is_pinned.recv().unwrap();
        assert!(!unpinned(Duration::from_millis(50)), "a reader is still pinned");
        let_go.send(()).unwrap();
        reader.join().unwrap();
        assert!(unpinned(Duration::from_secs(10)));
    }
}
