//! Connects to a role. Over TLS, the other end must present a certificate of that role from the cluster's authority,
//! whatever its address. Without an authority, connections are plain.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tower::Service;

use crate::authority::fingerprint;
use crate::member::Member;
use crate::peer::server_name_of;
use crate::revoked::{RevocableStream, Revoked};
use rekindle_wire::interface::Role;

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Connects to a role. Accepts `http` and `https` addresses alike.
#[derive(Debug, Clone)]
pub struct Connector {
    https: HttpsConnector<HttpConnector>,
    revoked: Option<Arc<Revoked>>,
}

impl Connector {
    /// For servers that are not members.
    pub(crate) fn to_others(https: HttpsConnector<HttpConnector>) -> Self {
        Self { https, revoked: None }
    }
}

/// The stream that hyper uses: [`RevocableStream`] wraps a tokio stream.
type PeerStream = TokioIo<RevocableStream<TokioIo<Stream>>>;

impl Service<Uri> for Connector {
    type Response = PeerStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<PeerStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.https.call(to);
        let revoked = self.revoked.clone();
        Box::pin(async move {
            let stream = connecting.await?;
            let (Some(revoked), MaybeHttpsStream::Https(tls)) = (revoked, &stream) else {
                return Ok(TokioIo::new(RevocableStream::always(TokioIo::new(stream))));
            };
            let shown = tls.inner().get_ref().1.peer_certificates();
            let shown = shown.and_then(<[_]>::first).cloned();
            Ok(TokioIo::new(revoked.keep(TokioIo::new(stream), shown.as_ref())?))
        })
    }
}

impl Connection for RevocableStream<TokioIo<Stream>> {
    fn connected(&self) -> Connected {
        self.get_ref().connected()
    }
}

/// A connector to members of this role.
///
/// # Errors
/// If the member's certificate cannot be used.
pub fn connector(mut http: HttpConnector, member: Option<&Member>, to: Role) -> Result<Connector, rustls::Error> {
    http.enforce_http(false);
    let config = match member {
        Some(member) => config(
            Arc::clone(&member.provider),
            RoleVerifier::by_member(member, to)?,
            Some(member),
        )?,
        // Trusts no authority: for plain addresses only.
        None => {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13])?
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth()
        }
    };
    let builder = HttpsConnectorBuilder::new().with_tls_config(config);
    Ok(Connector {
        https: builder.https_or_http().enable_http1().wrap_connector(http),
        revoked: member.map(|m| Arc::clone(m.revoked())),
    })
}

/// A connector for a host that only has the authority's fingerprint yet.
pub(crate) fn joining(fingerprint: String) -> Result<Connector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let expected = RoleVerifier {
        trust: Trust::Fingerprint(fingerprint),
        provider: Arc::clone(&provider),
        role: Role::Scheduler,
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let builder = HttpsConnectorBuilder::new().with_tls_config(config(provider, expected, None)?);
    Ok(Connector::to_others(
        builder.https_only().enable_http1().wrap_connector(http),
    ))
}

fn config(
    provider: Arc<CryptoProvider>,
    expected: RoleVerifier,
    member: Option<&Member>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(expected));
    Ok(match member {
        Some(member) => builder.with_client_cert_resolver(member.shown.clone()),
        None => builder.with_no_client_auth(),
    })
}

/// The usual verification, but with the name of a role in the place of an address.
#[derive(Debug)]
struct RoleVerifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
    role: Role,
}

#[derive(Debug)]
enum Trust {
    /// Certificates of this authority that are not revoked.
    Roots(Arc<WebPkiServerVerifier>, Arc<Revoked>),
    /// Certificates of an authority that the other end presents, and that has this fingerprint.
    Fingerprint(String),
}

impl RoleVerifier {
    fn by_member(member: &Member, role: Role) -> Result<Self, rustls::Error> {
        let roots = verifier(Arc::clone(&member.roots), &member.provider)?;
        Ok(Self {
            trust: Trust::Roots(roots, Arc::clone(member.revoked())),
            provider: Arc::clone(&member.provider),
            role,
        })
    }
}

fn verifier(
    roots: Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
    let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider));
    builder.build().map_err(|e| rustls::Error::General(e.to_string()))
}

impl ServerCertVerifier for RoleVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |by: &WebPkiServerVerifier| {
            by.verify_server_cert(
                end_entity,
                intermediates,
                &server_name_of(self.role),
                ocsp_response,
                now,
            )
        };
        match &self.trust {
            Trust::Roots(roots, revoked) => {
                let verified = verify(roots)?;
                revoked.check(end_entity)?;
                Ok(verified)
            }
            Trust::Fingerprint(known) => {
                let authority = intermediates.iter().find(|c| fingerprint(c) == *known);
                let authority = authority
                    .ok_or_else(|| rustls::Error::General("it is of another cluster than the join token".to_owned()))?;
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone().into_owned())?;
                verify(&*verifier(Arc::new(roots), &self.provider)?)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
