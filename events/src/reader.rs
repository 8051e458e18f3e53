//! Reads one source: connects, receives batches as fast as its pace allows, and has each processed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_wire::api::SourceState;
use rekindle_wire::error::chain;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::batch::Batches;
use crate::config::Config;
use crate::open::open;
use crate::queue::{Message, Queue, QueueError, ReceiveRequest};

/// Interval at which the lag is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pauses before a queue that fails is connected to again.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Reader {
    pub(crate) config: Arc<Config>,
    pub(crate) batches: Arc<Batches>,
}

type Receiving = Pin<Box<dyn Future<Output = Result<Vec<Message>, QueueError>> + Send>>;

impl Reader {
    /// Reads until it is to stop, and then until what it has is settled.
    pub(crate) async fn read(self) {
        let (stop, info) = (&self.batches.stop, &self.batches.info);
        let (mut going, mut pause) = (JoinSet::new(), AGAIN_FIRST);
        while !stop.is_cancelled() {
            let began = Instant::now();
            let ended = match open(&self.config, info).await {
                Ok(queue) => {
                    self.batches.progress.reads();
                    self.serve(&queue, &mut going).await.map_err(|error| chain(&error))
                }
                Err(problem) => Err(problem),
            };
            let Err(problem) = ended else { break };
            self.fails(problem);
            if began.elapsed() > AGAIN_MAX {
                pause = AGAIN_FIRST;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
            pause = (pause * 2).min(AGAIN_MAX);
        }
        while going.join_next().await.is_some() {}
    }

    fn fails(&self, problem: String) {
        let (function, source) = (&self.batches.info.function, &self.batches.info.source.name);
        self.batches.metrics.queue_failed(function, source);
        if self.batches.progress.stumbles(SourceState::Failing, problem.clone()) {
            tracing::warn!(%function, %source, problem, "a source cannot be read; trying again");
        }
    }

    /// Reads one connection until it fails.
    async fn serve(&self, queue: &Arc<dyn Queue>, going: &mut JoinSet<()>) -> Result<(), QueueError> {
        let source = &self.batches.info.source;
        let wanted = ReceiveRequest {
            messages: source.batch,
            window: source.window(),
        };
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Never dropped half-way: what it was given is delivered to nobody else for a while.
        let mut receiving: Option<Receiving> = None;
        loop {
            while going.try_join_next().is_some() {}
            let stop = &self.batches.stop;
            if receiving.is_none() {
                if stop.is_cancelled() {
                    return Ok(());
                }
                if going.len() < self.batches.pace.lock().limit() as usize {
                    let (queue, stop) = (Arc::clone(queue), stop.clone());
                    receiving = Some(Box::pin(async move { queue.receive(wanted, &stop).await }));
                }
            }
            let is_receiving = receiving.is_some();
            tokio::select! {
                received = received(&mut receiving), if is_receiving => {
                    receiving = None;
                    let messages = received?;
                    if going.is_empty() {
                        // Whatever was wrong before is not any more.
                        self.batches.progress.reads();
                    }
                    self.begin(queue, messages, going);
                }
                _ = going.join_next(), if !going.is_empty() => {}
                _ = looks.tick() => self.look(queue.as_ref()).await,
                () = stop.cancelled(), if !is_receiving => {}
            }
        }
    }

    /// Has a batch processed, unless there is none.
    fn begin(&self, queue: &Arc<dyn Queue>, messages: Vec<Message>, going: &mut JoinSet<()>) {
        if messages.is_empty() {
            return;
        }
        let (batches, queue) = (Arc::clone(&self.batches), Arc::clone(queue));
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        batches.progress.change(|progress| progress.in_flight += count);
        going.spawn(async move {
            batches.process(queue.as_ref(), messages).await;
            batches
                .progress
                .change(|progress| progress.in_flight = progress.in_flight.saturating_sub(count));
        });
    }

    /// Takes in the lag.
    async fn look(&self, queue: &dyn Queue) {
        let lag = match queue.lag().await {
            Ok(lag) => lag,
            // Whether it can be read is for receiving to say.
            Err(error) => {
                let (function, source) = (&self.batches.info.function, &self.batches.info.source.name);
                tracing::debug!(%function, %source, error = &error as &dyn std::error::Error, "no lag is known");
                return self.batches.metrics.queue_failed(function, source);
            }
        };
        let limit = {
            let mut pace = self.batches.pace.lock();
            pace.look(lag, Instant::now());
            pace.limit()
        };
        let mut held = 0;
        self.batches.progress.change(|progress| {
            (progress.lag, progress.concurrency) = (Some(lag), limit);
            held = progress.in_flight;
        });
        let of = (&self.batches.info.function, &self.batches.info.source.name);
        self.batches.metrics.look(of, Some(lag), held, limit);
    }
}

async fn received(receiving: &mut Option<Receiving>) -> Result<Vec<Message>, QueueError> {
    match receiving {
        Some(receiving) => receiving.await,
        None => std::future::pending().await,
    }
}
