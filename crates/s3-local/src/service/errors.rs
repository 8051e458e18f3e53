//! Storage errors as S3 errors: the client gets a code and a sentence, the log gets path and cause.

use std::error::Error;

use s3s::{S3Error, S3Result, s3_error};

use crate::storage::{ChangeError, ChecksumError, CreateBucketError, IoError, ReadError, SealError, UploadError};

/// An error that has an S3 response.
pub(super) trait S3Response {
    fn answer(self) -> S3Error;
}

/// Our own failure. Paths and causes go only to the log.
fn internal(error: &dyn Error, sentence: &'static str) -> S3Error {
    let mut chain = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        chain = format!("{chain}: {cause}");
        source = cause.source();
    }
    tracing::error!(error = chain, "{sentence}");
    s3_error!(InternalError, "{sentence}")
}

impl S3Response for ReadError {
    fn answer(self) -> S3Error {
        match self {
            ReadError::Absent => s3_error!(NoSuchKey, "there is no object of this key"),
            ReadError::Damaged { .. } => internal(&self, "the stored object is damaged; delete or replace it"),
            ReadError::Io(error) => error.answer(),
        }
    }
}

impl S3Response for IoError {
    fn answer(self) -> S3Error {
        let sentence = match self.is_fullness() {
            true => "the server's disk is full; free some space, or delete objects",
            false => "the server's disk failed; its log names the file",
        };
        internal(&self, sentence)
    }
}

impl S3Response for ChangeError {
    fn answer(self) -> S3Error {
        match self {
            ChangeError::ConditionFailed => precondition_failed(),
            ChangeError::Read(error) => error.answer(),
            ChangeError::Io(error) => error.answer(),
        }
    }
}

impl S3Response for ChecksumError {
    fn answer(self) -> S3Error {
        match self {
            ChecksumError::BadMd5Header => s3_error!(InvalidDigest, "{self}"),
            ChecksumError::NoTrailer(_) => s3_error!(InvalidRequest, "{self}"),
            ChecksumError::Md5 | ChecksumError::Sum(_) => s3_error!(BadDigest, "{self}"),
        }
    }
}

impl S3Response for SealError {
    fn answer(self) -> S3Error {
        match self {
            SealError::Io(error) => error.answer(),
            SealError::Checksum(error) => error.answer(),
            SealError::Length { .. } => s3_error!(IncompleteBody, "{self}"),
            SealError::Meta(_) => internal(&self, "the object's metadata cannot be stored"),
        }
    }
}

impl S3Response for UploadError {
    fn answer(self) -> S3Error {
        match self {
            UploadError::NoSuchUpload => s3_error!(NoSuchUpload, "{self}"),
            UploadError::Part(_) => s3_error!(InvalidPart, "{self}"),
            UploadError::TooSmall(_) => s3_error!(EntityTooSmall, "{self}"),
            UploadError::Read(error) => error.answer(),
            UploadError::Seal(error) => error.answer(),
            UploadError::Io(error) => error.answer(),
        }
    }
}

impl S3Response for CreateBucketError {
    fn answer(self) -> S3Error {
        match self {
            CreateBucketError::Exists => s3_error!(BucketAlreadyOwnedByYou, "{self}"),
            CreateBucketError::Io(error) => error.answer(),
        }
    }
}

pub(super) fn precondition_failed() -> S3Error {
    s3_error!(
        PreconditionFailed,
        "the condition of the request does not hold for the present object"
    )
}

pub(super) fn not_implemented(what: &str) -> S3Error {
    s3_error!(
        NotImplemented,
        "this server does not do {what}; leave it out, or use another S3 endpoint"
    )
}

/// Runs blocking work on a blocking thread. It runs to its end even if the client goes away.
pub(super) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> S3Result<T>
where
    T: Send + 'static,
    E: S3Response + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(S3Response::answer),
        Err(error) => Err(internal(&error, "the server stopped in the middle of the request")),
    }
}
