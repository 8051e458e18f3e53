//! What KMS refuses, in words that name the fix.

use std::error::Error;
use std::time::Duration;

use aws_sdk_kms::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use rekindle_envelope::KeyServiceError;

/// Why KMS does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum KmsError {
    /// There are no credentials to ask it with.
    #[error(
        "there are no AWS credentials for KMS: give this machine a role, or set AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY"
    )]
    NoCredentials {
        /// Why none were found.
        #[source]
        source: Option<KeyServiceError>,
    },
    /// The credentials are not ones.
    #[error(
        "KMS does not know the AWS credentials of this machine ({told}): set ones that are valid, or give it a role"
    )]
    Credentials {
        /// The code of its answer.
        told: String,
    },
    /// Disabled.
    #[error("the KMS key {key} is disabled: enable it (aws kms enable-key --key-id {key}), then start again")]
    Disabled {
        /// Its name.
        key: String,
    },
    /// To be deleted.
    #[error(
        "the KMS key {key} is to be deleted: keep it (aws kms cancel-key-deletion --key-id {key}) and enable it, \
         then start again"
    )]
    PendingDeletion {
        /// Its name.
        key: String,
    },
    /// In another state in which it cannot be used.
    #[error("the KMS key {key} cannot be used, as its state is {state}: aws kms describe-key --key-id {key} says more")]
    State {
        /// Its name.
        key: String,
        /// KMS's word.
        state: String,
    },
    /// Not a key for this.
    #[error("the KMS key {key} is for something else: name a symmetric key for encryption (SYMMETRIC_DEFAULT)")]
    Unsuitable {
        /// Its name.
        key: String,
    },
    /// There is none of this name.
    #[error("there is no KMS key {key} in {region}: check its name and AWS_REGION")]
    NotFound {
        /// Its name.
        key: String,
        /// Where it was looked for.
        region: String,
    },
    /// The right is missing.
    #[error(
        "KMS refuses {operation} with the key {key}: allow this machine's role kms:{operation} on it, with \
         rekindle:cluster={cluster} in the encryption context (KMS says: {told})"
    )]
    Denied {
        /// What was asked.
        operation: &'static str,
        /// The key's name.
        key: String,
        /// The cluster in the encryption context.
        cluster: String,
        /// Its own words.
        told: String,
    },
    /// What the database has is not what this key wrapped for this cluster.
    #[error(
        "KMS does not open the database's master key: it was changed, or was not wrapped by the key {key} for the \
         cluster {cluster}"
    )]
    Ciphertext {
        /// The key's name.
        key: String,
        /// The cluster in the encryption context.
        cluster: String,
    },
    /// It did not answer in time.
    #[error(
        "KMS does not answer {operation} in {region} within {limit:?}: check this machine's way to it (a VPC \
         endpoint, a proxy) and AWS_REGION"
    )]
    NoAnswer {
        /// What was asked.
        operation: &'static str,
        /// Where.
        region: String,
        /// How long it may take.
        limit: Duration,
        /// The last attempt's error.
        #[source]
        source: Option<KeyServiceError>,
    },
    /// Something else.
    #[error("KMS does not do {operation} with the key {key}: {told}")]
    Other {
        /// What was asked.
        operation: &'static str,
        /// The key's name.
        key: String,
        /// Its own words.
        told: String,
    },
    /// Its answer lacks what it should have.
    #[error("KMS answers {operation} without what was asked for: is what AWS_ENDPOINT_URL_KMS names KMS?")]
    Unexpected {
        /// What was asked.
        operation: &'static str,
    },
}

pub(crate) struct KmsRequest<'a> {
    pub(crate) operation: &'static str,
    pub(crate) key: &'a str,
    pub(crate) cluster: &'a str,
    pub(crate) region: &'a str,
    pub(crate) limit: Duration,
}

impl KmsRequest<'_> {
    pub(crate) fn no_answer(&self, source: Option<KeyServiceError>) -> KmsError {
        KmsError::NoAnswer {
            operation: self.operation,
            region: self.region.to_owned(),
            limit: self.limit,
            source,
        }
    }

    fn refused(&self, code: &str, message: &str) -> KmsError {
        let key = self.key.to_owned();
        let told = match message {
            "" => code.to_owned(),
            message => format!("{code}: {message}"),
        };
        match code {
            "DisabledException" => KmsError::Disabled { key },
            "KMSInvalidStateException" if message.contains("pending deletion") => KmsError::PendingDeletion { key },
            "KMSInvalidStateException" => KmsError::State { key, state: told },
            "InvalidKeyUsageException" => KmsError::Unsuitable { key },
            "NotFoundException" => KmsError::NotFound {
                key,
                region: self.region.to_owned(),
            },
            "AccessDeniedException" | "AccessDenied" => KmsError::Denied {
                operation: self.operation,
                key,
                cluster: self.cluster.to_owned(),
                told,
            },
            "InvalidCiphertextException" | "IncorrectKeyException" => KmsError::Ciphertext {
                key,
                cluster: self.cluster.to_owned(),
            },
            "UnrecognizedClientException"
            | "InvalidClientTokenId"
            | "InvalidSignatureException"
            | "SignatureDoesNotMatch"
            | "IncompleteSignature"
            | "ExpiredTokenException"
            | "ExpiredToken"
            | "MissingAuthenticationToken" => KmsError::Credentials { told: code.to_owned() },
            _ => KmsError::Other {
                operation: self.operation,
                key,
                told,
            },
        }
    }
}

/// An error of the SDK.
pub(crate) trait Failure {
    fn refusal(self, asking: &KmsRequest<'_>) -> KmsError;
}

impl<E> Failure for SdkError<E>
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    fn refusal(self, asking: &KmsRequest<'_>) -> KmsError {
        if let SdkError::TimeoutError(_) | SdkError::DispatchFailure(_) = &self {
            return asking.no_answer(Some(self.into()));
        }
        let refused = self.as_service_error();
        if let Some((code, error)) = refused.and_then(|error| Some((error.code()?, error))) {
            return asking.refused(code, error.message().unwrap_or_default());
        }
        // What stands before KMS, such as a proxy, says it in its own way.
        match self.raw_response().map(|response| response.status().as_u16()) {
            Some(403) => asking.refused("AccessDenied", "HTTP status 403"),
            Some(status) => asking.refused("no error of KMS", &format!("HTTP status {status}")),
            None => asking.refused("no request", &DisplayErrorContext(&self).to_string()),
        }
    }
}
