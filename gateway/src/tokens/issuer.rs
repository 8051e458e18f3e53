//! One issuer: where its keys are, and those that are known.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{DecodingKey, Header};
use parking_lot::RwLock;
use rekindle_wire::{ApiError, ErrorCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::metrics::Metrics;

/// Age of keys at which they are fetched again.
const FRESH_FOR: Duration = Duration::from_secs(300);
/// Age of keys at which they are not used any more, though none can be fetched.
const GOOD_FOR: Duration = Duration::from_secs(3_600);
/// Shortest time between two fetches: anybody can send tokens with keys that do not exist.
const FETCH_PAUSE: Duration = Duration::from_secs(10);
const FETCH_LIMIT: Duration = Duration::from_secs(5);
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Largest document of an issuer, in bytes.
const DOCUMENT_MAX: usize = 256 << 10;
/// Most keys of an issuer.
const KEYS_MAX: usize = 100;

/// An issuer of tokens that the operator trusts: `ISSUER`, whose OpenID configuration names its keys, or
/// `ISSUER=ADDRESS` of the keys (a JWK set, RFC 7517).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIssuer {
    /// The claim `iss` of its tokens.
    pub name: String,
    /// Where its keys are, if that is said.
    keys: Option<Uri>,
}

/// A text that names no issuer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is no issuer of tokens: write https://ID.EXAMPLE.COM, or https://ID.EXAMPLE.COM=ADDRESS-OF-ITS-KEYS")]
pub struct ParseTokenIssuerError;

impl FromStr for TokenIssuer {
    type Err = ParseTokenIssuerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, keys) = match text.split_once('=') {
            Some((name, keys)) => (name, Some(address(keys)?)),
            None => (text, None),
        };
        address(name)?;
        Ok(Self {
            name: name.to_owned(),
            keys,
        })
    }
}

fn address(text: &str) -> Result<Uri, ParseTokenIssuerError> {
    let uri: Uri = text.parse().map_err(|_| ParseTokenIssuerError)?;
    let is_whole = matches!(uri.scheme_str(), Some("https" | "http")) && uri.host().is_some_and(|h| !h.is_empty());
    is_whole.then_some(uri).ok_or(ParseTokenIssuerError)
}

/// A client for issuers. It follows no redirects, and uses no proxy.
pub(super) type IssuerClient = Client<HttpsConnector<HttpConnector>, Body>;

/// Makes such a client.
pub(super) fn outside() -> IssuerClient {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(CONNECT_LIMIT));
    let tls = match hyper_rustls::HttpsConnectorBuilder::new().with_native_roots() {
        Ok(tls) => tls,
        Err(error) => {
            tracing::warn!(%error, "no certificate authorities are known here: no keys of https issuers are fetched");
            hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(
                rustls::ClientConfig::builder()
                    .with_root_certificates(rustls::RootCertStore::empty())
                    .with_no_client_auth(),
            )
        }
    };
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_timer(TokioTimer::new())
        .build(tls.https_or_http().enable_http1().wrap_connector(http))
}

#[derive(Default)]
struct Keys {
    by_id: HashMap<String, DecodingKey>,
    fetched: Option<Instant>,
}

impl Keys {
    fn find(&self, header: &Header) -> Option<DecodingKey> {
        let found = match &header.kid {
            Some(id) => self.by_id.get(id),
            // Tokens of an issuer with one key need not name it.
            None => self.by_id.values().next().filter(|_| self.by_id.len() == 1),
        };
        found.cloned()
    }

    fn is_older_than(&self, age: Duration) -> bool {
        self.fetched.is_none_or(|fetched| fetched.elapsed() >= age)
    }
}

pub(super) struct Issuer {
    settings: TokenIssuer,
    metrics: Arc<Metrics>,
    keys: RwLock<Keys>,
    /// Held while its keys are fetched; when that was tried last.
    tried: Mutex<Option<Instant>>,
}

impl Issuer {
    pub(super) fn new(settings: TokenIssuer, metrics: Arc<Metrics>) -> Self {
        Self {
            settings,
            metrics,
            keys: RwLock::default(),
            tried: Mutex::default(),
        }
    }

    /// The key that a token with this header is signed with.
    ///
    /// # Errors
    /// `unauthorized` if the issuer has no such key, `unavailable` if its keys cannot be fetched.
    pub(super) async fn key(
        self: &Arc<Self>,
        header: &Header,
        outside: &IssuerClient,
    ) -> Result<DecodingKey, ApiError> {
        let known = || {
            let keys = self.keys.read();
            keys.find(header).filter(|_| !keys.is_older_than(GOOD_FOR))
        };
        if let Some(key) = known() {
            if self.is_stale() && self.tried.try_lock().is_ok() {
                let (issuer, outside) = (self.clone(), outside.clone());
                // Who shows a token that can be checked does not wait for that.
                tokio::spawn(async move { issuer.fetch_in_turn(&outside, || !issuer.is_stale()).await });
            }
            return Ok(key);
        }
        let fetched = self.fetch_in_turn(outside, || known().is_some()).await;
        match (known(), fetched) {
            (Some(key), _) => Ok(key),
            (None, Ok(())) => Err(super::refused(&format!("{} has no such key", self.settings.name))),
            // Why is in the log: its address is the operator's.
            (None, Err(_)) => Err(ApiError::new(
                ErrorCode::Unavailable,
                format!(
                    "the keys of {} cannot be fetched: try again; the gateway's log says why",
                    self.settings.name
                ),
            )),
        }
    }

    #[cfg(test)]
    pub(super) async fn forget_try(&self) {
        *self.tried.lock().await = None;
    }

    fn is_stale(&self) -> bool {
        self.keys.read().is_older_than(FRESH_FOR)
    }

    /// Fetches the keys, unless that was done or tried a moment ago.
    async fn fetch_in_turn(&self, outside: &IssuerClient, is_known: impl Fn() -> bool) -> Result<(), String> {
        let mut tried = self.tried.lock().await;
        if is_known() {
            return Ok(());
        }
        if tried.is_some_and(|tried| tried.elapsed() < FETCH_PAUSE) {
            return match self.keys.read().is_older_than(GOOD_FOR) {
                true => Err("they could not be fetched a moment ago".to_owned()),
                false => Ok(()),
            };
        }
        *tried = Some(Instant::now());
        let fetched = match tokio::time::timeout(FETCH_LIMIT, self.fetch(outside)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(format!("no answer within {}s", FETCH_LIMIT.as_secs())),
        };
        self.metrics.issuer_keys_fetched(fetched.is_ok());
        let keys = fetched.inspect_err(|error| {
            tracing::warn!(
                issuer = self.settings.name,
                error,
                "the keys of an issuer of tokens cannot be fetched"
            );
        })?;
        *self.keys.write() = keys;
        Ok(())
    }

    async fn fetch(&self, outside: &IssuerClient) -> Result<Keys, String> {
        #[derive(Deserialize)]
        struct Configuration {
            jwks_uri: String,
        }
        let address = match &self.settings.keys {
            Some(address) => address.clone(),
            None => {
                let at = format!(
                    "{}/.well-known/openid-configuration",
                    self.settings.name.trim_end_matches('/')
                );
                let configuration: Configuration = parsed(&document(outside, at.parse().map_err(text)?).await?)?;
                address(&configuration.jwks_uri).map_err(|_| format!("its jwks_uri is {}", configuration.jwks_uri))?
            }
        };
        let set: JwkSet = parsed(&document(outside, address).await?)?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!(
                "it has {} keys, of which {KEYS_MAX} are taken at most",
                set.keys.len()
            ));
        }
        let signs = |key: &&Jwk| !matches!(key.common.public_key_use, Some(PublicKeyUse::Encryption));
        // Keys of kinds that are not known here fit no token.
        let usable = set.keys.iter().filter(signs).filter_map(|key| {
            let id = key.common.key_id.clone().unwrap_or_default();
            Some((id, DecodingKey::from_jwk(key).ok()?))
        });
        let by_id: HashMap<_, _> = usable.collect();
        if by_id.is_empty() {
            return Err("it has no key that tokens can be checked with".to_owned());
        }
        Ok(Keys {
            by_id,
            fetched: Some(Instant::now()),
        })
    }
}

async fn document(outside: &IssuerClient, address: Uri) -> Result<Bytes, String> {
    let mut request = Request::new(Body::empty());
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static("rekindle"));
    let shown = address.to_string();
    *request.uri_mut() = address;
    let answer = outside.request(request).await.map_err(|e| {
        let cause = std::error::Error::source(&e).map(|source| format!(": {source}"));
        format!("{shown}: {e}{}", cause.unwrap_or_default())
    })?;
    if answer.status() != StatusCode::OK {
        return Err(format!("{shown} answers {}", answer.status()));
    }
    let whole = Limited::new(answer.into_body(), DOCUMENT_MAX).collect().await;
    whole.map(|body| body.to_bytes()).map_err(|e| format!("{shown}: {e}"))
}

fn parsed<T: for<'a> Deserialize<'a>>(document: &[u8]) -> Result<T, String> {
    serde_json::from_slice(document).map_err(|e| format!("what it answers cannot be read: {e}"))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
