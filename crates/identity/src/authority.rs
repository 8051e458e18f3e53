//! The cluster's certificate authority: made once, on the scheduler's host, which signs for everybody who joins.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::files::{self, FileError};
use crate::peer::Peer;
use crate::token::Tokens;

/// How long the authority itself is good for.
const LIFE: Duration = Duration::from_secs(20 * 365 * 86_400);
/// Certificates begin to be good this long before they are made: clocks of hosts differ.
pub(crate) const EARLIER: Duration = Duration::from_secs(86_400);

/// Why an authority cannot be made, opened, or sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// There is one already.
    #[error("{0}: there is an authority already: a new one would lock every host out that has joined")]
    Exists(PathBuf),
    /// Its files cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// What is in them, or in a request, cannot be used.
    #[error("{what} cannot be used")]
    Crypto {
        /// What.
        what: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// Its certificate cannot be read.
    #[error("{0}: holds no certificate: restore it from a copy")]
    Certificate(PathBuf),
}

fn crypto(what: &'static str) -> impl FnOnce(rcgen::Error) -> AuthorityError {
    move |source| AuthorityError::Crypto { what, source }
}

/// The authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    tokens: Tokens,
}

impl Authority {
    /// Makes one in a directory, `authority.key` and `authority.crt`.
    ///
    /// # Errors
    /// When there is one, or the files cannot be written.
    pub fn init(directory: &Path) -> Result<Self, AuthorityError> {
        let (key_file, certificate_file) = files_in(directory);
        if key_file.exists() || certificate_file.exists() {
            return Err(AuthorityError::Exists(directory.to_owned()));
        }
        files::make_directory(directory)?;
        let key = KeyPair::generate().map_err(crypto("a new key"))?;
        let mut params = lasting(LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Each its own name: a certificate of another's is seen to be of an unknown issuer, not badly signed.
        params.distinguished_name = named(&format!("Rekindle cluster {:08x}", rand::random::<u32>()));
        let certificate = params.self_signed(&key).map_err(crypto("the new authority"))?;
        files::write(&certificate_file, &certificate.pem())?;
        files::write(&key_file, &key.serialize_pem())?;
        Self::open(directory)?.ok_or(AuthorityError::Certificate(certificate_file))
    }

    /// Opens the one in a directory; `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(directory: &Path) -> Result<Option<Self>, AuthorityError> {
        let (key_file, certificate_file) = files_in(directory);
        let Some(key) = files::read(&key_file)? else {
            return Ok(None);
        };
        let pem = files::read(&certificate_file)?;
        let pem = pem.ok_or_else(|| AuthorityError::Certificate(certificate_file.clone()))?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| AuthorityError::Certificate(certificate_file))?;
        let key = KeyPair::from_pem(&key).map_err(crypto("the authority's key"))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(crypto("the authority's certificate"))?;
        Ok(Some(Self {
            issuer,
            certificate,
            pem,
            tokens: Tokens::new(directory.join("tokens")),
        }))
    }

    /// Its certificate, as text: who joins keeps it, and believes what it signed.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// What a token says of it, so that who joins knows it by nothing else.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.certificate)
    }

    /// The tokens with which hosts join.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Signs the key of a request, for this peer and so long. Whatever else the request asks for is ignored.
    ///
    /// # Errors
    /// When the request is none, or was not made with its key.
    pub fn sign(&self, request_pem: &str, peer: &Peer, life: Duration) -> Result<String, AuthorityError> {
        let mut request = CertificateSigningRequestParams::from_pem(request_pem).map_err(crypto("the request"))?;
        request.params = lasting(life);
        request.params.distinguished_name = named(&peer.to_string());
        request.params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Each role connects to others and is connected to.
        request.params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let names = CertificateParams::new(peer.names()).map_err(crypto("the name"))?;
        request.params.subject_alt_names = names.subject_alt_names;
        let certificate = request.signed_by(&self.issuer).map_err(crypto("the certificate"))?;
        Ok(certificate.pem())
    }
}

fn files_in(directory: &Path) -> (PathBuf, PathBuf) {
    (directory.join("authority.key"), directory.join("authority.crt"))
}

/// The digest of a certificate.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    blake3::hash(certificate).to_hex().to_string()
}

fn lasting(life: Duration) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.not_before = (now - EARLIER).into();
    params.not_after = (now + life).into();
    params.use_authority_key_identifier_extension = true;
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}
