//! Joining and renewal on a host: it creates a key, and asks the scheduler to sign it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use rekindle_wire::ApiError;
use rekindle_wire::headers::CLUSTER_TOKEN;
use rekindle_wire::interface::Endpoint;
use serde::{Deserialize, Serialize};

use crate::connect;
use crate::member::{Member, MemberError};
use crate::peer::Peer;
use crate::revoked::Revocations;
use crate::token::Token;
use crate::transport::{self, CallError, Transport};
use rekindle_wire::interface::Role;

const LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed renewal.
const RETRY: Duration = Duration::from_secs(5);
/// How long a request for revocations may wait for news, and the pause before the scheduler is asked again after a
/// failure.
const TOLD_AFTER: Duration = Duration::from_secs(20);
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Minimum interval of renewals, however short the validity of certificates.
const SHORTEST: Duration = Duration::from_millis(200);

/// A host's request to become a member.
#[derive(Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The join token.
    pub token: String,
    /// The requested role.
    pub role: Role,
    /// Its name within the role.
    pub name: String,
    /// The certificate signing request, PEM.
    pub request: String,
}

/// A member's request for a new certificate.
#[derive(Debug, Serialize, Deserialize)]
pub struct RenewRequest {
    /// The certificate signing request, PEM.
    pub request: String,
}

/// The response to either request.
#[derive(Debug, Serialize, Deserialize)]
pub struct JoinResponse {
    /// The certificate, PEM.
    pub certificate: String,
    /// The authority's certificate, PEM.
    pub authority: String,
    /// The secret that every call carries.
    pub cluster_token: String,
}

rekindle_wire::endpoints! {
    /// How hosts become members of a cluster and stay it. The scheduler serves these.
    MEMBERSHIP:

    /// Makes a host a member. It has a token, and no certificate yet.
    [] POST "/join" Join {} (JoinRequest) => OK JoinResponse;

    /// Renews a member's certificate.
    [Worker Gateway] POST "/internal/renew" RenewCertificate {} (RenewRequest) => OK JoinResponse;

    /// Waits until more members are revoked than the caller knows.
    [Worker Gateway] GET "/internal/revocations" AwaitRevocations {
        /// Number of revoked members that the caller knows.
        revision: u64;
        /// For how long, in milliseconds. By default not at all.
        wait_ms: u64
    } () => OK Revocations;
}

/// Why a host could not join, or a member's certificate could not be renewed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Its files cannot be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    /// The scheduler is unreachable, or does not belong to the token's cluster.
    #[error("{url}: the scheduler cannot be reached over TLS, or is not of the join token's cluster")]
    Call {
        /// The scheduler's URL.
        url: String,
        /// The cause.
        #[source]
        source: CallError,
    },
    /// The scheduler refused.
    #[error("the scheduler refuses: {0}")]
    Refused(String),
}

/// Joins the token's cluster as this peer, and stores the result in `directory`. Also returns the secret that every
/// call carries. `addresses` has the `host:port` of one scheduler, or of several separated by commas, of which one is
/// the leader.
///
/// # Errors
/// If no scheduler is reachable, belongs to this cluster and accepts the token. The error is that of the last one.
pub async fn join(
    addresses: &str,
    token: &Token,
    peer: &Peer,
    directory: &Path,
) -> Result<(Member, String), JoinError> {
    let mut last = None;
    for address in addresses.split(',') {
        match join_at(address.trim(), token, peer, directory).await {
            Ok(joined) => return Ok(joined),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| JoinError::Refused("no scheduler is named".to_owned())))
}

async fn join_at(address: &str, token: &Token, peer: &Peer, directory: &Path) -> Result<(Member, String), JoinError> {
    let url = format!("https://{address}{}", Join {}.uri());
    let (key, request) = Member::request(directory)?;
    let asked = JoinRequest {
        token: token.to_string(),
        role: peer.role,
        name: peer.name.clone(),
        request,
    };
    let client = transport::client(connect::joining(token.fingerprint.clone())?);
    let call = async {
        let request = http::Request::builder()
            .method(Join::OPERATION.method)
            .uri(&url)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(reqwest::Body::from(Join::encode(&asked)))
            .map_err(CallError::Request)?;
        let (head, body) = client.request(request).await.map_err(CallError::Guarded)?.into_parts();
        let body = body.collect().await.map_err(|e| CallError::Body(e.into()))?.to_bytes();
        Ok((head.status, body))
    };
    let called = tokio::time::timeout(LIMIT, call).await;
    let (status, body) = called
        .unwrap_or(Err(CallError::TimedOut(LIMIT)))
        .map_err(|source| JoinError::Call { url, source })?;
    let answer = read::<Join>(status.is_success(), &body)?;
    let member = Member::keep(directory, &key, &answer.certificate, &answer.authority)?;
    Ok((member, answer.cluster_token))
}

fn read<E: Endpoint>(is_success: bool, body: &[u8]) -> Result<E::Answer, JoinError> {
    let refused = || match serde_json::from_slice::<ApiError>(body) {
        Ok(error) => JoinError::Refused(error.message),
        Err(_) => JoinError::Refused(String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned()),
    };
    match is_success {
        true => E::decode(body).map_err(|_| refused()),
        false => Err(refused()),
    }
}

/// Sends a member's call to the scheduler at this address, and parses the response.
async fn exchange<E: Endpoint>(
    transport: &Transport,
    address: &str,
    call: reqwest::RequestBuilder,
) -> Result<E::Answer, JoinError> {
    let unreachable = |source| JoinError::Call {
        url: format!("https://{address}{}", E::OPERATION.path),
        source,
    };
    let answer = transport.send(call).await.map_err(unreachable)?;
    let is_success = answer.status().is_success();
    let body = answer.bytes().await.map_err(|e| unreachable(e.into()))?;
    read::<E>(is_success, &body)
}

impl Member {
    /// Renews the certificate whenever two thirds of its life have passed, and follows the revocations. Talks to the
    /// scheduler at `addresses`, or to the leader among several separated by commas. Runs until dropped. A failed
    /// renewal is retried while the certificate is valid.
    pub async fn keep_current(self: Arc<Self>, addresses: String, transport: Transport, cluster_token: String) {
        tokio::join!(
            self.keep_renewed(&addresses, &transport, &cluster_token),
            self.keep_told(&addresses, &transport, &cluster_token)
        );
    }

    async fn keep_told(&self, addresses: &str, transport: &Transport, cluster_token: &str) {
        loop {
            let mut told = Err(JoinError::Refused("no scheduler is named".to_owned()));
            for address in addresses.split(',').map(str::trim) {
                told = self.ask_revoked(address, transport, cluster_token).await;
                if told.is_ok() {
                    break;
                }
            }
            match told {
                Ok(revocations) => self.revoked().add(revocations.members),
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "who is revoked cannot be heard"
                    );
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// Waits for news, for a limited time.
    async fn ask_revoked(&self, address: &str, transport: &Transport, token: &str) -> Result<Revocations, JoinError> {
        let news = AwaitRevocations {
            revision: self.revoked().revision(),
            wait_ms: u64::try_from(TOLD_AFTER.as_millis()).ok(),
        };
        let call = transport.call(address, &news, &()).header(CLUSTER_TOKEN, token);
        exchange::<AwaitRevocations>(transport, address, call.timeout(TOLD_AFTER + LIMIT)).await
    }

    async fn keep_renewed(&self, addresses: &str, transport: &Transport, cluster_token: &str) {
        loop {
            tokio::time::sleep(self.renew_in().max(SHORTEST)).await;
            let mut is_renewed = false;
            for address in addresses.split(',').map(str::trim) {
                let renewed = self.renew(address, transport, cluster_token).await;
                is_renewed = self.tell(&renewed);
                if is_renewed {
                    break;
                }
            }
            if !is_renewed {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    fn tell(&self, renewed: &Result<(), JoinError>) -> bool {
        match renewed {
            Ok(()) => tracing::info!(member = %self.peer(), "the certificate was renewed"),
            Err(error) => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(member = %self.peer(), error, "the certificate could not be renewed");
            }
        }
        renewed.is_ok()
    }

    async fn renew(&self, address: &str, transport: &Transport, cluster_token: &str) -> Result<(), JoinError> {
        let (key, request) = Self::request(self.directory())?;
        let call = transport.call(address, &RenewCertificate {}, &RenewRequest { request });
        let call = call.header(CLUSTER_TOKEN, cluster_token);
        let answer = exchange::<RenewCertificate>(transport, address, call.timeout(LIMIT)).await?;
        Ok(self.replace(&key, &answer.certificate)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Reads what was recorded, and checks that it is written again.
    fn again<T: Serialize + serde::de::DeserializeOwned>(recorded: Value) {
        let read: T = serde_json::from_value(recorded.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), recorded);
    }

    #[test]
    fn members_of_earlier_builds_understand_what_this_one_writes() {
        again::<JoinRequest>(json!({"token": "rkj_1", "role": "worker", "name": "w-1", "request": "PEM"}));
        again::<RenewRequest>(json!({"request": "PEM"}));
        again::<JoinResponse>(json!({"certificate": "PEM", "authority": "PEM", "cluster_token": "c"}));
        again::<Revocations>(json!({"revision": 1, "members": [{"role": "gateway", "name": "g-1"}]}));
    }
}
