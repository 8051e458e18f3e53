//! Which object store the platform uses: the embedded one, or any S3 server by its address. The SDK's futures are large
//! and boxed here.

use std::env;

use anyhow::{Context as _, Result};
use rekindle_snapshotter::store::Timeouts;
use rekindle_snapshotter::{Store, StoreConfig};

use crate::args::S3Args;

/// For servers that do not care.
const REGION: &str = "us-east-1";

/// Connects to the embedded server at `endpoint` with its key.
pub(super) async fn embedded(endpoint: String, bucket: &str, key: &(String, String)) -> Result<Store> {
    Box::pin(connect(Some(endpoint), bucket, Some(key.clone()))).await
}

/// Connects to the server that the command line or `FN_S3_ENDPOINT` names, with the usual AWS credentials.
pub(super) async fn external(args: &S3Args, endpoint: &str) -> Result<Store> {
    Box::pin(connect(Some(endpoint.to_owned()), &args.s3_bucket, None)).await
}

async fn connect(endpoint: Option<String>, bucket: &str, credentials: Option<(String, String)>) -> Result<Store> {
    let told = endpoint.clone().unwrap_or_default();
    let region = env::var("AWS_REGION").or_else(|_| env::var("AWS_DEFAULT_REGION"));
    let store = Store::connect(StoreConfig {
        endpoint,
        bucket: bucket.to_owned(),
        prefix: String::new(),
        region: region.unwrap_or_else(|_| REGION.to_owned()),
        credentials,
        force_path_style: true,
        timeouts: Timeouts::default(),
    })
    .await
    .with_context(|| format!("{told}: the object store cannot be used"))?;
    store.ensure_bucket().await.with_context(|| {
        format!("{told}: the bucket {bucket} cannot be used: check the address and the AWS credentials")
    })?;
    Ok(store)
}
