//! Who may look at a source's memory while its host takes pages of it back.
//!
//! ```text
//! reader    pin ──► page is there ──► COPY or CONTINUE ──► unpin
//! evictor   say that the page is not there ──► wait until all who were pinned are not ──► punch the hole
//! ```
//!
//! A reader pays for it with a word of its own thread and a fence: no lock, nothing that another instance writes. By
//! epoch-based reclamation (K. Fraser, "Practical lock-freedom", 2004).

use std::sync::mpsc::{TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// While one is held, what [`crate::PageSource::held`] answered stays as it was. To be held for microseconds.
pub type Pin = crossbeam_epoch::Guard;

/// How often it is looked whether readers have gone on.
const PAUSE: Duration = Duration::from_micros(20);

/// Pins this thread.
pub fn pin() -> Pin {
    crossbeam_epoch::pin()
}

/// Waits until every pin that is held now has been let go of, at most `limit`; says whether that came to pass. Whoever pins
/// later sees what the caller wrote before.
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
        // Each of these may bring the epoch one further.
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
