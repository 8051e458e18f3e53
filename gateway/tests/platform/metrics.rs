//! What gateway and scheduler measure, as Prometheus reads it.

use std::collections::BTreeMap;

use reqwest::Method;

use crate::harness::{KEY, Platform, TOKEN, error, telemetry, until};

/// Series by name with labels; comments left out.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let series = lines.map(|l| {
        let (name, value) = l.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    series.collect()
}

pub(crate) async fn metrics(platform: &Platform, path: &str) -> BTreeMap<String, f64> {
    let answer = platform.admin(Method::GET, path).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    series(&answer.text().await.unwrap())
}

#[tokio::test]
async fn invocations_are_counted_by_function_start_kind_and_error() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    for _ in 0..3 {
        platform.function("hello").send().await.unwrap();
    }
    let booted = platform
        .function("hello")
        .bearer_auth(KEY)
        .header("x-fn-force-start", "booted");
    assert_eq!(booted.send().await.unwrap().headers()["x-fn-start"], "booted");
    for unknown in ["made-up", "hello@9"] {
        error(platform.function(unknown).send().await.unwrap()).await;
    }
    let gateway = metrics(&platform, "/metrics").await;
    let of = |name: &str, labels: &str| *gateway.get(&format!("{name}{{{labels}}}")).unwrap_or(&0.0);
    let (warm, cold) = (
        "faas_invoked_name=\"hello\",start=\"warm\"",
        "faas_invoked_name=\"hello\",start=\"booted\"",
    );
    assert_eq!(of("faas_invocations_total", warm), 3.0, "{gateway:#?}");
    assert_eq!(of("faas_invocations_total", cold), 1.0);
    assert_eq!(of("faas_coldstarts_total", cold), 1.0);
    assert_eq!(of("rekindle_request_duration_seconds_count", warm), 3.0);
    let infinite = format!("{warm},le=\"+Inf\"");
    assert_eq!(of("rekindle_request_duration_seconds_bucket", &infinite), 3.0);
    let unknown = "faas_invoked_name=\"(unknown)\",start=\"none\",error_type=\"function_not_found\"";
    assert_eq!(of("faas_errors_total", unknown), 1.0);
    assert!(gateway["rekindle_gateway_leases"] >= 1.0);
    assert!(!gateway.keys().any(|name| name.contains("made-up")));

    let scheduler = metrics(&platform, "/v1/metrics").await;
    let of = |name: &str| scheduler.get(name).copied().unwrap_or(0.0);
    assert_eq!(of("rekindle_functions"), 1.0);
    assert_eq!(of("rekindle_workers{state=\"alive\"}"), 1.0);
    assert_eq!(of("rekindle_deploys_total{outcome=\"live\"}"), 1.0);
    assert_eq!(
        of("rekindle_scheduler_placements_total{start=\"booted\",outcome=\"placed\"}"),
        1.0
    );
    assert_eq!(
        of("rekindle_scheduler_placements_total{start=\"none\",outcome=\"not_found\"}"),
        1.0
    );
    assert!(
        of("rekindle_instances{faas_invoked_name=\"hello\",state=\"ready\"}") >= 1.0,
        "{scheduler:#?}"
    );
}

#[tokio::test]
async fn who_has_no_key_learns_nothing() {
    let platform = Platform::start().await;
    for path in ["/metrics", "/v1/metrics", "/v1/workers/w-1/metrics"] {
        let refused = platform
            .http
            .get(format!("{}{path}", platform.url))
            .send()
            .await
            .unwrap();
        assert_eq!(refused.status(), 401, "{path}");
    }
    // Nor may a function's host name open it: there the path is the function's.
    platform.deploy("hello", "").await;
    let host = platform
        .http
        .get(format!("{}/metrics", platform.url))
        .header("host", "hello.localhost");
    assert_eq!(host.send().await.unwrap().headers()["x-fn-start"], "warm");
    // The scheduler itself wants the cluster's token, as a bearer token too.
    let scheduler = format!("http://{}/metrics", platform.relay.address);
    let (none, right) = (
        platform.http.get(&scheduler),
        platform.http.get(&scheduler).bearer_auth(TOKEN),
    );
    let wrong = platform.http.get(&scheduler).bearer_auth(KEY);
    assert_eq!(none.send().await.unwrap().status(), 401);
    assert_eq!(wrong.send().await.unwrap().status(), 401);
    let text = right.send().await.unwrap().text().await.unwrap();
    assert!(text.contains("rekindle_workers{"), "{text}");
}

#[tokio::test]
async fn a_value_names_its_trace_where_the_asker_can_read_it() {
    telemetry();
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let call = platform
        .function("hello")
        .header("traceparent", format!("00-{trace}-b7ad6b7169203331-01"));
    call.send().await.unwrap();
    let asked = platform
        .admin(Method::GET, "/metrics")
        .header("accept", "application/openmetrics-text");
    let text = asked.send().await.unwrap().text().await.unwrap();
    assert!(text.contains(&format!("# {{trace_id=\"{trace}\"")), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_deleted_function_is_not_told_of_any_more() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    until("it is known", async || {
        let all = metrics(&platform, "/v1/metrics").await;
        all.keys().any(|name| name.contains("hello"))
    })
    .await;
    platform
        .admin(Method::DELETE, "/v1/functions/hello")
        .send()
        .await
        .unwrap();
    until("it is forgotten", async || {
        let all = metrics(&platform, "/v1/metrics").await;
        !all.keys().any(|name| name.contains("hello"))
    })
    .await;
}
