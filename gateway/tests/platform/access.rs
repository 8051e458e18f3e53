//! Keys of the API and namespaces: who may do what.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rekindle_wire::access::{AccessRole, Scope};
use rekindle_wire::api::{KeySummary, NamespaceSummary, NewKey, RevokedKey, VersionInfo};
use rekindle_wire::interface::users::{Reach, described, in_namespace};
use rekindle_wire::{ApiError, ErrorCode};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::harness::{KEY, Platform, error, folder, start_gateway, until};

/// A function's folder.
fn hello(name: &str) -> Vec<u8> {
    folder(&format!(
        "name = \"{name}\"\nruntime = \"python\"\nentry = \"main.handler\"\n"
    ))
}

async fn call(platform: &Platform, key: &str, method: Method, path: &str) -> Response {
    let call = platform.http.request(method, format!("{}{path}", platform.url));
    call.bearer_auth(key).send().await.unwrap()
}

async fn post(platform: &Platform, key: &str, path: &str, body: &Value) -> Response {
    let call = platform.http.post(format!("{}{path}", platform.url)).bearer_auth(key);
    call.json(body).send().await.unwrap()
}

/// Makes a key with the platform's own.
pub(crate) async fn create(platform: &Platform, role: AccessRole, scope: &str) -> NewKey {
    let made = create_with(platform, KEY, role, scope).await;
    assert_eq!(made.status(), 200);
    made.json().await.unwrap()
}

async fn create_with(platform: &Platform, key: &str, role: AccessRole, scope: &str) -> Response {
    let scope: Scope = scope.parse().unwrap();
    let body = json!({"name": "test", "role": role, "namespace": scope.namespace(), "function": scope.function()});
    post(platform, key, "/v1/keys", &body).await
}

async fn make_namespace(platform: &Platform, name: &str) {
    let path = format!("/v1/namespaces/{name}");
    assert_eq!(call(platform, KEY, Method::PUT, &path).await.status(), 200);
}

async fn deploy(platform: &Platform, key: &str, namespace: &str, name: &str) -> Result<VersionInfo, ApiError> {
    let url = format!("{}/v1/namespaces/{namespace}/functions", platform.url);
    let answer = platform
        .http
        .post(url)
        .bearer_auth(key)
        .body(hello(name))
        .send()
        .await
        .unwrap();
    if !answer.status().is_success() {
        return Err(error(answer).await);
    }
    let version: VersionInfo = answer.json().await.unwrap();
    let path = format!(
        "/v1/namespaces/{namespace}/functions/{name}/versions/{}",
        version.version
    );
    platform.ready(&path).await;
    Ok(version)
}

/// Every operation with keys of every role for every scope: each is refused exactly where its role or scope lacks.
#[tokio::test]
async fn every_operation_is_refused_to_whoever_lacks_its_role_there() {
    let platform = Platform::start().await;
    make_namespace(&platform, "team").await;
    let mut keys = Vec::new();
    for role in AccessRole::ALL {
        for scope in ["*", "*.team", "hello.team", "*.default", "other"] {
            keys.push((
                role,
                scope.parse::<Scope>().unwrap(),
                create(&platform, role, scope).await.key,
            ));
        }
    }
    let (mut refused, mut admitted) = (0, 0);
    for described in described() {
        let Some(access) = described.access else { continue };
        let template = in_namespace(described.operation.path).unwrap_or(described.operation.path.to_owned());
        let path = template
            .replace("{namespace}", "team")
            .replace("{name}", "hello")
            .replace("{version}", "1")
            .replace("{alias}", "live");
        // What none of these may name exists: who is admitted changes nothing that others need.
        let path = path.replace(
            "{id}",
            match path.contains("/v1/keys/") {
                true => "k-0000000000000000",
                false if path.contains("/v1/async/") => "a-1",
                false if path.contains("/v1/workers/") => "w-1",
                false => "i-1",
            },
        );
        let needed = match access.reach {
            Reach::Platform => Some(Scope::Platform),
            Reach::Namespace => Some("*.team".parse().unwrap()),
            Reach::Function => Some("hello.team".parse().unwrap()),
            Reach::Content => None,
        };
        let is_harmful = ["RemoveNamespace", "Collect"].contains(&described.name);
        for (role, scope, key) in &keys {
            let may = role.includes(access.role) && needed.as_ref().is_none_or(|needed| scope.covers(needed));
            if may && is_harmful {
                continue;
            }
            let answer = call(&platform, key, described.operation.method.clone(), &path).await;
            let was_refused = answer.status() == 403;
            // Of what is checked by its content, a key of another scope is refused by the scheduler.
            if !may || needed.is_some() {
                assert_eq!(
                    was_refused, !may,
                    "{role} of {scope}: {} {path}",
                    described.operation.method
                );
            }
            if was_refused {
                let told = error(answer).await;
                assert_eq!(told.code, ErrorCode::Forbidden);
                assert!(told.message.contains("fn key create --role"), "{told}");
                refused += 1;
            } else {
                assert_ne!(answer.status(), 401, "{path}");
                admitted += 1;
            }
        }
    }
    assert!(
        refused > 300 && admitted > 150,
        "{refused} refused, {admitted} admitted"
    );
}

#[tokio::test]
async fn a_namespace_s_deployer_deploys_there_and_nowhere_else() {
    let platform = Platform::start().await;
    // With the platform's key a deploy makes the namespace.
    deploy(&platform, KEY, "team", "hello").await.unwrap();
    let deployer = create(&platform, AccessRole::Deployer, "*.team").await.key;
    assert_eq!(
        deploy(&platform, &deployer, "team", "hello").await.unwrap().version.0,
        2
    );
    deploy(&platform, &deployer, "team", "other").await.unwrap();
    for namespace in ["default", "third"] {
        let refused = deploy(&platform, &deployer, namespace, "hello").await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden, "{namespace}");
        assert!(refused.message.contains("role deployer"), "{refused}");
    }
    let of_one = create(&platform, AccessRole::Deployer, "hello.team").await.key;
    assert_eq!(deploy(&platform, &of_one, "team", "hello").await.unwrap().version.0, 3);
    let refused = deploy(&platform, &of_one, "team", "other").await.unwrap_err();
    assert!(refused.message.contains("the function other.team"), "{refused}");
    let reader = create(&platform, AccessRole::Reader, "*.team").await.key;
    let refused = deploy(&platform, &reader, "team", "hello").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    // Each has its own address.
    for (path, status) in [("hello.team", 200), ("other.team", 200), ("hello", 404)] {
        let answer = platform.function(path).send().await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
    let invoker = create(&platform, AccessRole::Invoker, "hello.team").await.key;
    let invoke = async |name: &str| {
        let path = format!("/v1/namespaces/team/functions/{name}/invocations");
        post(&platform, &invoker, &path, &json!({})).await.status()
    };
    assert_eq!(invoke("hello").await, 200);
    assert_eq!(invoke("other").await, 403);
    let described = call(&platform, &invoker, Method::GET, "/v1/namespaces/team/functions/hello").await;
    assert_eq!(described.status(), 403);
}

#[tokio::test]
async fn the_query_names_no_namespace() {
    let platform = Platform::start().await;
    deploy(&platform, KEY, "team", "hello").await.unwrap();
    deploy(&platform, KEY, "default", "hello").await.unwrap();
    let deployer = create(&platform, AccessRole::Deployer, "*.default").await.key;
    for key in [&deployer, KEY] {
        let answer = call(&platform, key, Method::DELETE, "/v1/functions/hello?namespace=team").await;
        assert_eq!(error(answer).await.code, ErrorCode::BadRequest);
    }
    let path = "/v1/namespaces/team/functions/hello";
    assert_eq!(call(&platform, KEY, Method::GET, path).await.status(), 200);
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once_at_every_gateway_also_after_a_restart() {
    let mut platform = Platform::start().await;
    let (other_url, _other) = start_gateway(&platform.relay, |_| {}).await;
    let made = create(&platform, AccessRole::Reader, "*").await;
    let kept = create(&platform, AccessRole::Reader, "*").await;
    let own_url = platform.url.clone();
    let status = async |url: &str, key: &str| {
        let call = reqwest::Client::new().get(format!("{url}/v1/status")).bearer_auth(key);
        call.send().await.unwrap().status().as_u16()
    };
    until("both gateways know the keys", async || {
        status(&own_url, &made.key).await == 200 && status(&other_url, &made.key).await == 200
    })
    .await;
    let path = format!("/v1/keys/{}", made.summary.id);
    assert_eq!(call(&platform, KEY, Method::DELETE, &path).await.status(), 200);
    for url in [&own_url, &other_url] {
        assert_eq!(status(url, &made.key).await, 401);
        assert_eq!(status(url, &kept.key).await, 200);
    }
    let refused = error(call(&platform, &made.key, Method::GET, "/v1/status").await).await;
    assert_eq!(refused.code, ErrorCode::Unauthorized);
    assert!(refused.message.contains("revoked"), "{refused}");
    let again = error(call(&platform, KEY, Method::DELETE, &path).await).await;
    assert_eq!(again.code, ErrorCode::NotFound);
    platform.restart_scheduler().await;
    assert_eq!(status(&own_url, &made.key).await, 401);
    until("the new lead has heard of all gateways", async || {
        let another = create(&platform, AccessRole::Reader, "*").await.summary.id;
        let revoked = call(&platform, KEY, Method::DELETE, &format!("/v1/keys/{another}")).await;
        revoked.json::<RevokedKey>().await.unwrap().everywhere
    })
    .await;
    let path = format!("/v1/keys/{}", kept.summary.id);
    let revoked = call(&platform, KEY, Method::DELETE, &path).await;
    assert!(revoked.json::<RevokedKey>().await.unwrap().everywhere);
    for url in [&own_url, &other_url] {
        assert_eq!(status(url, &kept.key).await, 401);
    }
}

#[tokio::test]
async fn an_admin_of_a_namespace_makes_and_sees_keys_of_it_alone() {
    let platform = Platform::start().await;
    make_namespace(&platform, "team").await;
    let admin = create(&platform, AccessRole::Admin, "*.team").await;
    let outside = create(&platform, AccessRole::Reader, "hello").await;
    for (role, scope, status) in [
        (AccessRole::Deployer, "*.team", 200),
        (AccessRole::Admin, "hello.team", 200),
        (AccessRole::Reader, "*", 403),
        (AccessRole::Reader, "*.default", 403),
        (AccessRole::Admin, "hello", 403),
    ] {
        let answer = create_with(&platform, &admin.key, role, scope).await;
        assert_eq!(answer.status(), status, "{role} {scope}");
    }
    let text = call(&platform, &admin.key, Method::GET, "/v1/keys")
        .await
        .text()
        .await
        .unwrap();
    let seen: Vec<KeySummary> = serde_json::from_str(&text).unwrap();
    assert_eq!(seen.len(), 3);
    assert!(
        seen.iter()
            .all(|key| key.namespace.as_ref().is_some_and(|n| n.as_str() == "team"))
    );
    // Keys of one second are in no order.
    let made = seen.iter().filter(|key| key.id != admin.summary.id);
    assert!(made.clone().count() == 2 && made.clone().all(|key| key.created_by == admin.summary.id.as_str()));
    assert!(!text.contains("fnk_"), "{text}");
    let path = format!("/v1/keys/{}", outside.summary.id);
    let refused = error(call(&platform, &admin.key, Method::DELETE, &path).await).await;
    assert_eq!(refused.code, ErrorCode::NotFound);
    let deployer = create(&platform, AccessRole::Deployer, "*").await.key;
    assert_eq!(
        create_with(&platform, &deployer, AccessRole::Reader, "hello")
            .await
            .status(),
        403
    );
    let names: Vec<NamespaceSummary> = call(&platform, &admin.key, Method::GET, "/v1/namespaces")
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(names.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["team"]);
}

#[tokio::test]
async fn a_key_has_a_life_and_tells_when_it_was_used() {
    let mut platform = Platform::start().await;
    for body in [
        json!({"role": "reader", "expires_s": 59}),
        json!({"role": "reader", "expires_s": 315_360_001}),
        json!({"role": "reader", "name": "x".repeat(65)}),
        json!({"role": "root"}),
    ] {
        let refused = error(post(&platform, KEY, "/v1/keys", &body).await).await;
        assert_eq!(refused.code, ErrorCode::BadRequest, "{body}");
    }
    let unknown = create_with(&platform, KEY, AccessRole::Reader, "*.nobody").await;
    assert_eq!(error(unknown).await.code, ErrorCode::NamespaceNotFound);
    let body = json!({"role": "reader", "name": "watcher", "expires_s": 86_400});
    let made: NewKey = post(&platform, KEY, "/v1/keys", &body).await.json().await.unwrap();
    let summary = &made.summary;
    assert_eq!(summary.expires_unix_s, Some(summary.created_unix_s + 86_400));
    assert_eq!((summary.used_unix_s, summary.name.as_str()), (None, "watcher"));
    assert_eq!(
        call(&platform, &made.key, Method::GET, "/v1/status").await.status(),
        200
    );
    let used = async |platform: &Platform| {
        let all: Vec<KeySummary> = call(platform, KEY, Method::GET, "/v1/keys").await.json().await.unwrap();
        all[0].used_unix_s
    };
    until("its use is told", async || used(&platform).await.is_some()).await;
    let at = used(&platform).await;
    assert!(at >= Some(summary.created_unix_s));
    for entry in std::fs::read_dir(platform.dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let secret = made.key.rsplit_once('_').unwrap().1.as_bytes();
        let shown = bytes.windows(secret.len()).any(|part| part == secret);
        assert!(!shown, "{}", path.display());
    }
    platform.restart_scheduler().await;
    until("the gateway knows the new lead's keys", async || {
        call(&platform, &made.key, Method::GET, "/v1/status").await.status() == 200
    })
    .await;
}

#[tokio::test]
async fn a_function_learns_no_key() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let invoker = create(&platform, AccessRole::Invoker, "hello").await.key;
    let deployer = create(&platform, AccessRole::Deployer, "hello").await.key;
    let made = create(&platform, AccessRole::Invoker, "hello").await;
    let sent = async |key: &str, force: bool| {
        let call = platform.function("hello").bearer_auth(key);
        let call = if force {
            call.header("x-fn-force-start", "booted")
        } else {
            call
        };
        call.send().await.unwrap()
    };
    let learnt = async |key: &str| {
        let told: Value = sent(key, false).await.json().await.unwrap();
        told["headers"]["authorization"].as_str().map(str::to_owned)
    };
    for key in [KEY, &invoker, &deployer] {
        assert_eq!(learnt(key).await, None);
    }
    assert_eq!(
        learnt("a-key-of-its-own").await.as_deref(),
        Some("Bearer a-key-of-its-own")
    );
    let id = made.summary.id;
    assert_eq!(
        call(&platform, KEY, Method::DELETE, &format!("/v1/keys/{id}"))
            .await
            .status(),
        200
    );
    assert_eq!(learnt(&made.key).await, None, "a revoked key is a secret too");
    assert_eq!(error(sent(&invoker, true).await).await.code, ErrorCode::Forbidden);
    assert_eq!(sent(&deployer, true).await.headers()["x-fn-start"], "booted");
}

#[tokio::test]
async fn an_empty_namespace_goes_with_its_keys() {
    let platform = Platform::start().await;
    deploy(&platform, KEY, "team", "hello").await.unwrap();
    let reader = create(&platform, AccessRole::Reader, "*.team").await.key;
    let remove = async |name: &str| call(&platform, KEY, Method::DELETE, &format!("/v1/namespaces/{name}")).await;
    assert_eq!(error(remove("default").await).await.code, ErrorCode::Conflict);
    assert_eq!(error(remove("nobody").await).await.code, ErrorCode::NamespaceNotFound);
    let full = error(remove("team").await).await;
    assert!(full.message.contains("it has functions"), "{full}");
    let path = "/v1/namespaces/team/functions/hello";
    assert_eq!(call(&platform, KEY, Method::DELETE, path).await.status(), 204);
    let secret = platform.admin(Method::PUT, "/v1/namespaces/team/secrets/DB").body("x");
    assert_eq!(secret.send().await.unwrap().status(), 200);
    assert!(error(remove("team").await).await.message.contains("secrets"));
    let secret = call(&platform, KEY, Method::DELETE, "/v1/namespaces/team/secrets/DB").await;
    assert_eq!(secret.status(), 204);
    assert_eq!(
        call(&platform, &reader, Method::GET, "/v1/namespaces/team/functions")
            .await
            .status(),
        200
    );
    assert_eq!(remove("team").await.status(), 204);
    let gone = call(&platform, &reader, Method::GET, "/v1/namespaces/team/functions").await;
    assert_eq!(gone.status(), 401);
    assert_eq!(platform.function("hello.team").send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_function_that_asks_for_a_key_is_invoked_with_one_at_every_address() {
    let platform = Platform::start().await;
    platform.deploy("open", "").await;
    platform.deploy("shut", "auth = \"key\"\n").await;
    let own = create(&platform, AccessRole::Invoker, "shut").await;
    let others = create(&platform, AccessRole::Invoker, "open").await.key;
    let reader = create(&platform, AccessRole::Reader, "shut").await.key;
    let port = platform.url.rsplit(':').next().unwrap();
    let calls = |name: &str| {
        [
            platform.function(name),
            platform.function(&format!("{name}@1/path")),
            platform
                .http
                .get(&platform.url)
                .header("host", format!("{name}.localhost:{port}")),
            platform
                .http
                .get(&platform.url)
                .header("host", format!("1--{name}.localhost:{port}")),
            platform.http.post(format!("{}/async-function/{name}", platform.url)),
        ]
    };
    for call in calls("open") {
        assert!(call.send().await.unwrap().status().is_success());
    }
    for (key, code) in [
        (None, Some(ErrorCode::Unauthorized)),
        (Some("not-of-the-platform"), Some(ErrorCode::Unauthorized)),
        (Some(&*reader), Some(ErrorCode::Forbidden)),
        (Some(&*others), Some(ErrorCode::Forbidden)),
        (Some(&*own.key), None),
        (Some(KEY), None),
    ] {
        for call in calls("shut") {
            let call = match key {
                Some(key) => call.bearer_auth(key),
                None => call,
            };
            let answer = call.send().await.unwrap();
            match code {
                None => assert!(answer.status().is_success(), "{key:?}: {}", answer.status()),
                Some(code) => {
                    let refused = error(answer).await;
                    assert_eq!(refused.code, code, "{key:?}");
                    assert!(refused.message.contains("--role invoker"), "{refused}");
                }
            }
        }
    }
    // A gateway that knows nothing yet asks first.
    let (url, _another) = start_gateway(&platform.relay, |_| {}).await;
    let at_once = platform.http.get(format!("{url}/function/shut")).send().await.unwrap();
    assert_eq!(error(at_once).await.code, ErrorCode::Unauthorized);
    let path = format!("/v1/keys/{}", own.summary.id);
    assert_eq!(call(&platform, KEY, Method::DELETE, &path).await.status(), 200);
    let revoked = platform.function("shut").bearer_auth(&own.key).send().await.unwrap();
    assert_eq!(error(revoked).await.code, ErrorCode::Unauthorized);
}

#[tokio::test]
async fn a_gateway_without_a_scheduler_admits_nobody_to_what_it_does_not_know() {
    let mut platform = Platform::start().await;
    platform.deploy("shut", "auth = \"key\"\n").await;
    platform.stop_scheduler().await;
    let (url, _other) = start_gateway(&platform.relay, |_| {}).await;
    // The body is not whole until the scheduler is there again.
    let body = futures::stream::once(async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok::<_, std::convert::Infallible>("whole")
    });
    let call = platform.http.post(format!("{url}/function/shut/"));
    let call = tokio::spawn(call.body(reqwest::Body::wrap_stream(body)).send());
    tokio::time::sleep(Duration::from_millis(500)).await;
    platform.restart_scheduler().await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(error(answer).await.code, ErrorCode::Unavailable);
    assert_eq!(platform.worker.invocations.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_deploy_shuts_a_function_and_a_rollback_opens_it() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let status = async || platform.function("hello").send().await.unwrap().status().as_u16();
    assert_eq!(status().await, 200);
    platform.deploy("hello", "auth = \"key\"\n").await;
    until("the gateway follows", async || status().await == 401).await;
    // Its earlier version is no way around.
    let earlier = platform.function("hello@1").send().await.unwrap();
    assert_eq!(earlier.status(), 401);
    let back = post(&platform, KEY, "/v1/functions/hello/rollback", &json!({})).await;
    assert_eq!(back.status(), 200);
    assert_eq!(status().await, 200);
    let held = folder("name = \"late\"\nruntime = \"python\"\nentry = \"main.handler\"\nauth = \"key\"\n");
    let call = platform.admin(Method::POST, "/v1/functions?traffic=false").body(held);
    assert_eq!(call.send().await.unwrap().status(), 202);
    let numbered = async || platform.function("late@1").send().await.unwrap().status().as_u16();
    until("the version is there", async || numbered().await != 404).await;
    assert_eq!(numbered().await, 401);
}
