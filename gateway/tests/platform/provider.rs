//! An identity provider: an issuer of tokens that publishes its keys as OpenID Connect has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A provider that serves until the test ends.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) address: String,
    pub(crate) published: Arc<Mutex<Vec<Jwk>>>,
    fetches: Arc<AtomicUsize>,
}

pub(crate) struct Key {
    id: &'static str,
    secret: EncodingKey,
}

impl Key {
    pub(crate) fn new(id: &'static str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self {
            id,
            secret: EncodingKey::from_ec_der(&pair.serialize_der()),
        }
    }

    pub(crate) fn public(&self) -> Jwk {
        let mut key = Jwk::from_encoding_key(&self.secret, Algorithm::ES256).unwrap();
        key.common.key_id = Some(self.id.to_owned());
        key
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.id.to_owned());
        jsonwebtoken::encode(&header, claims, &self.secret).unwrap()
    }
}

impl Provider {
    pub(crate) async fn start(keys: &[&Key]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            published: Arc::new(Mutex::new(keys.iter().map(|key| key.public()).collect())),
            fetches: Arc::default(),
        };
        let configuration = |State(provider): State<Provider>| async move {
            Json(json!({ "issuer": provider.address, "jwks_uri": format!("{}/keys", provider.address) }))
        };
        let keys = |State(provider): State<Provider>| async move {
            provider.fetches.fetch_add(1, Ordering::Relaxed);
            Json(json!({ "keys": *provider.published.lock() }))
        };
        let app = Router::new()
            .route("/.well-known/openid-configuration", get(configuration))
            .route("/keys", get(keys))
            .with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        provider
    }

    /// How often its keys were fetched.
    pub(crate) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    /// The claims of a good token for the audience `orders` that may `write`, with changes.
    pub(crate) fn claims(&self, changes: &Value) -> Value {
        let mut claims = json!({ "iss": self.address, "aud": "orders", "exp": now() + 60, "scope": "read write" });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
