//! Wake-ups of a task that drives both ends of something. Progress at one end wakes the other. If the same poll serves
//! both, a wake-up only means that it must poll again. Forwarded to the runtime, each would reschedule the task and
//! wake another thread.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Maximum number of polls in a row. After that the task yields, as the runtime requires.
const LOOKS: u32 = 4;

/// Used by one task after another.
#[derive(Debug)]
pub(crate) struct SharedWaker {
    shared: Arc<Shared>,
    waker: Waker,
}

#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Debug)]
struct State {
    task: Waker,
    polling: bool,
    again: bool,
}

impl Default for SharedWaker {
    fn default() -> Self {
        let shared = Arc::new(Shared(Mutex::new(State {
            task: Waker::noop().clone(),
            polling: false,
            again: false,
        })));
        let waker = Waker::from(Arc::clone(&shared));
        Self { shared, waker }
    }
}

impl SharedWaker {
    /// Polls `step` until nothing wakes it during a poll. Later wake-ups wake the task.
    pub(crate) fn poll<R>(&self, cx: &mut Context<'_>, mut step: impl FnMut(&mut Context<'_>) -> Poll<R>) -> Poll<R> {
        for _ in 0..LOOKS {
            self.shared.begin(cx);
            let polled = step(&mut Context::from_waker(&self.waker));
            let again = self.shared.end();
            if polled.is_ready() || !again {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Forgets the task: nothing waits for wake-ups any more.
    pub(crate) fn rest(&self) {
        self.shared.0.lock().task = Waker::noop().clone();
    }
}

impl Shared {
    fn begin(&self, cx: &Context<'_>) {
        let mut state = self.0.lock();
        state.task.clone_from(cx.waker());
        (state.polling, state.again) = (true, false);
    }

    fn end(&self) -> bool {
        let mut state = self.0.lock();
        state.polling = false;
        state.again
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.0.lock();
        if state.polling {
            state.again = true;
            return;
        }
        let task = state.task.clone();
        drop(state);
        task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_wakes_itself_is_asked_again_at_once_and_what_does_not_stop_gives_way() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let waking = SharedWaker::default();
        let mut asked = 0;
        let polled = waking.poll(&mut cx, |cx| {
            asked += 1;
            cx.waker().wake_by_ref();
            if asked == 2 { Poll::Ready(()) } else { Poll::Pending }
        });
        assert_eq!((polled, asked, count.0.load(Ordering::SeqCst)), (Poll::Ready(()), 2, 0));
        let polled: Poll<()> = waking.poll(&mut cx, |cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!((polled, count.0.load(Ordering::SeqCst)), (Poll::Pending, 1));
    }

    #[test]
    fn what_wakes_it_later_wakes_the_task() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let waking = SharedWaker::default();
        let mut kept = None;
        let polled: Poll<()> = waking.poll(&mut Context::from_waker(&waker), |cx| {
            kept = Some(cx.waker().clone());
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        kept.unwrap().wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }
}
