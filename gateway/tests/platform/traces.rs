//! A trace goes through: without any collector the function gets the client's trace id.

use serde_json::Value;

use crate::harness::{Platform, telemetry};

#[tokio::test]
async fn the_clients_trace_reaches_the_function_and_others_get_one() {
    telemetry();
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let sent = format!("00-{trace}-b7ad6b7169203331-01");
    let call = platform
        .function("hello")
        .header("traceparent", &sent)
        .header("tracestate", "vendor=1");
    let told: Value = call.send().await.unwrap().json().await.unwrap();
    let got = told["headers"]["traceparent"].as_str().unwrap();
    assert_eq!(got[3..35], *trace);
    assert_ne!(got, sent, "the function's parent is the gateway's span");
    assert_eq!(told["headers"]["tracestate"], "vendor=1");
    let told: Value = platform.function("hello").send().await.unwrap().json().await.unwrap();
    let made = told["headers"]["traceparent"].as_str().unwrap();
    assert_eq!(made.len(), 55);
    assert_ne!(made[3..35], *trace);
}
