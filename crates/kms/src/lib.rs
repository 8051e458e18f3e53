//! The master key's key in AWS KMS. The only crate that touches aws-sdk-kms. KMS makes the master key, wraps it, and
//! unwraps it at each start of a scheduler; its own key never leaves it. The encryption context names the cluster, so
//! that rights to a key can be given for one cluster.

mod refusal;

use std::time::Duration;

use async_trait::async_trait;
use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_kms::Client;
use aws_sdk_kms::config::{ProvideCredentials as _, Region, SharedCredentialsProvider};
use aws_sdk_kms::primitives::Blob;
use aws_sdk_kms::types::{DataKeySpec, KeySpec, KeyState, KeyUsageType};
use rekindle_envelope::{KeyService, KeyServiceError, MasterKey, WrappedKey};

pub use refusal::KmsError;
use refusal::KmsRequest;

/// The encryption context's name for the cluster.
const CONTEXT: &str = "rekindle:cluster";
/// How long any one request may take, with all its attempts and with the search for credentials.
const LIMIT: Duration = Duration::from_secs(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 4;

/// A key of AWS KMS, and how it is reached.
#[derive(Debug, Clone)]
pub struct KmsConfig {
    /// Id, ARN or alias (`alias/NAME`) of a symmetric key.
    pub key: String,
    /// Name of the cluster.
    pub cluster: String,
    /// The region, unless `key` names one.
    pub region: String,
    /// Limit of one request.
    pub limit: Duration,
}

impl KmsConfig {
    /// With the usual limit.
    pub fn new(key: String, cluster: String, region: String) -> Self {
        let limit = LIMIT;
        Self {
            key,
            cluster,
            region,
            limit,
        }
    }
}

/// A key of AWS KMS.
#[derive(Debug)]
pub struct Kms {
    client: Client,
    credentials: Option<SharedCredentialsProvider>,
    config: KmsConfig,
}

impl Kms {
    /// A client with the usual AWS credentials. Sends nothing yet.
    pub async fn new(mut config: KmsConfig) -> Self {
        if let Some(region) = region_of(&config.key) {
            config.region = region.to_owned();
        }
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_LIMIT)
            .operation_attempt_timeout(ATTEMPT_LIMIT)
            .operation_timeout(config.limit)
            .build();
        let loader = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(config.region.clone()))
            .timeout_config(timeouts)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS));
        let environment = Box::pin(loader.load()).await;
        Self {
            client: Client::new(&environment),
            credentials: environment.credentials_provider(),
            config,
        }
    }

    /// What is asked with which key, for an error.
    fn asking<'a>(&'a self, operation: &'static str, key: &'a str) -> KmsRequest<'a> {
        KmsRequest {
            operation,
            key,
            cluster: &self.config.cluster,
            region: &self.config.region,
            limit: self.config.limit,
        }
    }

    /// Adds a final limit, as the SDK's does not cover everything, and says what a refusal means.
    async fn bounded<T, E: refusal::Failure>(
        &self,
        asking: KmsRequest<'_>,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, KmsError> {
        let limit = self.config.limit + Duration::from_millis(500);
        // The SDK's futures are large.
        match tokio::time::timeout(limit, Box::pin(call)).await {
            Ok(answer) => answer.map_err(|error| error.refusal(&asking)),
            Err(_) => Err(asking.no_answer(None)),
        }
    }

    /// Looks for credentials first: without any, each request would fail as if the network did.
    async fn credentials(&self) -> Result<(), KmsError> {
        let Some(provider) = &self.credentials else {
            return Err(KmsError::NoCredentials { source: None });
        };
        let found = tokio::time::timeout(self.config.limit, provider.provide_credentials()).await;
        let source: KeyServiceError = match found {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.into(),
            Err(late) => late.into(),
        };
        Err(KmsError::NoCredentials { source: Some(source) })
    }

    async fn describe(&self) -> Result<String, KmsError> {
        self.credentials().await?;
        let key = &self.config.key;
        let call = self.client.describe_key().key_id(key).send();
        let answer = self.bounded(self.asking("DescribeKey", key), call).await?;
        let told = answer.key_metadata.ok_or_else(|| unexpected("DescribeKey"))?;
        match told.key_state {
            Some(KeyState::Disabled) => return Err(KmsError::Disabled { key: key.clone() }),
            Some(KeyState::PendingDeletion | KeyState::PendingReplicaDeletion) => {
                return Err(KmsError::PendingDeletion { key: key.clone() });
            }
            Some(state @ (KeyState::PendingImport | KeyState::Unavailable)) => {
                let state = state.to_string();
                return Err(KmsError::State {
                    key: key.clone(),
                    state,
                });
            }
            _ => {}
        }
        let is_for_else = told
            .key_usage
            .is_some_and(|usage| usage != KeyUsageType::EncryptDecrypt)
            || told.key_spec.is_some_and(|spec| spec != KeySpec::SymmetricDefault);
        if is_for_else {
            return Err(KmsError::Unsuitable { key: key.clone() });
        }
        told.arn.ok_or_else(|| unexpected("DescribeKey"))
    }

    fn wrapped(&self, by: Option<String>, blob: Option<Blob>, operation: &'static str) -> Result<WrappedKey, KmsError> {
        match (by, blob) {
            (Some(by), Some(blob)) => Ok(WrappedKey {
                by,
                cluster: self.config.cluster.clone(),
                bytes: blob.into_inner(),
            }),
            _ => Err(unexpected(operation)),
        }
    }
}

#[async_trait]
impl KeyService for Kms {
    fn cluster(&self) -> &str {
        &self.config.cluster
    }

    async fn key(&self) -> Result<String, KeyServiceError> {
        Ok(self.describe().await?)
    }

    /// A multi-Region key has a name in each region, and opens what its other copies have wrapped.
    fn same(&self, one: &str, other: &str) -> bool {
        let in_regions = |arn: &str| {
            arn.rsplit_once(":key/")
                .map(|(_, id)| id.to_owned())
                .filter(|id| id.starts_with("mrk-"))
        };
        one == other || in_regions(one).is_some_and(|id| Some(id) == in_regions(other))
    }

    async fn generate(&self) -> Result<(MasterKey, WrappedKey), KeyServiceError> {
        let operation = "GenerateDataKey";
        let call = self
            .client
            .generate_data_key()
            .key_id(&self.config.key)
            .key_spec(DataKeySpec::Aes256)
            .encryption_context(CONTEXT, &self.config.cluster)
            .send();
        let answer = self.bounded(self.asking(operation, &self.config.key), call).await?;
        let key = answer.plaintext.and_then(|plain| MasterKey::from_bytes(plain.as_ref()));
        let wrapped = self.wrapped(answer.key_id, answer.ciphertext_blob, operation)?;
        Ok((key.ok_or_else(|| unexpected(operation))?, wrapped))
    }

    async fn wrap(&self, key: &MasterKey) -> Result<WrappedKey, KeyServiceError> {
        let operation = "Encrypt";
        let call = self
            .client
            .encrypt()
            .key_id(&self.config.key)
            .plaintext(Blob::new(key.bytes()))
            .encryption_context(CONTEXT, &self.config.cluster)
            .send();
        let answer = self.bounded(self.asking(operation, &self.config.key), call).await?;
        Ok(self.wrapped(answer.key_id, answer.ciphertext_blob, operation)?)
    }

    async fn unwrap(&self, wrapped: &WrappedKey) -> Result<MasterKey, KeyServiceError> {
        let operation = "Decrypt";
        let call = self
            .client
            .decrypt()
            .key_id(&wrapped.by)
            .ciphertext_blob(Blob::new(wrapped.bytes.clone()))
            .encryption_context(CONTEXT, &wrapped.cluster)
            .send();
        let answer = self.bounded(self.asking(operation, &wrapped.by), call).await?;
        let key = answer.plaintext.and_then(|plain| MasterKey::from_bytes(plain.as_ref()));
        Ok(key.ok_or_else(|| unexpected(operation))?)
    }
}

fn unexpected(operation: &'static str) -> KmsError {
    KmsError::Unexpected { operation }
}

/// The region in a key's ARN: `arn:aws:kms:eu-west-1:111122223333:key/…`.
fn region_of(key: &str) -> Option<&str> {
    let region = key.strip_prefix("arn:")?.split(':').nth(2)?;
    (!region.is_empty()).then_some(region)
}

#[cfg(test)]
mod tests;
