//! Tokens that callers of the platform show in place of a key. What their claims give is up to rules (`crate::rules`).
//!
//! A token is checked once and its claims are kept for a while, as the check costs more than all else about a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use rekindle_wire::ApiError;
use serde::Deserialize;

use super::issuer::{Issuer, IssuerClient, TokenIssuer, outside};
use super::{Claims, LEEWAY_S, claims_of, header_of, refused};
use crate::metrics::Metrics;

/// Longest token, in bytes. Claims of that many tokens stay in memory.
const TOKEN_MAX: usize = 8 << 10;
/// Maximum number of tokens whose claims are kept.
const KEPT_MAX: usize = 1_000;
/// How long claims are kept. After that an issuer's key may be gone.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// Longest subject, in bytes: twice what OpenID Connect allows.
const SUBJECT_MAX: usize = 510;

/// Whose tokens identify callers of the platform.
#[derive(Debug, Clone, Default)]
pub struct IdentityIssuers {
    /// The issuers.
    pub issuers: Vec<TokenIssuer>,
    /// What their tokens have to be for: one of these.
    pub audiences: Vec<String>,
    /// The client at the first issuer by which people sign in. Its tokens are for it, and are taken.
    pub login_client: Option<String>,
}

/// Who a token is of.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) issuer: String,
    pub(crate) subject: String,
    pub(crate) claims: Claims,
    /// When the token expires, in seconds since the Unix epoch.
    pub(crate) expires_unix_s: i64,
}

/// Checks such tokens.
pub(crate) struct Identities {
    issuers: HashMap<String, (Arc<Issuer>, Vec<String>)>,
    outside: Option<IssuerClient>,
    kept: Mutex<HashMap<blake3::Hash, (Arc<Identity>, Instant)>>,
}

/// What a token says of itself before it is checked.
#[derive(Deserialize)]
struct UncheckedClaims {
    #[serde(default)]
    iss: String,
    #[serde(default)]
    aud: Audience,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Audience {
    fn meets(&self, audiences: &[String]) -> bool {
        match self {
            Self::One(one) => audiences.contains(one),
            Self::Several(several) => several.iter().any(|one| audiences.contains(one)),
        }
    }
}

impl Identities {
    /// Takes tokens of these issuers. Their keys are fetched when a token first needs them.
    pub(crate) fn new(settings: &IdentityIssuers, metrics: &Arc<Metrics>) -> Self {
        let mut issuers = HashMap::new();
        for (n, issuer) in settings.issuers.iter().enumerate() {
            let mut audiences = settings.audiences.clone();
            audiences.extend(settings.login_client.clone().filter(|_| n == 0));
            let known = Arc::new(Issuer::new(issuer.clone(), metrics.clone()));
            issuers.insert(issuer.name.clone(), (known, audiences));
        }
        Self {
            outside: (!issuers.is_empty()).then(outside),
            issuers,
            kept: Mutex::default(),
        }
    }

    /// Whether there are issuers.
    pub(crate) fn are_known(&self) -> bool {
        !self.issuers.is_empty()
    }

    /// Whether a text looks like a token of one of the issuers for this platform, so that no function may learn it.
    pub(crate) fn concerns(&self, token: &[u8]) -> bool {
        unchecked(token).is_some_and(|said| {
            let known = self.issuers.get(&said.iss);
            known.is_some_and(|(_, audiences)| said.aud.meets(audiences))
        })
    }

    /// Checks a token.
    ///
    /// # Errors
    /// `unauthorized` if it is no valid token of an issuer for this platform, `unavailable` if that cannot be judged.
    pub(crate) async fn identify(&self, token: &[u8]) -> Result<Arc<Identity>, ApiError> {
        let hash = blake3::hash(token);
        if let Some(known) = self.known(&hash) {
            return Ok(known);
        }
        if token.len() > TOKEN_MAX {
            return Err(refused(&format!(
                "it has over {TOKEN_MAX} bytes: ask its issuer for fewer claims"
            )));
        }
        let header = header_of(token)?;
        let said = unchecked(token).ok_or_else(|| refused("it is malformed"))?;
        let (Some((issuer, audiences)), Some(outside)) = (self.issuers.get(&said.iss), &self.outside) else {
            return Err(refused(&format!(
                "its issuer {:?} is none of those that the gateways trust (--oidc-issuer)",
                said.iss
            )));
        };
        let key = issuer.key(&header, outside).await?;
        let claims = claims_of(token, &header, &key, (&said.iss, audiences))?;
        let is_plain = |text: &&str| !text.is_empty() && text.len() <= SUBJECT_MAX && !text.contains(char::is_control);
        let subject = claims.get("sub").and_then(|sub| sub.as_str()).filter(is_plain);
        let subject = subject
            .ok_or_else(|| refused("it has no sub that names somebody"))?
            .to_owned();
        let expires = claims.get("exp").and_then(serde_json::Value::as_f64).unwrap_or(0.0);
        let identity = Arc::new(Identity {
            issuer: said.iss,
            subject,
            claims,
            // Beyond the largest whole number it is that.
            expires_unix_s: expires as i64,
        });
        self.keep(hash, identity.clone());
        Ok(identity)
    }

    fn known(&self, hash: &blake3::Hash) -> Option<Arc<Identity>> {
        let kept = self.kept.lock();
        let (identity, since) = kept.get(hash)?;
        (since.elapsed() < KEPT_FOR && !has_ended(identity)).then(|| identity.clone())
    }

    fn keep(&self, hash: blake3::Hash, identity: Arc<Identity>) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, (identity, since)| since.elapsed() < KEPT_FOR && !has_ended(identity));
        }
        if kept.len() >= KEPT_MAX
            && let Some(oldest) = kept.iter().min_by_key(|(_, (_, since))| *since).map(|(hash, _)| *hash)
        {
            kept.remove(&oldest);
        }
        kept.insert(hash, (identity, Instant::now()));
    }
}

fn has_ended(identity: &Identity) -> bool {
    let now = i64::try_from(jsonwebtoken::get_current_timestamp().saturating_sub(LEEWAY_S));
    now.is_ok_and(|now| identity.expires_unix_s <= now)
}

/// Whether a text says that it is a token of this issuer for one of the audiences.
pub(crate) fn is_for(token: &[u8], issuer: &str, audiences: &[String]) -> bool {
    unchecked(token).is_some_and(|said| said.iss == issuer && said.aud.meets(audiences))
}

fn unchecked(token: &[u8]) -> Option<UncheckedClaims> {
    let token = std::str::from_utf8(token).ok()?;
    let mut parts = token.split('.');
    let (_, claims, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use rekindle_wire::ErrorCode;
    use serde_json::json;

    use super::super::provider::{Key, Provider, now};
    use super::*;

    fn identities(provider: &Provider) -> Identities {
        let settings = IdentityIssuers {
            issuers: vec![
                provider.address.parse().unwrap(),
                "https://other.example".parse().unwrap(),
            ],
            audiences: vec!["orders".to_owned()],
            login_client: Some("fn-cli".to_owned()),
        };
        Identities::new(&settings, &Arc::new(Metrics::new()))
    }

    #[tokio::test]
    async fn a_token_is_checked_once_while_it_lasts() {
        let key = Key::new("one");
        let provider = Provider::start(&[&key]).await;
        let identities = identities(&provider);
        let signed = |changes| key.sign(&provider.claims(&changes)).into_bytes();
        let good = signed(json!({ "sub": "ada" }));
        let first = identities.identify(&good).await.unwrap();
        assert_eq!((&*first.subject, &first.issuer), ("ada", &provider.address));
        assert!(Arc::ptr_eq(&first, &identities.identify(&good).await.unwrap()));
        let of_login = signed(json!({ "sub": "ada", "aud": "fn-cli" }));
        assert!(identities.concerns(&of_login) && identities.identify(&of_login).await.is_ok());
        let refused = async |token: &[u8]| {
            let error = identities.identify(token).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::Unauthorized);
            error.message
        };
        for (changes, why) in [
            (json!({ "sub": "ada", "aud": "shop" }), "another audience"),
            (json!({ "sub": "ada", "exp": now() - 60 }), "expired"),
            (json!({ "sub": "" }), "names somebody"),
            (json!({}), "names somebody"),
            (json!({ "sub": "a\u{1b}[2J" }), "names somebody"),
            (json!({ "sub": "ada", "iss": "https://third.example" }), "--oidc-issuer"),
        ] {
            let said = refused(&signed(changes.clone())).await;
            assert!(said.contains(why), "{changes}: {said}");
        }
        let forged = Key::new("one").sign(&provider.claims(&json!({ "sub": "ada" })));
        assert!(refused(forged.as_bytes()).await.contains("signature"));
        assert!(refused(b"x").await.contains("JSON Web Token"));
        for other in [
            &b"x.y.z"[..],
            b"",
            b"....",
            &signed(json!({ "sub": "ada", "aud": "shop" })),
        ] {
            assert!(!identities.concerns(other));
        }
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let identities = Identities::new(&IdentityIssuers::default(), &Arc::new(Metrics::new()));
        let identity = |end: i64| {
            Arc::new(Identity {
                issuer: String::new(),
                subject: String::new(),
                claims: Claims::new(),
                expires_unix_s: end,
            })
        };
        let hash = |n: usize| blake3::hash(&n.to_le_bytes());
        for n in 0..=KEPT_MAX {
            identities.keep(hash(n), identity(i64::MAX));
        }
        assert_eq!(identities.kept.lock().len(), KEPT_MAX);
        assert!(identities.known(&hash(0)).is_none() && identities.known(&hash(KEPT_MAX)).is_some());
        identities.keep(hash(0), identity(1));
        assert!(identities.known(&hash(0)).is_none(), "it has ended");
    }
}
