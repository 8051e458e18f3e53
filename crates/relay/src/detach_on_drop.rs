//! A future that completes even if its caller goes away.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Runs where it is awaited. If it is dropped unfinished, it continues in a separate task, and its output is dropped
/// there.
///
/// A server drops the future of a response when its client disconnects. The service that handles the request does not
/// learn of that.
#[derive(Debug)]
pub struct DetachOnDrop<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    future: Option<Pin<Box<F>>>,
}

impl<F> DetachOnDrop<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    /// Wraps `future`. It must end by itself, because it cannot be cancelled.
    pub fn new(future: F) -> Self {
        Self {
            future: Some(Box::pin(future)),
        }
    }
}

impl<F> Future for DetachOnDrop<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.future else {
            // Polled after its end, which no caller does.
            return Poll::Pending;
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<F> Drop for DetachOnDrop<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn drop(&mut self) {
        // Without a runtime, the process is shutting down.
        if let (Some(future), Ok(runtime)) = (self.future.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(future.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_finished() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel::<()>();
        let waiting = DetachOnDrop::new(async move {
            drop(gone.await);
            let _ = done.send(());
        });
        assert!(tokio::time::timeout(Duration::from_millis(5), waiting).await.is_err());
        go.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(10), ended)
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn what_is_waited_for_gives_its_output() {
        assert_eq!(DetachOnDrop::new(async { 7 }).await, 7);
    }
}
