//! Clients that send or read as slowly as they can, by the thousand, while another client's requests go through; and
//! what becomes of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rekindle_gateway::MinRate;
use rekindle_wire::api::NewKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::{KEY, Platform, folder, until};
use crate::metrics::metrics;

const SLOW: usize = 1_000;
/// Where they come from; the other client comes from 127.0.0.1.
const THEIR_ADDRESS: &str = "127.0.0.2:0";
const LIMIT: Duration = Duration::from_secs(20);

/// A connection from the slow clients' address, on which `sent` was sent. Little is taken of an answer that is not
/// read.
async fn slow_client(platform: &Platform, sent: &[u8]) -> TcpStream {
    let gateway: SocketAddr = platform.url.trim_start_matches("http://").parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.bind(THEIR_ADDRESS.parse().unwrap()).unwrap();
    let mut stream = socket.connect(gateway).await.unwrap();
    // One that is turned away meanwhile may be closed already.
    drop(stream.write_all(sent).await);
    stream
}

async fn slow_clients(platform: &Platform, number: usize, sent: &str) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..number {
        all.push(slow_client(platform, sent.as_bytes()).await);
    }
    all
}

/// Each of some requests of another client, which has no connection yet, is answered.
async fn others_go_through(platform: &Platform) {
    let http = reqwest::Client::new();
    for n in 0..50 {
        let sent = http
            .post(format!("{}/function/other/echo", platform.url))
            .body("another's");
        let answer = sent.send().await.unwrap();
        let status = answer.status().as_u16();
        assert_eq!(
            (status, answer.text().await.unwrap().as_str()),
            (200, "another's"),
            "request {n}"
        );
    }
}

/// What the gateway answers a client, up to the connection's end.
async fn told(client: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
    drop(
        tokio::time::timeout(LIMIT, client.read_to_end(&mut text))
            .await
            .expect("it is still open"),
    );
    String::from_utf8_lossy(&text).into_owned()
}

async fn refused(platform: &Platform, reason: &str) -> f64 {
    of(&metrics(platform, "/metrics").await, reason)
}

fn of(metrics: &BTreeMap<String, f64>, reason: &str) -> f64 {
    let name = format!("rekindle_gateway_refused_total{{reason=\"{reason}\"}}");
    metrics.get(&name).copied().unwrap_or(0.0)
}

#[tokio::test]
async fn a_thousand_who_do_not_send_their_bodies_take_no_place_from_another() {
    let platform = Platform::start_with(|c| c.max_in_flight = 256).await;
    platform.deploy("other", "").await;
    let sent = "POST /function/none HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n";
    let slow = slow_clients(&platform, SLOW, sent).await;
    others_go_through(&platform).await;
    drop(slow);
}

#[tokio::test]
async fn a_thousand_who_do_not_read_their_answers_take_no_place_from_another() {
    let platform = Platform::start_with(|c| {
        c.max_in_flight = 256;
        c.clients.exempt = Vec::new();
        c.clients.in_flight = 64;
    })
    .await;
    platform.deploy("hello", "timeout = \"60s\"\nconcurrency = 64\n").await;
    platform.deploy("other", "").await;
    let slow = slow_clients(&platform, SLOW, "GET /function/hello/flood HTTP/1.1\r\nHost: x\r\n\r\n").await;
    others_go_through(&platform).await;
    until("the rest was turned away", async || {
        refused(&platform, "client_in_flight").await >= (SLOW - 64) as f64
    })
    .await;
    let mut last = slow.into_iter().next_back().unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let text = told(&mut last).await;
    assert!(
        text.starts_with("HTTP/1.1 429 ") && text.contains("\"too_many_requests\""),
        "{text}"
    );
}

#[tokio::test]
async fn a_thousand_who_do_not_send_their_heads_take_no_connection_from_another() {
    let platform = Platform::start_with(|c| {
        c.max_connections = SLOW - 100;
        c.head_limit = Duration::from_millis(300);
    })
    .await;
    platform.deploy("other", "").await;
    let mut slow = slow_clients(&platform, SLOW, "POST /function/none HTTP/1.1\r\nHost:").await;
    let through = tokio::time::timeout(LIMIT, others_go_through(&platform));
    through
        .await
        .expect("another's requests wait behind those that do not come");
    for client in [0, SLOW - 1] {
        let text = told(&mut slow[client]).await;
        assert!(
            text.starts_with("HTTP/1.1 408 ") && text.contains("\"request_timeout\""),
            "{text}"
        );
    }
}

#[tokio::test]
async fn who_has_many_connections_is_told_so_and_others_connect() {
    let platform = Platform::start_with(|c| {
        c.clients.exempt = vec!["127.0.0.1/32".parse().unwrap()];
        c.clients.connections = 10;
    })
    .await;
    platform.deploy("other", "").await;
    let mut many = slow_clients(&platform, 11, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let text = told(&mut many[10]).await;
    assert!(
        text.starts_with("HTTP/1.1 429 ") && text.contains("--client-connections"),
        "{text}"
    );
    others_go_through(&platform).await;
    // Who goes makes room for another of the same address.
    drop(many);
    until("there is room", async || {
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let mut another = slow_client(&platform, request).await;
        told(&mut another).await.starts_with("HTTP/1.1 200 ")
    })
    .await;
}

#[tokio::test]
async fn a_body_that_stops_is_408_before_its_function_is_looked_for_and_while_it_is_passed_on() {
    let rate = MinRate {
        bytes_per_s: 1 << 10,
        grace: Duration::from_millis(300),
    };
    let platform = Platform::start_with(|c| c.min_rate = rate).await;
    platform.deploy("other", "").await;
    let mut request = b"POST /function/other/swallow HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n".to_vec();
    for length in [10, 150_000] {
        request.extend(std::iter::repeat_n(b'x', length));
        let mut client = slow_client(&platform, &request).await;
        let text = told(&mut client).await;
        assert!(
            text.starts_with("HTTP/1.1 408 ") && text.contains("\"request_timeout\""),
            "{length}: {text}"
        );
    }
    let later = b"POST /async-function/other HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx";
    let text = told(&mut slow_client(&platform, later).await).await;
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    assert_eq!(refused(&platform, "slow_body").await, 3.0);
    assert_eq!(
        platform.worker.running(),
        1,
        "an instance was given up for a client's fault"
    );
    others_go_through(&platform).await;
}

#[tokio::test]
async fn bodies_of_the_api_that_stop_are_408_and_reach_no_scheduler() {
    let rate = MinRate {
        bytes_per_s: 1 << 10,
        grace: Duration::from_millis(300),
    };
    let platform = Platform::start_with(|c| c.min_rate = rate).await;
    for (operation, sent) in [
        ("POST /v1/functions", 9),
        ("PUT /v1/secrets/DB", 9),
        ("POST /v1/functions", 70_000),
    ] {
        let head = format!("{operation} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n");
        let mut request = format!("{head}Content-Length: 100000\r\n\r\n").into_bytes();
        request.resize(request.len() + sent, b'x');
        let text = told(&mut slow_client(&platform, &request).await).await;
        assert!(text.starts_with("HTTP/1.1 408 "), "{operation}, {sent}: {text}");
    }
    assert_eq!(platform.relay.calls("/v1/secrets/DB"), 0);
    assert_eq!(platform.relay.calls("/v1/functions"), 1, "the one that began well");
    let large = platform.admin(reqwest::Method::PUT, "/v1/secrets/DB");
    let large = large.body(vec![b'x'; 200 << 10]).send().await.unwrap();
    assert_eq!(large.status(), 413);
    assert_eq!(platform.upload("name = \"Bad\"\n").await.status(), 400);
}

#[tokio::test]
async fn a_key_that_is_revoked_while_its_request_comes_changes_nothing() {
    let platform = Platform::start().await;
    let body = serde_json::json!({"role": "deployer", "namespace": "default"});
    let made = platform.admin(reqwest::Method::POST, "/v1/keys").json(&body);
    let made: NewKey = made.send().await.unwrap().json().await.unwrap();
    let folder = folder("name = \"late\"\nruntime = \"python\"\nentry = \"main.handler\"\n");
    let (first, rest) = folder.split_at(9);
    let head = format!(
        "POST /v1/functions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        made.key,
        folder.len()
    );
    let mut slow = slow_client(&platform, &[head.as_bytes(), first].concat()).await;
    let revoked = platform.admin(reqwest::Method::DELETE, &format!("/v1/keys/{}", made.summary.id));
    assert!(revoked.send().await.unwrap().status().is_success());
    slow.write_all(rest).await.unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
    let versions = platform.admin(reqwest::Method::GET, "/v1/functions/late");
    assert_eq!(versions.send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn who_does_not_take_an_answer_is_cut_off_long_before_the_functions_timeout() {
    let rate = MinRate {
        bytes_per_s: 1 << 10,
        grace: Duration::from_millis(300),
    };
    let platform = Platform::start_with(|c| {
        c.max_in_flight = 1;
        c.min_rate = rate;
    })
    .await;
    platform.deploy("other", "timeout = \"300s\"\n").await;
    let mut idle = slow_client(&platform, b"GET /function/other/flood HTTP/1.1\r\nHost: x\r\n\r\n").await;
    until("it is cut off", async || refused(&platform, "slow_reader").await == 1.0).await;
    until("its place is free", async || {
        platform.function("other").send().await.unwrap().status() == 200
    })
    .await;
    assert!(!told(&mut idle).await.ends_with("0\r\n\r\n"), "it must not look whole");
    others_go_through(&platform).await;
}

#[tokio::test]
async fn a_connection_that_rests_between_requests_is_not_taken_for_a_slow_head() {
    let platform = Platform::start_with(|c| c.head_limit = Duration::from_millis(200)).await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut rests = slow_client(&platform, request).await;
    let mut answer = [0; 15];
    rests.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    // A slow head that began later is over.
    told(&mut slow_client(&platform, b"GET /").await).await;
    let close = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    rests.write_all(close).await.unwrap();
    assert!(told(&mut rests).await.contains("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn the_bodies_of_many_connections_take_no_more_memory_than_there_is_for_them() {
    const MEMORY: u64 = 1 << 20;
    let platform = Platform::start_with(|c| c.body_memory_bytes = MEMORY).await;
    platform.deploy("other", "").await;
    let mut request = format!(
        "POST /function/other HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        64 << 10
    )
    .into_bytes();
    request.resize(request.len() + (60 << 10), b'x');
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(slow_client(&platform, &request).await);
        let now = metrics(&platform, "/metrics").await;
        assert!(now["rekindle_gateway_body_memory_bytes"] <= MEMORY as f64);
    }
    until("the rest is turned away", async || {
        let now = metrics(&platform, "/metrics").await;
        assert!(now["rekindle_gateway_body_memory_bytes"] <= MEMORY as f64);
        of(&now, "body_memory") >= 40.0
    })
    .await;
    let text = told(&mut clients.pop().unwrap()).await;
    assert!(
        text.starts_with("HTTP/1.1 503 ") && text.contains("--body-memory"),
        "{text}"
    );
    drop(clients);
    until("the memory is given back", async || {
        metrics(&platform, "/metrics").await["rekindle_gateway_body_memory_bytes"] == 0.0
    })
    .await;
    others_go_through(&platform).await;
}

#[tokio::test]
async fn a_thousand_who_send_one_chunk_and_no_more_leave_places_for_another() {
    let platform = Platform::start_with(|c| c.max_in_flight = 256).await;
    platform.deploy("hello", "concurrency = 64\n").await;
    platform.deploy("other", "").await;
    let sent = "POST /function/hello/swallow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
    let slow = slow_clients(&platform, SLOW, sent).await;
    until("those that may have a place have it", async || {
        metrics(&platform, "/metrics").await["rekindle_gateway_in_flight"] == 64.0
    })
    .await;
    others_go_through(&platform).await;
    drop(slow);
}
