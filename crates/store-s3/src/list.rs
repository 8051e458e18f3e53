//! Lists keys.

use rekindle_store::{ObjectInfo, StoreError};

use crate::S3Store;

/// Maximum length of a listing. A longer one is an error rather than unbounded memory.
const LIST_MAX: usize = 1_000_000;

impl S3Store {
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut found = Vec::new();
        let mut token = None;
        loop {
            let page = self.list_page(prefix, None, token.take()).await?;
            for object in page.contents() {
                let Some(key) = object.key().and_then(|k| k.strip_prefix(self.requests.prefix())) else {
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

    pub(crate) async fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
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
            return Err(self
                .requests
                .wrong_answer(prefix, format!("a listing of more than {LIST_MAX} keys")));
        }
        Ok(next.map(str::to_owned))
    }
}

/// A time as reported by the store.
pub(super) fn milliseconds(time: Option<&aws_sdk_s3::primitives::DateTime>) -> Option<i64> {
    time.and_then(|t| t.to_millis().ok())
}

type Page = aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
