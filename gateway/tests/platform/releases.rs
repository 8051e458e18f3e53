//! Which version serves: rollback, deploys without traffic.

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
    async fn versions(&self) -> Vec<VersionSummary> {
        let answer = self.admin(Method::GET, "/v1/functions/hello/versions");
        answer.send().await.unwrap().json().await.unwrap()
    }

    async fn roll_back(&self, to: Option<u32>) -> reqwest::Response {
        let call = self.admin(Method::POST, "/v1/functions/hello/rollback");
        let call = match to {
            None => call.json(&json!({})),
            Some(version) => call.json(&json!({ "version": version })),
        };
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
    let manifest = "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemory = \"64MiB\"\n";
    let upload = async |query: &str| {
        let call = platform.admin(Method::POST, &format!("/v1/functions?{query}"));
        let body = crate::harness::folder(manifest);
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
