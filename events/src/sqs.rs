//! Queues of Amazon SQS and of servers that speak its protocol. What is received and not deleted in time is received
//! again.

use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
    Message as Received, MessageAttributeValue, MessageSystemAttributeName, QueueAttributeName,
};
use rekindle_wire::event_source::EventSource;
use tokio_util::sync::CancellationToken;

use crate::config::Server;
use crate::queue::{
    DEAD_DELIVERIES, DEAD_FUNCTION, DEAD_ID, DEAD_REASON, DEAD_SOURCE, DeadLetter, HOLD, Message, Queue, QueueError,
    ReceiveRequest,
};

/// Limit of one request; one for messages waits besides.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long one request waits for messages, in seconds.
const WAIT_S: i32 = 2;
/// Number of messages in one request.
const AT_ONCE: usize = 10;

pub(crate) struct SqsQueue {
    client: Client,
    /// Address of the server.
    base: String,
    url: String,
}

impl SqsQueue {
    /// Makes a client, and looks whether there is such a queue.
    pub(crate) async fn open(server: &Server, source: &EventSource) -> Result<Self, QueueError> {
        let Some(region) = server.region.clone().or_else(|| region_in(&server.url)) else {
            let doing = format!("the region of {} is not known", server.url);
            return Err(QueueError::new(
                doing,
                "the operator writes region = \"...\" into its [[events.server]]",
            ));
        };
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_LIMIT)
            .operation_attempt_timeout(REQUEST_LIMIT)
            .operation_timeout(REQUEST_LIMIT * 3)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(region))
            .endpoint_url(&server.url)
            .timeout_config(timeouts);
        if let Some(file) = &server.credentials_file {
            let files = EnvConfigFiles::builder()
                .with_file(EnvConfigFileKind::Credentials, file)
                .build();
            let provider = ProfileFileCredentialsProvider::builder().profile_files(files);
            let provider = provider.profile_name(server.profile.as_deref().unwrap_or("default"));
            loader = loader.credentials_provider(provider.build());
        }
        let queue = Self {
            client: Client::new(&loader.load().await),
            base: server.url.clone(),
            url: format!("{}/{}", server.url, source.queue),
        };
        queue.lag().await?;
        Ok(queue)
    }

    /// Up to ten messages.
    async fn pull(&self, count: usize, wait_s: i32) -> Result<Vec<Message>, QueueError> {
        let received = self
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(count.min(AT_ONCE)).unwrap_or(1))
            .wait_time_seconds(wait_s)
            .visibility_timeout(seconds(HOLD))
            .message_system_attribute_names(MessageSystemAttributeName::All)
            .message_attribute_names("All")
            .send()
            .await
            .map_err(|error| failed("messages cannot be received", error))?;
        Ok(received
            .messages
            .unwrap_or_default()
            .into_iter()
            .filter_map(read)
            .collect())
    }

    async fn extend_some(&self, receipts: &[String]) -> Result<(), QueueError> {
        let doing = "messages cannot be held any longer";
        let entries = receipts.iter().enumerate().map(|(n, receipt)| {
            ChangeMessageVisibilityBatchRequestEntry::builder()
                .id(n.to_string())
                .receipt_handle(receipt)
                .visibility_timeout(seconds(HOLD))
                .build()
        });
        let entries = entries
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| failed(doing, error))?;
        let call = self.client.change_message_visibility_batch().queue_url(&self.url);
        let done = call
            .set_entries(Some(entries))
            .send()
            .await
            .map_err(|error| failed(doing, error))?;
        all_taken(doing, done.failed())
    }

    async fn remove_some(&self, receipts: &[String]) -> Result<(), QueueError> {
        let doing = "messages cannot be deleted";
        let entries = receipts.iter().enumerate().map(|(n, receipt)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
            entry.receipt_handle(receipt).build()
        });
        let entries = entries
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| failed(doing, error))?;
        let call = self.client.delete_message_batch().queue_url(&self.url);
        let done = call
            .set_entries(Some(entries))
            .send()
            .await
            .map_err(|error| failed(doing, error))?;
        all_taken(doing, done.failed())
    }
}

/// What an error of the client says, which has its cause behind a general one.
fn failed(doing: impl Into<String>, error: impl Error + Send + Sync + 'static) -> QueueError {
    QueueError::new(doing, error)
}

fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}

/// The region that an address of AWS names: `https://sqs.REGION.amazonaws.com`.
fn region_in(url: &str) -> Option<String> {
    let host = url.strip_prefix("https://sqs.")?;
    let (region, rest) = host.split_once('.')?;
    rest.starts_with("amazonaws.com").then(|| region.to_owned())
}

fn read(received: Received) -> Option<Message> {
    let own = received.attributes.unwrap_or_default();
    let number = |name: &MessageSystemAttributeName| own.get(name)?.parse::<u64>().ok();
    let sent = number(&MessageSystemAttributeName::SentTimestamp);
    let deliveries = number(&MessageSystemAttributeName::ApproximateReceiveCount).unwrap_or(1);
    let others = received.message_attributes.unwrap_or_default();
    let text = |names: [&str; 2]| {
        let value = names.into_iter().find_map(|name| others.get(name))?;
        value.string_value.clone()
    };
    let time: Option<SystemTime> = sent.map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
    Some(Message {
        id: received.message_id?,
        content_type: text(["content-type", "Content-Type"]),
        subject: None,
        time,
        traceparent: text(["traceparent", "Traceparent"]),
        deliveries: u32::try_from(deliveries).unwrap_or(u32::MAX),
        receipt: received.receipt_handle?,
        body: received.body.unwrap_or_default().into(),
    })
}

fn attribute(text: &str) -> Result<MessageAttributeValue, QueueError> {
    let value = MessageAttributeValue::builder()
        .data_type("String")
        .string_value(text)
        .build();
    value.map_err(|error| failed("an attribute cannot be sent", error))
}

/// Whether every entry of a batch was taken. Says why the first was not.
fn all_taken(doing: &'static str, refused: &[BatchResultErrorEntry]) -> Result<(), QueueError> {
    refused.first().map_or(Ok(()), |first| {
        let why = first.message.as_ref().unwrap_or(&first.code);
        Err(QueueError::new(doing, why.clone()))
    })
}

#[async_trait]
impl Queue for SqsQueue {
    fn extend_every(&self) -> Duration {
        HOLD / 3
    }

    async fn receive(&self, wanted: ReceiveRequest, stop: &CancellationToken) -> Result<Vec<Message>, QueueError> {
        let most = wanted.messages as usize;
        let mut got = self.pull(most, WAIT_S).await?;
        // What was received is not extended before the batch is complete.
        let until = Instant::now() + wanted.window.min(self.extend_every());
        while !got.is_empty() && got.len() < most && !stop.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            // A request that waits does so for whole seconds.
            let wait = seconds(left).min(WAIT_S);
            if wait == 0 {
                tokio::time::sleep(left).await;
            }
            match self.pull(most - got.len(), wait).await {
                Ok(more) if more.is_empty() && wait == 0 => break,
                Ok(more) => got.extend(more),
                // What it has goes on; the next ask says what is wrong.
                Err(_) => break,
            }
        }
        Ok(got)
    }

    async fn extend(&self, receipts: &[String]) -> Result<(), QueueError> {
        let mut all = Ok(());
        for some in receipts.chunks(AT_ONCE) {
            all = all.and(self.extend_some(some).await);
        }
        all
    }

    async fn remove(&self, receipts: &[String]) -> Result<(), QueueError> {
        let mut all = Ok(());
        for some in receipts.chunks(AT_ONCE) {
            all = all.and(self.remove_some(some).await);
        }
        all
    }

    async fn give_back(&self, receipt: &str, after: Duration) -> Result<(), QueueError> {
        let call = self.client.change_message_visibility().queue_url(&self.url);
        let done = call
            .receipt_handle(receipt)
            .visibility_timeout(seconds(after))
            .send()
            .await;
        done.map(drop)
            .map_err(|error| failed("a message cannot be given back", error))
    }

    async fn bury(&self, message: &Message, letter: &DeadLetter<'_>) -> Result<(), QueueError> {
        let text = String::from_utf8_lossy(&message.body);
        let mut call = self
            .client
            .send_message()
            .queue_url(format!("{}/{}", self.base, letter.to))
            .message_body(text)
            .message_attributes(DEAD_FUNCTION, attribute(letter.function)?)
            .message_attributes(DEAD_SOURCE, attribute(letter.source)?)
            .message_attributes(DEAD_REASON, attribute(letter.reason)?)
            .message_attributes(DEAD_DELIVERIES, attribute(&message.deliveries.to_string())?)
            .message_attributes(DEAD_ID, attribute(&message.id)?);
        for (name, value) in [
            ("content-type", &message.content_type),
            ("traceparent", &message.traceparent),
        ] {
            if let Some(value) = value {
                call = call.message_attributes(name, attribute(value)?);
            }
        }
        if letter.to.ends_with(".fifo") {
            call = call
                .message_group_id(letter.function)
                .message_deduplication_id(&message.id);
        }
        let doing = format!("the dead letter cannot be kept in {}", letter.to);
        call.send().await.map(drop).map_err(|error| failed(doing, error))
    }

    async fn lag(&self) -> Result<u64, QueueError> {
        let name = QueueAttributeName::ApproximateNumberOfMessages;
        let call = self
            .client
            .get_queue_attributes()
            .queue_url(&self.url)
            .attribute_names(name.clone());
        let told = call.send().await;
        let told = told.map_err(|error| failed(format!("the queue {} cannot be read", self.url), error))?;
        let waiting = told.attributes().and_then(|all| all.get(&name)?.parse().ok());
        Ok(waiting.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::{Json, Router};
    use bytes::Bytes;
    use http::HeaderMap;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::source;
    use rekindle_wire::error::chain;

    #[test]
    fn an_address_of_aws_names_its_region() {
        let region = |url| region_in(url);
        assert_eq!(
            region("https://sqs.eu-central-1.amazonaws.com").as_deref(),
            Some("eu-central-1")
        );
        assert_eq!(
            region("https://sqs.cn-north-1.amazonaws.com.cn").as_deref(),
            Some("cn-north-1")
        );
        for other in [
            "http://127.0.0.1:9324",
            "https://sqs.example.com",
            "https://sqs.eu.example.com",
        ] {
            assert_eq!(region(other), None, "{other}");
        }
    }

    /// Answers every batch by refusing its first entry, and notes what was asked.
    async fn refusing() -> (String, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&asked);
        let app = Router::new().fallback(move |headers: HeaderMap, body: Bytes| async move {
            let asked: Value = serde_json::from_slice(&body).unwrap();
            let action = headers["x-amz-target"].to_str().unwrap();
            let action = action.trim_start_matches("AmazonSQS.").to_owned();
            let entries = asked["Entries"].as_array().map_or(0, Vec::len);
            noted.lock().push(format!("{action} {entries}"));
            let refused = json!({"Id": "0", "SenderFault": true, "Code": "ReceiptHandleIsInvalid", "Message": "no"});
            Json(json!({"Successful": [], "Failed": [refused], "Attributes": {}}))
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (url, asked)
    }

    #[tokio::test]
    async fn a_refused_entry_keeps_no_other_batch_from_being_told() {
        let (url, asked) = refusing().await;
        let file = std::env::temp_dir().join(format!("rekindle-events-sqs-{}", std::process::id()));
        std::fs::write(&file, "[default]\naws_access_key_id = a\naws_secret_access_key = b\n").unwrap();
        let settings = format!("type = \"sqs\"\nurl = \"{url}\"\nregion = \"r\"\ncredentials-file = {file:?}");
        let server: Server = toml::from_str(&settings).unwrap();
        let queue = SqsQueue::open(&server, &source(1)).await.unwrap();
        let receipts: Vec<String> = (0..25).map(|n| n.to_string()).collect();
        let error = queue.remove(&receipts).await.unwrap_err();
        assert_eq!(chain(&error), "messages cannot be deleted: no");
        assert!(queue.extend(&receipts).await.is_err());
        std::fs::remove_file(&file).unwrap();
        let (removed, extended) = ("DeleteMessageBatch", "ChangeMessageVisibilityBatch");
        let batches = |action: &str| [10, 10, 5].map(|n| format!("{action} {n}"));
        assert_eq!(asked.lock()[1..], [batches(removed), batches(extended)].concat());
    }
}
