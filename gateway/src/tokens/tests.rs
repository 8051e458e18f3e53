use std::collections::BTreeMap;

use jsonwebtoken::EncodingKey;
use serde_json::json;

use super::provider::{Key, Provider, now};
use super::*;

fn tokens_of(provider: &Provider) -> Tokens {
    Tokens::new(&[provider.address.parse().unwrap()], &Arc::new(Metrics::new()))
}

fn rule_of(provider: &Provider) -> TokenRule {
    TokenRule {
        issuer: provider.address.clone(),
        audience: vec!["orders".to_owned(), "shop".to_owned()],
        claims: BTreeMap::from([("scope".to_owned(), "write".to_owned())]),
    }
}

async fn code(tokens: &Tokens, token: &str, rules: &[TokenRule]) -> Result<(), ErrorCode> {
    tokens.check(token.as_bytes(), rules).await.map_err(|e| e.code)
}

#[tokio::test]
async fn a_token_is_taken_that_meets_every_rule_and_no_other() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let (tokens, rule) = (tokens_of(&provider), rule_of(&provider));
    let refused = Err(ErrorCode::Unauthorized);
    for (changes, expected) in [
        (json!({}), Ok(())),
        (json!({ "aud": ["other", "shop"] }), Ok(())),
        (json!({ "scope": ["write"] }), Ok(())),
        (json!({ "exp": now() - 10 }), Ok(())),
        (json!({ "exp": now() - 60 }), refused),
        (json!({ "exp": null }), refused),
        (json!({ "nbf": now() + 120 }), refused),
        (json!({ "aud": "another" }), refused),
        (json!({ "aud": null }), refused),
        (json!({ "iss": "https://other.example" }), refused),
        (json!({ "scope": "read write" }), Ok(())),
        (json!({ "scope": "writer" }), Err(ErrorCode::Forbidden)),
        (json!({ "scope": { "write": true } }), Err(ErrorCode::Forbidden)),
    ] {
        let token = key.sign(&provider.claims(&changes));
        assert_eq!(
            code(&tokens, &token, std::slice::from_ref(&rule)).await,
            expected,
            "{changes}"
        );
    }
    let good = key.sign(&provider.claims(&json!({})));
    let other_audience = TokenRule {
        audience: vec!["other".to_owned()],
        ..rule.clone()
    };
    assert_eq!(code(&tokens, &good, &[rule.clone(), other_audience]).await, refused);
    assert_eq!(provider.fetches(), 1, "keys are kept");

    // Not signed, signed by another, with what is public as a secret, cut, changed.
    let mut parts = good.split('.');
    let (head, body) = (parts.next().unwrap(), parts.next().unwrap());
    let unsigned = {
        use base64::Engine as _;
        let none = base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(br#"{"alg":"none","typ":"JWT"}"#);
        format!("{none}.{body}.")
    };
    let public = serde_json::to_vec(&key.public()).unwrap();
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("one".to_owned());
    let by_secret = jsonwebtoken::encode(
        &header,
        &provider.claims(&json!({})),
        &EncodingKey::from_secret(&public),
    );
    let stranger = Key::new("one").sign(&provider.claims(&json!({})));
    let unknown = Key::new("two").sign(&provider.claims(&json!({})));
    for wrong in [
        unsigned.as_str(),
        &by_secret.unwrap(),
        &stranger,
        &unknown,
        head,
        "",
        &good[..good.len() - 4],
        &format!("{head}.{body}"),
    ] {
        assert_eq!(
            code(&tokens, wrong, std::slice::from_ref(&rule)).await,
            refused,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn keys_are_fetched_for_a_new_one_but_not_for_every_token() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let provider = Provider::start(&[&old]).await;
    let (tokens, rules) = (tokens_of(&provider), [rule_of(&provider)]);
    let of = |key: &Key| key.sign(&provider.claims(&json!({})));
    assert_eq!(code(&tokens, &of(&old), &rules).await, Ok(()));
    *provider.published.lock() = vec![old.public(), new.public()];
    assert_eq!(code(&tokens, &of(&new), &rules).await, Err(ErrorCode::Unauthorized));
    for _ in 0..5 {
        assert_eq!(code(&tokens, &of(&new), &rules).await, Err(ErrorCode::Unauthorized));
    }
    assert_eq!(provider.fetches(), 1, "one fetch in a while");
    tokens.issuers[&provider.address].forget_try().await;
    assert_eq!(code(&tokens, &of(&new), &rules).await, Ok(()));
    assert_eq!(code(&tokens, &of(&old), &rules).await, Ok(()));
    assert_eq!(provider.fetches(), 2);
}

#[tokio::test]
async fn an_issuer_that_is_unknown_or_away_is_told_as_that() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let token = key.sign(&provider.claims(&json!({})));
    let none = Tokens::new(&[], &Arc::new(Metrics::new()));
    let error = none.check(token.as_bytes(), &[rule_of(&provider)]).await.unwrap_err();
    assert!(
        error.code == ErrorCode::Unavailable && error.message.contains("--jwt-issuer"),
        "{error}"
    );
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let away = Tokens::new(&[address.parse().unwrap()], &Arc::new(Metrics::new()));
    let rule = TokenRule {
        issuer: address,
        ..rule_of(&provider)
    };
    for _ in 0..2 {
        let error = away
            .check(token.as_bytes(), std::slice::from_ref(&rule))
            .await
            .unwrap_err();
        assert!(
            error.code == ErrorCode::Unavailable && error.message.contains("fetched"),
            "{error}"
        );
    }
}

#[test]
fn an_issuer_is_an_address_and_may_name_its_keys() {
    let parse = |text: &str| text.parse::<TokenIssuer>();
    assert_eq!(
        parse("https://id.example.com/realm").unwrap().name,
        "https://id.example.com/realm"
    );
    assert_eq!(
        parse("https://id.example.com=https://id.example.com/jwks?a=b")
            .unwrap()
            .name,
        "https://id.example.com"
    );
    for wrong in [
        "",
        "id.example.com",
        "https://",
        "https://id.example.com=keys",
        "ftp://id.example.com",
    ] {
        assert_eq!(parse(wrong), Err(ParseTokenIssuerError), "{wrong}");
    }
}

#[test]
fn only_scopes_are_words() {
    let claims: super::Claims =
        serde_json::from_value(json!({ "scp": "a b", "name": "Eve admin", "groups": ["x y"] })).unwrap();
    assert!(super::has(&claims, "scp", "b") && super::has(&claims, "name", "Eve admin"));
    assert!(!super::has(&claims, "name", "admin") && !super::has(&claims, "groups", "x"));
}

#[test]
fn what_a_token_says_must_be_understood_is_not() {
    let plain = super::header_of(b"eyJhbGciOiJSUzI1NiJ9.e30.c2ln");
    assert!(plain.is_ok(), "{plain:?}");
    let refused = super::header_of(b"eyJhbGciOiJSUzI1NiIsImNyaXQiOlsieCJdfQ.e30.c2ln");
    assert!(refused.unwrap_err().message.contains("crit"));
}
