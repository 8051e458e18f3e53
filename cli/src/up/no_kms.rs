//! Stands for `kms` in a build without it.

use anyhow::{Result, bail};
use rekindle_envelope::KeyService;

/// Says how to get a build that can.
pub(super) async fn service(key: &str, _: &str) -> Result<Box<dyn KeyService>> {
    bail!("{key}: this fn was built without AWS KMS, as `make up` builds it: run `make build`, which has it")
}
