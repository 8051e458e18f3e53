//! The object store in an S3 server, with the usual AWS credentials.

use std::env;

use anyhow::{Context as _, Result};
use rekindle_store::Store;
use rekindle_store_s3::{Encryption, StoreConfig, Timeouts};

use crate::args::{S3Args, Sse};

/// For servers that ignore it.
const REGION: &str = "us-east-1";

/// Opens the bucket, which is made where it is missing.
pub(super) async fn connect(endpoint: &str, args: &S3Args) -> Result<Store> {
    let bucket = &args.s3_bucket;
    let encryption = match args.s3_sse {
        None => Encryption::AsBucket,
        Some(Sse::Aes256) => Encryption::Aes256,
        Some(Sse::Kms) => Encryption::Kms(args.s3_sse_key.clone()),
    };
    let store = rekindle_store_s3::connect(StoreConfig {
        endpoint: Some(endpoint.to_owned()),
        bucket: bucket.to_owned(),
        prefix: args.s3_prefix.clone(),
        region: region(),
        credentials: None,
        force_path_style: true,
        encryption,
        timeouts: Timeouts::default(),
    })
    .await;
    store.ensure_place().await.with_context(|| {
        format!("{endpoint}: the bucket {bucket} cannot be used: check the address and the AWS credentials")
    })?;
    Ok(store)
}

/// The region that the usual AWS variables name.
pub(super) fn region() -> String {
    let region = env::var("AWS_REGION").or_else(|_| env::var("AWS_DEFAULT_REGION"));
    region.unwrap_or_else(|_| REGION.to_owned())
}
