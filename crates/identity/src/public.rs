//! Connects to a gateway as its clients do. The gateway presents a certificate for its host's name, from an authority
//! that this machine trusts, or from a specified one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{ConfigBuilderExt as _, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::connect::Connector;
use crate::files::{self, FileError};

/// Why TLS connections are not possible from here.
#[derive(Debug, thiserror::Error)]
pub enum PublicError {
    /// The authority's file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has no usable certificate.
    #[error("{0}: holds no certificate of an authority: a PEM file is expected")]
    NoAuthority(PathBuf),
    /// A certificate to show, or its key, cannot be used.
    #[error("{certificate} and {key}: are no certificate with its key (PEM)")]
    NoPair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// This machine has no trusted authorities.
    #[error("this machine has no trusted certificate authorities: install ca-certificates, or name one with --ca")]
    NoRoots(#[source] std::io::Error),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
}

/// A connector that trusts this machine's authorities, or only those in the file `ca`. It shows the certificate of
/// `own`, with its key, to servers that ask for one.
///
/// # Errors
/// If there are none.
pub(crate) fn connector(
    ca: Option<&Path>,
    own: Option<(&Path, &Path)>,
    connect_limit: Duration,
) -> Result<Connector, PublicError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = match ca {
        None => builder.with_native_roots().map_err(PublicError::NoRoots)?,
        Some(path) => builder.with_root_certificates(roots(path)?),
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(connect_limit));
    let config = match own {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let (chain, secret) = pair(certificate, key)?;
            config.with_client_auth_cert(chain, secret)?
        }
    };
    let builder = HttpsConnectorBuilder::new().with_tls_config(config);
    Ok(Connector::to_others(
        builder.https_only().enable_http1().wrap_connector(http),
    ))
}

fn pair(certificate: &Path, key: &Path) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PublicError> {
    let none = || PublicError::NoPair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    };
    let text = files::read(certificate)?.ok_or_else(none)?;
    let chain = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
    let text = files::read(key)?.ok_or_else(none)?;
    let secret = PrivateKeyDer::from_pem_slice(text.as_bytes());
    match (chain, secret) {
        (Ok(chain), Ok(secret)) if !chain.is_empty() => Ok((chain, secret)),
        _ => Err(none()),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, PublicError> {
    let none = || PublicError::NoAuthority(path.to_owned());
    let text = files::read(path)?.ok_or_else(none)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        roots.add(certificate.map_err(|_| none())?)?;
    }
    match roots.is_empty() {
        true => Err(none()),
        false => Ok(roots),
    }
}
