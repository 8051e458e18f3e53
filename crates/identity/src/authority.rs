//! The cluster's certificate authority: created once, on the scheduler's host. It signs the certificates of all
//! members.

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

/// Validity of the authority itself.
const LIFE: Duration = Duration::from_secs(20 * 365 * 86_400);
/// Certificates are valid from this long before their creation, because clocks of hosts differ.
pub(crate) const EARLIER: Duration = Duration::from_secs(86_400);

/// Why an authority cannot be created, opened, or sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The directory already has an authority.
    #[error("{0}: there is an authority already: a new one would lock out every host that has joined")]
    Exists(PathBuf),
    /// Its files cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The contents of a file or of a request cannot be used.
    #[error("{what} cannot be used")]
    Crypto {
        /// What cannot be used.
        what: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// Its certificate cannot be parsed.
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
    /// Creates an authority in a directory, as `authority.key` and `authority.crt`.
    ///
    /// # Errors
    /// If there is one already, or the files cannot be written.
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
        // Each authority has its own name. So a foreign certificate is reported as that of an unknown issuer, not as
        // badly signed.
        params.distinguished_name = named(&format!("Rekindle cluster {:08x}", rand::random::<u32>()));
        let certificate = params.self_signed(&key).map_err(crypto("the new authority"))?;
        files::write(&certificate_file, &certificate.pem())?;
        files::write(&key_file, &key.serialize_pem())?;
        Self::open(directory)?.ok_or(AuthorityError::Certificate(certificate_file))
    }

    /// Opens the authority in a directory. `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
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

    /// Its certificate as PEM. A joining host keeps it, and trusts what it has signed.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The authority's fingerprint. A token has it, as the only way for a joining host to recognise the authority.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.certificate)
    }

    /// Tokens for joining hosts.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Signs the key of a request, for this peer and validity period. Everything else in the request is ignored.
    ///
    /// # Errors
    /// If the request is invalid, or was not signed with its key.
    pub fn sign(&self, request_pem: &str, peer: &Peer, life: Duration) -> Result<String, AuthorityError> {
        let mut request = CertificateSigningRequestParams::from_pem(request_pem).map_err(crypto("the request"))?;
        request.params = lasting(life);
        request.params.distinguished_name = named(&peer.to_string());
        request.params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Each role is both a client and a server.
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
