//! Asynchronous invocations: accepted, run, tried again, given up, fetched, called back; and what they survive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::post;
use parking_lot::Mutex;
use rekindle_wire::ErrorCode;
use rekindle_wire::asynchronous::{AcceptedCall, AsyncCall, CallState, Changed};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::harness::{Platform, error, start_gateway, telemetry, until};

const ONCE: &str = "[async]\nmax_attempts = 1\n";

impl Platform {
    pub(super) fn later(&self, name_and_path: &str) -> reqwest::RequestBuilder {
        self.http.post(format!("{}/async-function/{name_and_path}", self.url))
    }

    async fn accepted(&self, name_and_path: &str) -> AcceptedCall {
        accepted(self.later(name_and_path).send().await.unwrap()).await
    }

    /// What came of it, once it has ended.
    async fn result(&self, call: &AcceptedCall) -> Response {
        loop {
            let answer = self
                .http
                .get(format!("{}{}?wait=5", self.url, call.result))
                .send()
                .await;
            match answer {
                Ok(answer) if answer.headers()["x-fn-async-state"] == "queued" => {}
                Ok(answer) if answer.headers()["x-fn-async-state"] == "running" => {}
                Ok(answer) => return answer,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    pub(super) async fn call(&self, call: &AcceptedCall) -> AsyncCall {
        let answer = self
            .admin(Method::GET, &format!("/v1/async/{}", call.id))
            .send()
            .await
            .unwrap();
        answer.json().await.unwrap()
    }

    pub(super) async fn calls(&self, query: &str) -> Vec<AsyncCall> {
        let answer = self
            .admin(Method::GET, &format!("/v1/async{query}"))
            .send()
            .await
            .unwrap();
        answer.json().await.unwrap()
    }
}

pub(super) async fn accepted(answer: Response) -> AcceptedCall {
    assert_eq!(answer.status(), 202, "{:?}", answer.text().await);
    let (id, location) = (
        answer.headers()["x-fn-async-id"].clone(),
        answer.headers()["location"].clone(),
    );
    let call: AcceptedCall = answer.json().await.unwrap();
    assert_eq!(
        (id.to_str().unwrap(), location.to_str().unwrap()),
        (call.id.as_str(), call.result.as_str())
    );
    call
}

#[tokio::test]
async fn a_function_at_zero_is_woken_and_its_answer_is_kept() {
    telemetry();
    let platform = Platform::start().await;
    platform.deploy("hello", "idle = \"1s\"\n").await;
    platform.scale_to_zero().await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let sent = platform
        .later("hello/orders/7?full=1")
        .header("traceparent", format!("00-{trace}-b7ad6b7169203331-01"))
        .header("x-request-id", "order-7")
        .header("x-fn-async-attempt", "99")
        .header("x-own", "kept")
        .body("[1]");
    let call = accepted(sent.send().await.unwrap()).await;
    let answer = platform.result(&call).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-fn-async-state"]),
        (200, &"done".parse().unwrap())
    );
    assert_eq!(answer.headers()["content-type"], "application/json");
    let told: Value = answer.json().await.unwrap();
    assert_eq!(
        (&told["method"], &told["path"], &told["query"]),
        (&"POST".into(), &"/orders/7".into(), &"full=1".into())
    );
    let headers = &told["headers"];
    assert_eq!(
        (&headers["x-own"], &headers["x-request-id"]),
        (&"kept".into(), &"order-7".into())
    );
    assert_eq!(
        (&headers["x-fn-async-id"], &headers["x-fn-async-attempt"]),
        (&call.id.as_str().into(), &"1".into())
    );
    assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(headers["traceparent"].as_str().unwrap()[3..35], *trace);
    assert!(headers.get("idempotency-key").is_none());
    let known = platform.call(&call).await;
    assert_eq!(
        (known.state, known.attempts, known.status),
        (CallState::Done, 1, Some(200))
    );
}

#[tokio::test]
async fn a_body_comes_back_whole_and_an_event_is_one() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let body: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    let call = accepted(platform.later("hello/echo").body(body.clone()).send().await.unwrap()).await;
    assert_eq!(platform.result(&call).await.bytes().await.unwrap(), body);
    let event = platform
        .admin(Method::POST, "/v1/functions/hello/invocations?async=true")
        .body("{}");
    let call = accepted(event.send().await.unwrap()).await;
    let told: Value = platform.result(&call).await.json().await.unwrap();
    assert_eq!(
        (&told["headers"]["x-fn-invocation"], &told["path"]),
        (&"event".into(), &"/".into())
    );
    assert!(told["headers"].get("authorization").is_none());
}

#[tokio::test]
async fn what_fails_is_tried_again_and_what_fails_to_the_end_is_a_dead_letter() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    platform.deploy("doomed", ONCE).await;
    let call = platform.accepted("hello/second-time").await;
    assert_eq!(platform.result(&call).await.status(), 200);
    let known = platform.call(&call).await;
    assert_eq!((known.attempts, known.failures, known.state), (2, 1, CallState::Done));

    let dead = platform.accepted("doomed/throw").await;
    let refused = error(platform.result(&dead).await).await;
    assert_eq!(refused.code, ErrorCode::FunctionError);
    assert!(!refused.message.contains("no such order"), "{refused}");
    let known = platform.call(&dead).await.error.unwrap();
    assert!(known.message.contains("no such order"), "{known}");
    let odd = platform.accepted("doomed/second-time").await;
    assert_eq!(
        platform.result(&odd).await.status(),
        503,
        "the function's own last answer is kept"
    );

    let listed = platform.calls("?state=dead&function=doomed").await;
    let ids: Vec<_> = listed.iter().map(|c| c.id.clone()).collect();
    assert_eq!(ids, [odd.id.clone(), dead.id.clone()], "newest first");
    assert!(platform.calls("?state=dead&function=hello").await.is_empty());
    assert_eq!(platform.calls(&format!("?before={}", odd.id)).await.len(), 2);

    // By hand, one and all. The second time one of them is answered.
    let again = platform.admin(Method::POST, &format!("/v1/async/{}/retry", odd.id));
    assert_eq!(again.send().await.unwrap().status(), 200);
    assert_eq!(platform.result(&odd).await.status(), 200);
    let refused = platform.admin(Method::POST, &format!("/v1/async/{}/retry", odd.id));
    assert_eq!(error(refused.send().await.unwrap()).await.code, ErrorCode::Conflict);
    let all = platform
        .admin(Method::POST, "/v1/functions/doomed/async/retry")
        .send()
        .await
        .unwrap();
    assert_eq!(all.json::<Changed>().await.unwrap().calls, 1);
    until("it is dead again", async || {
        platform.call(&dead).await.state == CallState::Dead
    })
    .await;
    assert_eq!(platform.call(&dead).await.attempts, 2);
    let removed = platform
        .admin(Method::DELETE, &format!("/v1/async/{}", dead.id))
        .send()
        .await
        .unwrap();
    assert_eq!(removed.status(), 204);
    let gone = platform
        .http
        .get(format!("{}{}", platform.url, dead.result))
        .send()
        .await
        .unwrap();
    assert_eq!(error(gone).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn a_call_sent_again_with_its_key_runs_once() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let send = |trace: u32, key: &'static str| {
        let call = platform.later("hello/a").header("idempotency-key", key).body("order");
        call.header("x-request-id", format!("try-{trace}"))
            .header("traceparent", format!("00-{:032x}-b7ad6b7169203331-01", trace + 1))
            .header("tracestate", format!("vendor={trace}"))
            .send()
    };
    let first = accepted(send(0, "order-1").await.unwrap()).await;
    platform.result(&first).await;
    let again = accepted(send(1, "order-1").await.unwrap()).await;
    assert_eq!((again.id.clone(), again.known), (first.id, true));
    assert_eq!(platform.worker.invocations.load(Ordering::SeqCst), 1);
    assert!(!accepted(send(0, "order-2").await.unwrap()).await.known);
}

#[tokio::test]
async fn anothers_call_with_the_same_key_is_a_call_of_its_own_and_hears_nothing_of_the_first() {
    let platform = Platform::start_with(|c| c.callback_allow = vec!["127.0.0.1".parse().unwrap()]).await;
    platform.deploy("hello", "").await;
    let sent =
        |path: &'static str, body: &'static str| platform.later(path).header("idempotency-key", "order-1").body(body);
    let mut ids = std::collections::BTreeSet::new();
    for another in [
        sent("hello", "secret"),
        sent("hello", "other"),
        sent("hello/elsewhere", "secret"),
        sent("hello?x=1", "secret"),
        sent("hello", "secret").header("authorization", "Bearer of-another"),
        sent("hello", "secret").header("x-callback-url", "http://127.0.0.1:1/"),
        // The operator's calls belong to the admin key.
        sent("hello", "secret").bearer_auth(crate::harness::KEY),
    ] {
        let call = accepted(another.send().await.unwrap()).await;
        assert!(!call.known, "{call:?}");
        assert!(ids.insert(call.id.clone()), "{call:?}");
    }
    // Who shows a key is told of a call of the same key's.
    let own = sent("hello", "other").bearer_auth(crate::harness::KEY);
    assert_eq!(error(own.send().await.unwrap()).await.code, ErrorCode::Conflict);
    let again = accepted(
        sent("hello", "secret")
            .bearer_auth(crate::harness::KEY)
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert!(again.known && ids.contains(&again.id), "{again:?}");
}

/// Whether the scheduler's database has these bytes anywhere.
fn database_has(platform: &Platform, bytes: &str) -> bool {
    let files = ["scheduler.db", "scheduler.db-wal"].map(|name| platform.dir.path().join(name));
    let whole: Vec<u8> = files
        .iter()
        .flat_map(|f| std::fs::read(f).unwrap_or_default())
        .collect();
    whole.windows(bytes.len()).any(|part| part == bytes.as_bytes())
}

#[tokio::test]
async fn credentials_reach_the_function_and_its_client_and_lie_nowhere_in_the_clear() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let (bearer, cookie) = ("credential-of-the-caller", "session=cookie-of-the-caller");
    let sent = platform
        .later("hello/cookie/cookie-of-the-function")
        .bearer_auth(bearer)
        .header("cookie", cookie)
        .header("x-open", "header-in-the-clear");
    let call = accepted(sent.send().await.unwrap()).await;
    let answer = platform.result(&call).await;
    let set = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(set.starts_with("id=cookie-of-the-function; Path=/"), "{set}");
    let told: Value = answer.json().await.unwrap();
    let backwards = |text: &str| Value::from(text.chars().rev().collect::<String>());
    assert_eq!(told["authorization"], backwards(&format!("Bearer {bearer}")));
    assert_eq!(told["cookie"], backwards(cookie));
    assert!(
        database_has(&platform, "header-in-the-clear"),
        "what is looked through is the database"
    );
    for secret in [bearer, "cookie-of-the-caller", "id=cookie-of-the-function"] {
        assert!(!database_has(&platform, secret), "{secret}");
    }
}

#[tokio::test]
async fn calls_whose_credentials_a_lost_master_key_has_become_dead_letters_and_others_run() {
    // This gateway runs none.
    let mut platform = Platform::start_with(|c| c.async_in_flight = 0).await;
    platform.deploy("hello", "").await;
    let sealed = accepted(platform.later("hello").bearer_auth("credential").send().await.unwrap()).await;
    let open = platform.accepted("hello").await;
    platform
        .restart_scheduler_with("another key, since the first was lost")
        .await;
    let (_, mut other) = start_gateway(&platform.relay, |_| {}).await;
    let refused = error(platform.result(&sealed).await).await;
    assert_eq!(refused.code, ErrorCode::Internal);
    assert!(refused.message.contains("master key"), "{refused}");
    assert_eq!(platform.result(&open).await.status(), 200);
    // With the key put back it runs.
    other.ask_to_end();
    (&mut other.task).await.unwrap();
    platform.restart_scheduler().await;
    let again = platform.admin(Method::POST, &format!("/v1/async/{}/retry", sealed.id));
    assert_eq!(again.send().await.unwrap().status(), 200);
    let (_, _another) = start_gateway(&platform.relay, |_| {}).await;
    let told: Value = platform.result(&sealed).await.json().await.unwrap();
    assert_eq!(told["headers"]["authorization"], "Bearer credential");
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_with_the_reason() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let refused = async |request: reqwest::RequestBuilder| error(request.send().await.unwrap()).await.code;
    assert_eq!(refused(platform.later("nobody")).await, ErrorCode::FunctionNotFound);
    let large = platform.later("hello").body(vec![0; (1 << 20) + 1]);
    assert_eq!(refused(large).await, ErrorCode::TooLarge);
    let callback = platform.later("hello").header("x-callback-url", "ftp://example.com/");
    assert_eq!(refused(callback).await, ErrorCode::BadRequest);
    let key = platform.later("hello").header("idempotency-key", "two words");
    assert_eq!(refused(key).await, ErrorCode::BadRequest);
    assert!(platform.calls("").await.is_empty());
    let unknown = platform.http.get(format!("{}/async-results/a-0", platform.url));
    assert_eq!(refused(unknown).await, ErrorCode::NotFound);
}

pub(super) type Posted = Arc<Mutex<Vec<(HeaderMap, String)>>>;

/// A client's server, which refuses the first callback.
pub(super) async fn listener() -> (String, Posted) {
    let posted = Posted::default();
    let inner = posted.clone();
    let app = Router::new().route(
        "/done",
        post(async move |headers: HeaderMap, body: String| {
            let mut all = inner.lock();
            all.push((headers, body));
            if all.len() == 1 {
                axum::http::StatusCode::BAD_GATEWAY
            } else {
                axum::http::StatusCode::OK
            }
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, posted)
}

#[tokio::test]
async fn a_callback_is_posted_until_it_is_taken_and_only_where_it_may_go() {
    let platform = Platform::start_with(|c| c.callback_allow = vec!["127.0.0.0/8".parse().unwrap()]).await;
    platform.deploy("hello", "").await;
    let (url, posted) = listener().await;
    let sent = platform
        .later("hello/echo")
        .header("x-callback-url", &url)
        .body("payload");
    let call = accepted(sent.send().await.unwrap()).await;
    until("it is delivered", async || {
        platform
            .call(&call)
            .await
            .callback
            .is_some_and(|c| c.state == "delivered")
    })
    .await;
    let all = posted.lock().clone();
    assert_eq!(all.len(), 2);
    let (headers, body) = &all[1];
    assert_eq!(
        (body.as_str(), &headers["x-fn-async-id"]),
        ("payload", &call.id.as_str().parse().unwrap())
    );
    assert_eq!(
        (&headers["x-fn-status"], &headers["x-fn-async-state"]),
        (&"200".parse().unwrap(), &"done".parse().unwrap())
    );

    // The platform itself is out of reach.
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let sent = platform
        .later("hello")
        .header("x-callback-url", &url)
        .bearer_auth(crate::harness::KEY);
    let call = accepted(sent.send().await.unwrap()).await;
    until("it is given up", async || {
        platform.call(&call).await.callback.is_some_and(|c| c.state == "failed")
    })
    .await;
    let callback = platform.call(&call).await.callback.unwrap();
    assert!(callback.error.unwrap().contains("--callback-allow"));
    assert_eq!(posted.lock().len(), 2);
}

#[tokio::test]
async fn without_a_key_a_callback_goes_nowhere_that_the_operator_did_not_allow() {
    let platform = Platform::start_with(|c| c.callback_allow = vec!["hooks.example.com".parse().unwrap()]).await;
    platform.deploy("hello", "").await;
    let sent = |url: &str| platform.later("hello").header("x-callback-url", url);
    for url in [
        "https://example.com/done",
        "http://93.184.216.34/",
        "https://hooks.example.com.evil.example/",
    ] {
        let refused = error(sent(url).send().await.unwrap()).await;
        assert_eq!(refused.code, ErrorCode::Unauthorized);
        assert!(
            refused.message.contains("--callback-allow") && refused.message.contains("fn.toml"),
            "{refused}"
        );
    }
    assert!(platform.calls("").await.is_empty(), "it was kept all the same");
    // By the key, by the operator, and by the function's own config.
    accepted(
        sent("https://example.com/done")
            .bearer_auth(crate::harness::KEY)
            .send()
            .await
            .unwrap(),
    )
    .await;
    accepted(sent("https://hooks.example.com/done").send().await.unwrap()).await;
    platform
        .deploy("own", "[async]\ncallback = \"https://example.com/done\"\n")
        .await;
    let call = platform.accepted("own").await;
    assert_eq!(
        platform.call(&call).await.callback.unwrap().url,
        "https://example.com/done"
    );
}

#[tokio::test]
async fn a_deleted_functions_calls_are_given_up_and_a_new_version_takes_those_that_wait() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 1\n").await;
    let busy = platform.accepted("hello/slow/1500").await;
    until("it runs", async || {
        platform.call(&busy).await.state == CallState::Running
    })
    .await;
    let waiting = platform.accepted("hello/later").await;
    platform.deploy("hello", "max_instances = 2\n").await;
    assert_eq!(platform.result(&waiting).await.status(), 200);
    let answered = platform.result(&busy).await;
    assert_eq!(answered.status(), 200);

    let hung = platform.accepted("hello/hang").await;
    until("it runs", async || {
        platform.call(&hung).await.state == CallState::Running
    })
    .await;
    let deleted = platform
        .admin(Method::DELETE, "/v1/functions/hello")
        .send()
        .await
        .unwrap();
    assert_eq!(deleted.status(), 204);
    let refused = error(platform.result(&hung).await).await;
    assert_eq!(refused.code, ErrorCode::FunctionNotFound);
    assert_eq!(platform.result(&waiting).await.status(), 200, "what was answered stays");
}

#[tokio::test]
async fn a_scheduler_that_is_away_delays_a_call_and_loses_none() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let call = platform.accepted("hello/slow/1000").await;
    until("it runs", async || {
        platform.call(&call).await.state == CallState::Running
    })
    .await;
    platform.restart_scheduler().await;
    assert_eq!(platform.result(&call).await.status(), 200);
    assert_eq!(platform.call(&call).await.attempts, 1, "its gateway went on, and told");
}

#[tokio::test]
async fn the_end_of_an_attempt_leaves_the_next_ones_claim_alone() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 3\n").await;
    let call = platform.accepted("hello/slow/10000").await;
    let invocations = || platform.worker.invocations.load(Ordering::SeqCst);
    until("it runs", async || invocations() == 1).await;
    let first_ends = tokio::time::sleep(Duration::from_millis(10_500));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let database = platform.database().await;
    until("its claim has run out, and it runs a second time", async || {
        let lapse = sqlx::query("UPDATE async_calls SET due_unix_ms = 0 WHERE attempts = 1");
        lapse.execute(&database).await.unwrap();
        invocations() == 2
    })
    .await;
    let due = || async {
        let due = sqlx::query_scalar("SELECT due_unix_ms FROM async_calls WHERE state = 'running'");
        due.fetch_one(&database).await.expect("it runs still")
    };
    first_ends.await;
    let before: i64 = due().await;
    until("the second's claim is extended", async || due().await > before).await;
    assert_eq!(platform.result(&call).await.status(), 200);
    assert_eq!(platform.call(&call).await.attempts, 2, "no third was begun");
}

#[tokio::test]
async fn what_a_killed_gateway_held_is_run_by_another() {
    let platform = Platform::start().await;
    platform.deploy("hello", "max_instances = 3\n").await;
    let call = platform.accepted("hello/slow/400").await;
    until("it runs", async || {
        platform.worker.invocations.load(Ordering::SeqCst) > 0
    })
    .await;
    let Platform {
        gateway, relay, http, ..
    } = platform;
    drop(gateway);
    let (url, _other) = start_gateway(&relay, |_| {}).await;
    let fetch = || http.get(format!("{url}{}?wait=5", call.result)).send();
    let mut answer = None;
    until("another has run it", async || {
        answer = fetch().await.ok().filter(|a| a.status() == 200);
        answer.is_some()
    })
    .await;
    let told: Value = answer.unwrap().json().await.unwrap();
    let attempt: u32 = told["headers"]["x-fn-async-attempt"].as_str().unwrap().parse().unwrap();
    assert!(attempt <= 2, "{attempt}");
}
