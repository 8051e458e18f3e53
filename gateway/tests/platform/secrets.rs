//! Secrets over the admin API.

use rekindle_wire::api::{MigrateRequest, SecretSummary, StartKind};
use rekindle_wire::{ErrorCode, Secret};
use reqwest::{Method, Response};

use crate::harness::{KEY, Platform, error, until};
use crate::played_worker::PlayedWorker;

const VALUE: &str = "postgres://app:nothing-shows-this@db/app";

async fn set(platform: &Platform, path: &str, value: impl Into<reqwest::Body>) -> Response {
    let call = platform.admin(Method::PUT, &format!("/v1/secrets/{path}"));
    call.body(value).send().await.unwrap()
}

async fn summary(answer: Response) -> SecretSummary {
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

async fn list(platform: &Platform) -> (Vec<SecretSummary>, String) {
    let answer = platform.admin(Method::GET, "/v1/secrets").send().await.unwrap();
    let text = answer.text().await.unwrap();
    (serde_json::from_str(&text).unwrap(), text)
}

#[tokio::test]
async fn a_secret_is_set_listed_without_its_value_and_removed() {
    let mut platform = Platform::start().await;
    let first = summary(set(&platform, "DB_URL", VALUE).await).await;
    assert_eq!(
        (first.name.as_str(), first.version, first.readable),
        ("DB_URL", 1, true)
    );
    assert_eq!(
        summary(set(&platform, "DB_URL?existing=true", VALUE).await)
            .await
            .version,
        2
    );
    let in_namespace = platform.admin(Method::PUT, "/v1/namespaces/default/secrets/API_KEY");
    summary(in_namespace.body(vec![0, 255, 10]).send().await.unwrap()).await;
    platform.restart_scheduler().await;
    let (all, text) = list(&platform).await;
    let names: Vec<_> = all
        .iter()
        .map(|secret| (secret.name.as_str(), secret.version))
        .collect();
    assert_eq!(names, [("API_KEY", 1), ("DB_URL", 2)]);
    assert!(!text.contains("nothing-shows-this"), "{text}");
    let remove = async || {
        let call = platform.admin(Method::DELETE, "/v1/secrets/DB_URL");
        call.send().await.unwrap()
    };
    assert_eq!(remove().await.status(), 204);
    assert_eq!(error(remove().await).await.code, ErrorCode::NotFound);
    let gone = error(set(&platform, "DB_URL?existing=true", VALUE).await).await;
    assert_eq!(gone.code, ErrorCode::NotFound);
    assert!(gone.message.contains("fn secret set DB_URL"), "{gone}");
    assert_eq!(list(&platform).await.0.len(), 1);
    assert_eq!(summary(set(&platform, "DB_URL", VALUE).await).await.version, 3);
    for entry in std::fs::read_dir(platform.dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let shown = bytes.windows(18).any(|part| part == b"nothing-shows-this");
        assert!(!shown, "{}", path.display());
    }
}

#[tokio::test]
async fn what_cannot_be_a_secret_is_refused_with_the_reason() {
    let platform = Platform::start().await;
    for (path, size, code, why) in [
        ("db_url", 1, ErrorCode::BadRequest, "use 1 to 64"),
        ("FN_KEY", 1, ErrorCode::BadRequest, "use 1 to 64"),
        ("EMPTY", 0, ErrorCode::BadRequest, "at least one byte"),
        ("LARGE", (64 << 10) + 1, ErrorCode::TooLarge, "64 KiB"),
        ("LARGER", 1 << 20, ErrorCode::TooLarge, "64 KiB"),
        ("NEW?existing=true", 1, ErrorCode::NotFound, "fn secret set NEW"),
    ] {
        let refused = error(set(&platform, path, "x".repeat(size)).await).await;
        assert_eq!(refused.code, code, "{path}");
        assert!(refused.message.contains(why), "{refused}");
    }
    for n in 0..100 {
        summary(set(&platform, &format!("S_{n}"), "x".repeat(64)).await).await;
    }
    let one_more = error(set(&platform, "ONE_MORE", "x").await).await;
    assert_eq!(one_more.code, ErrorCode::Conflict);
    assert_eq!(summary(set(&platform, "S_7", "y").await).await.version, 2);
    let unknown = platform.admin(Method::GET, "/v1/namespaces/team/secrets");
    let unknown = error(unknown.send().await.unwrap()).await;
    assert_eq!(unknown.code, ErrorCode::NamespaceNotFound);
}

#[tokio::test]
async fn what_another_master_key_sealed_is_listed_as_unreadable_until_it_is_set_again() {
    let mut platform = Platform::start().await;
    summary(set(&platform, "DB_URL", VALUE).await).await;
    platform
        .restart_scheduler_with("another-master-key-0123456789abcdef")
        .await;
    assert!(!list(&platform).await.0[0].readable);
    assert!(summary(set(&platform, "DB_URL", VALUE).await).await.readable);
    assert!(list(&platform).await.0[0].readable);
}

#[tokio::test]
async fn a_worker_gets_no_secrets_for_an_instance_that_it_was_not_told_to_start() {
    let platform = Platform::start().await;
    summary(set(&platform, "DB_URL", VALUE).await).await;
    platform.deploy("hello", NEEDS_ONE).await;
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    let ordered = platform.worker.starts.lock().last().unwrap().clone();
    let made_up = rekindle_wire::InstanceId::generate();
    let (function, version) = (ordered.spec.function.clone(), ordered.spec.version);
    let of_another = ordered.ticket.clone();
    platform
        .worker
        .add(made_up.clone(), function, version, StartKind::Booted, of_another);
    let both = [(ordered.instance.clone(), 1), (made_up.clone(), 1)];
    platform.worker.revisions.lock().extend(both);
    let given = |id| platform.worker.given.lock().contains(id);
    until("the one that was ordered is given them", async || {
        given(&ordered.instance)
    })
    .await;
    until("the other has been stopped", async || {
        !platform.worker.instances.lock().contains_key(&made_up)
    })
    .await;
    assert!(!given(&made_up), "it was given secrets");
}

const NEEDS_ONE: &str = "secrets = [\"DB_URL\"]\nmax_instances = 9\n";

#[tokio::test]
async fn orders_carry_the_secrets_that_a_function_names_and_it_is_not_deployed_without_them() {
    let mut platform = Platform::start().await;
    let config = format!("name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n{NEEDS_ONE}");
    let refused = error(platform.upload(&config).await).await;
    assert_eq!(refused.code, ErrorCode::InvalidConfig);
    assert!(refused.message.contains("fn secret set DB_URL"), "{refused}");
    summary(set(&platform, "DB_URL", VALUE).await).await;
    summary(set(&platform, "OTHER", "not asked for").await).await;
    platform.deploy("hello", NEEDS_ONE).await;
    let values = |secrets: &[Secret]| secrets.iter().map(|s| s.value.bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(values(&platform.worker.prepared.lock()[0].secrets), [VALUE.as_bytes()]);
    // The deploy's instance has no secrets, and serves nobody.
    let call = || platform.function("hello").send();
    assert_eq!(call().await.unwrap().headers()["x-fn-start"], "restored");
    assert_eq!(
        values(&platform.worker.starts.lock().last().unwrap().secrets),
        [VALUE.as_bytes()]
    );
    // Nothing between these roles is encrypted.
    let _another = PlayedWorker::start(&platform.relay.address, 1 << 30).await;
    until("both workers are known", async || {
        platform.status().await.workers.len() == 2
    })
    .await;
    let id = platform.status().await.instances[0].id.clone();
    until("it is told to stay", async || {
        let migrate = platform.admin(Method::POST, &format!("/v1/instances/{id}/migrate"));
        let stays = error(migrate.json(&MigrateRequest::default()).send().await.unwrap()).await;
        assert_eq!(stays.code, ErrorCode::Conflict);
        stays.message.contains("holds secrets")
    })
    .await;
    let used_by: Vec<_> = list(&platform).await.0.into_iter().map(|s| s.used_by).collect();
    assert_eq!(used_by, [vec!["hello".parse().unwrap()], vec![]]);

    let remove = async |query: &str| {
        let call = platform.admin(Method::DELETE, &format!("/v1/secrets/DB_URL{query}"));
        call.send().await.unwrap()
    };
    let needed = error(remove("").await).await;
    assert_eq!(needed.code, ErrorCode::Conflict);
    assert!(needed.message.contains("hello needs"), "{needed}");
    assert_eq!(remove("?force=true").await.status(), 204);
    let start = async |platform: &Platform| {
        let call = platform.function("hello").header("x-fn-force-start", "restored");
        call.bearer_auth(KEY).send().await.unwrap()
    };
    let missing = error(start(&platform).await).await;
    assert_eq!(missing.code, ErrorCode::SecretUnavailable);
    summary(set(&platform, "DB_URL", VALUE).await).await;
    assert_eq!(start(&platform).await.status(), 200);
    platform
        .restart_scheduler_with("another-master-key-0123456789abcdef")
        .await;
    let unreadable = error(start(&platform).await).await;
    assert_eq!(unreadable.code, ErrorCode::SecretUnavailable);
    assert!(unreadable.message.contains("that key's file"), "{unreadable}");
}
