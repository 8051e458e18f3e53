//! Signs in at an OpenID Connect provider by the device authorization grant (RFC 8628), and refreshes what that gave.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rekindle_identity::Transport;
use reqwest::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{CONNECT_TIMEOUT, is_local};

const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest answer of a provider, in bytes.
const ANSWER_MAX: usize = 1 << 20;
/// Longest time in which somebody signs in, whatever the provider allows.
const SIGN_IN_MAX: Duration = Duration::from_secs(1_800);
/// Interval between two questions where the provider names none (RFC 8628), and what one too many adds to it.
const INTERVAL: Duration = Duration::from_secs(5);
const DEVICE_CODE: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// What is asked for, where the provider has it: who it is, their groups, and to stay signed in.
const SCOPES: [&str; 5] = ["openid", "email", "profile", "groups", "offline_access"];

/// A provider, by its OpenID configuration.
#[derive(Debug)]
pub(super) struct Provider {
    http: Transport,
    client_id: String,
    said: Configuration,
}

#[derive(Debug, Deserialize)]
struct Configuration {
    issuer: String,
    token_endpoint: String,
    device_authorization_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// What people are shown to sign in.
#[derive(Debug, Deserialize)]
pub(super) struct Device {
    device_code: String,
    pub(super) user_code: String,
    pub(super) verification_uri: String,
    pub(super) verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

/// Tokens that a provider gave.
#[derive(Debug)]
pub(super) struct Tokens {
    /// The token that says who it is of.
    pub(super) id_token: String,
    pub(super) refresh_token: Option<String>,
    pub(super) expires_unix_s: i64,
}

#[derive(Deserialize)]
struct TokenResponse {
    id_token: Option<String>,
    refresh_token: Option<String>,
}

/// An error of a provider (RFC 6749).
#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

enum ProviderReply<T> {
    Given(T),
    Refused(Refusal),
}

impl Provider {
    /// Asks the issuer what it can do.
    pub(super) async fn find(issuer: &str, client_id: &str) -> Result<Self> {
        let address = reqwest::Url::parse(issuer).with_context(|| format!("{issuer}: is no address of an issuer"))?;
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .context("the HTTP client could not be made")?;
        let http = match address.scheme() {
            "https" => Transport::to_public(http, None, None, CONNECT_TIMEOUT)?,
            "http" if is_local(issuer) => Transport::plain(http),
            _ => bail!("{issuer}: an issuer of tokens has to be reached by https"),
        };
        let at = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let sent = http.send(http.http().get(&at).timeout(CALL_TIMEOUT)).await;
        let answer = sent.with_context(|| format!("{at}: cannot be read"))?;
        let status = answer.status();
        let body = body(answer).await?;
        if !status.is_success() {
            bail!("{at}: the issuer answers {status}: is that its address?");
        }
        let said: Configuration = parsed(&at, &body)?;
        if said.issuer != issuer {
            bail!("{at}: is the configuration of {}, not of {issuer}", said.issuer);
        }
        let endpoints = [Some(&said.token_endpoint), said.device_authorization_endpoint.as_ref()];
        for endpoint in endpoints.into_iter().flatten() {
            if address.scheme() == "https" && !endpoint.starts_with("https://") {
                bail!("{at}: names {endpoint}, which is not reached by https");
            }
        }
        Ok(Self {
            http,
            client_id: client_id.to_owned(),
            said,
        })
    }

    /// Begins to sign somebody in.
    pub(super) async fn begin(&self) -> Result<Device> {
        let Some(endpoint) = &self.said.device_authorization_endpoint else {
            bail!(
                "{} lets nobody sign in from a terminal: turn its device authorization grant on, or use a key (FN_KEY)",
                self.said.issuer
            );
        };
        let supported = &self.said.scopes_supported;
        let scopes = SCOPES
            .into_iter()
            .filter(|scope| *scope == "openid" || supported.iter().any(|known| known == scope));
        let scopes = scopes.collect::<Vec<_>>().join(" ");
        match self
            .post(endpoint, &[("client_id", &self.client_id), ("scope", &scopes)])
            .await?
        {
            ProviderReply::Given(device) => Ok(device),
            ProviderReply::Refused(refusal) => bail!(self.refusal_text(&refusal)),
        }
    }

    /// Waits until somebody has signed in, asking at most as often as the provider wants.
    pub(super) async fn wait(&self, device: &Device) -> Result<Tokens> {
        let limit = Duration::from_secs(device.expires_in).min(SIGN_IN_MAX);
        let waited = tokio::time::timeout(limit, self.poll(device)).await;
        waited.unwrap_or_else(|_| {
            bail!(
                "nobody has signed in within {}s: begin again with `fn login`",
                limit.as_secs()
            )
        })
    }

    async fn poll(&self, device: &Device) -> Result<Tokens> {
        let mut interval = device
            .interval
            .map_or(INTERVAL, |s| Duration::from_secs(s.clamp(1, 60)));
        let form = [
            ("grant_type", DEVICE_CODE),
            ("device_code", &device.device_code),
            ("client_id", &self.client_id),
        ];
        loop {
            tokio::time::sleep(interval).await;
            match self.post(&self.said.token_endpoint, &form).await? {
                ProviderReply::Given(given) => return tokens(given, None),
                ProviderReply::Refused(refusal) => match &*refusal.error {
                    "authorization_pending" => {}
                    "slow_down" => interval += INTERVAL,
                    "expired_token" => bail!("nobody has signed in in time: begin again with `fn login`"),
                    "access_denied" => bail!(
                        "{} was not allowed to sign you in: {}",
                        self.client_id,
                        self.refusal_text(&refusal)
                    ),
                    _ => bail!(self.refusal_text(&refusal)),
                },
            }
        }
    }

    /// Gets new tokens.
    pub(super) async fn refresh(&self, refresh_token: &str) -> Result<Tokens> {
        let form = [
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh_token),
            ("client_id", &self.client_id),
        ];
        match self.post(&self.said.token_endpoint, &form).await? {
            ProviderReply::Given(given) => tokens(given, Some(refresh_token)),
            ProviderReply::Refused(refusal) => bail!("{}: sign in again with `fn login`", self.refusal_text(&refusal)),
        }
    }

    /// Ends what a refresh token gives. Providers need not offer that.
    pub(super) async fn revoke(&self, refresh_token: &str) -> Result<()> {
        let Some(endpoint) = &self.said.revocation_endpoint else {
            return Ok(());
        };
        let form = [
            ("token", refresh_token),
            ("token_type_hint", "refresh_token"),
            ("client_id", &self.client_id),
        ];
        let answer = self.send(endpoint, &form).await?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => bail!("{endpoint}: the issuer answers {status}"),
        }
    }

    fn refusal_text(&self, refusal: &Refusal) -> String {
        let described = match refusal.error_description.is_empty() {
            true => String::new(),
            false => format!(" ({})", refusal.error_description),
        };
        shown(&format!("{} answers {}{described}", self.said.issuer, refusal.error))
    }

    async fn send(&self, endpoint: &str, form: &[(&str, &str)]) -> Result<Response> {
        let body = serde_urlencoded::to_string(form).context("a form cannot be written")?;
        let request = self.http.http().post(endpoint).timeout(CALL_TIMEOUT);
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(body);
        let sent = self.http.send(request).await;
        sent.with_context(|| format!("{endpoint}: the issuer does not answer"))
    }

    async fn post<T: DeserializeOwned>(&self, endpoint: &str, form: &[(&str, &str)]) -> Result<ProviderReply<T>> {
        let answer = self.send(endpoint, form).await?;
        let status = answer.status();
        let body = body(answer).await?;
        if status.is_success() {
            return Ok(ProviderReply::Given(parsed(endpoint, &body)?));
        }
        match serde_json::from_slice(&body) {
            Ok(refusal) => Ok(ProviderReply::Refused(refusal)),
            Err(_) => bail!("{endpoint}: the issuer answers {status}"),
        }
    }
}

async fn body(mut answer: Response) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.context("the response of the issuer ended early")? {
        body.extend_from_slice(&part);
        if body.len() > ANSWER_MAX {
            bail!("the issuer's answer is over {ANSWER_MAX} bytes");
        }
    }
    Ok(body)
}

fn parsed<T: DeserializeOwned>(at: &str, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).with_context(|| format!("{at}: the answer is not what OpenID Connect has"))
}

fn tokens(given: TokenResponse, before: Option<&str>) -> Result<Tokens> {
    let Some(id_token) = given.id_token else {
        bail!("the issuer gave no ID token: sign in again with `fn login`");
    };
    Ok(Tokens {
        expires_unix_s: end_of(&id_token).context("the issuer gave an ID token that cannot be read")?,
        id_token,
        refresh_token: given.refresh_token.or_else(|| before.map(str::to_owned)),
    })
}

/// When a token expires. It was not checked: that is up to the gateway.
fn end_of(token: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: i64,
    }
    let claims = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    Some(claims.exp)
}

/// What a provider says, as a terminal may get it: it takes other characters for commands.
pub(super) fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_provider_says_is_no_command_for_the_terminal() {
        let said = "https://id.example/\u{1b}]52;c;cm0gLXJm\u{7}\u{9b}2Jdevice";
        assert_eq!(shown(said), "https://id.example/]52;c;cm0gLXJm2Jdevice");
    }

    #[test]
    fn a_refreshed_login_keeps_its_refresh_token_where_no_other_comes() {
        let claims = BASE64_URL_SAFE_NO_PAD.encode(br#"{"exp":17,"sub":"ada"}"#);
        let given = |refresh_token: Option<&str>| TokenResponse {
            id_token: Some(format!("e30.{claims}.x")),
            refresh_token: refresh_token.map(str::to_owned),
        };
        let kept = tokens(given(None), Some("old")).unwrap();
        assert_eq!((kept.expires_unix_s, kept.refresh_token.as_deref()), (17, Some("old")));
        assert_eq!(
            tokens(given(Some("new")), Some("old"))
                .unwrap()
                .refresh_token
                .as_deref(),
            Some("new")
        );
        let none = TokenResponse {
            id_token: None,
            refresh_token: None,
        };
        assert!(tokens(none, None).unwrap_err().to_string().contains("fn login"));
    }
}
