//! Which object store the platform uses: the embedded one, or any S3 server by its address. A running platform records
//! it, so that `fn snapshot` works on the same store without further options. The SDK's futures are large and boxed
//! here.

use std::path::Path;
use std::{env, fs, io};

use anyhow::{Context as _, Result, bail};
use rekindle_snapshotter::Store;
use rekindle_store_s3::{StoreConfig, Timeouts};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::pid::PidFile;
use super::secrets;
use crate::args::{Places, S3Args};

/// For servers that ignore it.
const REGION: &str = "us-east-1";

/// Connects to the embedded server at `endpoint` with its key.
pub(super) async fn embedded(endpoint: String, bucket: &str, key: &(String, String)) -> Result<Store> {
    let own = S3Args {
        s3_bucket: bucket.to_owned(),
        ..S3Args::default()
    };
    Box::pin(connect(endpoint, &own, Some(key.clone()))).await
}

/// Connects to the server that the command line or `FN_S3_ENDPOINT` names, with the usual AWS credentials.
pub(super) async fn external(args: &S3Args, endpoint: &str) -> Result<Store> {
    Box::pin(connect(endpoint.to_owned(), args, None)).await
}

/// How to reach a running platform's store.
#[derive(Serialize, Deserialize)]
struct Recorded {
    endpoint: String,
    bucket: String,
    #[serde(default)]
    prefix: String,
    /// Whether it is the embedded one, whose key is in the data directory.
    embedded: bool,
}

/// Records which store the platform uses, for other commands on this machine; `embedded` is the address of its own one.
pub(super) fn record(layout: &Layout, embedded: &Option<String>, s3: &S3Args) -> Result<()> {
    let recorded = Recorded {
        endpoint: embedded.clone().or_else(|| s3.s3_endpoint.clone()).unwrap_or_default(),
        bucket: s3.s3_bucket.clone(),
        prefix: s3.s3_prefix.clone(),
        embedded: embedded.is_some(),
    };
    let path = layout.store();
    let new = path.with_extension("new");
    let json = serde_json::to_vec(&recorded).context("the record cannot be written as JSON")?;
    fs::write(&new, json)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("{}: cannot be written", path.display()))
}

/// The store that the command line names, otherwise the one of the platform that runs here.
pub(crate) async fn of_platform(places: &Places, s3: &S3Args) -> Result<Store> {
    if let Some(endpoint) = &s3.s3_endpoint {
        return external(s3, endpoint).await;
    }
    let layout = Layout::of(places).context("the current directory is gone")?;
    let running = PidFile::at(&layout.run).running()?;
    let (Some(running), Some(recorded)) = (running, recorded(&layout.store())?) else {
        bail!(
            "{}: no platform runs there: start it with `fn up`, or name an object store with --s3-endpoint",
            layout.run.display()
        );
    };
    if recorded.embedded {
        let key = secrets::s3_key(&running.data)?;
        return embedded(recorded.endpoint, &recorded.bucket, &key).await;
    }
    let s3 = S3Args {
        s3_endpoint: None,
        s3_bucket: recorded.bucket,
        s3_prefix: recorded.prefix,
        ..s3.clone()
    };
    external(&s3, &recorded.endpoint).await
}

fn recorded(path: &Path) -> Result<Option<Recorded>> {
    match fs::read(path) {
        Ok(json) => serde_json::from_slice(&json).map(Some).with_context(|| {
            format!(
                "{}: not a record of an object store: restart the platform",
                path.display()
            )
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("{}: cannot be read", path.display())),
    }
}

async fn connect(endpoint: String, s3: &S3Args, credentials: Option<(String, String)>) -> Result<Store> {
    let (told, bucket) = (endpoint.clone(), &s3.s3_bucket);
    let region = env::var("AWS_REGION").or_else(|_| env::var("AWS_DEFAULT_REGION"));
    let store = rekindle_store_s3::connect(StoreConfig {
        endpoint: Some(endpoint),
        bucket: bucket.to_owned(),
        prefix: s3.s3_prefix.clone(),
        region: region.unwrap_or_else(|_| REGION.to_owned()),
        credentials,
        force_path_style: true,
        encryption: s3.encryption(),
        timeouts: Timeouts::default(),
    })
    .await;
    store.ensure_place().await.with_context(|| {
        format!("{told}: the bucket {bucket} cannot be used: check the address and the AWS credentials")
    })?;
    Ok(store)
}
