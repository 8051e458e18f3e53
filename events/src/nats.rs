//! Streams of NATS JetStream, by a durable pull consumer that every reader of a source shares. What is delivered and
//! not acknowledged in time is delivered again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::consumer::pull::Config as ConsumerConfig;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer};
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, HeaderMap};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use rekindle_wire::FunctionId;
use rekindle_wire::event_source::EventSource;
use tokio_util::sync::CancellationToken;

use crate::config::{OWN_CONSUMERS, Server, secret};
use crate::queue::{
    DEAD_DELIVERIES, DEAD_FUNCTION, DEAD_ID, DEAD_REASON, DEAD_SOURCE, DeadLetter, HOLD, Message, Queue, QueueError,
    ReceiveRequest,
};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How long one ask waits for messages.
const WAIT: Duration = Duration::from_secs(2);
/// Number of messages of a consumer that may be unsettled, of all its readers.
const UNSETTLED_MAX: i64 = 50_000;
/// Number of acknowledgements that are under way at once.
const AT_ONCE: usize = 32;
/// The shortest hold of a consumer that a reader can keep up with.
const HOLD_LEAST: Duration = Duration::from_secs(2);

/// A consumer of a stream.
pub(crate) struct NatsQueue {
    client: Client,
    context: Context,
    stream: Stream,
    consumer: PullConsumer,
    name: String,
    hold: Duration,
}

impl NatsQueue {
    /// Connects to the server, and makes the consumer if there is none.
    pub(crate) async fn open(server: &Server, function: &FunctionId, source: &EventSource) -> Result<Self, QueueError> {
        let client = connect(server, function, source).await?;
        let context = jetstream::new(client.clone());
        let stream = context.get_stream(&source.queue).await.map_err(|error| {
            QueueError::new(
                format!("the stream {} cannot be read: make it, or name another", source.queue),
                error,
            )
        })?;
        let name = consumer_name(function, source);
        let wanted = ConsumerConfig {
            durable_name: Some(name.clone()),
            description: Some(format!("rekindle-events: source {} of {function}", source.name)),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: HOLD,
            filter_subject: source.subject.clone().unwrap_or_default(),
            max_ack_pending: UNSETTLED_MAX,
            ..ConsumerConfig::default()
        };
        let unusable = |error: Box<dyn std::error::Error + Send + Sync>| {
            QueueError::new(format!("the consumer {name} cannot be made or used"), error)
        };
        let mut consumer: PullConsumer = stream
            .get_or_create_consumer(&name, wanted.clone())
            .await
            .map_err(|error| unusable(error.into()))?;
        // The source has another subject than before. The consumer goes on where it is.
        let filter = &consumer.cached_info().config.filter_subject;
        if source.consumer.is_none() && *filter != wanted.filter_subject {
            let updated = stream.update_consumer(wanted).await;
            consumer = updated.map_err(|error| unusable(error.into()))?;
        }
        let hold = usable(&consumer, source)
            .map_err(|why| QueueError::new(format!("the consumer {name} does not fit the source"), why))?;
        Ok(Self {
            client,
            context,
            stream,
            consumer,
            name,
            hold,
        })
    }

    /// Up to `count` messages that come within the wait. One that ends early does so with the first messages.
    async fn pull(&self, count: usize, wait: Duration, ends_early: bool) -> Result<Vec<Message>, QueueError> {
        let failed =
            |error: Box<dyn std::error::Error + Send + Sync>| QueueError::new("messages cannot be received", error);
        let pulled = match ends_early {
            true => self.consumer.fetch().max_messages(count).expires(wait).messages().await,
            false => self.consumer.batch().max_messages(count).expires(wait).messages().await,
        };
        let mut pulled = pulled.map_err(|error| failed(Box::new(error)))?;
        let end = tokio::time::sleep(wait + REQUEST_LIMIT);
        tokio::pin!(end);
        let mut got = Vec::new();
        // To its end, as the server may send until then.
        loop {
            let next = tokio::select! {
                next = pulled.next() => next,
                () = &mut end => Some(Err("the server did not answer in time".into())),
            };
            match next {
                Some(Ok(message)) => got.push(read(message).map_err(failed)?),
                // What it has goes on; the next ask says what is wrong.
                None | Some(Err(_)) if !got.is_empty() => return Ok(got),
                None => return Ok(got),
                Some(Err(error)) => return Err(failed(error)),
            }
        }
    }
}

async fn connect(server: &Server, function: &FunctionId, source: &EventSource) -> Result<Client, QueueError> {
    let options = ConnectOptions::new()
        .name(format!("rekindle-events {function} {}", source.name))
        .connection_timeout(CONNECT_LIMIT)
        .request_timeout(Some(REQUEST_LIMIT));
    let unread = |error: anyhow::Error| QueueError::new("the server's credentials cannot be read", error);
    let options = match (
        &server.credentials_file,
        &server.user,
        &server.password_file,
        &server.token_file,
    ) {
        (Some(file), ..) => {
            let opened = options.credentials_file(file).await;
            opened.map_err(|e| unread(anyhow::Error::new(e).context(format!("{}", file.display()))))?
        }
        (_, Some(user), Some(file), _) => options.user_and_password(user.clone(), secret(file).map_err(unread)?),
        (_, _, _, Some(file)) => options.token(secret(file).map_err(unread)?),
        _ => options,
    };
    let options = match &server.ca {
        Some(ca) => options.add_root_certificates(ca.clone()).require_tls(true),
        None => options,
    };
    let connected = options.connect(&server.url).await;
    connected.map_err(|error| QueueError::new(format!("{} cannot be connected to", server.url), error))
}

/// The consumer of a source that names none. A function of the same name in another namespace has another.
fn consumer_name(function: &FunctionId, source: &EventSource) -> String {
    match &source.consumer {
        Some(name) => name.clone(),
        // No name has `_`, so no two sources have the same consumer.
        None => format!(
            "{OWN_CONSUMERS}{}_{}_{}",
            function.namespace(),
            function.name(),
            source.name
        ),
    }
}

/// How long a consumer holds what it has delivered.
///
/// # Errors
/// If it would deliver other messages than the source says, or throw some away.
fn usable(consumer: &PullConsumer, source: &EventSource) -> Result<Duration, String> {
    let config = &consumer.cached_info().config;
    let wanted = source.subject.clone().unwrap_or_default();
    if config.filter_subject != wanted || !config.filter_subjects.is_empty() {
        return Err(format!(
            "it filters \"{}\", and fn.toml says subject = \"{wanted}\": remove the consumer, or name another",
            config.filter_subject
        ));
    }
    if config.ack_policy != AckPolicy::Explicit {
        return Err("its acknowledgements are not explicit: messages would be lost; name another consumer".to_owned());
    }
    if config.max_deliver > 0 && config.max_deliver <= i64::from(source.max_deliveries) {
        return Err(format!(
            "it delivers a message {} times at most, and then drops it: set its max deliver to -1",
            config.max_deliver
        ));
    }
    let hold = if config.ack_wait.is_zero() {
        HOLD
    } else {
        config.ack_wait
    };
    match hold < HOLD_LEAST {
        true => Err(format!(
            "it waits {hold:?} for acknowledgements: set its ack wait to {HOLD:?}"
        )),
        false => Ok(hold),
    }
}

fn read(message: jetstream::Message) -> Result<Message, Box<dyn std::error::Error + Send + Sync>> {
    let info = message.info()?;
    let nanos = u64::try_from(info.published.unix_timestamp_nanos()).unwrap_or_default();
    let (id, deliveries) = (format!("{}:{}", info.stream, info.stream_sequence), info.delivered);
    let header = |names: [&str; 2]| {
        let headers = message.headers.as_ref()?;
        let value = names.into_iter().find_map(|name| headers.get(name))?;
        Some(value.as_str().to_owned())
    };
    let time: SystemTime = UNIX_EPOCH + Duration::from_nanos(nanos);
    Ok(Message {
        id,
        content_type: header(["Content-Type", "content-type"]),
        subject: Some(message.subject.to_string()),
        time: Some(time),
        traceparent: header(["traceparent", "Traceparent"]),
        deliveries: u32::try_from(deliveries).unwrap_or(u32::MAX),
        receipt: message.reply.as_ref().map(ToString::to_string).unwrap_or_default(),
        body: message.message.payload,
    })
}

#[async_trait]
impl Queue for NatsQueue {
    fn extend_every(&self) -> Duration {
        self.hold / 3
    }

    async fn receive(&self, wanted: ReceiveRequest, stop: &CancellationToken) -> Result<Vec<Message>, QueueError> {
        let most = wanted.messages as usize;
        let mut got = self.pull(most, WAIT, true).await?;
        // What was received is not extended before the batch is complete.
        let until = Instant::now() + wanted.window.min(self.extend_every());
        while !got.is_empty() && got.len() < most && !stop.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.pull(most - got.len(), left.min(WAIT), false).await {
                Ok(more) => got.extend(more),
                // What it has goes on; the next ask says what is wrong.
                Err(_) => break,
            }
        }
        Ok(got)
    }

    async fn extend(&self, receipts: &[String]) -> Result<(), QueueError> {
        for receipt in receipts {
            let said = self.client.publish(receipt.clone(), Bytes::from_static(b"+WPI")).await;
            said.map_err(|error| QueueError::new("messages cannot be held any longer", error))?;
        }
        Ok(())
    }

    async fn remove(&self, receipts: &[String]) -> Result<(), QueueError> {
        // Each is confirmed by the server.
        let confirmed = futures::stream::iter(receipts.to_vec()).map(|receipt| async {
            let done = self.client.request(receipt, Bytes::from_static(b"+ACK")).await;
            done.map(drop)
        });
        // All of them, whatever becomes of one.
        let confirmed: Vec<Result<(), _>> = confirmed.buffer_unordered(AT_ONCE).collect().await;
        let first = confirmed.into_iter().find(Result::is_err).unwrap_or(Ok(()));
        first.map_err(|error| QueueError::new("messages cannot be acknowledged", error))
    }

    async fn give_back(&self, receipt: &str, after: Duration) -> Result<(), QueueError> {
        let said = format!("-NAK {{\"delay\": {}}}", after.as_nanos());
        let given = self.client.publish(receipt.to_owned(), said.into()).await;
        given.map_err(|error| QueueError::new("a message cannot be given back", error))
    }

    async fn bury(&self, message: &Message, letter: &DeadLetter<'_>) -> Result<(), QueueError> {
        let mut headers = HeaderMap::new();
        // A second copy, if this reader is killed before it acknowledges the message, is dropped by the server.
        let id = format!("{}/{}/{}", letter.function, letter.source, message.id);
        headers.insert("Nats-Msg-Id", id.as_str());
        headers.insert(DEAD_FUNCTION, letter.function);
        headers.insert(DEAD_SOURCE, letter.source);
        headers.insert(DEAD_REASON, letter.reason);
        headers.insert(DEAD_DELIVERIES, message.deliveries.to_string().as_str());
        headers.insert(DEAD_ID, message.id.as_str());
        let others = [
            ("Content-Type", &message.content_type),
            ("traceparent", &message.traceparent),
            ("Rekindle-Subject", &message.subject),
        ];
        for (name, value) in others {
            if let Some(value) = value {
                headers.insert(name, value.as_str());
            }
        }
        let failed = |error: async_nats::jetstream::context::PublishError| {
            let doing = format!(
                "the dead letter cannot be kept: a stream has to take the subject {}",
                letter.to
            );
            QueueError::new(doing, error)
        };
        let sent = self
            .context
            .publish_with_headers(letter.to.to_owned(), headers, message.body.clone())
            .await;
        sent.map_err(failed)?.await.map_err(failed)?;
        Ok(())
    }

    async fn lag(&self) -> Result<u64, QueueError> {
        let info = self.stream.consumer_info(&self.name).await;
        info.map(|info| info.num_pending)
            .map_err(|error| QueueError::new("the lag cannot be read", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::source;

    #[test]
    fn each_source_has_a_consumer_of_its_own() {
        let mut source = source(1);
        let names: Vec<String> = ["billing", "billing.team"]
            .into_iter()
            .map(|function| consumer_name(&function.parse().unwrap(), &source))
            .collect();
        assert_eq!(
            names,
            ["rekindle_default_billing_orders", "rekindle_team_billing_orders"]
        );
        source.consumer = Some("shared".to_owned());
        assert_eq!(consumer_name(&"billing".parse().unwrap(), &source), "shared");
    }
}
