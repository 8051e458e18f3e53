//! Changes to objects: put, copy, delete.

use s3s::dto::*;
use s3s::{S3Request, S3Result, s3_error};

use super::Service;
use super::errors::{S3Response, blocking, not_implemented, precondition_failed};
use super::headers::{check_read, etag, meta_of, put_condition, refuse, set_sums, sums_of, timestamp};
use super::transfer::{ReceivedBody, discard, receive};
use crate::storage::{
    BodyWriter, ChangeError, ChecksumVerifier, Condition, IoError, Meta, ObjectFile, SealError, SealedObject,
};

/// S3's limit for one DeleteObjects.
const MOST_DELETED: usize = 1000;

impl Service {
    pub(super) async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        let mut input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        refuse!(input, server_side_encryption ssekms_key_id sse_customer_algorithm tagging write_offset_bytes
            object_lock_mode object_lock_legal_hold_status object_lock_retain_until_date);
        let condition = put_condition(input.if_match.take(), input.if_none_match.take())?;
        let trailer = request
            .headers
            .get("x-amz-trailer")
            .and_then(|value| value.to_str().ok());
        let checks = ChecksumVerifier::expect(input.content_md5.as_deref(), sums_of!(input), trailer)
            .map_err(S3Response::answer)?;
        if condition == Condition::Absent && bucket.has(&input.key) {
            // Saves writing a body that must lose. If the object is being deleted right now, losing is equally right.
            discard(input.body.take()).await?;
            return Err(precondition_failed());
        }
        let ReceivedBody { writer, rest } = receive(input.body.take(), self.writer(checks)).await?;
        let meta = meta_of!(input, input.key);
        let declared = input.content_length.and_then(|len| u64::try_from(len).ok());
        let trailers = request.trailing_headers.and_then(|trailers| trailers.take());
        let meta = blocking(move || {
            let sealed = writer
                .seal(&rest, declared, trailers.as_ref(), meta)
                .map_err(CommitError::Seal)?;
            let meta = sealed.meta.clone();
            bucket.put(sealed, &condition).map_err(CommitError::Change)?;
            Ok::<_, CommitError>(meta)
        })
        .await?;
        let mut output = PutObjectOutput {
            e_tag: Some(etag(&meta)),
            ..Default::default()
        };
        set_sums!(output, meta.sums);
        Ok(output)
    }

    pub(super) async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> S3Result<CopyObjectOutput> {
        let mut input = request.input;
        refuse!(input, server_side_encryption ssekms_key_id sse_customer_algorithm copy_source_sse_customer_algorithm
            tagging object_lock_mode object_lock_legal_hold_status object_lock_retain_until_date);
        let CopySource::Bucket {
            bucket: from_bucket,
            key: from_key,
            version_id: None,
        } = input.copy_source.clone()
        else {
            return Err(not_implemented("copies from versions or access points"));
        };
        let (from, to) = (self.bucket(&from_bucket)?, self.bucket(&input.bucket)?);
        let replaced = input
            .metadata_directive
            .as_ref()
            .is_some_and(|how| how.as_str() == MetadataDirective::REPLACE);
        let new_meta = meta_of!(input, input.key);
        let writer = self.writer(ChecksumVerifier::default());
        let meta = blocking(move || {
            let source = from.get(&from_key).map_err(|error| CommitError::Change(error.into()))?;
            check_read(
                &source.meta,
                input.copy_source_if_match.as_ref(),
                input.copy_source_if_none_match.as_ref(),
                input.copy_source_if_unmodified_since.as_ref(),
                input.copy_source_if_modified_since.as_ref(),
            )
            // A copy has no 304: every unmet condition is 412.
            .map_err(|_| CommitError::Change(ChangeError::ConditionFailed))?;
            let meta = match replaced {
                true => new_meta,
                false => Meta {
                    key: new_meta.key,
                    headers: source.meta.headers.clone(),
                    user: source.meta.user.clone(),
                    ..Meta::default()
                },
            };
            let sealed = copy(source, meta, writer)?;
            let meta = sealed.meta.clone();
            to.put(sealed, &Condition::None).map_err(CommitError::Change)?;
            Ok::<_, CommitError>(meta)
        })
        .await?;
        let result = CopyObjectResult {
            e_tag: Some(etag(&meta)),
            last_modified: Some(timestamp(&meta)),
            ..Default::default()
        };
        Ok(CopyObjectOutput {
            copy_object_result: Some(result),
            ..Default::default()
        })
    }

    pub(super) async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        refuse!(input, if_match_last_modified_time if_match_size);
        refuse_version(input.version_id.as_deref())?;
        let condition = put_condition(input.if_match, None)?;
        blocking(move || bucket.delete(&input.key, &condition)).await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> S3Result<DeleteObjectsOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let quiet = input.delete.quiet.unwrap_or(false);
        if input.delete.objects.len() > MOST_DELETED {
            return Err(s3_error!(
                MalformedXML,
                "one request deletes {MOST_DELETED} objects at most"
            ));
        }
        for object in &input.delete.objects {
            refuse!(object, e_tag last_modified_time size);
            refuse_version(object.version_id.as_deref())?;
        }
        let keys: Vec<String> = input.delete.objects.into_iter().map(|object| object.key).collect();
        let (keys, failures) = blocking(move || {
            let failures = bucket.delete_all(&keys)?;
            Ok::<_, IoError>((keys, failures))
        })
        .await?;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, failure) in keys.into_iter().zip(failures) {
            match failure.map(S3Response::answer) {
                None if quiet => {}
                None => deleted.push(DeletedObject {
                    key: Some(key),
                    ..Default::default()
                }),
                Some(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(key),
                    message: error.message().map(str::to_owned),
                    version_id: None,
                }),
            }
        }
        Ok(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            request_charged: None,
        })
    }
}

/// Why a sealed body did not become an object.
pub(super) enum CommitError {
    Seal(SealError),
    Change(ChangeError),
}

impl S3Response for CommitError {
    fn answer(self) -> s3s::S3Error {
        match self {
            CommitError::Seal(error) => error.answer(),
            CommitError::Change(error) => error.answer(),
        }
    }
}

fn copy(source: ObjectFile, meta: Meta, mut writer: BodyWriter) -> Result<SealedObject, CommitError> {
    let len = source.body_len();
    let mut reader = source.read(0..len);
    while let Some(bytes) = reader.next_batch().map_err(|error| CommitError::Change(error.into()))? {
        writer.write(&bytes).map_err(|error| CommitError::Seal(error.into()))?;
    }
    writer.seal(&[], Some(len), None, meta).map_err(CommitError::Seal)
}

/// There are no versions: only the one that S3 calls "null" can be named.
pub(super) fn refuse_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(not_implemented("versions")),
    }
}
