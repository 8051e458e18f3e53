//! Writes objects (whole, conditionally, or from a file in parts) and deletes them.

use std::path::Path;

use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::put_object::PutObjectOutput;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, ServerSideEncryption};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};

use rekindle_store::{Outcome, StoreError, read_range};

use crate::S3Store;

/// A larger file is uploaded in parts.
const PART_BYTES: u64 = 16 << 20;
/// Maximum number of parts in S3.
const PARTS_MAX: u64 = 10_000;
/// Concurrent part uploads. An upload holds at most this many parts in memory.
const PARTS_AT_ONCE: usize = 4;
/// Maximum attempts of a conditional put while the server reports a concurrent one.
const CONFLICT_ATTEMPTS: u32 = 5;

impl S3Store {
    pub(crate) async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        self.put_object(key, bytes, false)
            .await?
            .map(drop)
            .map_err(|e| self.failed("put", key, e))
    }

    pub(crate) async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<Outcome, StoreError> {
        let mut attempt = 1;
        loop {
            let error = match self.put_object(key, bytes.clone(), true).await? {
                Ok(_) => return Ok(Outcome::Created),
                Err(error) => error,
            };
            if is_present(&error) {
                return Ok(Outcome::AlreadyPresent);
            }
            match error.as_service_error().and_then(|e| e.code()) {
                Some("ConditionalRequestConflict") if attempt < CONFLICT_ATTEMPTS => {
                    tokio::time::sleep(std::time::Duration::from_millis(50) * attempt).await;
                    attempt += 1;
                }
                _ => return Err(self.failed("put", key, error)),
            }
        }
    }

    /// In parts if the file is large.
    pub(crate) async fn put_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        let len = file_len(path).await?;
        if len <= PART_BYTES {
            let bytes = tokio::fs::read(path).await.map_err(StoreError::file("read", path))?;
            let len = bytes.len() as u64;
            self.put(key, bytes.into()).await?;
            return Ok(len);
        }
        self.put_large(key, path, len, false).await.map(|_| len)
    }

    pub(crate) async fn put_file_if_absent(&self, key: &str, path: &Path) -> Result<Outcome, StoreError> {
        let len = file_len(path).await?;
        if len <= PART_BYTES {
            let bytes = tokio::fs::read(path).await.map_err(StoreError::file("read", path))?;
            return self.put_if_absent(key, bytes.into()).await;
        }
        self.put_large(key, path, len, true).await
    }

    async fn put_large(&self, key: &str, path: &Path, len: u64, if_absent: bool) -> Result<Outcome, StoreError> {
        let started = self.inner.client.create_multipart_upload();
        let started = started.bucket(&self.inner.bucket).key(self.full_key(key));
        let started = started
            .set_server_side_encryption(self.inner.encryption.algorithm())
            .set_ssekms_key_id(self.inner.encryption.key());
        let started = Box::pin(started.send());
        let started = self
            .bounded("put", key, 0, started)
            .await?
            .map_err(|e| self.failed("put", key, e))?;
        let Some(upload) = started.upload_id() else {
            let what = "a multipart upload without an id".to_owned();
            return Err(self.requests.wrong_answer(key, what));
        };
        // Some servers report the encryption once per upload, others for each part.
        let said = started.server_side_encryption();
        let result = match said.map_or(Ok(()), |said| self.check_encryption(key, Some(said))) {
            Ok(()) => self.put_parts(key, upload, path, len, said.is_none(), if_absent).await,
            Err(error) => Err(error),
        };
        if !matches!(result, Ok(Outcome::Created)) {
            let abort = self.inner.client.abort_multipart_upload();
            let abort = abort
                .bucket(&self.inner.bucket)
                .key(self.full_key(key))
                .upload_id(upload)
                .send();
            if let Ok(Err(error)) = self.bounded("abort", key, 0, Box::pin(abort)).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    key,
                    upload,
                    error,
                    "parts of a failed upload stay until the bucket's lifecycle removes them"
                );
            }
        }
        result
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let call = self
            .inner
            .client
            .delete_object()
            .bucket(&self.inner.bucket)
            .key(self.full_key(key));
        let done = self.bounded("delete", key, 0, Box::pin(call.send())).await?;
        done.map(drop).map_err(|e| self.failed("delete", key, e))
    }

    pub(crate) async fn delete_once(&self, key: &str) -> Result<(), StoreError> {
        let call = self
            .inner
            .client
            .delete_object()
            .bucket(&self.inner.bucket)
            .key(self.full_key(key))
            .customize()
            .config_override(aws_sdk_s3::config::Builder::new().retry_config(RetryConfig::disabled()));
        let done = self.bounded("delete", key, 0, Box::pin(call.send())).await?;
        done.map(drop).map_err(|e| self.failed("delete", key, e))
    }

    async fn put_object(
        &self,
        key: &str,
        bytes: Bytes,
        if_absent: bool,
    ) -> Result<Result<PutObjectOutput, SdkError<aws_sdk_s3::operation::put_object::PutObjectError>>, StoreError> {
        let len = bytes.len() as u64;
        let call = self
            .inner
            .client
            .put_object()
            .bucket(&self.inner.bucket)
            .key(self.full_key(key))
            .set_if_none_match(if_absent.then(|| "*".to_owned()))
            .set_server_side_encryption(self.inner.encryption.algorithm())
            .set_ssekms_key_id(self.inner.encryption.key())
            .body(ByteStream::from(bytes))
            .customize()
            .config_override(aws_sdk_s3::config::Builder::new().timeout_config(self.inner.timeouts.for_bytes(len)));
        let call = if self.inner.signs_bodies {
            call
        } else {
            call.disable_payload_signing()
        };
        let put = self.bounded("put", key, len, Box::pin(self.sending(len, call.send())));
        let put = put.await?;
        if let Ok(put) = &put {
            self.check_encryption(key, put.server_side_encryption())?;
        }
        Ok(put)
    }

    /// Checks that the server confirms the requested encryption. A server without encryption may silently store an
    /// object unencrypted.
    fn check_encryption(&self, key: &str, said: Option<&ServerSideEncryption>) -> Result<(), StoreError> {
        match self.inner.encryption.algorithm() {
            Some(asked) if said != Some(&asked) => {
                let what = format!(
                    "it was to be kept encrypted ({}), and the server does not say that it is: leave --s3-sse out, or \
                     use a server that encrypts",
                    asked.as_str()
                );
                Err(self.requests.wrong_answer(key, what))
            }
            _ => Ok(()),
        }
    }

    /// Reports the sent bytes of a body once its request has succeeded. Must be called within the request's span.
    async fn sending<T, E>(&self, bytes: u64, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let sent = call.await;
        if sent.is_ok() {
            self.requests.sent(bytes);
        }
        sent
    }

    async fn put_parts(
        &self,
        key: &str,
        upload: &str,
        path: &Path,
        len: u64,
        each_must_say: bool,
        if_absent: bool,
    ) -> Result<Outcome, StoreError> {
        let part_bytes = PART_BYTES.max(len.div_ceil(PARTS_MAX));
        let offsets = (0..len).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX));
        let parts: Vec<CompletedPart> = stream::iter(offsets.zip(1..))
            .map(|(offset, number)| {
                let size = part_bytes.min(len - offset);
                let part = self.put_part(key, upload, path, number, offset..offset + size);
                Box::pin(async move {
                    let (part, said) = part.await?;
                    if each_must_say {
                        self.check_encryption(key, said.as_ref())?;
                    }
                    Ok::<_, StoreError>(part)
                })
            })
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await?;
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
        let call = self
            .inner
            .client
            .complete_multipart_upload()
            .bucket(&self.inner.bucket)
            .key(self.full_key(key))
            .upload_id(upload)
            .set_if_none_match(if_absent.then(|| "*".to_owned()))
            .multipart_upload(parts)
            .customize()
            // The server may assemble the parts only now.
            .config_override(aws_sdk_s3::config::Builder::new().timeout_config(self.inner.timeouts.for_bytes(len)));
        match self.bounded("complete", key, len, Box::pin(call.send())).await? {
            Ok(_) => Ok(Outcome::Created),
            Err(error) if is_present(&error) => Ok(Outcome::AlreadyPresent),
            Err(error) => Err(self.failed("complete", key, error)),
        }
    }

    async fn put_part(
        &self,
        key: &str,
        upload: &str,
        path: &Path,
        number: i32,
        range: std::ops::Range<u64>,
    ) -> Result<(CompletedPart, Option<ServerSideEncryption>), StoreError> {
        let size = range.end - range.start;
        let bytes = read_range(path.to_owned(), range)
            .await
            .map_err(StoreError::file("read", path))?;
        let call = self
            .inner
            .client
            .upload_part()
            .bucket(&self.inner.bucket)
            .key(self.full_key(key))
            .upload_id(upload)
            .part_number(number)
            .body(ByteStream::from(bytes))
            .customize()
            .config_override(aws_sdk_s3::config::Builder::new().timeout_config(self.inner.timeouts.for_bytes(size)));
        let call = if self.inner.signs_bodies {
            call
        } else {
            call.disable_payload_signing()
        };
        let done = self
            .bounded("put", key, size, Box::pin(self.sending(size, call.send())))
            .await?
            .map_err(|e| self.failed("put", key, e))?;
        let part = CompletedPart::builder()
            .part_number(number)
            .set_e_tag(done.e_tag().map(str::to_owned))
            .build();
        Ok((part, done.server_side_encryption().cloned()))
    }
}

/// Whether a conditional request failed because the object exists.
fn is_present<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    error.as_service_error().and_then(|e| e.code()) == Some("PreconditionFailed")
}

async fn file_len(path: &Path) -> Result<u64, StoreError> {
    let found = tokio::fs::metadata(path).await;
    Ok(found.map_err(StoreError::file("look at", path))?.len())
}
