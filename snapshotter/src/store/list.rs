//! Lists keys.

use super::{Store, StoreError};

/// Maximum length of a listing. A longer one is an error rather than unbounded memory.
const LIST_MAX: usize = 1_000_000;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key, without the store's prefix.
    pub key: String,
    /// Size in bytes.
    pub len: u64,
    /// Time of the last write by the store's own clock, in milliseconds since the Unix epoch. `None` if the store does
    /// not report it.
    pub modified_unix_ms: Option<i64>,
}

impl Store {
    /// All objects whose keys start with `prefix`, by key.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut found = Vec::new();
        let mut token = None;
        loop {
            let page = self.list_page(prefix, None, token.take()).await?;
            for object in page.contents() {
                let Some(key) = object.key().and_then(|k| k.strip_prefix(&self.inner.prefix)) else {
                    continue;
                };
                let len = u64::try_from(object.size().unwrap_or(0)).unwrap_or(0);
                found.push(ObjectInfo {
                    key: key.to_owned(),
                    len,
                    modified_unix_ms: milliseconds(object.last_modified()),
                });
            }
            token = self.next_page(prefix, found.len(), &page)?;
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    /// Names of the folders directly below `prefix`, which ends with `/`. The names have neither `prefix` nor a final
    /// `/`.
    pub async fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let below = self.full_key(prefix);
        let mut found = Vec::new();
        let mut token = None;
        loop {
            let page = self.list_page(prefix, Some("/"), token.take()).await?;
            let names = page.common_prefixes().iter().filter_map(|p| p.prefix());
            let names = names.filter_map(|p| p.strip_prefix(&below)?.strip_suffix('/'));
            found.extend(names.map(str::to_owned));
            token = self.next_page(prefix, found.len(), &page)?;
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    async fn list_page(
        &self,
        prefix: &str,
        delimiter: Option<&str>,
        token: Option<String>,
    ) -> Result<Page, StoreError> {
        let call = self.inner.client.list_objects_v2().bucket(&self.inner.bucket);
        let call = call
            .prefix(self.full_key(prefix))
            .set_delimiter(delimiter.map(str::to_owned));
        let page = self
            .bounded("list", prefix, 0, Box::pin(call.set_continuation_token(token).send()))
            .await?;
        page.map_err(|e| self.failed("list", prefix, e))
    }

    fn next_page(&self, prefix: &str, found: usize, page: &Page) -> Result<Option<String>, StoreError> {
        let next = page
            .next_continuation_token()
            .filter(|_| page.is_truncated() == Some(true));
        if next.is_some() && found >= LIST_MAX {
            return Err(StoreError::Answer {
                key: self.full_key(prefix),
                bucket: self.inner.bucket.clone(),
                what: format!("a listing of more than {LIST_MAX} keys"),
            });
        }
        Ok(next.map(str::to_owned))
    }
}

/// A time as reported by the store.
pub(super) fn milliseconds(time: Option<&aws_sdk_s3::primitives::DateTime>) -> Option<i64> {
    time.and_then(|t| t.to_millis().ok())
}

type Page = aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
