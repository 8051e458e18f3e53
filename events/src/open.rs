//! Connects to the queue of a source.

use std::sync::Arc;

use rekindle_wire::api::SourceInfo;
use rekindle_wire::error::chain;
use rekindle_wire::event_source::QueueKind;

use crate::config::Config;
use crate::nats::NatsQueue;
use crate::queue::Queue;
use crate::sqs::SqsQueue;

/// Connects to the queue of a source, if the operator allows it.
///
/// # Errors
/// What is wrong, and how to mend it.
pub(crate) async fn open(config: &Config, info: &SourceInfo) -> Result<Arc<dyn Queue>, String> {
    let server = config.server(info.function.namespace(), &info.source)?;
    let opened: Result<Arc<dyn Queue>, _> = match info.source.kind {
        QueueKind::Nats => NatsQueue::open(server, &info.function, &info.source)
            .await
            .map(|queue| Arc::new(queue) as _),
        QueueKind::Sqs => SqsQueue::open(server, &info.source)
            .await
            .map(|queue| Arc::new(queue) as _),
    };
    opened.map_err(|error| chain(&error))
}
