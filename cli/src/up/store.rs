//! Which object store the platform uses: its own directory, or another directory or S3 server by its URL. A running
//! platform records it, so that `fn snapshot` works on the same store without further options. The SDK's futures are
//! large and boxed here.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, Result, bail};
use rekindle_store::{Directory, Store};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::objects;
use super::pid::PidFile;
use super::s3;
use crate::args::{PlatformDirs, S3Args};

/// What the URL of a store in a directory begins with; the rest is its path.
const FILE: &str = "file://";

/// The platform's own store, and its URL.
pub(super) async fn own(layout: &Layout, bucket: &str) -> Result<(Store, String)> {
    let (root, bucket) = (layout.objects(), bucket.to_owned());
    let url = format!("{FILE}{}", root.display());
    let store = tokio::task::spawn_blocking(move || objects::open(&root, &bucket)).await;
    Ok((store.context("interrupted")??, url))
}

/// Opens the store that the command line or `FN_S3_ENDPOINT` names: a directory, or an S3 server with the usual AWS
/// credentials.
pub(super) async fn named(args: &S3Args, url: &str) -> Result<Store> {
    match url.strip_prefix(FILE) {
        Some(_) if !args.s3_prefix.is_empty() => {
            bail!("{url}: a directory has no --s3-prefix: name another directory")
        }
        Some(path) => {
            let path = PathBuf::from(path);
            let store = tokio::task::spawn_blocking(move || Directory::open(&path)).await;
            Ok(store.context("interrupted")??)
        }
        None => Box::pin(s3::connect(url, args)).await,
    }
}

/// How to reach a running platform's store.
#[derive(Serialize, Deserialize)]
struct StoreLocation {
    endpoint: String,
    bucket: String,
    #[serde(default)]
    prefix: String,
}

/// Records which store the platform uses, for other commands on this machine.
pub(super) fn record(layout: &Layout, url: &str, s3: &S3Args) -> Result<()> {
    let recorded = StoreLocation {
        endpoint: url.to_owned(),
        bucket: s3.s3_bucket.clone(),
        prefix: s3.s3_prefix.clone(),
    };
    let path = layout.store();
    let new = path.with_extension("new");
    let json = serde_json::to_vec(&recorded).context("the record cannot be written as JSON")?;
    fs::write(&new, json)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("{}: cannot be written", path.display()))
}

/// The store that the command line names, otherwise the one of the platform that runs here.
pub(crate) async fn of_platform(places: &PlatformDirs, s3: &S3Args) -> Result<Store> {
    match known(places, s3).await? {
        Some(store) => Ok(store),
        None => bail!(
            "{}: no platform runs there: start it with `fn up`, or name an object store with --s3-endpoint",
            places.run.display()
        ),
    }
}

/// The same; `None` where neither is.
pub(crate) async fn known(places: &PlatformDirs, s3: &S3Args) -> Result<Option<Store>> {
    if let Some(endpoint) = &s3.s3_endpoint {
        return named(s3, endpoint).await.map(Some);
    }
    let layout = Layout::of(places).context("the current directory is gone")?;
    let running = PidFile::at(&layout.run).running()?;
    let (Some(_), Some(recorded)) = (running, recorded(&layout.store())?) else {
        return Ok(None);
    };
    let s3 = S3Args {
        s3_endpoint: None,
        s3_bucket: recorded.bucket,
        s3_prefix: recorded.prefix,
        ..s3.clone()
    };
    named(&s3, &recorded.endpoint).await.map(Some)
}

fn recorded(path: &Path) -> Result<Option<StoreLocation>> {
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
