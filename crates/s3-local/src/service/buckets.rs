//! Buckets and their content.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3s::dto::*;
use s3s::{S3Request, S3Result, s3_error};

use super::Service;
use super::errors::blocking;
use super::headers::{etag, timestamp};
use crate::storage::{Bucket, Entry, Query, ReadError, escape};

/// S3's limit, and the default.
const LONGEST_PAGE: i32 = 1000;

impl Service {
    pub(super) async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<CreateBucketOutput> {
        let (storage, name) = (self.storage.clone(), request.input.bucket);
        let location = format!("/{name}");
        blocking(move || storage.create_bucket(&name)).await?;
        Ok(CreateBucketOutput {
            location: Some(location),
        })
    }

    pub(super) async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<HeadBucketOutput> {
        self.bucket(&request.input.bucket)?;
        Ok(HeadBucketOutput::default())
    }

    pub(super) async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> S3Result<ListBucketsOutput> {
        let prefix = request.input.prefix.unwrap_or_default();
        let buckets = self
            .storage
            .buckets()
            .into_iter()
            .filter(|(name, _)| name.starts_with(&prefix));
        let buckets = buckets.map(|(name, bucket)| s3s::dto::Bucket {
            creation_date: Some(Timestamp::from(bucket.created)),
            name: Some(name),
            ..Default::default()
        });
        Ok(ListBucketsOutput {
            buckets: Some(buckets.collect()),
            ..Default::default()
        })
    }

    pub(super) async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<ListObjectsV2Output> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let max_keys = input.max_keys.unwrap_or(LONGEST_PAGE).min(LONGEST_PAGE);
        let limit =
            usize::try_from(max_keys).map_err(|_| s3_error!(InvalidArgument, "max-keys must not be negative"))?;
        let after = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => Some(entry_of(token)?),
            (None, Some(key)) => Some(Entry::Key(key.clone().into_bytes())),
            (None, None) => None,
        };
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default().into_bytes(),
            delimiter: input.delimiter.clone().unwrap_or_default().into_bytes(),
            after,
            limit,
        };
        let (entries, truncated) = blocking(move || Ok::<_, ReadError>(describe(&bucket, &query))).await?;

        let url = input
            .encoding_type
            .as_ref()
            .is_some_and(|encoding| encoding.as_str() == EncodingType::URL);
        let show = |text: String| {
            if url {
                escape(&text, |byte| byte.is_ascii_alphanumeric() || b"-_.~/*".contains(&byte))
            } else {
                text
            }
        };
        let next = truncated
            .then(|| entries.last().map(|(entry, _)| token_of(entry)))
            .flatten();
        let key_count = i32::try_from(entries.len()).ok();
        let (mut contents, mut common_prefixes) = (Vec::new(), Vec::new());
        for (entry, object) in entries {
            match entry {
                Entry::Key(key) => contents.push(Object {
                    key: Some(show(text(key))),
                    ..object
                }),
                Entry::Prefix(prefix) => common_prefixes.push(CommonPrefix {
                    prefix: Some(show(text(prefix))),
                }),
            }
        }
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(show(input.prefix.unwrap_or_default())),
            delimiter: input.delimiter.map(show),
            max_keys: Some(max_keys),
            key_count,
            is_truncated: Some(truncated),
            continuation_token: input.continuation_token,
            next_continuation_token: next,
            start_after: input.start_after.map(show),
            encoding_type: input.encoding_type,
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            ..Default::default()
        })
    }
}

/// A page with the metadata from the objects' files. An object that was removed meanwhile is left out. A damaged one is
/// listed only by its key, so that it can be found and deleted.
fn describe(bucket: &Arc<Bucket>, query: &Query) -> (Vec<(Entry, Object)>, bool) {
    let page = bucket.list(query);
    let described = page.entries.into_iter().filter_map(|entry| {
        let Entry::Key(key) = &entry else {
            return Some((entry, Object::default()));
        };
        let object = match bucket.get(&text(key.clone())) {
            Ok(file) => Object {
                e_tag: Some(etag(&file.meta)),
                last_modified: Some(timestamp(&file.meta)),
                size: i64::try_from(file.body_len()).ok(),
                storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                ..Default::default()
            },
            Err(ReadError::Absent) => return None,
            Err(error) => {
                tracing::error!(%error, "an object in a listing cannot be read");
                Object::default()
            }
        };
        Some((entry, object))
    });
    (described.collect(), page.truncated)
}

/// Keys and prefixes are valid UTF-8, except a prefix cut by a delimiter that is not: it is shown as far as possible.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn token_of(entry: &Entry) -> String {
    let (kind, bytes) = match entry {
        Entry::Key(key) => (b'k', key),
        Entry::Prefix(prefix) => (b'p', prefix),
    };
    URL_SAFE_NO_PAD.encode([&[kind], bytes.as_slice()].concat())
}

fn entry_of(token: &str) -> S3Result<Entry> {
    let mut bytes = URL_SAFE_NO_PAD.decode(token).unwrap_or_default().into_iter();
    match bytes.next() {
        Some(b'k') => Ok(Entry::Key(bytes.collect())),
        Some(b'p') => Ok(Entry::Prefix(bytes.collect())),
        _ => Err(s3_error!(
            InvalidArgument,
            "the continuation token is none of this server's"
        )),
    }
}
