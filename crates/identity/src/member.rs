//! A role's own key and certificate on its host, and the authority that it trusts. The certificate is replaced while
//! connections continue.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SignatureScheme};

use crate::authority::{Authority, AuthorityError, EARLIER};
use crate::files::{self, FileError};
use crate::peer::Peer;
use crate::revoked::Revoked;

/// Why a role's identity cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Its files cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The contents of its files cannot be used.
    #[error("{directory}: {what} cannot be used: remove the directory and join again")]
    Unusable {
        /// Its directory.
        directory: PathBuf,
        /// What cannot be used.
        what: &'static str,
    },
    /// The authority did not sign.
    #[error("the certificate cannot be made")]
    Sign(#[from] AuthorityError),
}

/// The certificate presented now. It is replaced on each renewal.
#[derive(Debug)]
pub(crate) struct CertificateResolver(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

impl ResolvesClientCert for CertificateResolver {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A role's identity.
#[derive(Debug)]
pub struct Member {
    directory: PathBuf,
    peer: Peer,
    pub(crate) shown: Arc<CertificateResolver>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) provider: Arc<CryptoProvider>,
    revoked: Arc<Revoked>,
}

impl Member {
    /// Opens the identity in a directory. `None` if the host has not joined.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(directory: &Path) -> Result<Option<Self>, MemberError> {
        let read = |name: &str| files::read(&directory.join(name));
        let (Some(key), Some(certificate), Some(authority)) =
            (read("member.key")?, read("member.crt")?, read("authority.crt")?)
        else {
            return Ok(None);
        };
        let unusable = |what| MemberError::Unusable {
            directory: directory.to_owned(),
            what,
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let authority = CertificateDer::from_pem_slice(authority.as_bytes()).map_err(|_| unusable("the authority"))?;
        let shown = certified(&key, &certificate, &authority, &provider).ok_or_else(|| unusable("the certificate"))?;
        let peer = shown.cert.first().and_then(Peer::of);
        let peer = peer.ok_or_else(|| unusable("the certificate"))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|_| unusable("the authority"))?;
        Ok(Some(Self {
            directory: directory.to_owned(),
            peer,
            shown: Arc::new(CertificateResolver(RwLock::new(Arc::new(shown)))),
            roots: Arc::new(roots),
            provider,
            revoked: Arc::default(),
        }))
    }

    /// Creates a key, and a certificate signing request for it: (key, request).
    pub(crate) fn request(directory: &Path) -> Result<(String, String), MemberError> {
        let unusable = |_| MemberError::Unusable {
            directory: directory.to_owned(),
            what: "a new key",
        };
        let key = KeyPair::generate().map_err(unusable)?;
        let request = CertificateParams::default().serialize_request(&key).map_err(unusable)?;
        Ok((key.serialize_pem(), request.pem().map_err(unusable)?))
    }

    /// Stores a signed certificate.
    pub(crate) fn keep(directory: &Path, key: &str, certificate: &str, authority: &str) -> Result<Self, MemberError> {
        files::make_directory(directory)?;
        files::write(&directory.join("member.key"), key)?;
        files::write(&directory.join("authority.crt"), authority)?;
        files::write(&directory.join("member.crt"), certificate)?;
        Self::open(directory)?.ok_or_else(|| MemberError::Unusable {
            directory: directory.to_owned(),
            what: "what was signed",
        })
    }

    /// The identity of the authority's own host. Its certificate is created at each start.
    ///
    /// # Errors
    /// If it cannot be created or stored.
    pub fn of_authority(
        authority: &Authority,
        directory: &Path,
        peer: &Peer,
        life: Duration,
    ) -> Result<Self, MemberError> {
        let (key, request) = Self::request(directory)?;
        let certificate = authority.sign(&request, peer, life)?;
        Self::keep(directory, &key, &certificate, authority.pem())
    }

    /// The revoked members that it knows of.
    pub fn revoked(&self) -> &Arc<Revoked> {
        &self.revoked
    }

    /// Its role and name.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Time until it should be renewed: two thirds of its life. Zero when that has passed.
    pub fn renew_in(&self) -> Duration {
        let shown = self.shown.0.read().clone();
        let Some((made, until)) = shown.cert.first().and_then(life) else {
            return Duration::ZERO;
        };
        let due = made + until.duration_since(made).unwrap_or_default() * 2 / 3;
        due.duration_since(SystemTime::now()).unwrap_or_default()
    }

    /// Presents a new certificate from now on, for a new key.
    ///
    /// # Errors
    /// If it cannot be used or stored.
    pub(crate) fn replace(&self, key: &str, certificate: &str) -> Result<(), MemberError> {
        let authority = files::read(&self.directory.join("authority.crt"))?.unwrap_or_default();
        let new = Self::keep(&self.directory, key, certificate, &authority)?;
        let shown = new.shown.0.read().clone();
        *self.shown.0.write() = shown;
        Ok(())
    }

    /// Renews the certificate on the authority's own host.
    ///
    /// # Errors
    /// If it cannot be created or stored.
    pub fn renew_by(&self, authority: &Authority, life: Duration) -> Result<(), MemberError> {
        let (key, request) = Self::request(&self.directory)?;
        let certificate = authority.sign(&request, &self.peer, life)?;
        self.replace(&key, &certificate)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// The start and end of a certificate's validity.
fn life(certificate: &CertificateDer<'static>) -> Option<(SystemTime, SystemTime)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let at = |unix_s: i64| Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).ok()?));
    let validity = parsed.validity();
    Some((
        at(validity.not_before.timestamp())? + EARLIER,
        at(validity.not_after.timestamp())?,
    ))
}

fn certified(
    key: &str,
    pem: &str,
    authority: &CertificateDer<'static>,
    provider: &CryptoProvider,
) -> Option<CertifiedKey> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    // Includes the authority's certificate, which a joining host recognises by its fingerprint.
    let chain = vec![certificate, authority.clone()];
    CertifiedKey::from_der(chain, key, provider).ok()
}
