//! Quotas of namespaces: what is refused, and that others are not hurt by it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rekindle_wire::api::{Quota, QuotaStatus, VersionInfo};
use rekindle_wire::{ApiError, ErrorCode};
use reqwest::{Method, Response};
use serde_json::json;

use crate::harness::{Platform, error, folder, until};

const WAIT: Duration = Duration::from_secs(3);

impl Platform {
    async fn limit(&self, namespace: &str, limits: &Quota) -> QuotaStatus {
        let path = format!("/v1/namespaces/{namespace}/quota");
        let answer = self.admin(Method::PUT, &path).json(limits).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.json().await.unwrap()
    }

    async fn quota(&self, namespace: &str) -> QuotaStatus {
        let path = format!("/v1/namespaces/{namespace}/quota");
        self.admin(Method::GET, &path)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }

    async fn upload_to(&self, namespace: &str, name: &str, settings: &str) -> Response {
        let config = format!("name = \"{name}\"\nruntime = \"python\"\nentry = \"main.handler\"\n{settings}");
        let path = format!("/v1/namespaces/{namespace}/functions");
        let call = self.admin(Method::POST, &path).body(folder(&config));
        call.send().await.unwrap()
    }

    /// Deploys into a namespace, which it makes.
    pub(super) async fn deploy_to(&self, namespace: &str, name: &str, settings: &str) {
        let answer = self.upload_to(namespace, name, settings).await;
        let version: VersionInfo = answer.json().await.unwrap();
        let path = format!(
            "/v1/namespaces/{namespace}/functions/{name}/versions/{}",
            version.version
        );
        self.ready(&path).await;
    }
}

/// The error of what a quota refuses.
async fn exceeded(answer: Response) -> ApiError {
    let error = error(answer).await;
    assert_eq!(error.code, ErrorCode::QuotaExceeded, "{error}");
    error
}

#[tokio::test]
async fn memory_is_a_namespace_s_and_what_nobody_uses_is_given_up() {
    let platform = Platform::start_with(|config| config.place_wait = WAIT).await;
    let memory = "memory = \"256MiB\"\n";
    let made = platform.admin(Method::PUT, "/v1/namespaces/team").send().await.unwrap();
    assert_eq!(made.status(), 200);
    let limits = Quota {
        memory_bytes: Some(300 << 20),
        ..Quota::default()
    };
    platform.limit("team", &limits).await;
    platform.deploy_to("team", "busy", memory).await;
    platform.deploy_to("team", "calm", memory).await;
    platform.deploy_to("other", "free", memory).await;
    for function in ["busy.team", "calm.team", "busy.team"] {
        let answer = platform.function(function).send().await.unwrap();
        assert_eq!(
            answer.status(),
            200,
            "{function}: the other's idle instance is given up"
        );
    }
    let hanging = tokio::spawn(platform.function("busy.team/hang").send());
    until("it hangs", async || {
        let all = platform.status().await.instances;
        all.iter()
            .any(|i| i.function.as_str() == "busy.team" && i.in_flight == 1)
    })
    .await;
    let refused = exceeded(platform.function("calm.team").send().await.unwrap()).await;
    for part in [
        "300MiB allowed",
        "256MiB in use",
        "256MiB more",
        "quota set team --memory",
    ] {
        assert!(refused.message.contains(part), "{part}: {refused}");
    }
    assert_eq!(refused.retry_after_s, Some(1));
    assert_eq!(platform.function("free.other").send().await.unwrap().status(), 200);
    let used = platform.quota("team").await.used;
    assert_eq!((used.memory_bytes, used.instances), (256 << 20, 1));
    let small = Quota {
        memory_bytes: Some(100 << 20),
        ..Quota::default()
    };
    platform.limit("team", &small).await;
    let refused = exceeded(platform.function("calm.team").send().await.unwrap()).await;
    assert_eq!(refused.retry_after_s, None, "it never fits");
    let cleared = platform.admin(Method::DELETE, "/v1/namespaces/team/quota").send().await;
    assert!(!cleared.unwrap().json::<QuotaStatus>().await.unwrap().is_own);
    assert_eq!(platform.function("calm.team").send().await.unwrap().status(), 200);
    hanging.abort();
}

#[tokio::test]
async fn invocations_a_second_are_refused_at_the_gateway() {
    let platform = Platform::start().await;
    platform.deploy_to("team", "hello", "").await;
    platform.deploy("hello", "").await;
    let limits = Quota {
        requests_per_s: Some(2),
        ..Quota::default()
    };
    platform.limit("team", &limits).await;
    let mut refused = None;
    until("the gateway keeps the limit", async || {
        let answer = platform.function("hello.team").send().await.unwrap();
        match answer.status().as_u16() {
            200 => false,
            _ => {
                refused = Some(exceeded(answer).await);
                true
            }
        }
    })
    .await;
    let refused = refused.unwrap();
    assert!(refused.message.contains("2 allowed"), "{refused}");
    assert_eq!(refused.retry_after_s, Some(1));
    let later = platform
        .http
        .post(format!("{}/async-function/hello.team", platform.url));
    exceeded(later.send().await.unwrap()).await;
    for _ in 0..20 {
        assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    }
    platform.limit("team", &Quota::default()).await;
    until("the limit is gone", async || {
        let answers = futures::future::join_all((0..8).map(|_| platform.function("hello.team").send())).await;
        answers.into_iter().all(|answer| answer.unwrap().status() == 200)
    })
    .await;
}

#[tokio::test]
async fn invocations_of_functions_that_do_not_exist_take_nothing_from_a_namespace_s_rate() {
    let platform = Platform::start().await;
    platform.deploy_to("team", "hello", "").await;
    let limits = Quota {
        requests_per_s: Some(2),
        ..Quota::default()
    };
    platform.limit("team", &limits).await;
    until("the gateway keeps the limit", async || {
        platform.function("hello.team").send().await.unwrap().status() == 429
    })
    .await;
    for _ in 0..10 {
        let nobody = platform.function("nobody.team").send().await.unwrap();
        assert_eq!(error(nobody).await.code, ErrorCode::FunctionNotFound);
    }
    until("the rate is whole again", async || {
        let nobody = platform.function("nobody.team").send().await.unwrap();
        assert_eq!(error(nobody).await.code, ErrorCode::FunctionNotFound);
        platform.function("hello.team").send().await.unwrap().status() == 200
    })
    .await;
}

#[tokio::test]
async fn deploys_and_what_is_stored_are_refused_where_they_are_decided() {
    let platform = Platform::start().await;
    platform.deploy_to("team", "first", "").await;
    let limits = Quota {
        builds: Some(1),
        ..Quota::default()
    };
    platform.limit("team", &limits).await;
    platform.worker.prepare_hangs.store(true, Ordering::SeqCst);
    assert_eq!(platform.upload_to("team", "hangs", "").await.status(), 202);
    let refused = exceeded(platform.upload_to("team", "second", "").await).await;
    assert!(
        refused.retry_after_s.is_some() && refused.message.contains("1 in use"),
        "{refused}"
    );
    assert_eq!(platform.upload_to("other", "third", "").await.status(), 202);
    assert_eq!(platform.quota("team").await.used.builds, 1);

    let limits = Quota {
        stored_bytes: Some(64),
        ..Quota::default()
    };
    let status = platform.limit("team", &limits).await;
    assert!(status.used.stored_bytes > 64, "two folders and a layer: {status:?}");
    let refused = exceeded(platform.upload_to("team", "second", "").await).await;
    assert!(refused.message.contains("64B allowed"), "{refused}");
    assert_eq!(refused.retry_after_s, None);
}

#[tokio::test]
async fn a_namespace_s_backlog_is_bounded_and_its_calls_run_later() {
    let platform = Platform::start_with(|config| config.async_in_flight = 1).await;
    platform.deploy_to("team", "hello", "").await;
    let limits = Quota {
        async_backlog: Some(1),
        ..Quota::default()
    };
    platform.limit("team", &limits).await;
    let later = async |name: &str| {
        let url = format!("{}/async-function/{name}", platform.url);
        platform.http.post(url).send().await.unwrap()
    };
    assert_eq!(later("hello.team/hang").await.status(), 202);
    until("it runs", async || {
        platform.worker.invocations.load(Ordering::SeqCst) == 1
    })
    .await;
    assert_eq!(later("hello.team").await.status(), 202);
    exceeded(later("hello.team").await).await;
    assert_eq!(platform.quota("team").await.used.async_backlog, 1);
}

#[tokio::test]
async fn a_day_s_egress_is_refused_once_it_is_reported() {
    let platform = Platform::start().await;
    platform.deploy_to("team", "hello", "").await;
    platform.deploy("hello", "").await;
    let limits = Quota {
        egress_bytes_per_day: Some(1),
        ..Quota::default()
    };
    platform.limit("team", &limits).await;
    assert_eq!(platform.function("hello.team").send().await.unwrap().status(), 200);
    let mut refused = None;
    until("the gateway hears of it", async || {
        let answer = platform.function("hello.team").send().await.unwrap();
        if answer.status() == 200 {
            return false;
        }
        refused = Some(exceeded(answer).await);
        true
    })
    .await;
    let refused = refused.unwrap();
    assert!(refused.message.contains("1B allowed"), "{refused}");
    assert!(refused.retry_after_s.is_some_and(|s| s <= 86_400));
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    assert!(platform.quota("team").await.used.egress_bytes_today > 1);
}

#[tokio::test]
async fn quotas_are_set_by_the_platform_s_admins_and_survive_a_restart() {
    let mut platform = Platform::start().await;
    platform.deploy_to("team", "hello", "").await;
    let body = json!({"role": "admin", "namespace": "team"});
    let made = platform
        .admin(Method::POST, "/v1/keys")
        .json(&body)
        .send()
        .await
        .unwrap();
    let key: rekindle_wire::api::NewKey = made.json().await.unwrap();
    let url = format!("{}/v1/namespaces/team/quota", platform.url);
    let limits = Quota {
        instances: Some(7),
        ..Quota::default()
    };
    let own = platform.http.put(&url).bearer_auth(&key.key).json(&limits);
    assert_eq!(error(own.send().await.unwrap()).await.code, ErrorCode::Forbidden);
    let read = platform.http.get(&url).bearer_auth(&key.key).send().await.unwrap();
    assert_eq!(read.json::<QuotaStatus>().await.unwrap().limits, Quota::default());
    platform.limit("team", &limits).await;
    platform.restart_scheduler().await;
    let status = platform.quota("team").await;
    assert_eq!((status.limits, status.is_own), (limits, true));
    let unknown = platform.admin(Method::PUT, "/v1/namespaces/nobody/quota").json(&limits);
    assert_eq!(
        error(unknown.send().await.unwrap()).await.code,
        ErrorCode::NamespaceNotFound
    );
    let typo = platform
        .admin(Method::PUT, "/v1/namespaces/team/quota")
        .json(&json!({"instance": 1}));
    assert_eq!(error(typo.send().await.unwrap()).await.code, ErrorCode::BadRequest);
}
