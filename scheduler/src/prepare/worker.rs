//! The worker that carries out an order: what it reports, and whether it is still there.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use rekindle_wire::InstanceId;
use rekindle_wire::error::chain;
use rekindle_wire::internal::{PrepareEvent, PrepareRequest};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::state::Scheduler;

/// How often to check that the worker is still heard from.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest line of one event. Error messages carry the last output of a build.
const LINE_MAX: usize = 1 << 20;

/// The events that a worker sends while it carries out an order.
pub(crate) struct PrepareEvents(BoxStream<'static, Result<String, LinesCodecError>>);

impl PrepareEvents {
    /// Sends the order to the worker.
    ///
    /// # Errors
    /// Why the order could not be sent.
    pub(crate) async fn order(scheduler: &Scheduler, address: &str, order: &PrepareRequest) -> Result<Self, String> {
        let answer = scheduler.workers.prepare(address, order).await.map_err(|e| chain(&e))?;
        let bytes = answer.bytes_stream().map(|b| b.map_err(std::io::Error::other));
        let lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new_with_max_length(LINE_MAX));
        Ok(Self(lines.boxed()))
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// Why no more events will come.
    pub(crate) async fn next(&mut self) -> Result<PrepareEvent, String> {
        match self.0.next().await {
            Some(Ok(line)) => serde_json::from_str(&line).map_err(|e| format!("unreadable event: {e}")),
            Some(Err(e)) => Err(chain(&e)),
            None => Err("it ended without an outcome".to_owned()),
        }
    }
}

/// Waits until the worker on which the instance's memory was set aside has been given up.
pub(crate) async fn until_gone(scheduler: &Scheduler, instance: InstanceId) {
    let worker = scheduler
        .state()
        .fleet
        .instances
        .get(&instance)
        .map(|i| i.worker.clone());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let state = scheduler.state();
        let known = worker.as_ref().and_then(|worker| state.fleet.workers.get(worker));
        if known.is_none_or(|worker| worker.gone) {
            return;
        }
    }
}
