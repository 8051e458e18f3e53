//! One certificate with its key, from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;

/// No chain of certificates and no key is larger, bytes.
const FILE_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PairFiles {
    /// Name in logs and metrics, by which the pair is recognized.
    pub(super) name: Arc<str>,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// Why a pair cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// A file cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file's content is invalid.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// They do not belong together, or are of an unsupported kind.
    #[error(
        "{certificate} and {key}: the certificate and the key cannot be used together: they have to be of one pair"
    )]
    Mismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
}

/// A certificate that can be shown.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) name: Arc<str>,
    pub(super) certified: Arc<CertifiedKey>,
    /// Its host names, in lower case; wildcards as `*.example.org`.
    pub(super) hosts: Vec<String>,
    pub(super) expires: SystemTime,
}

impl Pair {
    /// Reads a pair. Blocks.
    pub(super) fn read(files: &PairFiles, provider: &CryptoProvider) -> Result<Self, PairError> {
        let content = |path: &Path, what| PairError::Content {
            path: path.to_owned(),
            what,
        };
        let of_certificate = |what| content(&files.certificate, what);
        let chain = CertificateDer::pem_slice_iter(&read(&files.certificate)?).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|_| of_certificate("is no PEM file of certificates"))?;
        let first = chain.first().ok_or_else(|| of_certificate("has no certificate"))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(first)
            .map_err(|_| of_certificate("its first certificate cannot be read"))?;
        let alternative = parsed.subject_alternative_name().ok().flatten();
        let names = alternative
            .map(|found| &found.value.general_names)
            .into_iter()
            .flatten();
        let hosts = names
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        let expires = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
            .map_err(|_| content(&files.key, "has no private key in PEM"))?;
        let certified = CertifiedKey::from_der(chain, key, provider).map_err(|source| PairError::Mismatch {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            source,
        })?;
        Ok(Self {
            name: files.name.clone(),
            certified: Arc::new(certified),
            hosts,
            expires: UNIX_EPOCH + Duration::from_secs(expires),
        })
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, PairError> {
    let failed = |source| PairError::Read {
        path: path.to_owned(),
        source,
    };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > FILE_MAX {
        return Err(failed(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than any certificate",
        )));
    }
    fs::read(path).map_err(failed)
}
