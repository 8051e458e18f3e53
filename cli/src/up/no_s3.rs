//! Stands for `s3` in a build without it.

use anyhow::{Result, bail};
use rekindle_store::Store;

use crate::args::S3Args;

/// Says how to get a build that can.
pub(super) async fn connect(endpoint: &str, _: &S3Args) -> Result<Store> {
    bail!("{endpoint}: this fn was built without S3, as `make up` builds it: run `make build`, which has it")
}
