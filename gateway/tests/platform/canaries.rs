//! Canaries: a new version takes over step by step, and goes back by itself where it is worse.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rekindle_wire::ErrorCode;
use rekindle_wire::VersionNumber;
use rekindle_wire::api::{Canary, CanaryState, Rollback};
use reqwest::Method;

use crate::harness::{Platform, error, folder, until};

const SETTINGS: &str = "concurrency = 50\nmax_instances = 2\n";

impl Platform {
    /// Uploads a changed folder with these settings and this query.
    async fn upload_canary(&self, settings: &str, query: &str) -> reqwest::Response {
        let config = format!("name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n{settings}");
        let call = self.admin(Method::POST, &format!("/v1/functions?{query}"));
        call.body(folder(&config)).send().await.unwrap()
    }

    async fn canary(&self) -> Option<Canary> {
        self.describe("hello").await.canary
    }

    async fn until_canary(&self, what: &str, is_so: impl Fn(&Canary) -> bool) -> Canary {
        let mut canary = None;
        until(what, async || {
            canary = self.canary().await;
            canary.as_ref().is_some_and(&is_so)
        })
        .await;
        canary.unwrap()
    }

    async fn is_live(&self) -> Vec<(u32, f64)> {
        let serving = self.versions().await.into_iter().filter(|v| v.traffic_percent > 0.0);
        serving.map(|v| (v.version.0, v.traffic_percent)).collect()
    }

    /// Calls the function again and again until `done`. Returns how many calls each status had.
    async fn load(&self, done: &AtomicBool) -> [usize; 2] {
        let one = async || {
            let mut counts = [0, 0];
            while !done.load(Ordering::SeqCst) {
                let answer = self.function("hello").send().await.unwrap();
                counts[usize::from(answer.status() != 200)] += 1;
                drop(answer.bytes().await);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            counts
        };
        let all = tokio::join!(one(), one(), one(), one());
        [all.0, all.1, all.2, all.3]
            .into_iter()
            .fold([0, 0], |sum, more| [sum[0] + more[0], sum[1] + more[1]])
    }
}

#[tokio::test]
async fn a_canary_grows_through_a_restart_of_the_scheduler_until_it_is_live() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", SETTINGS).await;
    let more = format!("{SETTINGS}timeout = \"9s\"\n");
    let accepted = platform
        .upload_canary(&more, "if_changed=true&canary=20,60&step_s=1")
        .await;
    assert_eq!(accepted.status(), 202);
    let first = platform.until_canary("it has begun", |_| true).await;
    assert_eq!((first.from.0, first.to.0, first.percent(), first.step), (1, 2, 20, 0));
    assert_eq!(platform.is_live().await, [(2, 20.0), (1, 80.0)]);
    // Nobody calls: it stays.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(platform.canary().await.unwrap().step, 0);

    let done = AtomicBool::new(false);
    let grows = async {
        platform
            .until_canary("the second step", |canary| canary.step == 1)
            .await;
        done.store(true, Ordering::SeqCst);
    };
    let ([answered, failed], ()) = tokio::join!(platform.load(&done), grows);
    assert!(answered > 100 && failed == 0, "{answered} answered, {failed} failed");
    assert_eq!(platform.is_live().await, [(2, 60.0), (1, 40.0)]);

    platform.restart_scheduler().await;
    let second = platform.canary().await.unwrap();
    assert_eq!((second.step, second.state), (1, CanaryState::Growing));
    let done = AtomicBool::new(false);
    let grows = async {
        platform
            .until_canary("it is live", |canary| canary.state == CanaryState::Live)
            .await;
        done.store(true, Ordering::SeqCst);
    };
    let ([_, failed], ()) = tokio::join!(platform.load(&done), grows);
    assert_eq!(failed, 0);
    assert_eq!(platform.is_live().await, [(2, 100.0)]);
    let back: Rollback = platform.roll_back(None).await.json().await.unwrap();
    assert_eq!(back.to.0, 1);
}

#[tokio::test]
async fn a_canary_that_fails_more_often_is_rolled_back_and_says_by_which_numbers() {
    let platform = Platform::start().await;
    for settings in ["", "timeout = \"8s\"\n"] {
        platform.deploy("hello", &format!("{SETTINGS}{settings}")).await;
    }
    *platform.worker.fails.lock() = Some(VersionNumber(3));
    let more = format!("{SETTINGS}timeout = \"9s\"\n");
    let accepted = platform
        .upload_canary(&more, "if_changed=true&canary=30&step_s=10")
        .await;
    assert_eq!(accepted.status(), 202);
    let done = AtomicBool::new(false);
    let goes = async {
        let ended = platform
            .until_canary("it is rolled back", |canary| canary.state != CanaryState::Growing)
            .await;
        done.store(true, Ordering::SeqCst);
        ended
    };
    let ([answered, failed], ended) = tokio::join!(platform.load(&done), goes);
    assert!(answered > 0 && failed > 0, "{answered} answered, {failed} failed");
    assert_eq!(ended.state, CanaryState::RolledBack);
    let errors = &ended.checks[0];
    assert!(errors.worse && errors.p < errors.limit, "{errors:?}");
    assert!(
        errors.new.hits > 0 && errors.new.hits == errors.new.of && errors.old.hits == 0,
        "{errors:?}"
    );
    assert!(ended.why.unwrap().contains("invocations failed"));
    assert_eq!(platform.is_live().await, [(2, 100.0)]);
    assert_eq!(platform.function("hello").send().await.unwrap().status(), 200);
    // What was live before is the first version, and not the one that failed.
    let back: Rollback = platform.roll_back(None).await.json().await.unwrap();
    assert_eq!(back.to.0, 1);
}

#[tokio::test]
async fn what_is_set_by_hand_ends_a_canary_and_the_first_version_needs_none() {
    let platform = Platform::start().await;
    let wrong = platform.upload_canary("", "canary=0").await;
    assert_eq!(error(wrong).await.code, ErrorCode::BadRequest);
    assert_eq!(platform.upload_canary(SETTINGS, "canary=10").await.status(), 202);
    until("it is live at once", async || {
        platform.describe("hello").await.summary.live.is_some()
    })
    .await;
    assert_eq!(platform.canary().await, None);
    let more = format!("{SETTINGS}timeout = \"9s\"\n");
    platform
        .upload_canary(&more, "if_changed=true&canary=10&step_s=1")
        .await;
    platform.until_canary("it has begun", |_| true).await;
    let back: Rollback = platform.roll_back(Some(1)).await.json().await.unwrap();
    assert_eq!((back.from.len(), back.to.0), (2, 1));
    assert_eq!(platform.canary().await.unwrap().state, CanaryState::Replaced);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(platform.is_live().await, [(1, 100.0)]);
    // The folder is unchanged: its version begins again.
    let again = platform
        .upload_canary(&more, "if_changed=true&canary=10&step_s=1")
        .await;
    assert_eq!(again.status(), 200);
    assert_eq!(platform.canary().await.unwrap().state, CanaryState::Growing);
    assert_eq!(platform.is_live().await, [(2, 10.0), (1, 90.0)]);
}
