//! Who calls: by a key, or by a token or a certificate that a rule admits.
//!
//! What a request names in its header goes before the certificate of its connection. A browser shows a certificate
//! without being told to, so one does not count for requests that another origin's page has made.

use std::sync::Arc;

use http::HeaderMap;
use http::header::{AUTHORIZATION, ORIGIN};
use rekindle_wire::access::{Caller, Credential};
use rekindle_wire::api::{AuthStatus, Login, Whoami};
use rekindle_wire::clock::unix_s;
use rekindle_wire::function_config::TokenRule;
use rekindle_wire::headers::bearer;
use rekindle_wire::{ApiError, ErrorCode};

use crate::keys::Keys;
use crate::tls::ClientCertificate;
use crate::tokens::{Identities, IdentityIssuers, is_for};

/// Where browsers say whose page has made a request.
const FETCH_SITE: &str = "sec-fetch-site";

pub(crate) struct Callers {
    pub(crate) keys: Arc<Keys>,
    identities: Identities,
    /// What anybody is told of signing in.
    told: AuthStatus,
}

/// What the caller of a function has shown.
#[derive(Debug, Clone)]
pub(crate) struct PresentedCredentials {
    /// `None` if it showed nothing that is the platform's.
    pub(crate) caller: Option<Result<Caller, ApiError>>,
    header: Header,
}

/// What a caller's header has, and whether the function may learn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    /// What is the function's own, or nothing.
    Own,
    /// A token for this platform that gives nothing here. It may a moment later: its key is new, or its rule is. So
    /// only a function learns it that asks for such tokens itself.
    Useless,
    /// A key of the platform, or a token for it that gives something or cannot be judged now.
    Hidden,
}

impl PresentedCredentials {
    pub(crate) fn known(&self) -> Option<&Caller> {
        self.caller.as_ref()?.as_ref().ok()
    }

    /// The caller, if it is known. A function is not told what is wrong with what it must not learn.
    ///
    /// # Errors
    /// What is wrong with that.
    pub(crate) fn into_known(self) -> Result<Option<Caller>, ApiError> {
        match self.caller {
            Some(Err(error)) if self.header == Header::Hidden => Err(error),
            other => Ok(other.and_then(Result::ok)),
        }
    }

    /// Whether what it showed is wrong for the platform, and a function may take it for something of its own.
    pub(crate) fn may_be_the_functions(&self) -> bool {
        self.header != Header::Hidden
    }

    /// Takes what the function must not learn out of the headers. `asked` are the tokens that it asks its callers for.
    pub(crate) fn hide(&self, headers: &mut HeaderMap, asked: &[TokenRule]) {
        let is_asked_for = |token: &[u8]| asked.iter().any(|rule| is_for(token, &rule.issuer, &rule.audience));
        let is_hidden = match self.header {
            Header::Own => false,
            Header::Useless => !bearer(headers).is_some_and(is_asked_for),
            Header::Hidden => true,
        };
        if is_hidden {
            headers.remove(AUTHORIZATION);
        }
    }
}

impl Callers {
    pub(crate) fn new(keys: Arc<Keys>, identities: Identities, settings: &IdentityIssuers, certificates: bool) -> Self {
        let issuer = settings.issuers.first().map(|issuer| issuer.name.clone());
        let login = issuer.zip(settings.login_client.clone());
        let told = AuthStatus {
            login: login.map(|(issuer, client_id)| Login { issuer, client_id }),
            issuers: settings.issuers.iter().map(|issuer| issuer.name.clone()).collect(),
            audiences: settings.audiences.clone(),
            certificates,
            caller: None,
        };
        Self { keys, identities, told }
    }

    /// The caller of a request that needs one.
    ///
    /// # Errors
    /// `unauthorized` if it shows nothing, or nothing that is valid.
    pub(crate) async fn caller(
        &self,
        headers: &HeaderMap,
        client: Option<&ClientCertificate>,
    ) -> Result<Caller, ApiError> {
        if let Some(caller) = self.keys.shown(headers)? {
            return Ok(caller);
        }
        let refused = |message: &str| Err(ApiError::new(ErrorCode::Unauthorized, message));
        if let (None, Some(client)) = (bearer(headers), client) {
            return self.of_certificate(headers, client);
        }
        match bearer(headers) {
            Some(token) if self.identities.are_known() && is_token(token) => self.of_token(token).await,
            Some(_) => refused("the key is wrong: see where `fn up` keeps the platform's (`fn status`), or set FN_KEY"),
            None if self.told.login.is_some() => {
                refused("this needs a key or a token: sign in with `fn login`, or send \"Authorization: Bearer KEY\"")
            }
            None => refused("this needs a key: send \"Authorization: Bearer KEY\", or use `fn`, which does"),
        }
    }

    /// What the caller of a function has shown, who may show what is the function's own.
    pub(crate) async fn shown(&self, headers: &HeaderMap, client: Option<&ClientCertificate>) -> PresentedCredentials {
        match (self.keys.shown(headers).transpose(), bearer(headers)) {
            (Some(caller), _) => PresentedCredentials {
                caller: Some(caller),
                header: Header::Hidden,
            },
            (None, Some(token)) if self.identities.concerns(token) => {
                let caller = self.of_token(token).await;
                let header = match &caller {
                    Err(error) if error.code == ErrorCode::Unauthorized => Header::Useless,
                    _ => Header::Hidden,
                };
                PresentedCredentials {
                    caller: Some(caller),
                    header,
                }
            }
            _ => PresentedCredentials {
                caller: client.map(|client| self.of_certificate(headers, client)),
                header: Header::Own,
            },
        }
    }

    async fn of_token(&self, token: &[u8]) -> Result<Caller, ApiError> {
        self.keys.check_heard()?;
        let identity = self.identities.identify(token).await?;
        self.keys.rules.of_token(&identity, unix_s())
    }

    fn of_certificate(&self, headers: &HeaderMap, client: &ClientCertificate) -> Result<Caller, ApiError> {
        if is_of_a_page(headers) {
            return Err(ApiError::new(
                ErrorCode::Unauthorized,
                "a certificate does not count for what a page of another origin asks: send a key or a token",
            ));
        }
        self.keys.check_heard()?;
        let (names, expires_unix_s) = client.names()?;
        self.keys.rules.of_certificate(names, expires_unix_s, unix_s())
    }

    /// How callers sign in, and who this one is.
    ///
    /// # Errors
    /// `unauthorized` if what it shows is not valid.
    pub(crate) async fn status(
        &self,
        headers: &HeaderMap,
        client: Option<&ClientCertificate>,
    ) -> Result<AuthStatus, ApiError> {
        let caller = match (bearer(headers), client) {
            (None, None) => None,
            _ => Some(self.caller(headers, client).await?),
        };
        Ok(AuthStatus {
            caller: caller.map(whoami),
            ..self.told.clone()
        })
    }
}

/// Whether a browser sends the request for a page of another origin.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    match headers.get(FETCH_SITE) {
        Some(site) => site != "same-origin" && site != "none",
        None => headers.contains_key(ORIGIN),
    }
}

/// Whether a text has the form of a signed token (JWS, RFC 7515).
fn is_token(text: &[u8]) -> bool {
    text.split(|b| *b == b'.').count() == 3
}

fn whoami(caller: Caller) -> Whoami {
    let name = caller.name().to_owned();
    let expires_unix_s = match caller.credential {
        Credential::Identity { expires_unix_s, .. } => expires_unix_s,
        Credential::Platform | Credential::Key(_) => None,
    };
    Whoami {
        name,
        grants: caller.grants,
        expires_unix_s,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rekindle_wire::access::{AccessRole, Admitted, RuleId, Scope, TokenHolder, generate};
    use rekindle_wire::internal::{KeysResponse, KnownKey, KnownRule};
    use serde_json::json;

    use super::*;
    use crate::key::KeyHash;
    use crate::metrics::Metrics;
    use crate::tokens::provider::{Key, Provider, now};

    fn callers(settings: &IdentityIssuers) -> Callers {
        let keys = Arc::new(Keys::new(KeyHash::of("platform")));
        Callers::new(
            keys,
            Identities::new(settings, &Arc::new(Metrics::new())),
            settings,
            false,
        )
    }

    fn tell(callers: &Callers, keys: Vec<KnownKey>, rules: Vec<KnownRule>) {
        callers.keys.apply(KeysResponse {
            epoch: "lead".to_owned(),
            revision: 1,
            whole: true,
            keys,
            revoked: Vec::new(),
            rules: Some(rules),
        });
    }

    fn sends(key: &str) -> HeaderMap {
        let value = HeaderValue::from_str(&format!("Bearer {key}")).unwrap();
        HeaderMap::from_iter([(AUTHORIZATION, value)])
    }

    #[tokio::test]
    async fn a_function_learns_no_key_of_the_platforms_and_its_own_stay() {
        let callers = callers(&IdentityIssuers::default());
        let (id, key) = generate();
        let scope: Scope = "*.team".parse().unwrap();
        let known = KnownKey {
            id,
            hash: blake3::hash(key.as_bytes()).to_hex().to_string(),
            role: AccessRole::Reader,
            scope: scope.clone(),
            expires_unix_s: None,
        };
        tell(&callers, vec![known], Vec::new());
        let revoked = generate().1;
        for sent in ["platform", &key, &revoked] {
            let mut headers = sends(sent);
            let shown = callers.shown(&headers, None).await;
            shown.hide(&mut headers, &[]);
            assert!(headers.is_empty(), "{sent}");
            let found = shown.into_known().map_err(|e| e.code);
            let expected = match sent {
                sent if *sent == revoked => Err(ErrorCode::Unauthorized),
                "platform" => Ok(Scope::Platform),
                _ => Ok(scope.clone()),
            };
            assert_eq!(found.map(|caller| caller.unwrap().grants[0].scope.clone()), expected);
        }
        let mut own = sends("rk_live_of_another_service");
        let shown = callers.shown(&own, None).await;
        shown.hide(&mut own, &[]);
        assert!(shown.into_known().unwrap().is_none());
        assert_eq!(own.len(), 1);
    }

    #[tokio::test]
    async fn a_token_for_the_platform_is_hidden_from_functions_and_any_other_is_theirs() {
        let key = Key::new("one");
        let provider = Provider::start(&[&key]).await;
        let settings = IdentityIssuers {
            issuers: vec![provider.address.parse().unwrap()],
            audiences: vec!["orders".to_owned()],
            login_client: None,
        };
        let callers = callers(&settings);
        let ada = key.sign(&provider.claims(&json!({ "sub": "ada" })));
        let code = async |token: &str| callers.caller(&sends(token), None).await.unwrap_err().code;
        assert_eq!(code(&ada).await, ErrorCode::Unavailable, "nothing is heard yet");
        let holder = TokenHolder {
            issuer: provider.address.clone(),
            claims: [("sub".to_owned(), "ada".to_owned())].into(),
        };
        let rule = KnownRule {
            id: RuleId::generate(),
            admits: Admitted::Token(holder),
            role: AccessRole::Invoker,
            scope: "*.team".parse().unwrap(),
            expires_unix_s: None,
        };
        tell(&callers, Vec::new(), vec![rule]);
        assert_eq!(callers.caller(&sends(&ada), None).await.unwrap().grants.len(), 1);
        let eve = key.sign(&provider.claims(&json!({ "sub": "eve" })));
        let elsewhere = key.sign(&provider.claims(&json!({ "sub": "ada", "aud": "shop" })));
        let early = key.sign(&provider.claims(&json!({ "sub": "ada", "nbf": now() + 600 })));
        let unknown = Key::new("rotated").sign(&provider.claims(&json!({ "sub": "ada" })));
        let asked = |audience: &str| {
            vec![TokenRule {
                issuer: provider.address.clone(),
                audience: vec![audience.to_owned()],
                claims: Default::default(),
            }]
        };
        // One that gives nothing now may a moment later, so no function learns it that has not asked for it.
        for (token, is_known, stays, stays_if_asked) in [
            (&ada, true, false, false),
            (&eve, false, false, true),
            (&early, false, false, true),
            (&unknown, false, false, true),
            (&elsewhere, false, true, true),
        ] {
            let hidden = async |asked: &[TokenRule]| {
                let mut headers = sends(token);
                let shown = callers.shown(&headers, None).await;
                shown.hide(&mut headers, asked);
                assert_eq!(shown.known().is_some(), is_known);
                assert_eq!(shown.into_known().unwrap().is_some(), is_known);
                headers.is_empty()
            };
            assert_eq!(hidden(&[]).await, !stays);
            assert_eq!(hidden(&asked("shop")).await, !stays);
            assert_eq!(hidden(&asked("orders")).await, !stays_if_asked);
            assert!(is_known || code(token).await == ErrorCode::Unauthorized);
        }
        let status = callers.status(&sends(&ada), None).await.unwrap();
        assert_eq!(status.caller.unwrap().name, format!("oidc:ada@{}", provider.address));
        assert!(callers.status(&HeaderMap::new(), None).await.unwrap().caller.is_none());
        assert!(callers.status(&sends(&eve), None).await.is_err());
    }

    #[test]
    fn a_certificate_does_not_count_for_a_page_of_another_origin() {
        let of =
            |name: &'static str, value: &str| HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
        for site in ["cross-site", "same-site"] {
            assert!(is_of_a_page(&of(FETCH_SITE, site)), "{site}");
        }
        assert!(is_of_a_page(&of("origin", "null")));
        assert!(!is_of_a_page(&of(FETCH_SITE, "same-origin")) && !is_of_a_page(&HeaderMap::new()));
    }
}
