//! Multipart uploads.

use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Result, s3_error};

use super::Service;
use super::errors::{S3Response, blocking, precondition_failed};
use super::headers::{etag, meta_of, put_condition, refuse, set_sums, sums_of, timestamp};
use super::objects::CommitError;
use super::transfer::{ReceivedBody, receive};
use crate::storage::{ChecksumVerifier, Checksums, Condition, UploadError, UploadId};

/// S3's limit.
const MOST_PARTS: u16 = 10_000;
/// S3's limit for one ListParts.
const LONGEST_PAGE: i32 = 1000;

impl Service {
    pub(super) async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let mut input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        refuse!(input, server_side_encryption ssekms_key_id sse_customer_algorithm tagging
            object_lock_mode object_lock_legal_hold_status object_lock_retain_until_date);
        let meta = meta_of!(input, input.key.clone());
        let writer = self.writer(ChecksumVerifier::default());
        let id = blocking(move || {
            let sealed = writer.seal(&[], None, None, meta)?;
            Ok::<_, UploadError>(bucket.create_upload(sealed)?)
        })
        .await?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id.as_str().to_owned()),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: input.checksum_type,
            ..Default::default()
        })
    }

    pub(super) async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
        let mut input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        refuse!(input, sse_customer_algorithm);
        let id = upload_id(&input.upload_id)?;
        let number = part_number(input.part_number)?;
        let trailer = request
            .headers
            .get("x-amz-trailer")
            .and_then(|value| value.to_str().ok());
        let checks = ChecksumVerifier::expect(input.content_md5.as_deref(), sums_of!(input), trailer)
            .map_err(S3Response::answer)?;
        let known = (bucket.clone(), id.clone(), input.key.clone());
        blocking(move || known.0.upload(&known.1, &known.2)).await?;

        let ReceivedBody { writer, rest } = receive(input.body.take(), self.writer(checks)).await?;
        let declared = input.content_length.and_then(|len| u64::try_from(len).ok());
        let trailers = request.trailing_headers.and_then(|trailers| trailers.take());
        let meta = crate::storage::Meta {
            key: input.key,
            ..Default::default()
        };
        let meta = blocking(move || {
            let sealed = writer.seal(&rest, declared, trailers.as_ref(), meta)?;
            let meta = sealed.meta.clone();
            bucket.put_part(&id, number, sealed)?;
            Ok::<_, UploadError>(meta)
        })
        .await?;
        let mut output = UploadPartOutput {
            e_tag: Some(etag(&meta)),
            ..Default::default()
        };
        set_sums!(output, meta.sums);
        Ok(output)
    }

    pub(super) async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let mut input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        refuse!(input, sse_customer_algorithm);
        let id = upload_id(&input.upload_id)?;
        let condition = put_condition(input.if_match.take(), input.if_none_match.take())?;
        let chosen = chosen_parts(input.multipart_upload.take())?;
        // Sums of sums ("...-N") add nothing to the parts' own, which were checked when they came.
        let sums = whole_only(sums_of!(input));
        let writer = self.writer(ChecksumVerifier::expect(None, sums, None).map_err(S3Response::answer)?);
        if condition == Condition::Absent && bucket.has(&input.key) {
            return Err(precondition_failed());
        }
        let (key, temps) = (input.key.clone(), self.storage.temps.clone());
        let meta = blocking(move || {
            let meta = bucket.upload(&id, &key)?;
            let sealed = bucket.join(&id, &chosen, meta, writer)?;
            let meta = sealed.meta.clone();
            bucket.put(sealed, &condition).map_err(CommitError::Change)?;
            if let Err(error) = bucket.remove_upload(&id, &temps) {
                // The object stands; the upload is removed when it expires.
                tracing::warn!(%error, id = id.as_str(), "a completed upload was not removed");
            }
            Ok::<_, CompleteError>(meta)
        })
        .await?;
        let mut output = CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(etag(&meta)),
            ..Default::default()
        };
        set_sums!(output, meta.sums);
        Ok(output)
    }

    pub(super) async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<AbortMultipartUploadOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let (id, temps) = (upload_id(&input.upload_id)?, self.storage.temps.clone());
        blocking(move || {
            bucket.upload(&id, &input.key)?;
            bucket.remove_upload(&id, &temps)
        })
        .await?;
        Ok(AbortMultipartUploadOutput::default())
    }

    pub(super) async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<ListPartsOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let id = upload_id(&input.upload_id)?;
        let max_parts = input.max_parts.unwrap_or(LONGEST_PAGE).min(LONGEST_PAGE);
        let limit =
            usize::try_from(max_parts).map_err(|_| s3_error!(InvalidArgument, "max-parts must not be negative"))?;
        let after = u16::try_from(input.part_number_marker.unwrap_or(0))
            .map_err(|_| s3_error!(InvalidArgument, "part-number-marker must be from 0 to {MOST_PARTS}"))?;
        let key = input.key.clone();
        let (parts, truncated) = blocking(move || {
            bucket.upload(&id, &key)?;
            bucket.parts(&id, after, limit)
        })
        .await?;
        let next = parts.last().filter(|_| truncated).map(|part| i32::from(part.number));
        let parts = parts.into_iter().map(|part| {
            let mut shown = Part {
                e_tag: Some(etag(&part.meta)),
                last_modified: Some(timestamp(&part.meta)),
                part_number: Some(i32::from(part.number)),
                size: i64::try_from(part.len).ok(),
                ..Default::default()
            };
            set_sums!(shown, part.meta.sums);
            shown
        });
        Ok(ListPartsOutput {
            parts: Some(parts.collect()),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            max_parts: Some(max_parts),
            part_number_marker: Some(i32::from(after)),
            next_part_number_marker: next,
            is_truncated: Some(truncated),
            ..Default::default()
        })
    }
}

enum CompleteError {
    Upload(UploadError),
    Commit(CommitError),
}

impl From<UploadError> for CompleteError {
    fn from(error: UploadError) -> CompleteError {
        CompleteError::Upload(error)
    }
}

impl From<CommitError> for CompleteError {
    fn from(error: CommitError) -> CompleteError {
        CompleteError::Commit(error)
    }
}

impl S3Response for CompleteError {
    fn answer(self) -> S3Error {
        match self {
            CompleteError::Upload(error) => error.answer(),
            CompleteError::Commit(error) => error.answer(),
        }
    }
}

fn upload_id(text: &str) -> S3Result<UploadId> {
    UploadId::parse(text).ok_or_else(|| UploadError::NoSuchUpload.answer())
}

fn part_number(number: i32) -> S3Result<u16> {
    u16::try_from(number)
        .ok()
        .filter(|number| (1..=MOST_PARTS).contains(number))
        .ok_or_else(|| s3_error!(InvalidArgument, "a part number must be from 1 to {MOST_PARTS}"))
}

/// Number and ETag of every part of a completion.
fn chosen_parts(upload: Option<CompletedMultipartUpload>) -> S3Result<Vec<(u16, String)>> {
    let parts = upload.and_then(|upload| upload.parts).unwrap_or_default();
    if parts.is_empty() || parts.len() > usize::from(MOST_PARTS) {
        return Err(s3_error!(
            MalformedXML,
            "a completion names from 1 to {MOST_PARTS} parts"
        ));
    }
    let mut chosen: Vec<(u16, String)> = Vec::with_capacity(parts.len());
    for part in parts {
        let number = part_number(part.part_number.unwrap_or(0))?;
        if chosen.last().is_some_and(|(last, _)| *last >= number) {
            return Err(s3_error!(InvalidPartOrder, "parts must be named in ascending order"));
        }
        let etag = part
            .e_tag
            .ok_or_else(|| s3_error!(InvalidPart, "part {number} is named without its ETag"))?;
        chosen.push((number, etag.into_value()));
    }
    Ok(chosen)
}

fn whole_only(sums: Checksums) -> Checksums {
    let whole = |sum: Option<String>| sum.filter(|sum| !sum.contains('-'));
    Checksums {
        crc32: whole(sums.crc32),
        crc32c: whole(sums.crc32c),
        crc64nvme: whole(sums.crc64nvme),
        sha1: whole(sums.sha1),
        sha256: whole(sums.sha256),
    }
}
