//! Reads objects: whole, in part, or into a file. An interrupted body is requested again.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;

use rekindle_store::{ObjectInfo, StoreError};
use tokio::sync::mpsc;

use crate::list::milliseconds;
use crate::{S3Store, http_range};

/// Maximum attempts to read a body.
const BODY_ATTEMPTS: u32 = 3;
/// Maximum size of an object read into memory. Larger ones need `get_to_file`.
const IN_MEMORY_MAX: u64 = 2 << 30;

impl S3Store {
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.read(key, None, IN_MEMORY_MAX).await
    }

    pub(crate) async fn get_at_most(&self, key: &str, most: u64) -> Result<Bytes, StoreError> {
        self.read(key, None, most.min(IN_MEMORY_MAX)).await
    }

    pub(crate) async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let bytes = self.read(key, Some(&range), IN_MEMORY_MAX).await?;
        if bytes.len() as u64 == range.end - range.start {
            return Ok(bytes);
        }
        let what = format!("{} bytes for the range {}..{}", bytes.len(), range.start, range.end);
        Err(self.requests.wrong_answer(key, what))
    }

    pub(crate) async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let call = self
            .inner
            .client
            .head_object()
            .bucket(&self.inner.bucket)
            .key(self.full_key(key));
        let head = self
            .bounded("look up", key, 0, Box::pin(call.send()))
            .await?
            .map_err(|error| {
                if error.as_service_error().is_some_and(|e| e.is_not_found()) {
                    self.not_found(key)
                } else {
                    self.failed("look up", key, error)
                }
            })?;
        Ok(ObjectInfo {
            key: key.to_owned(),
            len: u64::try_from(head.content_length().unwrap_or(0)).unwrap_or(0),
            modified_unix_ms: milliseconds(head.last_modified()),
        })
    }

    pub(crate) async fn get_to_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        let started = Instant::now();
        let mut attempt = 1;
        loop {
            let result = self.stream_to_file(key, path, started).await;
            let Err(error) = result else { return result };
            // If the file could not be created, there is nothing to remove. The first error is the one to report.
            drop(tokio::fs::remove_file(path).await);
            if attempt == BODY_ATTEMPTS || !matches!(error, StoreError::Failed { operation: "read", .. }) {
                return Err(error);
            }
            tracing::debug!(
                key,
                attempt,
                error = &error as &dyn std::error::Error,
                "the body ended early; trying again"
            );
            attempt += 1;
        }
    }

    async fn stream_to_file(&self, key: &str, path: &Path, started: Instant) -> Result<u64, StoreError> {
        let (answer, expected) = self.open(key, None, started).await?;
        let transfer = async {
            let mut file = tokio::fs::File::create_new(path)
                .await
                .map_err(StoreError::file("make", path))?;
            let mut body = answer.body;
            let mut written = 0;
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(|e| self.failed("read", key, e))?;
                file.write_all(&piece).await.map_err(StoreError::file("write", path))?;
                written += piece.len() as u64;
            }
            file.flush().await.map_err(StoreError::file("write", path))?;
            self.requests.received(written);
            self.check_length(key, written, expected)?;
            Ok(written)
        };
        self.bounded_until("read", key, self.deadline(started, expected), transfer)
            .await?
    }

    pub(crate) async fn get_pieces(&self, key: &str, pieces: mpsc::Sender<Bytes>) -> Result<(), StoreError> {
        let (answer, expected) = self.open(key, None, Instant::now()).await?;
        let transfer = async {
            let (mut body, mut sent) = (answer.body, 0);
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(|e| self.failed("read", key, e))?;
                sent += piece.len() as u64;
                if !piece.is_empty() && pieces.send(piece).await.is_err() {
                    return Ok(());
                }
            }
            self.requests.received(sent);
            self.check_length(key, sent, expected)?;
            // Whether anyone still receives does not matter any more.
            drop(pieces.send(Bytes::new()).await);
            Ok(())
        };
        self.bounded("read", key, expected, transfer).await?
    }

    async fn read(&self, key: &str, range: Option<&Range<u64>>, most: u64) -> Result<Bytes, StoreError> {
        let started = Instant::now();
        let mut attempt = 1;
        loop {
            match self.read_once(key, range, most, started).await {
                Err(error @ StoreError::Failed { operation: "read", .. }) if attempt < BODY_ATTEMPTS => {
                    tracing::debug!(
                        key,
                        attempt,
                        error = &error as &dyn std::error::Error,
                        "the body ended early; trying again"
                    );
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn read_once(
        &self,
        key: &str,
        range: Option<&Range<u64>>,
        most: u64,
        started: Instant,
    ) -> Result<Bytes, StoreError> {
        let (answer, expected) = self.open(key, range, started).await?;
        if expected > most {
            return Err(self.requests.too_large(key, expected, most));
        }
        let collect = async {
            let mut body = answer.body;
            let mut bytes = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(|e| self.failed("read", key, e))?;
                if (bytes.len() + piece.len()) as u64 > expected {
                    break;
                }
                bytes.extend_from_slice(&piece);
            }
            self.requests.received(bytes.len() as u64);
            self.check_length(key, bytes.len() as u64, expected)?;
            Ok(bytes.freeze())
        };
        self.bounded_until("read", key, self.deadline(started, expected), collect)
            .await?
    }

    async fn open(
        &self,
        key: &str,
        range: Option<&Range<u64>>,
        started: Instant,
    ) -> Result<(GetObjectOutput, u64), StoreError> {
        let call = self
            .inner
            .client
            .get_object()
            .bucket(&self.inner.bucket)
            .key(self.full_key(key))
            .set_range(range.map(http_range));
        let answer = self.bounded_until("get", key, self.deadline(started, 0), Box::pin(call.send()));
        let answer = answer.await?.map_err(|error| {
            if error.as_service_error().is_some_and(|e| e.is_no_such_key()) {
                self.not_found(key)
            } else {
                self.failed("get", key, error)
            }
        })?;
        let expected = answer
            .content_length()
            .and_then(|len| u64::try_from(len).ok())
            .ok_or_else(|| self.requests.wrong_answer(key, "no content length".to_owned()))?;
        Ok((answer, expected))
    }

    /// The deadline of a read that began at `started`. All its attempts share the time of one call.
    fn deadline(&self, started: Instant, bytes: u64) -> Instant {
        started + self.inner.timeouts.operation(bytes)
    }

    fn check_length(&self, key: &str, found: u64, expected: u64) -> Result<(), StoreError> {
        if found == expected {
            return Ok(());
        }
        let short = std::io::Error::new(
            std::io::ErrorKind::UnexpectedEof,
            format!("body has not the {expected} bytes announced (read {found})"),
        );
        Err(self.failed("read", key, short))
    }
}
