//! Tokens (JWT, RFC 7519) of issuers that the operator trusts, which callers show in place of a key: `Tokens` for what
//! functions ask for, `Identities` for callers of the platform.

mod identities;
mod issuer;
#[cfg(test)]
#[path = "../../tests/platform/provider.rs"]
pub(crate) mod provider;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use rekindle_wire::access::CLOCK_LEEWAY_S;
use rekindle_wire::function_config::TokenRule;
use rekindle_wire::{ApiError, ErrorCode};
use serde_json::{Map, Value};

use crate::metrics::Metrics;
pub use identities::IdentityIssuers;
pub(crate) use identities::{Identities, Identity, is_for};
use issuer::{Issuer, IssuerClient, outside};
pub use issuer::{ParseTokenIssuerError, TokenIssuer};

/// How far clocks may differ, in seconds.
const LEEWAY_S: u64 = CLOCK_LEEWAY_S as u64;
/// Algorithms with a public key. A shared secret (HS256) would let every gateway make tokens.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

type Claims = Map<String, Value>;

/// The issuers whose tokens are taken.
pub(crate) struct Tokens {
    issuers: HashMap<String, Arc<Issuer>>,
    outside: Option<IssuerClient>,
}

impl Tokens {
    /// Takes tokens of these issuers. Their keys are fetched when a token first needs them.
    pub(crate) fn new(issuers: &[TokenIssuer], metrics: &Arc<Metrics>) -> Self {
        let known = |issuer: &TokenIssuer| {
            let known = Issuer::new(issuer.clone(), metrics.clone());
            (issuer.name.clone(), Arc::new(known))
        };
        Self {
            issuers: issuers.iter().map(known).collect(),
            outside: (!issuers.is_empty()).then(outside),
        }
    }

    /// Checks that a token meets every rule.
    ///
    /// # Errors
    /// `unauthorized` if it is no valid token of the issuer for this audience, `forbidden` if it lacks a claim, and
    /// `unavailable` if that cannot be judged now.
    pub(crate) async fn check(&self, token: &[u8], rules: &[TokenRule]) -> Result<(), ApiError> {
        let header = header_of(token)?;
        for rule in rules {
            let (Some(issuer), Some(outside)) = (self.issuers.get(&rule.issuer), &self.outside) else {
                return Err(ApiError::new(
                    ErrorCode::Unavailable,
                    format!(
                        "no token of {} can be checked here: the operator starts the gateways with --jwt-issuer {}",
                        rule.issuer, rule.issuer
                    ),
                ));
            };
            let key = issuer.key(&header, outside).await?;
            let claims = claims_of(token, &header, &key, (&rule.issuer, &rule.audience))?;
            if let Some((name, value)) = rule.claims.iter().find(|(name, value)| !has(&claims, name, value)) {
                return Err(ApiError::new(
                    ErrorCode::Forbidden,
                    format!(
                        "the token's claim {name} has no \"{value}\", which this function asks for: sign in at {} as \
                         somebody who has it",
                        rule.issuer
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn header_of(token: &[u8]) -> Result<Header, ApiError> {
    let header = jsonwebtoken::decode_header(token)
        .map_err(|_| refused("it is no JSON Web Token: send \"Authorization: Bearer TOKEN\""))?;
    if header.crit.is_some() {
        // RFC 7515, 4.1.11: of what must be understood, nothing is.
        return Err(refused("it has a header \"crit\", whose extensions are not known here"));
    }
    match ALGORITHMS.contains(&header.alg) {
        true => Ok(header),
        false => Err(refused(&format!(
            "{:?} is not taken: tokens are signed with a public key's algorithm, such as RS256 or ES256",
            header.alg
        ))),
    }
}

/// The claims of a token that is signed with the key, is of the issuer, and for one of the audiences.
fn claims_of(
    token: &[u8],
    header: &Header,
    key: &DecodingKey,
    (issuer, audiences): (&str, &[String]),
) -> Result<Claims, ApiError> {
    let mut validation = Validation::new(header.alg);
    validation.leeway = LEEWAY_S;
    validation.validate_nbf = true;
    validation.set_issuer(&[issuer]);
    validation.set_audience(audiences);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let decoded = jsonwebtoken::decode::<Claims>(token, key, &validation);
    decoded.map(|token| token.claims).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::ExpiredSignature => "it has expired".to_owned(),
            ErrorKind::ImmatureSignature => "it is not valid yet".to_owned(),
            ErrorKind::InvalidIssuer => format!("it is not of {issuer}"),
            ErrorKind::InvalidAudience => format!("it is for another audience than {}", audiences.join(", ")),
            ErrorKind::MissingRequiredClaim(claim) => format!("it has no {claim}"),
            ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => {
                "its signature is not by the issuer's key".to_owned()
            }
            _ => "it is malformed".to_owned(),
        };
        refused(&why)
    })
}

/// Claims that are words (RFC 8693, and as other issuers name it). Other texts may be what people call themselves.
const WORDS: [&str; 2] = ["scope", "scp"];

/// Whether a claim is a text, a list that has it, or words of which it is one.
fn has(claims: &Claims, name: &str, wanted: &str) -> bool {
    match claims.get(name) {
        Some(Value::String(text)) if WORDS.contains(&name) => text.split(' ').any(|word| word == wanted),
        Some(Value::String(text)) => text == wanted,
        Some(Value::Array(list)) => list.iter().any(|entry| entry == wanted),
        Some(Value::Bool(is)) => wanted == if *is { "true" } else { "false" },
        Some(Value::Number(number)) => number.to_string() == wanted,
        _ => false,
    }
}

fn refused(why: &str) -> ApiError {
    ApiError::new(ErrorCode::Unauthorized, format!("the token is not taken: {why}"))
}
