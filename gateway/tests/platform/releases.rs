//! Which version serves: rollback, deploys without traffic, versions by their URL, aliases.

use std::time::Duration;

use futures::future::join_all;
use rekindle_wire::ErrorCode;
use rekindle_wire::api::{Rollback, VersionInfo, VersionState, VersionSummary};
use reqwest::Method;
use serde_json::json;

use crate::harness::{Platform, error, until};

fn version_of(answer: &reqwest::Response) -> u32 {
    let text = answer.headers()["x-fn-version"].to_str().unwrap();
    text.parse().unwrap()
}

impl Platform {
    pub(crate) async fn versions(&self) -> Vec<VersionSummary> {
        let answer = self.admin(Method::GET, "/v1/functions/hello/versions");
        answer.send().await.unwrap().json().await.unwrap()
    }

    pub(crate) async fn roll_back(&self, to: Option<u32>) -> reqwest::Response {
        let call = self.admin(Method::POST, "/v1/functions/hello/rollback");
        let call = match to {
            None => call.json(&json!({})),
            Some(version) => call.json(&json!({ "version": version })),
        };
        call.send().await.unwrap()
    }

    async fn set_alias(&self, alias: &str, targets: &[(u32, u32)]) -> reqwest::Response {
        let targets: Vec<_> = (targets.iter())
            .map(|(version, weight)| json!({ "version": version, "weight": weight }))
            .collect();
        let call = self.admin(Method::PUT, &format!("/v1/functions/hello/aliases/{alias}"));
        call.json(&json!({ "targets": targets })).send().await.unwrap()
    }

    async fn at_host(&self, host: &str) -> reqwest::Response {
        let call = self.http.get(&self.url).header("host", host);
        call.send().await.unwrap()
    }

    /// Waits until this version serves the plain URL.
    async fn until_serves(&self, version: u32) {
        until("the version serves", async || {
            let answer = self.function("hello").send().await.unwrap();
            assert_eq!(answer.status(), 200);
            version_of(&answer) == version
        })
        .await;
    }
}

#[tokio::test]
async fn a_rollback_serves_the_version_before_without_a_deploy_and_survives_a_restart() {
    let mut platform = Platform::start().await;
    for _ in 0..3 {
        platform.deploy("hello", "idle = \"1s\"\n").await;
    }
    platform.until_serves(3).await;
    let told: Rollback = platform.roll_back(None).await.json().await.unwrap();
    assert_eq!((told.from[0].version.0, told.to.0, told.restored), (3, 2, true));
    platform.until_serves(2).await;
    assert_eq!(platform.worker.prepared.lock().len(), 3, "nothing was built");
    let shown: Vec<_> = (platform.versions().await.iter())
        .map(|v| (v.version.0, v.state, v.traffic_percent, v.aliases.len()))
        .collect();
    let live = VersionState::Live;
    assert_eq!(shown, [(3, live, 0.0, 0), (2, live, 100.0, 1), (1, live, 0.0, 0)]);

    platform.restart_scheduler().await;
    platform.scale_to_zero().await;
    platform.until_serves(2).await;
    assert_eq!(platform.describe("hello").await.summary.live.unwrap().0, 2);
    let told: Rollback = platform.roll_back(Some(1)).await.json().await.unwrap();
    assert_eq!(told.to.0, 1);
    platform.until_serves(1).await;
    // The next deploy serves, as ever.
    platform.deploy("hello", "").await;
    platform.until_serves(4).await;
}

#[tokio::test]
async fn no_request_fails_while_a_function_is_rolled_back_and_forth() {
    let platform = Platform::start().await;
    for _ in 0..2 {
        platform.deploy("hello", "concurrency = 4\nmax_instances = 2\n").await;
    }
    platform.until_serves(2).await;
    let requests = join_all((0..8).map(async |_| {
        for _ in 0..30 {
            let answer = platform.function("hello/slow/20").send().await.unwrap();
            assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
        }
    }));
    let rollbacks = async {
        for to in [1, 2, 1, 2, 1] {
            tokio::time::sleep(Duration::from_millis(80)).await;
            assert_eq!(platform.roll_back(Some(to)).await.status(), 200);
        }
    };
    tokio::join!(requests, rollbacks);
    platform.until_serves(1).await;
}

#[tokio::test]
async fn a_rollback_that_cannot_be_says_why_and_what_to_do() {
    let platform = Platform::start().await;
    let refused = async |to| error(platform.roll_back(to).await).await;
    assert_eq!(refused(None).await.code, ErrorCode::FunctionNotFound);
    platform.deploy("hello", "").await;
    let first = refused(None).await;
    assert_eq!(first.code, ErrorCode::NotFound);
    assert!(first.message.contains("served before"), "{first}");
    let live = refused(Some(1)).await;
    assert_eq!(live.code, ErrorCode::Conflict);
    assert!(live.message.contains("live already"), "{live}");
    let never = refused(Some(70)).await;
    assert_eq!(never.code, ErrorCode::NotFound);
    assert!(never.message.contains("fn versions hello"), "{never}");
    for _ in 0..4 {
        platform.deploy("hello", "").await;
    }
    let collected = platform.admin(Method::POST, "/v1/collections").json(&json!({}));
    assert_eq!(collected.send().await.unwrap().status(), 200);
    let gone = refused(Some(1)).await;
    assert_eq!(gone.code, ErrorCode::NotFound);
    assert!(gone.message.contains("deploy its folder again"), "{gone}");
}

#[tokio::test]
async fn a_deploy_without_traffic_serves_once_it_is_told_to() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let config = "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemory = \"64MiB\"\n";
    let upload = async |query: &str| {
        let call = platform.admin(Method::POST, &format!("/v1/functions?{query}"));
        let body = crate::harness::folder(config);
        call.body(body).send().await.unwrap()
    };
    let accepted: VersionInfo = upload("traffic=false").await.json().await.unwrap();
    assert_eq!(accepted.version.0, 2);
    until("it is ready", async || {
        platform.versions().await[0].state == VersionState::Live
    })
    .await;
    let versions = platform.versions().await;
    assert_eq!([&versions[0], &versions[1]].map(|v| v.traffic_percent), [0.0, 100.0]);
    platform.until_serves(1).await;
    // Unchanged, so that nothing is prepared; it only goes live.
    assert_eq!(upload("if_changed=true&traffic=false").await.status(), 200);
    platform.until_serves(1).await;
    assert_eq!(upload("if_changed=true").await.status(), 200);
    platform.until_serves(2).await;
    assert_eq!(platform.worker.prepared.lock().len(), 2);
}

#[tokio::test]
async fn what_differs_only_in_settings_is_not_built_and_what_the_platform_alone_reads_is_not_booted() {
    let platform = Platform::start().await;
    let deploy_entry = async |entry: &str, settings: &str| -> VersionInfo {
        let config = format!("name = \"hello\"\nruntime = \"python\"\nentry = \"{entry}\"\n{settings}");
        let call = platform.admin(Method::POST, "/v1/functions?if_changed=true");
        let accepted: VersionInfo = (call.body(crate::harness::folder(&config)).send().await.unwrap())
            .json()
            .await
            .unwrap();
        until("it is ready", async || {
            platform.versions().await[0].state == VersionState::Live
        })
        .await;
        platform.until_serves(accepted.version.0).await;
        accepted
    };
    let deploy = async |settings| deploy_entry("main.handler", settings).await;
    let prepared = || platform.worker.prepared.lock().clone();
    assert_eq!(deploy("").await.reused, None);
    let settings = "timeout = \"7s\"\nconcurrency = 3\nidle = \"1s\"\nmax_instances = 2\n";
    let taken_over = deploy(settings).await.reused.unwrap();
    assert_eq!((taken_over.version.0, taken_over.snapshot), (1, true));
    assert_eq!(prepared().len(), 1, "nothing was booted");
    platform.scale_to_zero().await;
    assert_eq!(platform.worker.starts.lock().len(), 1);
    platform.until_serves(2).await;
    let started = platform.worker.starts.lock().last().unwrap().spec.clone();
    assert_eq!((started.version.0, started.config.timeout_ms), (2, 7_000));
    assert_eq!(started.snapshot.unwrap().as_str(), "s-hello-1");

    let booted = deploy(&format!("{settings}memory = \"64MiB\"\n")).await.reused.unwrap();
    assert_eq!((booted.version.0, booted.snapshot), (2, false));
    let order = prepared().pop().unwrap();
    assert_eq!((prepared().len(), order.version.0), (2, 3));
    assert!(order.built.is_some(), "of the layers that there are");
    // The instance of its boot serves nobody.
    platform.scale_to_zero().await;

    let built = deploy_entry("main.other", "").await;
    assert_eq!(built.reused, None, "it may be built differently");
    assert_eq!(prepared().pop().unwrap().built, None);
    let files = platform.admin(Method::GET, "/v1/functions/hello/versions/2/files");
    let files: rekindle_wire::api::VersionFiles = files.send().await.unwrap().json().await.unwrap();
    assert_eq!((files.version.0, files.files.len()), (2, 0), "there is only its config");
    let none = platform.admin(Method::GET, "/v1/functions/hello/versions/9/files");
    assert_eq!(error(none.send().await.unwrap()).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn each_version_has_a_url_and_is_started_there_although_another_is_live() {
    let platform = Platform::start().await;
    for _ in 0..2 {
        platform.deploy("hello", "idle = \"1s\"\nmax_instances = 1\n").await;
    }
    platform.until_serves(2).await;
    let answer = platform.function("hello@1/a?b").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), version_of(&answer)), (200, 1));
    let told: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(told["path"], "/a");
    assert_eq!(told["headers"]["x-forwarded-prefix"], "/function/hello@1");
    for (host, version) in [
        ("1--hello.localhost", 1),
        ("2--hello.localhost", 2),
        ("hello.localhost", 2),
    ] {
        let answer = platform.at_host(host).await;
        assert_eq!(
            (answer.status().as_u16(), version_of(&answer)),
            (200, version),
            "{host}"
        );
    }
    // One instance each, used by the plain URL and by the version's own.
    for path in ["hello", "hello@2", "hello@1", "hello@live", "hello@1"] {
        assert_eq!(platform.function(path).send().await.unwrap().status(), 200, "{path}");
    }
    platform.scale_to_zero().await;
    let again = platform.function("hello@1").send().await.unwrap();
    assert_eq!(again.headers()["x-fn-start"], "restored");
    for (path, code) in [
        ("hello@3", ErrorCode::NotFound),
        ("hello@08", ErrorCode::NotFound),
        ("hello@canary", ErrorCode::NotFound),
        ("nobody@1", ErrorCode::FunctionNotFound),
    ] {
        assert_eq!(
            error(platform.function(path).send().await.unwrap()).await.code,
            code,
            "{path}"
        );
    }
}

#[tokio::test]
async fn an_alias_is_in_force_when_it_is_set_and_shares_invocations_by_weight() {
    let mut platform = Platform::start().await;
    for _ in 0..3 {
        platform.deploy("hello", "concurrency = 100\n").await;
    }
    assert_eq!(platform.set_alias("canary", &[(1, 100)]).await.status(), 200);
    let answer = platform.function("hello@canary").send().await.unwrap();
    assert_eq!(version_of(&answer), 1);
    assert_eq!(version_of(&platform.at_host("canary--hello.localhost").await), 1);
    assert_eq!(platform.set_alias("canary", &[(2, 100)]).await.status(), 200);
    let answer = platform.function("hello@canary").send().await.unwrap();
    assert_eq!(version_of(&answer), 2, "at once");

    assert_eq!(platform.set_alias("live", &[(2, 1), (3, 1)]).await.status(), 200);
    let mut served = [0; 4];
    for _ in 0..200 {
        served[version_of(&platform.function("hello").send().await.unwrap()) as usize] += 1;
    }
    // A hundred each are expected, with a standard deviation of 7.
    assert!(
        served[2] > 60 && served[3] > 60 && served[2] + served[3] == 200,
        "{served:?}"
    );
    for word in ["a", "b", "c", "d"] {
        let of_word = async || {
            let call = platform.function("hello").header("x-fn-affinity", word);
            version_of(&call.send().await.unwrap())
        };
        let first = of_word().await;
        for _ in 0..10 {
            assert_eq!(of_word().await, first);
        }
        let cookie = platform
            .function("hello")
            .header("cookie", format!("fn-affinity={word}"));
        assert_eq!(version_of(&cookie.send().await.unwrap()), first);
    }

    platform.restart_scheduler().await;
    let listed = async || -> Vec<rekindle_wire::api::Alias> {
        let call = platform.admin(Method::GET, "/v1/functions/hello/aliases");
        call.send().await.unwrap().json().await.unwrap()
    };
    let names: Vec<_> = listed()
        .await
        .iter()
        .map(|a| (a.name.to_string(), a.targets.len()))
        .collect();
    assert_eq!(names, [("canary".to_owned(), 1), ("live".to_owned(), 2)]);
    let remove = async |alias: &str| {
        let call = platform.admin(Method::DELETE, &format!("/v1/functions/hello/aliases/{alias}"));
        call.send().await.unwrap()
    };
    assert_eq!(error(remove("live").await).await.code, ErrorCode::Conflict);
    assert_eq!(remove("canary").await.status(), 204);
    assert_eq!(error(remove("canary").await).await.code, ErrorCode::NotFound);
    // A connection to the scheduler of before may still be open here.
    let told = until("it is gone", async || {
        platform.function("hello@canary").send().await.unwrap().status() == 404
    });
    told.await;
    let gone = error(platform.function("hello@canary").send().await.unwrap()).await;
    assert_eq!(gone.code, ErrorCode::NotFound);
    assert!(gone.message.contains("fn alias list hello"), "{gone}");
}

#[tokio::test]
async fn no_request_fails_while_weights_change() {
    let platform = Platform::start().await;
    for _ in 0..2 {
        platform.deploy("hello", "max_instances = 1\n").await;
    }
    let requests = join_all((0..4).map(async |_| {
        for _ in 0..40 {
            let answer = platform.function("hello/slow/5").send().await.unwrap();
            assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
        }
    }));
    let changes = async {
        for weight in [10, 50, 90, 1, 99] {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let set = platform.set_alias("live", &[(1, 100 - weight), (2, weight)]).await;
            assert_eq!(set.status(), 200);
        }
        assert_eq!(platform.set_alias("live", &[(1, 100)]).await.status(), 200);
    };
    tokio::join!(requests, changes);
    platform.until_serves(1).await;
}

#[tokio::test]
async fn an_alias_that_cannot_be_is_refused() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let refused =
        async |alias: &str, targets: &[(u32, u32)]| error(platform.set_alias(alias, targets).await).await.code;
    assert_eq!(refused("live", &[]).await, ErrorCode::BadRequest);
    assert_eq!(refused("live", &[(1, 0)]).await, ErrorCode::BadRequest);
    assert_eq!(refused("live", &[(1, 1), (1, 2)]).await, ErrorCode::BadRequest);
    assert_eq!(refused("Live", &[(1, 1)]).await, ErrorCode::BadRequest);
    assert_eq!(refused("next", &[(2, 1)]).await, ErrorCode::NotFound);
    platform.until_serves(1).await;
}
