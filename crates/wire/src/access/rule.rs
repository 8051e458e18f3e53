//! Rules that let people and machines in without a key. They go by the claims of a token of an issuer that the operator
//! trusts, or by the name in a client's certificate.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::ids::{ParseIdError, text_type};

/// Maximum number of claims of a rule.
pub const CLAIMS_MAX: usize = 16;
/// Longest name of a claim, of its value, of an issuer and of a certificate's name, in bytes.
pub const RULE_TEXT_MAX: usize = 512;
/// Claims that every token of an issuer can have, so that a rule with them alone would let anybody in.
const NOT_FOR_RULES: [&str; 6] = ["iss", "aud", "exp", "nbf", "iat", "jti"];
/// Claims whose text is a list of words (RFC 8693, and what Microsoft's tokens call it).
const LISTS_OF_WORDS: [&str; 2] = ["scope", "scp"];

/// The id of a rule. It is no secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "r-0123456789abcdef")]
pub struct RuleId(Arc<str>);

text_type!(RuleId);

impl RuleId {
    /// A new id.
    pub fn generate() -> Self {
        Self(format!("r-{:016x}", rand::random::<u64>()).into())
    }
}

impl FromStr for RuleId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let digits = text.strip_prefix("r-").unwrap_or_default();
        match digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            true => Ok(Self(text.into())),
            false => Err(ParseIdError::Id(text.to_owned(), "r")),
        }
    }
}

/// Whom a rule lets in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Admitted {
    /// Holders of a token of this issuer.
    Token(TokenHolder),
    /// Holders of a certificate with this name.
    Certificate(CertificateName),
}

/// Who holds a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenHolder {
    /// The token's `iss`: one of the gateways' --oidc-issuer.
    pub issuer: String,
    /// Claims that the token has, all of them. A list has a value if one of its entries is that.
    pub claims: BTreeMap<String, String>,
}

/// A name in a certificate, its subject's common name or one of its alternative names: `CN=NAME`, `DNS=NAME`, or a URI
/// such as `spiffe://example.org/ci`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "spiffe://example.org/ci")]
pub struct CertificateName(String);

/// The text names no certificate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no name of a certificate: use CN=NAME, DNS=NAME, or a URI such as spiffe://example.org/ci")]
pub struct ParseCertificateNameError(String);

impl CertificateName {
    /// The common name of a subject.
    pub fn common(name: &str) -> Result<Self, ParseCertificateNameError> {
        format!("CN={name}").parse()
    }

    /// A DNS name.
    pub fn dns(name: &str) -> Result<Self, ParseCertificateNameError> {
        format!("DNS={name}").parse()
    }

    /// A URI.
    pub fn uri(text: &str) -> Result<Self, ParseCertificateNameError> {
        let parsed: Self = text.parse()?;
        match parsed.0.starts_with("CN=") || parsed.0.starts_with("DNS=") {
            // What only looks like a name of another kind is none.
            true => Err(ParseCertificateNameError(text.to_owned())),
            false => Ok(parsed),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CertificateName {
    type Err = ParseCertificateNameError;

    fn from_str(text: &str) -> Result<Self, ParseCertificateNameError> {
        let named = text.strip_prefix("CN=").or_else(|| text.strip_prefix("DNS="));
        let is_uri = || {
            text.split_once("://")
                .is_some_and(|(scheme, rest)| is_scheme(scheme) && !rest.is_empty())
        };
        let is_name = named.map_or_else(is_uri, |name| !name.is_empty());
        match is_name && is_plain(text) {
            // Names of hosts are compared without regard to case.
            true if text.starts_with("DNS=") => Ok(Self(format!("DNS={}", text[4..].to_ascii_lowercase()))),
            true => Ok(Self(text.to_owned())),
            false => Err(ParseCertificateNameError(text.to_owned())),
        }
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b))
}

impl TryFrom<String> for CertificateName {
    type Error = ParseCertificateNameError;

    fn try_from(text: String) -> Result<Self, ParseCertificateNameError> {
        text.parse()
    }
}

impl From<CertificateName> for String {
    fn from(name: CertificateName) -> Self {
        name.0
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(text: &str) -> bool {
    text.len() <= RULE_TEXT_MAX && !text.chars().any(char::is_control)
}

impl Admitted {
    /// Refuses a rule that would let in more than it seems to.
    ///
    /// # Errors
    /// With what to write instead.
    pub fn check(&self) -> Result<(), String> {
        let Self::Token(TokenHolder { issuer, claims }) = self else {
            return Ok(());
        };
        let is_address = issuer.starts_with("https://") || issuer.starts_with("http://");
        if !is_address || !is_plain(issuer) {
            return Err(format!(
                "\"{issuer}\" is no issuer: write its address, as the tokens' iss has it"
            ));
        }
        if claims.is_empty() || claims.len() > CLAIMS_MAX {
            return Err(format!(
                "a rule has 1 to {CLAIMS_MAX} claims, as sub=NAME: without one it would let everybody in who has an \
                 account at {issuer}"
            ));
        }
        for (name, value) in claims {
            if NOT_FOR_RULES.contains(&name.as_str()) {
                return Err(format!(
                    "the claim {name} tells nobody from others, and the gateways check it anyway: use sub, email, \
                     groups or the like"
                ));
            }
            if name.is_empty() || value.is_empty() || !is_plain(name) || !is_plain(value) {
                return Err(format!(
                    "a claim's name and value have 1 to {RULE_TEXT_MAX} visible characters, unlike {name:?}"
                ));
            }
        }
        Ok(())
    }
}

impl TokenHolder {
    /// Whether a token with these claims is a holder's. A mail address that its issuer does not say to be verified is
    /// nobody's: with some providers people enter any.
    pub fn is(&self, issuer: &str, claims: &Map<String, Value>) -> bool {
        let is_verified = || matches!(claims.get("email_verified"), Some(Value::Bool(true)));
        self.issuer == issuer
            && self.claims.iter().all(|(name, wanted)| has(claims, name, wanted))
            && (!self.claims.contains_key("email") || is_verified())
    }
}

fn has(claims: &Map<String, Value>, name: &str, wanted: &str) -> bool {
    match claims.get(name) {
        Some(Value::String(text)) if LISTS_OF_WORDS.contains(&name) => text.split(' ').any(|word| word == wanted),
        Some(Value::String(text)) => text == wanted,
        Some(Value::Array(list)) => list.iter().any(|entry| entry == wanted),
        Some(Value::Bool(is)) => wanted == if *is { "true" } else { "false" },
        Some(Value::Number(number)) => number.to_string() == wanted,
        _ => false,
    }
}

impl fmt::Display for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(name) => write!(f, "{name}"),
            Self::Token(TokenHolder { issuer, claims }) => {
                for (name, value) in claims {
                    write!(f, "{name}={value} ")?;
                }
                write!(f, "at {issuer}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://id.example.com";

    fn holder(claims: &[(&str, &str)]) -> TokenHolder {
        let claims = claims
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        TokenHolder {
            issuer: ISSUER.to_owned(),
            claims: claims.collect(),
        }
    }

    #[test]
    fn a_token_meets_a_rule_by_every_claim_and_by_nothing_alike() {
        let is = |claims: &[(&str, &str)], token: Value| holder(claims).is(ISSUER, token.as_object().unwrap());
        let ci = [("repository", "org/x"), ("ref", "refs/heads/main")];
        assert!(is(
            &ci,
            json!({ "repository": "org/x", "ref": "refs/heads/main", "sub": "any" })
        ));
        assert!(!is(&ci, json!({ "repository": "org/x" })));
        assert!(!is(
            &ci,
            json!({ "repository": "org/x-fork", "ref": "refs/heads/main" })
        ));
        assert!(is(&[("groups", "ops")], json!({ "groups": ["dev", "ops"] })));
        assert!(
            !is(&[("groups", "ops")], json!({ "groups": "dev ops" })),
            "only scopes are words"
        );
        assert!(is(&[("scope", "deploy")], json!({ "scope": "read deploy" })));
        assert!(!is(&[("sub", "ada")], json!({ "sub": "ada admin" })));
        let mail = [("email", "ada@example.com")];
        assert!(is(&mail, json!({ "email": "ada@example.com", "email_verified": true })));
        assert!(!is(&mail, json!({ "email": "ada@example.com" })), "nobody says so");
        for unverified in [json!(false), json!("true"), json!(null)] {
            assert!(!is(
                &mail,
                json!({ "email": "ada@example.com", "email_verified": unverified })
            ));
        }
        let elsewhere = json!({ "sub": "ada" });
        assert!(!holder(&[("sub", "ada")]).is("https://other.example", elsewhere.as_object().unwrap()));
    }

    #[test]
    fn a_rule_that_would_let_anybody_in_is_refused_with_what_to_write() {
        let refused = |claims: &[(&str, &str)]| Admitted::Token(holder(claims)).check();
        assert!(refused(&[]).unwrap_err().contains("sub=NAME"));
        for name in NOT_FOR_RULES {
            assert!(refused(&[(name, "x")]).unwrap_err().contains("use sub"), "{name}");
        }
        assert!(refused(&[("sub", "")]).is_err() && refused(&[("sub", "a\nb")]).is_err());
        assert_eq!(refused(&[("sub", "ada")]), Ok(()));
        let mut other = holder(&[("sub", "ada")]);
        other.issuer = "id.example.com".to_owned();
        assert!(Admitted::Token(other).check().unwrap_err().contains("address"));
    }

    #[test]
    fn a_certificate_is_named_by_its_kind_of_name() {
        for text in ["CN=ci", "DNS=ci.example.org", "spiffe://example.org/ci"] {
            assert_eq!(text.parse::<CertificateName>().unwrap().as_str(), text);
        }
        let of_host = "DNS=CI.Example.com".parse::<CertificateName>().unwrap();
        assert_eq!(of_host, CertificateName::dns("ci.example.COM").unwrap());
        for text in ["", "ci", "CN=", "://x", "Spiffe://x", "spiffe://", "CN=a\u{7}", "O=org"] {
            assert!(text.parse::<CertificateName>().is_err(), "{text}");
        }
        assert!(CertificateName::uri("CN=a://b").is_err() && CertificateName::uri("spiffe://a/b").is_ok());
        let whole = Admitted::Certificate("CN=ci".parse().unwrap());
        assert_eq!(serde_json::to_value(&whole).unwrap(), json!({ "certificate": "CN=ci" }));
        let id = RuleId::generate();
        assert_eq!(id.as_str().parse::<RuleId>().unwrap(), id);
    }
}
