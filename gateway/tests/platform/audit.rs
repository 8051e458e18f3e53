//! The audit log over the admin API.

use rekindle_wire::ErrorCode;
use rekindle_wire::api::{AuditEntry, AuditPage, NewKey};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Platform, error, until};

const VALUE: &str = "nothing-shows-this-value";

async fn page(platform: &Platform, query: &str) -> (AuditPage, String) {
    let answer = platform
        .admin(Method::GET, &format!("/v1/audit{query}"))
        .send()
        .await
        .unwrap();
    let text = answer.text().await.unwrap();
    (serde_json::from_str(&text).unwrap(), text)
}

/// An entry as one text.
fn told(entry: &AuditEntry) -> String {
    let namespace = entry.namespace.as_ref().map_or("-", |n| n.as_str());
    format!("{} {namespace} {} {}", entry.action, entry.object, entry.outcome)
}

async fn send(platform: &Platform, method: Method, path: &str, body: Option<&Value>) -> reqwest::Response {
    let call = platform.admin(method, path);
    match body {
        Some(body) => call.json(body),
        None => call,
    }
    .send()
    .await
    .unwrap()
}

#[tokio::test]
async fn every_change_is_in_the_log_with_who_asked_and_what_came_of_it() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.deploy("hello", "memory = \"64MiB\"\n").await;
    send(&platform, Method::PUT, "/v1/namespaces/team", None).await;
    let body = json!({"role": "admin", "namespace": "team"});
    let made = send(&platform, Method::POST, "/v1/keys", Some(&body)).await;
    let made: NewKey = made.json().await.unwrap();
    let secret = platform
        .http
        .put(format!("{}/v1/namespaces/team/secrets/DB", platform.url));
    let secret = secret
        .bearer_auth(&made.key)
        .header("x-request-id", "asked-by-team")
        .body(VALUE);
    assert_eq!(secret.send().await.unwrap().status(), 200);
    let alias = json!({"targets": [{"version": 9, "weight": 1}]});
    send(&platform, Method::PUT, "/v1/functions/hello/aliases/next", Some(&alias)).await;
    send(
        &platform,
        Method::POST,
        "/v1/functions/hello/rollback",
        Some(&json!({})),
    )
    .await;
    send(&platform, Method::DELETE, "/v1/functions/nobody", None).await;
    platform.upload("name = \"Bad\"\n").await;
    send(
        &platform,
        Method::DELETE,
        &format!("/v1/keys/{}", made.summary.id),
        None,
    )
    .await;
    // Neither reads nor invocations are changes.
    send(&platform, Method::GET, "/v1/functions/hello", None).await;
    send(
        &platform,
        Method::POST,
        "/v1/functions/hello/invocations",
        Some(&json!({})),
    )
    .await;
    platform.restart_scheduler().await;
    send(&platform, Method::DELETE, "/v1/functions/hello", None).await;
    let (log, text) = page(&platform, "").await;
    let id = &made.summary.id;
    let expected = [
        "deploy default hello 1 ok".to_owned(),
        "deploy default hello 2 ok".to_owned(),
        "create_namespace - team ok".to_owned(),
        format!("create_key team {id} admin *.team ok"),
        "set_secret team DB ok".to_owned(),
        "set_alias default hello/next not_found".to_owned(),
        "roll_back default hello ok".to_owned(),
        "delete_function default nobody function_not_found".to_owned(),
        "deploy default  invalid_config".to_owned(),
        format!("revoke_key team {id} ok"),
        "delete_function default hello ok".to_owned(),
    ];
    assert_eq!(log.entries.iter().map(told).collect::<Vec<_>>(), expected);
    for secret in [VALUE, &made.key, made.key.rsplit_once('_').unwrap().1] {
        assert!(!text.contains(secret), "{text}");
    }
    let by_team = &log.entries[4];
    assert_eq!(
        (by_team.actor.as_str(), by_team.request_id.as_str()),
        (id.as_str(), "asked-by-team")
    );
    assert_eq!(log.entries[0].actor, "admin");
    let mut previous = log.begins_after.hash;
    for (entry, number) in log.entries.iter().zip(1..) {
        assert_eq!((entry.number, &entry.previous), (number, &previous));
        assert_eq!(rekindle_scheduler::audit_digest(entry), entry.hash);
        previous.clone_from(&entry.hash);
    }
    let (rest, _) = page(&platform, "?after=9&limit=1").await;
    assert_eq!(rest.entries, log.entries[9..10]);
    let since = format!("?since_unix_ms={}", i64::MAX);
    assert_eq!(page(&platform, &since).await.0.entries, []);
}

#[tokio::test]
async fn an_admin_of_a_namespace_reads_its_part_of_the_log() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    send(&platform, Method::PUT, "/v1/namespaces/team", None).await;
    let mut keys = Vec::new();
    for body in [
        json!({"role": "admin", "namespace": "team"}),
        json!({"role": "deployer", "namespace": "team"}),
        json!({"role": "admin", "namespace": "team", "function": "hello"}),
    ] {
        let made: NewKey = send(&platform, Method::POST, "/v1/keys", Some(&body))
            .await
            .json()
            .await
            .unwrap();
        keys.push(made.key);
    }
    let read = async |key: &str| {
        let call = platform.http.get(format!("{}/v1/audit", platform.url)).bearer_auth(key);
        call.send().await.unwrap()
    };
    let log: AuditPage = read(&keys[0]).await.json().await.unwrap();
    assert_eq!(
        log.entries.iter().map(|e| e.action.as_str()).collect::<Vec<_>>(),
        ["create_key"; 3]
    );
    for key in &keys[1..] {
        assert_eq!(error(read(key).await).await.code, ErrorCode::Forbidden);
    }
}

#[tokio::test]
async fn what_a_key_is_refused_fills_no_log_and_is_in_none_of_another_namespace() {
    let platform = Platform::start().await;
    for namespace in ["team", "rival"] {
        send(&platform, Method::PUT, &format!("/v1/namespaces/{namespace}"), None).await;
    }
    let make = async |namespace: &str, role: &str| {
        let body = json!({"role": role, "namespace": namespace});
        let made = send(&platform, Method::POST, "/v1/keys", Some(&body)).await;
        made.json::<NewKey>().await.unwrap()
    };
    let (own, others) = (make("rival", "admin").await, make("team", "reader").await);
    let ask = async |path: String| {
        let call = platform.http.delete(format!("{}{path}", platform.url));
        call.bearer_auth(&own.key).send().await.unwrap()
    };
    let other = format!("/v1/keys/{}", others.summary.id);
    assert_eq!(error(ask(other).await).await.code, ErrorCode::NotFound);
    for _ in 0..20 {
        let nobody = "/v1/namespaces/rival/functions/nobody".to_owned();
        assert_eq!(error(ask(nobody).await).await.code, ErrorCode::FunctionNotFound);
    }
    let (log, _) = page(&platform, "").await;
    let of_key = log
        .entries
        .iter()
        .filter(|entry| entry.actor == own.summary.id.as_str());
    let of_key: Vec<_> = of_key.map(told).collect();
    assert_eq!(of_key.len(), 10, "{of_key:?}");
    assert_eq!(of_key[0], format!("revoke_key rival {} not_found", others.summary.id));
    assert_eq!(of_key[1], "delete_function rival nobody function_not_found");
}

#[tokio::test]
async fn a_key_that_asks_for_too_much_keeps_nobody_from_revoking_it() {
    let platform = Platform::start().await;
    send(&platform, Method::PUT, "/v1/namespaces/team", None).await;
    let make = async |role: &str| {
        let body = json!({"role": role, "namespace": "team"});
        let made = send(&platform, Method::POST, "/v1/keys", Some(&body)).await;
        made.json::<NewKey>().await.unwrap()
    };
    let (own, leaked) = (make("admin").await, make("deployer").await);
    let delete = async |key: &NewKey, path: &str| {
        let call = platform.http.delete(format!("{}{path}", platform.url));
        call.bearer_auth(&key.key).send().await.unwrap()
    };
    // Both use up their own part with what is refused.
    for key in [&leaked, &own] {
        let mut refused = error(delete(key, "/v1/namespaces/team/functions/nobody").await).await;
        for _ in 0..400 {
            if refused.code == ErrorCode::TooManyRequests {
                break;
            }
            assert_eq!(refused.code, ErrorCode::FunctionNotFound);
            refused = error(delete(key, "/v1/namespaces/team/functions/nobody").await).await;
        }
        assert_eq!(refused.code, ErrorCode::TooManyRequests);
    }
    let other = make("deployer").await;
    let of_other = error(delete(&other, "/v1/namespaces/team/functions/nobody").await).await;
    assert_eq!(of_other.code, ErrorCode::FunctionNotFound);
    let revoked = delete(&own, &format!("/v1/keys/{}", leaked.summary.id)).await;
    assert_eq!(revoked.status(), 200);
}

#[tokio::test]
async fn a_change_whose_caller_leaves_is_in_the_log() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform
        .objects
        .0
        .lock()
        .insert("snapshots/s-hello-1/bundle".to_owned(), Vec::new());
    // Holds the delete up until its caller has left.
    let held_up = platform.objects.1.lock().await;
    let deleting = platform.admin(Method::DELETE, "/v1/functions/hello").send();
    let left = tokio::time::timeout(std::time::Duration::from_millis(300), deleting).await;
    assert!(left.is_err(), "it was answered already");
    drop(held_up);
    until("it is in the log", async || {
        let (log, _) = page(&platform, "").await;
        log.entries
            .iter()
            .any(|entry| told(entry) == "delete_function default hello ok")
    })
    .await;
}
