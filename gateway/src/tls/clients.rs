//! Certificates of clients, from authorities that the operator names.
//!
//! A handshake takes any certificate whose key the client holds. Whether it is valid is judged for each request. So a
//! client is told what is wrong with its certificate, and functions that ask for nothing answer anyway. A certificate
//! that has expired since the handshake counts no longer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rekindle_wire::access::CertificateName;
use rekindle_wire::{ApiError, ErrorCode};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::files::{Stamp, stamp};
use super::pair::{self, PairError};

/// Maximum number of certificates that a client shows, its own included.
const CHAIN_MAX: usize = 8;
/// Maximum number of names of a certificate that count.
const NAMES_MAX: usize = 32;

/// The authorities whose certificates clients may show.
#[derive(Debug)]
pub(crate) struct ClientAuthorities {
    file: PathBuf,
    provider: Arc<CryptoProvider>,
    current: RwLock<CurrentAuthorities>,
    seen: Mutex<Stamp>,
}

#[derive(Debug, Clone)]
struct CurrentAuthorities {
    verifier: Arc<dyn ClientCertVerifier>,
    /// How often they were read.
    generation: u64,
}

/// A certificate that a client showed in its handshake, whose key it holds.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    names: Vec<CertificateName>,
    expires_unix_s: i64,
    authorities: Arc<ClientAuthorities>,
    /// When a certificate that it came with begins or ends to be valid, in seconds since the Unix epoch.
    changes_unix_s: Vec<i64>,
    judged: Mutex<Option<CertificateVerdict>>,
}

/// Whether authorities have issued a certificate.
#[derive(Debug)]
struct CertificateVerdict {
    /// Which authorities.
    generation: u64,
    /// Until when that holds, in seconds since the Unix epoch.
    until_unix_s: i64,
    verdict: Result<(), String>,
}

impl ClientAuthorities {
    /// Reads the authorities.
    pub(super) fn open(file: PathBuf, provider: &Arc<CryptoProvider>) -> Result<Arc<Self>, PairError> {
        let seen = stamp(&file);
        let verifier = verifier(&file, provider)?;
        Ok(Arc::new(Self {
            file,
            provider: provider.clone(),
            current: RwLock::new(CurrentAuthorities {
                verifier,
                generation: 0,
            }),
            seen: Mutex::new(seen),
        }))
    }

    /// Reads them anew if the file has changed. Returns whether others are in force. Blocks.
    ///
    /// # Errors
    /// If they cannot be used: those of before stay.
    pub(super) fn look(&self) -> Result<bool, PairError> {
        let mut seen = self.seen.lock();
        let now = stamp(&self.file);
        if *seen == now {
            return Ok(false);
        }
        *seen = now;
        let verifier = verifier(&self.file, &self.provider)?;
        let mut current = self.current.write();
        let generation = current.generation + 1;
        *current = CurrentAuthorities { verifier, generation };
        Ok(true)
    }

    /// What handshakes ask clients with.
    pub(super) fn asking(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(OptionalClientVerifier(self.current.read().verifier.clone()))
    }

    /// The file, for messages.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The certificate of a client's handshake. `None` if it showed none.
    pub(crate) fn shown(self: &Arc<Self>, chain: Option<&[CertificateDer<'_>]>) -> Option<Arc<ClientCertificate>> {
        let chain = chain.filter(|chain| !chain.is_empty())?;
        let (names, expires_unix_s) = named(&chain[0]);
        let chain: Vec<_> = chain
            .iter()
            .take(CHAIN_MAX)
            .cloned()
            .map(CertificateDer::into_owned)
            .collect();
        Some(Arc::new(ClientCertificate {
            changes_unix_s: chain.iter().flat_map(validity).collect(),
            chain,
            names,
            expires_unix_s,
            authorities: self.clone(),
            judged: Mutex::default(),
        }))
    }
}

impl ClientCertificate {
    /// The names in the certificate, and when it expires, in seconds since the Unix epoch.
    ///
    /// # Errors
    /// `unauthorized` if it is not valid, with the reason.
    pub(crate) fn names(&self) -> Result<(&[CertificateName], i64), ApiError> {
        let CurrentAuthorities { verifier, generation } = self.authorities.current.read().clone();
        self.names_at(&*verifier, generation, UnixTime::now())
    }

    fn names_at(
        &self,
        verifier: &dyn ClientCertVerifier,
        generation: u64,
        now: UnixTime,
    ) -> Result<(&[CertificateName], i64), ApiError> {
        let now_unix_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let mut judged = self.judged.lock();
        let holds = |known: &CertificateVerdict| known.generation == generation && now_unix_s < known.until_unix_s;
        if !judged.as_ref().is_some_and(holds) {
            let verified = verifier.verify_client_cert(&self.chain[0], &self.chain[1..], now);
            let later = self.changes_unix_s.iter().filter(|at| **at > now_unix_s);
            *judged = Some(CertificateVerdict {
                generation,
                until_unix_s: later.min().copied().unwrap_or(i64::MAX),
                verdict: verified.map(drop).map_err(|error| reason(&error)),
            });
        }
        let has_ended = now_unix_s >= self.expires_unix_s;
        match &*judged {
            Some(CertificateVerdict { verdict: Err(why), .. }) => Err(refused(why)),
            _ if has_ended => Err(refused("it has expired")),
            _ => Ok((&self.names, self.expires_unix_s)),
        }
    }
}

fn refused(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Unauthorized,
        format!("the client's certificate is not taken: {why}"),
    )
}

fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired".to_owned(),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "it is not valid yet".to_owned()
            }
            CertificateError::UnknownIssuer => {
                "it is of no authority that the gateway trusts for clients (--client-ca)".to_owned()
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "it is not for clients: its extended key usage needs clientAuth".to_owned()
            }
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

/// The names in a certificate, and when it expires. One that cannot be read has no name, and has expired.
fn named(certificate: &CertificateDer<'_>) -> (Vec<CertificateName>, i64) {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return (Vec::new(), 0);
    };
    (names_of(&parsed), parsed.validity().not_after.timestamp())
}

/// When a certificate begins and ends to be valid, in seconds since the Unix epoch.
fn validity(certificate: &CertificateDer<'_>) -> Vec<i64> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let validity = parsed.validity();
    // A certificate is valid in the second of its end.
    vec![
        validity.not_before.timestamp(),
        validity.not_after.timestamp().saturating_add(1),
    ]
}

fn names_of(certificate: &X509Certificate<'_>) -> Vec<CertificateName> {
    let mut names = Vec::new();
    let alternative = certificate.subject_alternative_name().ok().flatten();
    for name in alternative.iter().flat_map(|found| &found.value.general_names) {
        names.extend(match name {
            GeneralName::URI(uri) => CertificateName::uri(uri).ok(),
            GeneralName::DNSName(name) => CertificateName::dns(name).ok(),
            _ => None,
        });
    }
    let mut common = certificate.subject().iter_common_name();
    // Of several common names none is the subject's.
    if let (Some(only), None) = (common.next(), common.next()) {
        let text = only.as_str().ok();
        names.extend(text.and_then(|text| CertificateName::common(text).ok()));
    }
    names.truncate(NAMES_MAX);
    names
}

fn verifier(file: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, PairError> {
    let content = |what| PairError::Content {
        path: file.to_owned(),
        what,
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pair::read(file)?) {
        let certificate = certificate.map_err(|_| content("is no PEM file of certificates"))?;
        let added = roots.add(certificate);
        added.map_err(|_| content("has a certificate that is no authority's"))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let built = builder.build();
    built.map_err(|_| content("has no certificate of an authority"))
}

/// Asks clients for a certificate, and has those that show one prove that they hold its key.
#[derive(Debug)]
struct OptionalClientVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for OptionalClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        // Each request judges it.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
        date_time_ymd,
    };

    use super::*;

    /// An authority, and its certificate (PEM).
    fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        (Issuer::new(params, key), pem)
    }

    fn issued(by: &Issuer<'static, KeyPair>, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["CI.example.org".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ci");
        let uri = |text: &str| SanType::URI(text.try_into().unwrap());
        params.subject_alt_names.push(uri("spiffe://example.org/ci"));
        params.subject_alt_names.push(uri("CN=root://x"));
        change(&mut params);
        params
            .signed_by(&KeyPair::generate().unwrap(), by)
            .unwrap()
            .der()
            .clone()
    }

    #[test]
    fn a_certificate_counts_if_an_authority_has_issued_it_for_clients_and_it_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        let ((own, pem), (other, other_pem)) = (authority("own"), authority("other"));
        std::fs::write(&file, &pem).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let authorities = ClientAuthorities::open(file.clone(), &provider).unwrap();
        let shown = |certificate: CertificateDer<'static>| authorities.shown(Some(&[certificate])).unwrap();
        assert!(authorities.shown(None).is_none() && authorities.shown(Some(&[])).is_none());
        let good = shown(issued(&own, |_| {}));
        let names: Vec<_> = good.names().unwrap().0.iter().map(CertificateName::as_str).collect();
        assert_eq!(names, ["DNS=ci.example.org", "spiffe://example.org/ci", "CN=ci"]);
        let ended = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
        let later = |params: &mut CertificateParams| params.not_before = date_time_ymd(4000, 1, 1);
        let server =
            |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for (certificate, why) in [
            (issued(&own, ended), "it has expired"),
            (issued(&own, later), "it is not valid yet"),
            (issued(&own, server), "clientAuth"),
            (issued(&other, |_| {}), "--client-ca"),
            (CertificateDer::from(b"nonsense".to_vec()), "not taken"),
        ] {
            let error = shown(certificate).names().unwrap_err();
            assert!(
                error.code == ErrorCode::Unauthorized && error.message.contains(why),
                "{why}: {error}"
            );
        }

        // Other authorities hold for connections that there are, and unusable ones change nothing.
        std::fs::write(&file, "nothing").unwrap();
        authorities.look().unwrap_err();
        good.names().unwrap();
        std::fs::write(&file, &other_pem).unwrap();
        assert!(authorities.look().unwrap() && !authorities.look().unwrap());
        assert!(good.names().unwrap_err().message.contains("--client-ca"));
        shown(issued(&other, |_| {})).names().unwrap();
        std::fs::write(&file, pem + &other_pem).unwrap();
        assert!(authorities.look().unwrap());
        good.names().unwrap();
    }
    #[test]
    fn an_intermediate_that_ends_takes_open_connections_along() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        let (root, pem) = authority("root");
        std::fs::write(&file, &pem).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let authorities = ClientAuthorities::open(file, &provider).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "between");
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2030, 1, 1));
        let between = params.signed_by(&key, &root).unwrap().der().clone();
        let leaf = issued(&Issuer::new(params, key), |params| {
            params.not_after = date_time_ymd(2040, 1, 1)
        });
        let shown = authorities.shown(Some(&[leaf, between])).unwrap();
        let verifier = authorities.current.read().verifier.clone();
        let at = |year: u64| {
            let since = std::time::Duration::from_secs((year - 1970) * 31_557_600 + 86_400);
            shown
                .names_at(&*verifier, 0, UnixTime::since_unix_epoch(since))
                .map(drop)
        };
        assert!(at(2019).unwrap_err().message.contains("not valid yet"));
        at(2025).unwrap();
        at(2029).unwrap();
        assert!(at(2031).unwrap_err().message.contains("has expired"));
    }
}
