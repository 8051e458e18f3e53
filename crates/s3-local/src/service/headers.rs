//! Converts between S3's request and response fields and the storage's types: conditions, checksums, metadata, times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use s3s::dto::{ETag, ETagCondition, Metadata, Timestamp};
use s3s::{S3Result, s3_error};

use super::errors::{not_implemented, precondition_failed};
use crate::storage::{Condition, Headers, Meta};

/// Copies the five checksum fields of a request into [`crate::storage::Checksums`].
macro_rules! sums_of {
    ($input:expr) => {
        crate::storage::Checksums {
            crc32: $input.checksum_crc32.take(),
            crc32c: $input.checksum_crc32c.take(),
            crc64nvme: $input.checksum_crc64nvme.take(),
            sha1: $input.checksum_sha1.take(),
            sha256: $input.checksum_sha256.take(),
        }
    };
}

/// Copies [`crate::storage::Checksums`] into the five checksum fields of a response.
macro_rules! set_sums {
    ($output:expr, $sums:expr) => {{
        let sums = $sums;
        $output.checksum_crc32 = sums.crc32;
        $output.checksum_crc32c = sums.crc32c;
        $output.checksum_crc64nvme = sums.crc64nvme;
        $output.checksum_sha1 = sums.sha1;
        $output.checksum_sha256 = sums.sha256;
    }};
}

/// Makes the metadata of a new object from the headers and user metadata of a request.
macro_rules! meta_of {
    ($input:expr, $key:expr) => {
        crate::storage::Meta {
            key: $key,
            headers: crate::storage::Headers {
                cache_control: $input.cache_control.take(),
                content_disposition: $input.content_disposition.take(),
                // aws-chunked is how the body was sent, not what it is.
                content_encoding: crate::service::headers::without_aws_chunked($input.content_encoding.take()),
                content_language: $input.content_language.take(),
                content_type: $input.content_type.take(),
            },
            user: $input.metadata.take().into_iter().flatten().collect(),
            ..crate::storage::Meta::default()
        }
    };
}

/// Refuses fields that would be silently lost: the named ones must not be set.
macro_rules! refuse {
    ($input:expr, $($field:ident)*) => {
        $(if $input.$field.is_some() {
            return Err(crate::service::errors::not_implemented(stringify!($field)));
        })*
    };
}

pub(super) use {meta_of, refuse, set_sums, sums_of};

pub(super) fn without_aws_chunked(encoding: Option<String>) -> Option<String> {
    let kept: Vec<&str> = encoding
        .as_deref()?
        .split(',')
        .map(str::trim)
        .filter(|encoding| *encoding != "aws-chunked" && !encoding.is_empty())
        .collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

/// The condition of a put or a completion.
pub(super) fn put_condition(
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
) -> S3Result<Condition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::None),
        (None, Some(ETagCondition::Any)) => Ok(Condition::Absent),
        (Some(ETagCondition::Any), None) => Ok(Condition::Present),
        (Some(ETagCondition::ETag(etag)), None) => Ok(Condition::Etag(etag.into_value())),
        (None, Some(ETagCondition::ETag(_))) => Err(not_implemented("If-None-Match with an ETag on a write")),
        (Some(_), Some(_)) => Err(s3_error!(
            InvalidRequest,
            "If-Match and If-None-Match exclude each other"
        )),
    }
}

/// Checks the conditions of a read, in the order that RFC 9110 gives them.
pub(super) fn check_read(
    meta: &Meta,
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
    if_unmodified_since: Option<&Timestamp>,
    if_modified_since: Option<&Timestamp>,
) -> S3Result<()> {
    let names = |condition: &ETagCondition| condition.as_etag().is_none_or(|etag| etag.value() == meta.etag);
    let modified = timestamp(meta);
    let unmet = match if_match {
        Some(condition) => !names(condition),
        None => if_unmodified_since.is_some_and(|since| modified > *since),
    };
    if unmet {
        return Err(precondition_failed());
    }
    let unchanged = match if_none_match {
        Some(condition) => names(condition),
        None => if_modified_since.is_some_and(|since| modified <= *since),
    };
    if unchanged { Err(s3_error!(NotModified)) } else { Ok(()) }
}

pub(super) fn etag(meta: &Meta) -> ETag {
    ETag::Strong(meta.etag.clone())
}

/// When the object was written, in whole seconds: HTTP dates have no fractions, and conditions compare with those.
pub(super) fn timestamp(meta: &Meta) -> Timestamp {
    let time: SystemTime = UNIX_EPOCH
        .checked_add(Duration::from_secs(meta.modified_ms / 1000))
        .unwrap_or(UNIX_EPOCH);
    Timestamp::from(time)
}

pub(super) fn user_metadata(meta: &Meta) -> Option<Metadata> {
    (!meta.user.is_empty()).then(|| meta.user.clone().into_iter().collect())
}

/// The content type, or what S3 answers if none was given.
pub(super) fn content_type(headers: &Headers) -> String {
    headers
        .content_type
        .clone()
        .unwrap_or_else(|| "binary/octet-stream".to_owned())
}
