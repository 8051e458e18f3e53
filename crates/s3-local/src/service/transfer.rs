//! Bodies in transfer: from a request into a writer, from a reader into a response. Memory is bounded both ways.
//!
//! In either direction one batch is on the disk's side while the next is on the network's: about 1 MiB per transfer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use futures::{Stream, StreamExt};
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Result, StdError, s3_error};
use tokio::task::JoinHandle;

use super::errors::{S3Response, blocking};
use crate::storage::{BATCH_LEN, BodyWriter, IoError, RangeReader, ReadError};

/// A client that sends nothing for this long has gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// S3's limit for one put or part.
const LONGEST_BODY: u64 = 5 * 1024 * 1024 * 1024;

/// A received body: the part still to be written, and the writer that has the rest.
pub(super) struct ReceivedBody {
    pub(super) writer: BodyWriter,
    pub(super) rest: Vec<Bytes>,
}

/// Receives a body into `writer`. A short body costs no thread hop here: all of it is in `rest`.
pub(super) async fn receive(body: Option<StreamingBlob>, writer: BodyWriter) -> S3Result<ReceivedBody> {
    let mut body = body.unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
    let mut turn: BoxFuture<'static, S3Result<BodyWriter>> = futures::future::ready(Ok(writer)).boxed();
    let (mut rest, mut rest_len, mut total) = (Vec::new(), 0, 0_u64);
    while let Some(bytes) = next(&mut body).await? {
        total += bytes.len() as u64;
        if total > LONGEST_BODY {
            return Err(s3_error!(
                EntityTooLarge,
                "a body may have 5 GiB at most; use a multipart upload"
            ));
        }
        rest_len += bytes.len();
        rest.push(bytes);
        if rest_len >= BATCH_LEN {
            let mut writer = turn.await?;
            let batch = std::mem::take(&mut rest);
            rest_len = 0;
            // Spawned, not only created: it writes while we receive.
            let writing = tokio::spawn(blocking(move || {
                for bytes in &batch {
                    writer.write(bytes)?;
                }
                Ok::<_, IoError>(writer)
            }));
            turn = async {
                writing
                    .await
                    .map_err(|_| s3_error!(InternalError, "the write was given up"))?
            }
            .boxed();
        }
    }
    Ok(ReceivedBody {
        writer: turn.await?,
        rest,
    })
}

/// Receives a body and discards it, so that the client reads the response instead of a reset.
pub(super) async fn discard(body: Option<StreamingBlob>) -> S3Result<()> {
    if let Some(mut body) = body {
        while next(&mut body).await?.is_some() {}
    }
    Ok(())
}

async fn next(body: &mut StreamingBlob) -> S3Result<Option<Bytes>> {
    match tokio::time::timeout(SILENCE_LIMIT, body.next()).await {
        Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
        Ok(Some(Err(error))) => Err(s3_error!(
            IncompleteBody,
            "the body did not arrive as it was signed or announced: {error}"
        )),
        Ok(None) => Ok(None),
        Err(_) => Err(s3_error!(
            RequestTimeout,
            "no byte of the body came for {} s",
            SILENCE_LIMIT.as_secs()
        )),
    }
}

type Step = (RangeReader, Result<Option<Bytes>, ReadError>);

/// A response body. Each batch is read and checked on a blocking thread while the previous one is sent.
pub(super) struct SendingBody {
    first: Option<Bytes>,
    step: Option<JoinHandle<Step>>,
    remaining: u64,
}

impl SendingBody {
    /// `first` has already been read from `reader`: an error in it became an error response.
    pub(super) fn new(reader: RangeReader, first: Option<Bytes>) -> SendingBody {
        let ahead = first.as_ref().map_or(0, |first| first.len() as u64);
        let remaining = reader.remaining() + ahead;
        SendingBody {
            first,
            step: read_on(reader),
            remaining,
        }
    }
}

fn read_on(mut reader: RangeReader) -> Option<JoinHandle<Step>> {
    (reader.remaining() > 0).then(|| {
        tokio::task::spawn_blocking(move || {
            let result = reader.next_batch();
            (reader, result)
        })
    })
}

impl Stream for SendingBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            self.remaining -= first.len() as u64;
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(step) = &mut self.step else {
            return Poll::Ready(None);
        };
        let result = ready!(Pin::new(step).poll(cx));
        self.step = None;
        Poll::Ready(match result {
            Ok((reader, Ok(Some(bytes)))) => {
                self.step = read_on(reader);
                self.remaining -= bytes.len() as u64;
                Some(Ok(bytes))
            }
            Ok((_, Ok(None))) => None,
            // The connection breaks, since the response's head has been sent: `answer` logs why.
            Ok((_, Err(error))) => Some(Err(Box::new(error.answer()))),
            Err(error) => Some(Err(Box::new(error))),
        })
    }
}

impl ByteStream for SendingBody {
    fn remaining_length(&self) -> RemainingLength {
        // Bodies of 64-bit length on a 64-bit machine.
        RemainingLength::new_exact(self.remaining as usize)
    }
}
