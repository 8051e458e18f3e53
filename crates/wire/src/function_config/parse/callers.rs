//! Who may call: `auth`, `[jwt]` and `[cors]`.

use std::ops::Range;

use http::{HeaderName, Method, Uri};
use toml::Spanned;

use super::super::{Allowed, Auth, Cors, TokenRule};
use super::raw::{OneOrMore, RawCors, RawJwt};
use super::{Checker, FunctionConfigError};

const AUDIENCES: usize = 8;
const CLAIMS_MAX: usize = 16;
/// Claims with a rule of their own.
const OWN_CLAIMS: [&str; 4] = ["iss", "aud", "exp", "nbf"];
/// Longest issuer, audience, name or value of a claim, in bytes.
const TEXT_MAX: usize = 512;
/// Entries of each list of `[cors]`.
const ENTRIES: usize = 64;
const MAX_AGE_S: Range<u64> = 1..86_401;
/// What a browser remembers a permission for, in seconds.
const USUAL_AGE_S: u64 = 600;
const USUAL_METHODS: [&str; 3] = ["GET", "HEAD", "POST"];
const USUAL_HEADERS: [&str; 2] = ["authorization", "content-type"];

impl Checker<'_> {
    /// What callers must show, and the tokens among it.
    pub(super) fn auth(
        &self,
        auth: Option<Spanned<String>>,
        jwt: Option<Spanned<RawJwt>>,
    ) -> Result<(Auth, Option<TokenRule>), FunctionConfigError> {
        let known = match auth.as_ref().map(|v| v.get_ref().as_str()) {
            None | Some("none") => Auth::None,
            Some("key") => Auth::Key,
            Some("jwt") => Auth::Jwt,
            Some(other) => {
                return self.refuse(
                    auth.as_ref().map(Spanned::span),
                    format!("auth = \"{other}\" is not known: use \"none\" (the default), \"key\" or \"jwt\""),
                );
            }
        };
        match (known, jwt) {
            (Auth::Jwt, Some(jwt)) => Ok((known, Some(self.token_rule(jwt.into_inner())?))),
            (Auth::Jwt, None) => self.refuse(
                auth.map(|v| v.span()),
                "auth = \"jwt\" needs [jwt] with the issuer and the audience of the tokens",
            ),
            (_, Some(jwt)) => self.refuse(
                Some(jwt.span()),
                "[jwt] has a meaning only with auth = \"jwt\", above all sections: write that, or remove the section",
            ),
            (_, None) => Ok((known, None)),
        }
    }

    /// Who may call without what `auth` asks for.
    pub(super) fn allow(
        &self,
        auth: Auth,
        allow: Option<Spanned<Vec<String>>>,
    ) -> Result<Vec<Allowed>, FunctionConfigError> {
        let Some(allow) = allow else {
            return Ok(Vec::new());
        };
        let at = Some(allow.span());
        match allow.get_ref().as_slice() {
            [one] if one == "functions" && auth.is_none() => self.refuse(
                at,
                "allow has a meaning only with auth = \"key\" or \"jwt\", as anybody may call this function: write \
                 auth, or remove allow",
            ),
            [one] if one == "functions" => Ok(vec![Allowed::Functions]),
            _ => self.refuse(
                at,
                "allow names who needs no key: write allow = [\"functions\"] for functions of the same namespace, or \
                 remove the line",
            ),
        }
    }

    fn token_rule(&self, raw: RawJwt) -> Result<TokenRule, FunctionConfigError> {
        let is_text = |text: &str| (1..=TEXT_MAX).contains(&text.len());
        let issuer = raw.issuer.get_ref();
        let uri = issuer.parse::<Uri>().ok();
        if !uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("https" | "http"))) || !is_text(issuer) {
            return self.refuse(
                Some(raw.issuer.span()),
                format!(
                    "issuer = \"{issuer}\" is none: write the tokens' iss, an address such as https://id.example.com"
                ),
            );
        }
        let audience_at = raw.audience.span();
        let audience = raw.audience.into_inner().into_list();
        if !(1..=AUDIENCES).contains(&audience.len()) || !audience.iter().all(|a| is_text(a)) {
            return self.refuse(
                Some(audience_at),
                format!("audience has 1 to {AUDIENCES} names: write the tokens' aud, as in audience = \"orders\""),
            );
        }
        let claims_at = raw.claims.as_ref().map(Spanned::span);
        let claims = raw.claims.map(Spanned::into_inner).unwrap_or_default();
        if let Some(own) = claims.keys().find(|name| OWN_CLAIMS.contains(&name.as_str())) {
            return self.refuse(
                claims_at,
                format!("the claim {own} is checked anyway: remove it from claims"),
            );
        }
        if claims.len() > CLAIMS_MAX || !claims.iter().all(|(name, value)| is_text(name) && is_text(value)) {
            return self.refuse(
                claims_at,
                format!("claims has at most {CLAIMS_MAX} names, each with a text of at most {TEXT_MAX} bytes"),
            );
        }
        Ok(TokenRule {
            issuer: raw.issuer.into_inner(),
            audience,
            claims,
        })
    }

    pub(super) fn cors(&self, raw: Option<Spanned<RawCors>>) -> Result<Option<Cors>, FunctionConfigError> {
        let Some(raw) = raw else { return Ok(None) };
        let at = raw.span();
        let raw = raw.into_inner();
        let list = |given: Option<Vec<String>>, usual: &[&str]| {
            given.unwrap_or_else(|| usual.iter().map(|entry| (*entry).to_owned()).collect())
        };
        let cors = Cors {
            origins: raw.origins,
            methods: list(raw.methods, &USUAL_METHODS),
            headers: list(raw.headers, &USUAL_HEADERS),
            expose: raw.expose.unwrap_or_default(),
            credentials: raw.credentials.unwrap_or_default(),
            max_age_ms: self.seconds("max_age", raw.max_age, USUAL_AGE_S, &MAX_AGE_S)?,
        };
        let wrong = |message: String| self.refuse(Some(at.clone()), message);
        let lists = [&cors.origins, &cors.methods, &cors.headers, &cors.expose];
        if cors.origins.is_empty() || lists.iter().any(|list| list.len() > ENTRIES) {
            return wrong(format!(
                "[cors] has 1 to {ENTRIES} origins, and at most so many methods and headers: write origins = \
                 [\"https://app.example.com\"]"
            ));
        }
        for origin in cors.origins.iter().filter(|origin| *origin != Cors::ALL) {
            if let Err(why) = check_origin(origin) {
                return wrong(format!("\"{origin}\" is no origin: {why}"));
            }
        }
        if let Some(method) = cors.methods.iter().find(|method| method.parse::<Method>().is_err()) {
            return wrong(format!(
                "\"{method}\" is no method: write it as in methods = [\"GET\", \"PUT\"]"
            ));
        }
        let mut headers = cors.headers.iter().chain(&cors.expose);
        if let Some(header) = headers.find(|name| *name != Cors::ALL && name.parse::<HeaderName>().is_err()) {
            return wrong(format!(
                "\"{header}\" is no header: write its name alone, as in [\"x-total\"]"
            ));
        }
        if cors.credentials && cors.has_all() {
            return wrong(
                "credentials = true is not for \"*\", as browsers have it: name the origins, methods and headers"
                    .to_owned(),
            );
        }
        Ok(Some(cors))
    }
}

fn check_origin(text: &str) -> Result<(), String> {
    if text.contains('*') || text == "null" {
        return Err("name the origins, each by itself, or write \"*\" alone for all".to_owned());
    }
    let Some((scheme @ ("https" | "http"), rest)) = text.split_once("://") else {
        return Err(format!("write it as a browser sends it, as in https://{text}"));
    };
    if rest.contains(['/', '?', '#', '@']) {
        return Err("write it without a path, as in https://app.example.com".to_owned());
    }
    match text.parse::<Uri>() {
        Ok(uri) if uri.host().is_some_and(|host| !host.is_empty()) && *text == text.to_ascii_lowercase() => Ok(()),
        _ => Err(format!(
            "write it as a browser sends it, in small letters, as in {scheme}://app.example.com"
        )),
    }
}

impl OneOrMore {
    fn into_list(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::More(list) => list,
        }
    }
}
