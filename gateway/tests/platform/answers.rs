//! What passes between client and function: paths, headers, bodies as they come, and the end of either side.

use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use rekindle_gateway::Paths;
use rekindle_wire::ErrorCode;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::harness::{KEY, Platform, error, until};

#[tokio::test]
async fn path_query_and_headers_reach_the_function_as_they_were_sent() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let call = platform
        .function("hello/a%2Fb//c?q=%20x&r")
        .header("x-own", "kept")
        .header("x-rekindle-token", "guessed")
        .header("x-fn-invocation", "event")
        .header("x-request-id", "order-17")
        .header("authorization", "Bearer the-functions-own");
    let answer = call.send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "order-17");
    let told: Value = answer.json().await.unwrap();
    assert_eq!(told["path"], "/a%2Fb//c");
    assert_eq!(told["query"], "q=%20x&r");
    let headers = &told["headers"];
    assert_eq!(headers["x-own"], "kept");
    assert_eq!(headers["x-fn-invocation"], "http");
    assert_eq!(headers["x-request-id"], "order-17");
    assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(headers["x-forwarded-proto"], "http");
    assert_eq!(
        headers["x-forwarded-host"],
        platform.url.strip_prefix("http://").unwrap()
    );
    assert_eq!(headers["x-forwarded-prefix"], "/function/hello");
    assert_eq!(headers["authorization"], "Bearer the-functions-own");
    assert_ne!(headers["x-rekindle-token"], "guessed");
    let left: u128 = headers["x-rekindle-time-left-ms"].as_str().unwrap().parse().unwrap();
    assert!((1..31_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_function_answers_at_its_own_host_too() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let call = platform
        .http
        .get(format!("{}/v1/functions", platform.url))
        .header("host", "hello.localhost:8080");
    let told: Value = call.send().await.unwrap().json().await.unwrap();
    assert_eq!(told["path"], "/v1/functions");
    assert_eq!(told["headers"]["x-forwarded-prefix"], Value::Null);
}

#[tokio::test]
async fn a_function_is_told_of_the_path_that_a_proxy_has_taken_off_too() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let call = platform.function("hello").header("x-forwarded-prefix", "/apps/");
    let told: Value = call.send().await.unwrap().json().await.unwrap();
    assert_eq!(told["headers"]["x-forwarded-prefix"], "/apps/function/hello");
}

#[tokio::test]
async fn an_event_is_invoked_with_the_key() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let url = format!("{}/v1/functions/hello/invocations", platform.url);
    assert_eq!(platform.http.post(&url).body("{}").send().await.unwrap().status(), 401);
    let answer = platform
        .http
        .post(&url)
        .bearer_auth(KEY)
        .body("{}")
        .send()
        .await
        .unwrap();
    let told: Value = answer.json().await.unwrap();
    assert_eq!(told["headers"]["x-fn-invocation"], "event");
    assert!(told["headers"].get("authorization").is_none());
    assert_eq!(
        (&told["method"], &told["path"]),
        (&Value::from("POST"), &Value::from("/"))
    );
}

#[tokio::test]
async fn a_function_cannot_speak_for_the_platform() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let answer = platform.function("hello/leaky").send().await.unwrap();
    let headers = answer.headers();
    assert_eq!(headers["x-own"], "kept");
    assert_eq!(headers["x-fn-start"], "warm");
    assert!(!headers.contains_key("x-rekindle-secret"));
    assert!(!headers.contains_key("connection"));
}

#[tokio::test]
async fn bodies_pass_both_ways_chunk_by_chunk() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let (send, chunks) = mpsc::channel::<Result<String, std::io::Error>>(1);
    let body = reqwest::Body::wrap_stream(ReceiverStream::new(chunks));
    let call = tokio::spawn(platform.post("hello/echo").body(body).send());
    send.send(Ok("one".to_owned())).await.unwrap();
    let mut back = call.await.unwrap().unwrap().bytes_stream();
    // Each comes back before the next is sent.
    assert_eq!(back.next().await.unwrap().unwrap(), "one");
    send.send(Ok("two".to_owned())).await.unwrap();
    assert_eq!(back.next().await.unwrap().unwrap(), "two");
    drop(send);
    assert!(back.next().await.is_none());
}

#[tokio::test]
async fn even_a_get_may_have_a_body_of_unknown_length() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    // Clients in libraries do not send one; curl does.
    let mut socket = tokio::net::TcpStream::connect(platform.url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    let request = "GET /function/hello/swallow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                   transfer-encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(body.contains('5'), "{answer}");
}

#[tokio::test]
async fn a_gateway_told_to_end_finishes_what_it_serves() {
    let mut platform = Platform::start().await;
    platform.deploy("hello", "").await;
    let call = tokio::spawn(platform.function("hello/slow/700").send());
    until("it runs", async || {
        platform.worker.invocations.load(Ordering::SeqCst) == 1
    })
    .await;
    platform.gateway.ask_to_end();
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    (&mut platform.gateway.task).await.unwrap();
    assert!(platform.function("hello").send().await.unwrap_err().is_connect());
}

const SANDBOX: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";

fn policies(answer: &reqwest::Response) -> Vec<&str> {
    let all = answer.headers().get_all("content-security-policy");
    all.iter().map(|v| v.to_str().unwrap()).collect()
}

async fn by_host(platform: &Platform, path: &str) -> reqwest::Response {
    let sent = platform.http.get(format!("{}{path}", platform.url));
    sent.header("host", "hello.localhost").send().await.unwrap()
}

#[tokio::test]
async fn pages_of_functions_on_one_host_are_kept_apart_and_keep_their_own_policy() {
    let platform = Platform::start().await;
    platform.deploy("hello", "").await;
    assert_eq!(policies(&platform.function("hello").send().await.unwrap()), [SANDBOX]);
    let own = platform.function("hello/policy").send().await.unwrap();
    assert_eq!(policies(&own), ["default-src 'self'", SANDBOX]);
    // On a host of its own a function is alone.
    assert!(policies(&by_host(&platform, "/").await).is_empty());
    assert_eq!(policies(&by_host(&platform, "/policy").await), ["default-src 'self'"]);
    let platform = Platform::start_with(|c| c.paths = Paths::Trusted).await;
    platform.deploy("hello", "").await;
    assert!(policies(&platform.function("hello").send().await.unwrap()).is_empty());
}

#[tokio::test]
async fn without_paths_functions_have_their_hosts() {
    let platform = Platform::start_with(|c| c.paths = Paths::Off).await;
    platform.deploy("hello", "").await;
    let refused = error(platform.function("hello").send().await.unwrap()).await;
    assert_eq!(refused.code, ErrorCode::NotFound);
    assert!(refused.message.contains("--no-paths"), "{refused}");
    assert_eq!(by_host(&platform, "/").await.status(), 200);
    assert_eq!(
        platform
            .admin(reqwest::Method::GET, "/v1/functions")
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
}
