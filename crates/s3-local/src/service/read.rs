//! Reads of one object: get and head.

use std::ops::Range;

use s3s::dto::{
    ChecksumMode, ChecksumType, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, StreamingBlob,
};
use s3s::{S3Error, S3Request, S3Result, s3_error};

use super::Service;
use super::errors::{S3Response, blocking};
use super::headers::{check_read, content_type, etag, refuse, set_sums, timestamp, user_metadata};
use super::objects::refuse_version;
use super::transfer::SendingBody;
use crate::storage::{Meta, ObjectFile, ReadError};

/// Fields that get and head set alike.
macro_rules! answer {
    ($output:ident, $meta:expr, $span:expr, $sums:expr) => {{
        let (meta, span) = ($meta, $span);
        let mut output = $output {
            accept_ranges: Some("bytes".to_owned()),
            cache_control: meta.headers.cache_control.clone(),
            content_disposition: meta.headers.content_disposition.clone(),
            content_encoding: meta.headers.content_encoding.clone(),
            content_language: meta.headers.content_language.clone(),
            content_type: Some(content_type(&meta.headers)),
            content_length: i64::try_from(span.range.end - span.range.start).ok(),
            content_range: span.content_range(),
            e_tag: Some(etag(meta)),
            last_modified: Some(timestamp(meta)),
            metadata: user_metadata(meta),
            parts_count: span.part_count,
            ..Default::default()
        };
        // The sums cover the whole object, so they are sent only with the whole object.
        if $sums && !span.partial && !meta.sums.is_empty() {
            set_sums!(output, meta.sums.clone());
            output.checksum_type = Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT));
        }
        output
    }};
}

impl Service {
    pub(super) async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<GetObjectOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        refuse!(input, sse_customer_algorithm);
        refuse_version(input.version_id.as_deref())?;
        let sums = wants_sums(input.checksum_mode.as_ref());
        let (span, reader, first) = blocking(move || {
            let object = bucket.get(&input.key)?;
            check_read(
                &object.meta,
                input.if_match.as_ref(),
                input.if_none_match.as_ref(),
                input.if_unmodified_since.as_ref(),
                input.if_modified_since.as_ref(),
            )?;
            let span = Span::of(&object, input.range, input.part_number)?;
            let mut reader = object.read(span.range.clone());
            // Read before the response begins: damage in a small object becomes a proper error.
            let first = reader.next_batch()?;
            Ok::<_, GetError>((span, reader, first))
        })
        .await?;
        let mut output = answer!(GetObjectOutput, reader.meta(), span, sums);
        output.body = Some(match first {
            Some(first) if reader.remaining() == 0 => StreamingBlob::from(s3s::Body::from(first)),
            None => StreamingBlob::from(s3s::Body::empty()),
            first => StreamingBlob::new(SendingBody::new(reader, first)),
        });
        Ok(output)
    }

    pub(super) async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<HeadObjectOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        refuse!(input, sse_customer_algorithm);
        refuse_version(input.version_id.as_deref())?;
        let sums = wants_sums(input.checksum_mode.as_ref());
        blocking(move || {
            let object = bucket.get(&input.key)?;
            check_read(
                &object.meta,
                input.if_match.as_ref(),
                input.if_none_match.as_ref(),
                input.if_unmodified_since.as_ref(),
                input.if_modified_since.as_ref(),
            )?;
            let span = Span::of(&object, input.range, input.part_number)?;
            Ok::<_, GetError>(answer!(HeadObjectOutput, &object.meta, span, sums))
        })
        .await
    }
}

fn wants_sums(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

/// Why a read does not return the object.
enum GetError {
    Read(ReadError),
    /// A condition or a range, already as an S3 error.
    Refused(S3Error),
}

impl From<ReadError> for GetError {
    fn from(error: ReadError) -> GetError {
        GetError::Read(error)
    }
}

impl From<S3Error> for GetError {
    fn from(error: S3Error) -> GetError {
        GetError::Refused(error)
    }
}

impl S3Response for GetError {
    fn answer(self) -> S3Error {
        match self {
            GetError::Read(error) => error.answer(),
            GetError::Refused(error) => error,
        }
    }
}

/// The requested bytes.
struct Span {
    range: Range<u64>,
    partial: bool,
    body_len: u64,
    /// Number of parts of a multipart object, if one part is requested.
    part_count: Option<i32>,
}

impl Span {
    fn of(object: &ObjectFile, range: Option<s3s::dto::Range>, part: Option<i32>) -> S3Result<Span> {
        let body_len = object.body_len();
        let unsatisfiable = || {
            s3_error!(
                InvalidRange,
                "the range is outside the object, which has {body_len} bytes"
            )
        };
        let (range, part_count) = match (range, part) {
            (None, None) => {
                return Ok(Span {
                    range: 0..body_len,
                    partial: false,
                    body_len,
                    part_count: None,
                });
            }
            // No range can be satisfied by an empty object; `check` would let a suffix pass.
            (Some(_), None) if body_len == 0 => return Err(unsatisfiable()),
            (Some(range), None) => (range.check(body_len).map_err(|_| unsatisfiable())?, None),
            (None, Some(number)) => part_range(&object.meta, body_len, number)?,
            (Some(_), Some(_)) => {
                return Err(s3_error!(InvalidRequest, "Range and partNumber exclude each other"));
            }
        };
        Ok(Span {
            range,
            partial: true,
            body_len,
            part_count,
        })
    }

    fn content_range(&self) -> Option<String> {
        let Range { start, end } = self.range;
        (self.partial && end > start).then(|| format!("bytes {start}-{}/{}", end - 1, self.body_len))
    }
}

fn part_range(meta: &Meta, body_len: u64, number: i32) -> S3Result<(Range<u64>, Option<i32>)> {
    let no_part = || s3_error!(InvalidRange, "the object has no part {number}");
    let at = usize::try_from(number)
        .ok()
        .and_then(|number| number.checked_sub(1))
        .ok_or_else(no_part)?;
    if meta.part_lens.is_empty() {
        // An object that was put whole is its own first part.
        return if at == 0 {
            Ok((0..body_len, None))
        } else {
            Err(no_part())
        };
    }
    let len = *meta.part_lens.get(at).ok_or_else(no_part)?;
    let start: u64 = meta.part_lens[..at].iter().sum();
    Ok((start..start + len, i32::try_from(meta.part_lens.len()).ok()))
}
