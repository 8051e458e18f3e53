//! Members whose certificates are no longer trusted, whatever their validity. The scheduler keeps the list. Every role
//! follows it, and applies it to inbound, outbound and existing connections. Revocation is by role and name, not by
//! serial number. So it applies to all of the member's certificates, including those renewed meanwhile.

use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::peer::Peer;

/// The list of revoked members, as the scheduler sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations {
    /// Number of revoked members. A revocation is never undone.
    pub revision: u64,
    /// All revoked members.
    pub members: Vec<Peer>,
}

/// A role's view of the list.
#[derive(Debug, Default)]
pub struct Revoked {
    known: RwLock<RevokedMembers>,
    news: Notify,
}

#[derive(Debug, Default)]
struct RevokedMembers {
    members: HashSet<Peer>,
    /// Tokens that end the connections of members connected here.
    connected: HashMap<Peer, CancellationToken>,
}

impl Revoked {
    /// Number of known revocations.
    pub fn revision(&self) -> u64 {
        self.known.read().members.len() as u64
    }

    /// Whether this peer is revoked.
    pub fn has(&self, peer: &Peer) -> bool {
        self.known.read().members.contains(peer)
    }

    /// Adds revoked members and ends their connections.
    pub fn add(&self, members: impl IntoIterator<Item = Peer>) {
        let mut known = self.known.write();
        for peer in members {
            if let Some(connections) = known.connected.remove(&peer) {
                connections.cancel();
            }
            if known.members.insert(peer.clone()) {
                self.news.notify_one();
                tracing::warn!(member = %peer, "a member of the cluster is revoked");
            }
        }
    }

    /// Waits until more members are revoked. For owners of connections that are only read when they are used again.
    /// Only one task may wait.
    pub async fn changed(&self) {
        self.news.notified().await;
    }

    /// Rejects a verified certificate whose holder is revoked.
    pub(crate) fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match Peer::of(certificate) {
            Some(peer) if self.has(&peer) => Err(CertificateError::Revoked.into()),
            _ => Ok(()),
        }
    }

    /// Wraps a connection whose other end has presented this certificate. It ends when the holder is revoked. Resumed
    /// sessions skip the verification, so the holder is checked again here.
    pub(crate) fn keep<S>(
        &self,
        stream: S,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Result<RevocableStream<S>, rustls::Error> {
        let Some(peer) = certificate.and_then(Peer::of) else {
            return Ok(RevocableStream { stream, revoked: None });
        };
        let mut known = self.known.write();
        if known.members.contains(&peer) {
            return Err(CertificateError::Revoked.into());
        }
        let revoked = known.connected.entry(peer).or_default().clone();
        Ok(RevocableStream {
            stream,
            revoked: Some(Box::pin(revoked.cancelled_owned())),
        })
    }
}

/// A connection that ends when the member at its other end is revoked.
#[derive(Debug)]
pub struct RevocableStream<S> {
    stream: S,
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl<S> RevocableStream<S> {
    /// A connection that no revocation ends.
    pub(crate) fn always(stream: S) -> Self {
        Self { stream, revoked: None }
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Fails once the other end is revoked.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.revoked.as_mut().map(|revoked| revoked.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the certificate of the other end was revoked",
            )),
            _ => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RevocableStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RevocableStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The usual verification of clients, plus a check that they are not revoked.
#[derive(Debug)]
pub(crate) struct NotRevoked {
    pub(crate) usual: Arc<dyn ClientCertVerifier>,
    pub(crate) revoked: Arc<Revoked>,
}

impl ClientCertVerifier for NotRevoked {
    fn offer_client_auth(&self) -> bool {
        self.usual.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.usual.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.usual.verify_client_cert(end_entity, intermediates, now)?;
        self.revoked.check(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
