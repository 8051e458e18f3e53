//! The key service that wraps the master key: AWS KMS, with the usual AWS credentials.

use anyhow::Result;
use rekindle_envelope::KeyService;
use rekindle_kms::{Kms, KmsConfig};

use super::s3;

/// The service with this key.
pub(super) async fn service(key: &str, cluster: &str) -> Result<Box<dyn KeyService>> {
    let config = KmsConfig::new(key.to_owned(), cluster.to_owned(), s3::region());
    Ok(Box::new(Kms::new(config).await))
}
