//! Functions that ask for tokens, and what browsers are told of functions.

use rekindle_wire::ErrorCode;
use rekindle_wire::access::AccessRole;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::json;

use crate::access::create;
use crate::harness::{KEY, Platform, error, until};
use crate::provider::{Key, Provider};

const PAGE: &str = "https://app.example.com";

fn rules(provider: &Provider) -> String {
    format!(
        "auth = \"jwt\"\n[jwt]\nissuer = \"{}\"\naudience = \"orders\"\nclaims = {{ scope = \"write\" }}\n",
        provider.address
    )
}

async fn start(provider: &Provider) -> Platform {
    let issuer = provider.address.parse().unwrap();
    Platform::start_with(|config| config.token_issuers = vec![issuer]).await
}

fn header<'a>(answer: &'a Response, name: &str) -> Option<&'a str> {
    answer.headers().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_function_that_asks_for_a_token_is_invoked_with_one_or_with_a_key_at_every_address() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let platform = start(&provider).await;
    platform.deploy("orders", &rules(&provider)).await;
    let good = key.sign(&provider.claims(&json!({})));
    let other = key.sign(&provider.claims(&json!({ "aud": "another" })));
    let reads = key.sign(&provider.claims(&json!({ "scope": "read" })));
    let invoker = create(&platform, AccessRole::Invoker, "orders").await.key;
    let reader = create(&platform, AccessRole::Reader, "orders").await.key;
    let port = platform.url.rsplit(':').next().unwrap();
    let calls = || -> [RequestBuilder; 4] {
        let host = format!("orders.localhost:{port}");
        [
            platform.function("orders"),
            platform.function("orders@1/path"),
            platform.http.get(&platform.url).header("host", host),
            platform.http.post(format!("{}/async-function/orders", platform.url)),
        ]
    };
    for (shown, code) in [
        (None, Some(ErrorCode::Unauthorized)),
        (Some("of-another-service"), Some(ErrorCode::Unauthorized)),
        (Some(&*other), Some(ErrorCode::Unauthorized)),
        (Some(&*reads), Some(ErrorCode::Forbidden)),
        (Some(&*reader), Some(ErrorCode::Forbidden)),
        (Some(&*good), None),
        (Some(&*invoker), None),
        (Some(KEY), None),
    ] {
        for call in calls() {
            let call = match shown {
                Some(shown) => call.bearer_auth(shown),
                None => call,
            };
            let answer = call.send().await.unwrap();
            let challenge = header(&answer, "www-authenticate").map(str::to_owned);
            match code {
                None => assert!(answer.status().is_success(), "{shown:?}: {}", answer.status()),
                Some(code) => assert_eq!(error(answer).await.code, code, "{shown:?}"),
            }
            assert_eq!(challenge.is_some(), code == Some(ErrorCode::Unauthorized));
        }
    }
    assert_eq!(provider.fetches(), 1);
}

#[tokio::test]
async fn what_a_function_asks_for_changes_with_a_deploy_and_an_issuer_that_is_not_trusted_is_told() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let platform = start(&provider).await;
    platform.deploy("orders", &rules(&provider)).await;
    let good = key.sign(&provider.claims(&json!({})));
    let status = async || {
        let call = platform.function("orders").bearer_auth(&good);
        call.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status().await, 200);
    platform.deploy("orders", "auth = \"key\"\n").await;
    until("a key is asked for", async || status().await == 401).await;
    let strange = rules(&provider).replace(&provider.address, "https://id.example.com");
    platform.deploy("orders", &strange).await;
    until("the issuer is unknown", async || status().await == 503).await;
    let answer = platform.function("orders").bearer_auth(&good).send().await.unwrap();
    assert!(
        error(answer)
            .await
            .message
            .contains("--jwt-issuer https://id.example.com")
    );
    platform.deploy("orders", "").await;
    until("nothing is asked for", async || status().await == 200).await;
}

#[tokio::test]
async fn a_browser_is_told_what_pages_may_do_before_anything_is_asked_of_them() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let platform = start(&provider).await;
    let cors = format!("[cors]\norigins = [\"{PAGE}\"]\nmethods = [\"PUT\"]\nexpose = [\"x-total\"]\n");
    platform.deploy("orders", &format!("{}{cors}", rules(&provider))).await;
    platform.deploy("plain", "").await;
    let ask = |name: &str, origin: &str| {
        let url = format!("{}/function/{name}/", platform.url);
        let ask = platform.http.request(Method::OPTIONS, url).header("origin", origin);
        ask.header("access-control-request-method", "PUT")
    };
    let allowed = ask("orders", PAGE).send().await.unwrap();
    assert_eq!(allowed.status(), 200);
    assert_eq!(header(&allowed, "access-control-allow-origin"), Some(PAGE));
    assert_eq!(header(&allowed, "access-control-allow-methods"), Some("PUT"));
    assert_eq!(header(&allowed, "x-fn-instance"), None, "the gateway answers");
    let other = ask("orders", "https://other.example").send().await.unwrap();
    assert_eq!(header(&other, "access-control-allow-origin"), None);
    let plain = ask("plain", PAGE).send().await.unwrap();
    assert_eq!(
        header(&plain, "access-control-allow-origin"),
        None,
        "the function answers"
    );

    // A page may read the answer, and why there is none.
    let call = || platform.function("orders").header("origin", PAGE);
    let refused = call().send().await.unwrap();
    assert_eq!(
        (
            refused.status().as_u16(),
            header(&refused, "access-control-allow-origin")
        ),
        (401, Some(PAGE))
    );
    let good = key.sign(&provider.claims(&json!({})));
    let answer = call().bearer_auth(&good).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(header(&answer, "access-control-allow-origin"), Some(PAGE));
    assert_eq!(header(&answer, "access-control-expose-headers"), Some("x-total"));
    let without = platform.function("orders").bearer_auth(&good).send().await.unwrap();
    assert_eq!(header(&without, "access-control-expose-headers"), None);
}
