//! The admin API.

use futures::StreamExt as _;
use rekindle_wire::ErrorCode;
use rekindle_wire::api::{Collected, FunctionSummary, LogLine, VersionState};
use reqwest::Method;

use crate::harness::{KEY, Platform, error, folder, until};
use crate::played_worker::PlayedWorker;

#[tokio::test]
async fn a_check_tells_what_the_platform_lacks_for_a_deploy_and_changes_nothing() {
    let platform = Platform::start().await;
    let check = async |query: &str| {
        let path = format!("/v1/functions/hello/check{query}");
        let answer = platform.admin(reqwest::Method::GET, &path).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let told: rekindle_wire::api::DeployCheck = answer.json().await.unwrap();
        told.problems
    };
    assert_eq!(check("").await, [""; 0]);
    let told = check("?base=node24&secrets=DB_URL,TOKEN").await;
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].contains("needs the secret DB_URL") && told[1].contains("`fn secret set TOKEN`"));
    assert!(told[2].contains("fn runtimes add node24"), "{told:?}");
    let runtime = "runtimes/node24.json".to_owned();
    platform.objects.0.lock().insert(runtime, Vec::new());
    let set = platform.admin(reqwest::Method::PUT, "/v1/secrets/DB_URL").body("x");
    assert_eq!(set.send().await.unwrap().status(), 200);
    let told = check("?base=node24&secrets=DB_URL,TOKEN").await;
    assert!(told.len() == 1 && told[0].contains("TOKEN"), "{told:?}");
    let wrong = platform.admin(reqwest::Method::GET, "/v1/functions/hello/check?secrets=a");
    assert_eq!(
        error(wrong.send().await.unwrap()).await.code,
        rekindle_wire::ErrorCode::BadRequest
    );
    let unknown = platform.admin(reqwest::Method::GET, "/v1/functions/hello").send().await;
    assert_eq!(unknown.unwrap().status(), 404);
}

#[tokio::test]
async fn nothing_is_done_without_the_right_key() {
    let platform = Platform::start().await;
    let calls = [
        (Method::GET, "/v1/functions"),
        (Method::POST, "/v1/functions"),
        (Method::GET, "/v1/status"),
        (Method::DELETE, "/v1/functions/hello"),
        (Method::POST, "/v1/functions/hello/invocations"),
        (Method::POST, "/v1/collections"),
        (Method::GET, "/v1/nothing"),
    ];
    for (method, path) in calls {
        let call = || platform.http.request(method.clone(), format!("{}{path}", platform.url));
        let wrong = format!("{KEY}x");
        for call in [call(), call().bearer_auth(wrong), call().basic_auth(KEY, Some(KEY))] {
            let refused = error(call.send().await.unwrap()).await;
            assert_eq!(refused.code, ErrorCode::Unauthorized, "{method} {path}");
            assert!(refused.message.contains("key"), "{refused}");
        }
    }
    assert_eq!(platform.relay.calls("/v1/functions"), 0);
}

#[tokio::test]
async fn a_deploy_is_prepared_stored_and_listed() {
    let platform = Platform::start().await;
    let version = platform.deploy("hello", "memory = \"64MiB\"\n").await;
    assert_eq!(version.version.0, 1);
    assert_eq!(
        version.phases.iter().map(|p| p.phase).collect::<Vec<_>>(),
        [VersionState::Building, VersionState::Booting]
    );
    let request = platform.worker.prepared.lock()[0].clone();
    assert_eq!(request.uid, 100_001);
    let sent = folder("name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemory = \"64MiB\"\n");
    assert_eq!(platform.objects.0.lock().get(&request.source_key), Some(&sent));
    let answer = platform.admin(Method::GET, "/v1/functions").send().await.unwrap();
    let list: Vec<FunctionSummary> = answer.json().await.unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(
        (list[0].live, list[0].memory_bytes, list[0].instances),
        (Some(version.version), 64 << 20, 1)
    );
    assert_eq!(list[0].path, "/function/hello");
}

#[tokio::test]
async fn a_deploy_outlives_a_database_that_fails_for_a_while() {
    let platform = Platform::start().await;
    let database = platform.database().await;
    let fail = "CREATE TRIGGER fail BEFORE UPDATE OF state ON versions WHEN NEW.state IN ('live', 'failed') \
                BEGIN SELECT RAISE(ABORT, 'for the test'); END";
    sqlx::query(fail).execute(&database).await.unwrap();
    let mended = async {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        sqlx::query("DROP TRIGGER fail").execute(&database).await.unwrap();
    };
    tokio::join!(platform.deploy("hello", ""), mended);
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    platform.deploy("hello", "").await;
}

#[tokio::test]
async fn the_default_namespace_may_be_named_and_an_unknown_one_is_told_from_an_unknown_function() {
    let platform = Platform::start().await;
    let deployed = platform.deploy("hello", "").await;
    for (path, code) in [
        ("functions/hello", None),
        ("functions/hello/versions/1", None),
        ("functions/hello/stats", None),
        ("functions/hello/logs", None),
        ("functions/nobody", Some(ErrorCode::FunctionNotFound)),
    ] {
        for prefix in ["/v1", "/v1/namespaces/default"] {
            let call = platform.admin(Method::GET, &format!("{prefix}/{path}"));
            let answer = call.send().await.unwrap();
            match code {
                None => assert_eq!(answer.status(), 200, "{prefix}/{path}"),
                Some(code) => assert_eq!(error(answer).await.code, code, "{prefix}/{path}"),
            }
        }
    }
    assert_eq!(deployed.function.as_str(), "hello");
    let admin = |method: Method, path: &str| platform.admin(method, path);
    let host = |name: &str| {
        let call = platform.http.get(&platform.url);
        call.header("host", name)
    };
    for call in [
        admin(Method::GET, "/v1/namespaces/team/functions"),
        admin(Method::GET, "/v1/namespaces/team/functions/hello"),
        admin(Method::DELETE, "/v1/namespaces/team/functions/hello"),
        admin(Method::GET, "/v1/namespaces/team/functions/hello/logs"),
        admin(Method::POST, "/v1/namespaces/team/functions/hello/invocations"),
        admin(
            Method::POST,
            "/v1/namespaces/team/functions/hello/invocations?async=true",
        ),
        platform.function("hello.team"),
        platform
            .http
            .post(format!("{}/async-function/hello.team", platform.url)),
        host("hello.team.localhost"),
    ] {
        let asked = format!("{call:?}");
        let refused = error(call.send().await.unwrap()).await;
        assert_eq!(refused.code, ErrorCode::NamespaceNotFound, "{asked}");
        assert!(refused.message.contains("fn namespace create team"), "{refused}");
    }
    for call in [platform.function("hello.default"), host("hello.default.localhost")] {
        assert_eq!(call.send().await.unwrap().status(), 200);
    }
    let bad = admin(Method::GET, "/v1/namespaces/Team/functions")
        .send()
        .await
        .unwrap();
    assert_eq!(error(bad).await.code, ErrorCode::BadRequest);
}

#[tokio::test]
async fn a_bad_config_is_refused_with_its_line() {
    let platform = Platform::start().await;
    let refused = error(
        platform
            .upload("name = \"hello\"\nruntime = \"python\"\nentry = \"x\"\n")
            .await,
    )
    .await;
    assert_eq!(refused.code, ErrorCode::InvalidConfig);
    assert!(refused.message.contains("line 3"), "{refused}");
    assert!(platform.objects.0.lock().is_empty());
}

#[tokio::test]
async fn a_deleted_function_is_gone_with_its_instances_and_snapshots() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.function("hello").send().await.unwrap();
    for key in [
        "snapshots/s-hello-1/manifest.json",
        "snapshots/s-hello-1/bundle",
        "snapshots/s-other-1/bundle",
    ] {
        platform.objects.0.lock().insert(key.to_owned(), Vec::new());
    }
    let deleted = platform
        .admin(Method::DELETE, "/v1/functions/hello")
        .send()
        .await
        .unwrap();
    assert_eq!(deleted.status(), 204);
    assert_eq!(platform.worker.running(), 0);
    assert_eq!(
        platform.objects.0.lock().keys().collect::<Vec<_>>(),
        ["snapshots/s-other-1/bundle"]
    );
    assert_eq!(
        error(platform.function("hello").send().await.unwrap()).await.code,
        ErrorCode::FunctionNotFound
    );
    let again = platform
        .admin(Method::DELETE, "/v1/functions/hello")
        .send()
        .await
        .unwrap();
    assert_eq!(error(again).await.code, ErrorCode::FunctionNotFound);
    assert_eq!(platform.deploy("hello", "").await.version.0, 2);
}

#[tokio::test]
async fn a_folder_deployed_again_while_its_function_is_deleted_is_kept() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let sources = || -> Vec<String> {
        let objects = platform.objects.0.lock();
        objects.keys().filter(|k| k.starts_with("sources/")).cloned().collect()
    };
    let before = sources();
    assert_eq!(before.len(), 1);
    let held_up = platform.objects.1.lock().await;
    let deleting = tokio::spawn(platform.admin(Method::DELETE, "/v1/functions/hello").send());
    until("its rows are gone", async || {
        let answer = platform.admin(Method::GET, "/v1/functions/hello").send().await.unwrap();
        answer.status() == 404
    })
    .await;
    platform.deploy("hello", "").await;
    drop(held_up);
    assert_eq!(deleting.await.unwrap().unwrap().status(), 204);
    assert_eq!(
        sources(),
        before,
        "the second deploy lost its folder to the delete of the first"
    );
}

#[tokio::test]
async fn an_instance_can_be_stopped_by_hand() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let id = platform.status().await.instances[0].id.clone();
    let stop = || platform.admin(Method::DELETE, &format!("/v1/instances/{id}")).send();
    assert_eq!(stop().await.unwrap().status(), 204);
    assert_eq!(platform.worker.running(), 0);
    assert_eq!(error(stop().await.unwrap()).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn log_lines_of_all_workers_come_in_order() {
    let platform = Platform::start().await;
    let _second = PlayedWorker::start(&platform.relay.address, 1 << 30).await;
    platform.deploy("hello", "").await;
    until("both workers are known", async || {
        platform.status().await.workers.len() == 2
    })
    .await;
    let read = async |query: &str| {
        let answer = platform
            .admin(Method::GET, &format!("/v1/functions/hello/logs{query}"))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
        answer
    };
    let lines = read("").await.text().await.unwrap();
    let lines: Vec<LogLine> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.is_sorted_by_key(|l| l.unix_ms));
    let last = read("?tail=1").await.text().await.unwrap();
    assert_eq!(last.lines().count(), 1);
    // Followed lines come although the answer does not end.
    let mut followed = read("?follow=true").await.bytes_stream();
    let mut text = Vec::new();
    while text.iter().filter(|b| **b == b'\n').count() < 4 {
        text.extend(followed.next().await.unwrap().unwrap());
    }
    let unknown = platform
        .admin(Method::GET, "/v1/functions/nobody/logs")
        .send()
        .await
        .unwrap();
    assert_eq!(error(unknown).await.code, ErrorCode::FunctionNotFound);
}

#[tokio::test]
async fn the_description_names_every_path_with_its_errors() {
    let platform = Platform::start().await;
    let answer = platform
        .http
        .get(format!("{}/v1/openapi.json", platform.url))
        .send()
        .await
        .unwrap();
    let document: serde_json::Value = answer.json().await.unwrap();
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/v1/functions",
        "/v1/functions/{name}",
        "/v1/functions/{name}/versions/{version}",
        "/v1/functions/{name}/logs",
        "/v1/functions/{name}/invocations",
        "/v1/namespaces/{namespace}/functions",
        "/v1/namespaces/{namespace}/functions/{name}/invocations",
        "/v1/status",
        "/v1/instances",
        "/v1/instances/{id}",
        "/v1/openapi.json",
        "/function/{name}",
        "/function/{name}/{path}",
        "/healthz",
        "/readyz",
    ] {
        let operations = paths.get(path).unwrap_or_else(|| panic!("{path} is not described"));
        for (method, operation) in operations.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path} has no summary");
            let keyed = path.starts_with("/v1/") && path != "/v1/openapi.json";
            assert_eq!(operation["responses"].get("401").is_some(), keyed, "{method} {path}");
            assert_eq!(operation.get("security").is_some(), keyed, "{method} {path}");
        }
    }
    assert!(document["components"]["schemas"]["VersionInfo"]["properties"]["phases"].is_object());
}

#[tokio::test]
async fn a_collection_lets_old_versions_and_sources_go_but_not_in_another_schedulers_store() {
    let platform = Platform::start().await;
    for memory in ["64MiB", "65MiB", "66MiB", "67MiB"] {
        platform.deploy("hello", &format!("memory = \"{memory}\"\n")).await;
    }
    let collect = async |body: &'static str| {
        let call = platform.admin(Method::POST, "/v1/collections");
        call.header("content-type", "application/json")
            .body(body)
            .send()
            .await
            .unwrap()
    };
    let sources = || {
        let all = platform.objects.0.lock();
        all.keys().filter(|key| key.starts_with("sources/")).count()
    };
    let dry: Collected = collect("{\"dry_run\":true}").await.json().await.unwrap();
    // The version is still there, so its folder is in use.
    assert_eq!((dry.versions, dry.sources.objects, sources()), (1, 0, 4));
    let done: Collected = collect("{}").await.json().await.unwrap();
    assert_eq!((done.versions, done.sources.objects, sources()), (1, 1, 3));
    let again: Collected = collect("{}").await.json().await.unwrap();
    assert_eq!(again, Collected::default());
    platform
        .objects
        .0
        .lock()
        .insert("owner".to_owned(), b"p-other".to_vec());
    for body in ["{}", "{\"dry_run\":true}"] {
        let refused = error(collect(body).await).await;
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(
            refused.message.contains("p-other") && refused.message.contains("--take-over"),
            "{refused}"
        );
    }
    assert_eq!(collect("{\"take_over\":true}").await.status(), 200);
    assert_eq!(collect("{}").await.status(), 200);
}

#[tokio::test]
async fn two_hyphens_in_a_row_are_no_new_functions_name() {
    let platform = Platform::start().await;
    let refused = platform
        .upload("name = \"a--b\"\nruntime = \"python\"\nentry = \"main.handler\"\n")
        .await;
    let refused = error(refused).await;
    assert_eq!(refused.code, ErrorCode::InvalidConfig);
    assert!(refused.message.contains("two hyphens"), "{refused}");
    assert!(
        platform.objects.0.lock().keys().all(|key| !key.starts_with("sources/")),
        "its folder was kept"
    );
    platform.deploy("a-b", "").await;
}
