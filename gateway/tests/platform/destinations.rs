//! Functions and addresses that are told how asynchronous invocations ended.

use rekindle_wire::asynchronous::{AcceptedCall, AsyncCall, CallbackInfo};
use serde_json::{Value, json};

use crate::async_calls::{accepted, listener};
use crate::harness::{Platform, until};
use crate::metrics::metrics;

async fn start_with_destinations() -> Platform {
    Platform::start_with(|c| c.callback_allow = vec!["127.0.0.0/8".parse().unwrap()]).await
}

/// What is known of telling the call's destination, once that has this state.
async fn told(platform: &Platform, call: &AcceptedCall, state: &str) -> CallbackInfo {
    let known = async || platform.call(call).await.destination;
    until(&format!("the destination of {} is {state}", call.id), async || {
        known().await.is_some_and(|told| told.state == state)
    })
    .await;
    known().await.unwrap()
}

async fn sent(platform: &Platform, name_and_path: &str, body: &'static str) -> AcceptedCall {
    let call = platform.later(name_and_path).header("content-type", "application/json");
    accepted(call.body(body).send().await.unwrap()).await
}

#[tokio::test]
async fn success_and_failure_go_to_an_address_and_a_function() {
    let platform = start_with_destinations().await;
    let (url, posted) = listener().await;
    let settings = |more: &str| format!("[async]\nmax_attempts = 1\n{more}");
    platform
        .deploy("audit", &settings(&format!("on_success = \"{url}\"\n")))
        .await;
    let both = format!("on_success = \"{url}\"\non_failure = \"audit\"\n");
    platform.deploy("work", &settings(&both)).await;

    // The server refuses the first event.
    let good = sent(&platform, "work/echo?a=b", "{\"n\": 7}").await;
    let info = told(&platform, &good, "delivered").await;
    assert_eq!((info.url.as_str(), info.attempts), (url.as_str(), 2));
    let all = posted.lock().clone();
    let (headers, body) = &all[1];
    assert_eq!(all.len(), 2);
    assert_eq!(headers["content-type"], "application/cloudevents+json");
    assert_eq!(headers["x-fn-async-id"], good.id.as_str());
    let event: Value = serde_json::from_str(body).unwrap();
    assert_eq!(event["type"], "rekindle.function.succeeded");
    assert_eq!(
        (&event["source"], &event["subject"]),
        (&json!("/functions/work"), &json!(good.id))
    );
    let data = &event["data"];
    assert_eq!(data["request"]["path"], "/echo?a=b");
    assert_eq!(
        (&data["request"]["body"], &data["answer"]["status"]),
        (&json!({"n": 7}), &json!(200))
    );

    let bad = sent(&platform, "work/crash", "{\"n\": 8}").await;
    assert_eq!(told(&platform, &bad, "delivered").await.url, "audit");
    // The function's own destination has what it was told.
    until("its own success is posted", async || posted.lock().len() == 3).await;
    let event: Value = serde_json::from_str(&posted.lock()[2].1).unwrap();
    assert_eq!(event["source"], "/functions/audit");
    let request = &event["data"]["request"];
    assert_eq!(request["content_type"], "application/cloudevents+json");
    let failure = &request["body"];
    assert_eq!(
        (&failure["type"], &failure["subject"]),
        (&json!("rekindle.function.failed"), &json!(bad.id))
    );
    assert_eq!(failure["data"]["error"]["code"], "function_crashed");
    assert_eq!(failure["data"]["request"]["body"], json!({"n": 8}));
    let audits = platform.calls("?function=audit").await;
    let [only]: [AsyncCall; 1] = audits.try_into().unwrap();
    assert!(only.idempotency_key.unwrap().starts_with(bad.id.as_str()));

    let delivered = "rekindle_async_destinations_total{outcome=\"delivered\"}";
    until("all are counted", async || {
        metrics(&platform, "/v1/metrics").await.get(delivered) == Some(&3.0)
    })
    .await;
}

#[tokio::test]
async fn a_circle_of_destinations_ends_and_so_does_an_address_that_may_not_be_reached() {
    let platform = Platform::start().await;
    platform.deploy("again", "[async]\non_success = \"again\"\n").await;
    sent(&platform, "again/echo", "1").await;
    until("the circle ends", async || {
        let all = platform.calls("?function=again").await;
        all.iter()
            .filter_map(|call| call.destination.clone())
            .any(|told| told.state == "failed" && told.error.unwrap().contains("call_too_deep"))
    })
    .await;
    assert_eq!(platform.calls("?function=again").await.len(), 17);

    let (url, posted) = listener().await;
    platform
        .deploy("out", &format!("[async]\non_success = \"{url}\"\n"))
        .await;
    let call = sent(&platform, "out/echo", "1").await;
    let error = told(&platform, &call, "failed").await.error.unwrap();
    assert!(error.contains("--callback-allow"), "{error}");
    assert!(posted.lock().is_empty());
}

#[tokio::test]
async fn a_function_that_asks_for_a_key_is_told_where_it_is_open_to_functions() {
    let platform = start_with_destinations().await;
    let asks = "auth = \"key\"\n";
    platform.deploy("payments", asks).await;
    let settings = "[async]\nmax_attempts = 1\non_success = \"payments\"\n";
    platform.deploy("work", settings).await;
    let call = sent(&platform, "work/echo", "{}").await;
    let refused = async || {
        let told = platform.call(&call).await.destination;
        told.and_then(|told| told.error).unwrap_or_default()
    };
    until("it is refused", async || {
        refused().await.contains("allow = [\"functions\"]")
    })
    .await;
    assert!(platform.calls("?function=payments").await.is_empty());

    platform
        .deploy("payments", &format!("{asks}allow = [\"functions\"]\n"))
        .await;
    told(&platform, &call, "delivered").await;
    assert_eq!(platform.calls("?function=payments").await.len(), 1);
}
