//! A gateway that clients reach by HTTPS: which certificate and function a host gets, over either version of HTTP, and
//! that its limits hold there too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rekindle_gateway::{CertificateFiles, Config, Hosts, Listeners, MinRate};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::{KEY, Platform, Role, start_gateway_on, until};

const LIMIT: Duration = Duration::from_secs(20);

/// A platform whose functions have hosts below `example.org`, with a wildcard certificate and one for
/// `other.example.org`.
struct Site {
    platform: Platform,
    plain: SocketAddr,
    tls: SocketAddr,
    roots: RootCertStore,
    _gateway: Role,
    _certificates: TempDir,
}

/// What a request is answered.
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    fn code(&self) -> String {
        let error: Value = serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body));
        error["code"].as_str().unwrap().to_owned()
    }
}

impl Site {
    async fn start(configure: impl FnOnce(&mut Config)) -> Self {
        let platform = Platform::start().await;
        let certificates = tempfile::tempdir().unwrap();
        let mut roots = RootCertStore::empty();
        for (name, host) in [("default", "*.example.org"), ("other", "other.example.org")] {
            let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
            let at = |ending: &str| certificates.path().join(format!("{name}.{ending}"));
            std::fs::write(at("crt"), made.cert.pem()).unwrap();
            std::fs::write(at("key"), made.signing_key.serialize_pem()).unwrap();
            roots.add(made.cert.der().clone()).unwrap();
        }
        let listener = || TcpListener::bind("127.0.0.1:0");
        let (plain, tls) = (listener().await.unwrap(), listener().await.unwrap());
        let addresses = (plain.local_addr().unwrap(), tls.local_addr().unwrap());
        let files = CertificateFiles {
            directory: Some(certificates.path().to_owned()),
            ..CertificateFiles::default()
        };
        let listeners = Listeners {
            plain,
            tls: Some((tls, files)),
            functions: None,
        };
        let gateway = start_gateway_on(listeners, &platform.relay, |config| {
            config.hosts = Hosts {
                domains: vec!["example.org".parse().unwrap()],
                api: None,
            };
            configure(config);
        });
        Self {
            platform,
            plain: addresses.0,
            tls: addresses.1,
            roots,
            _gateway: gateway,
            _certificates: certificates,
        }
    }

    /// A TCP connection for TLS, from another address than this test's others where it has to be told apart.
    async fn dial(&self, from: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 << 10).unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(self.tls).await.unwrap()
    }

    /// A connection after its handshake, to this host by one of these protocols.
    async fn shake_hands(&self, host: &str, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let stream = self.dial("127.0.0.2").await;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Asks over a connection that was made to a host, by a version of HTTP.
    async fn ask(&self, protocol: &str, made_to: &str, request: Request<Body>) -> Reply {
        let stream = self.shake_hands(made_to, &[protocol]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
        let answer = match protocol {
            "h2" => {
                let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                    .await
                    .unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
            _ => {
                let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
        };
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8(body.into()).unwrap(),
        }
    }

    /// A connection on which HTTP/2 has begun: preface, settings, and these bytes.
    async fn h2(&self, sent: &[u8]) -> TlsStream<TcpStream> {
        let mut stream = self.shake_hands("hello.example.org", &["h2"]).await.unwrap();
        stream.write_all(PREFACE).await.unwrap();
        stream.write_all(&frame(4, 0, 0, b"")).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }

    async fn refused(&self, reason: &str) -> f64 {
        self.measured(&format!("rekindle_gateway_refused_total{{reason=\"{reason}\"}}"))
            .await
    }

    async fn measured(&self, series: &str) -> f64 {
        let sent = self
            .platform
            .http
            .get(format!("http://{}/metrics", self.plain))
            .bearer_auth(KEY);
        let text = sent.send().await.unwrap().text().await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0.0, |value| value.trim().parse().unwrap())
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A head as HPACK without compression: `GET path` at hello.example.org.
fn head(path: &str) -> Vec<u8> {
    let literal = |name: u8, value: &str| {
        let mut bytes = vec![name, u8::try_from(value.len()).unwrap()];
        bytes.extend(value.as_bytes());
        bytes
    };
    // Indexed: method GET, scheme https. Literal, by the name's index: path, authority.
    [
        vec![0x82, 0x87],
        literal(0x04, path),
        literal(0x01, "hello.example.org"),
    ]
    .concat()
}

/// Reads until the connection ends.
async fn ends(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut room = vec![0; 16 << 10];
    let reading = async { while matches!(stream.read(&mut room).await, Ok(n) if n > 0) {} };
    tokio::time::timeout(LIMIT, reading).await.is_ok()
}

#[tokio::test]
async fn a_function_is_served_by_its_host_over_either_version_of_http() {
    let site = Site::start(|c| c.hsts = Some(Duration::from_secs(86_400))).await;
    site.platform.deploy("hello", "").await;
    for protocol in ["h2", "http/1.1"] {
        let (target, host) = match protocol {
            "h2" => ("https://hello.example.org/a?b=c", None),
            _ => ("/a?b=c", Some("hello.example.org")),
        };
        let mut request = Request::get(target)
            .header("x-forwarded-proto", "http")
            .header("x-rekindle-token", "guess")
            .header("cookie", "a=1")
            .header("cookie", "b=2");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let answer = site
            .ask(protocol, "hello.example.org", request.body(Body::empty()).unwrap())
            .await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.headers["strict-transport-security"], "max-age=86400");
        let told: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((&told["path"], &told["query"]), (&"/a".into(), &"b=c".into()));
        let headers = &told["headers"];
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "hello.example.org");
        if protocol == "h2" {
            assert_eq!(headers["cookie"], "a=1; b=2");
        }
        let body = "x".repeat(200_000);
        let mut request = Request::post(target.replace("/a?b=c", "/echo"));
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let answer = site
            .ask(
                protocol,
                "hello.example.org",
                request.body(Body::from(body.clone())).unwrap(),
            )
            .await;
        assert!(answer.body == body, "{} of {} bytes", answer.body.len(), body.len());
    }
    let made = site
        .measured("rekindle_gateway_handshakes_total{outcome=\"made\"}")
        .await;
    assert_eq!(made, 4.0);
}

#[tokio::test]
async fn a_request_for_another_certificates_host_is_421() {
    let site = Site::start(|_| {}).await;
    site.platform.deploy("hello", "").await;
    site.platform.deploy("other", "").await;
    let get = |host: &str| Request::get(format!("https://{host}/")).body(Body::empty()).unwrap();
    for (made_to, host, status) in [
        ("hello.example.org", "hello.example.org", 200),
        ("other.example.org", "other.example.org", 200),
        ("other.example.org", "OTHER.example.org.", 200),
        // The certificate is the same for both.
        ("hello.example.org", "another.example.org", 404),
        ("hello.example.org", "other.example.org", 421),
        ("other.example.org", "hello.example.org", 421),
        ("other.example.org", "127.0.0.1", 421),
    ] {
        let answer = site.ask("h2", made_to, get(host)).await;
        assert_eq!(answer.status.as_u16(), status, "{made_to} {host}: {}", answer.body);
        if status == 421 {
            assert_eq!(answer.code(), "misdirected_request");
        }
    }
}

#[tokio::test]
async fn hosts_of_versions_that_are_not_there_and_two_hosts_are_refused_by_name() {
    let site = Site::start(|_| {}).await;
    let get = |target: &str, host: &str| {
        let request = Request::get(target).header("host", host).header("connection", "close");
        request.body(Body::empty()).unwrap()
    };
    for host in [
        "3--hello.example.org",
        "v3--hello.example.org",
        "3--hello.team.example.org",
    ] {
        let stream = TcpStream::connect(site.plain).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(get("/", host)).await.unwrap();
        assert_eq!(answer.status(), 404, "{host}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let told = String::from_utf8_lossy(&body);
        let expected = ["no function", "no version 3", "no alias v3", "no namespace"];
        assert!(expected.iter().any(|what| told.contains(what)), "{host}: {body:?}");
    }
    let both = get("https://hello.example.org/", "other.example.org");
    let answer = site.ask("h2", "hello.example.org", both).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "bad_request"));
    let mut raw = TcpStream::connect(site.plain).await.unwrap();
    let absolute = "GET http://hello.example.org/ HTTP/1.1\r\nHost: other.example.org\r\nConnection: close\r\n\r\n";
    raw.write_all(absolute.as_bytes()).await.unwrap();
    let mut text = String::new();
    raw.read_to_string(&mut text).await.unwrap();
    assert!(
        text.starts_with("HTTP/1.1 400 ") && text.contains("two hosts"),
        "{text}"
    );
}

#[tokio::test]
async fn plain_requests_are_sent_to_https_but_for_health_and_this_machine() {
    let site = Site::start(|c| c.redirect = Some(8443)).await;
    let asked = async |host: &str, path: &str| {
        let stream = TcpStream::connect(site.plain).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(path).header("host", host).body(Body::empty()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let to = answer.headers().get("location").map(|v| v.to_str().unwrap().to_owned());
        assert!(answer.headers().get("strict-transport-security").is_none());
        (answer.status().as_u16(), to)
    };
    let to = |url: &str| (308, Some(url.to_owned()));
    assert_eq!(
        asked("hello.example.org", "/a?b=c").await,
        to("https://hello.example.org:8443/a?b=c")
    );
    assert_eq!(
        asked("EXAMPLE.org:80", "/v1/status").await,
        to("https://example.org:8443/v1/status")
    );
    assert_eq!(asked("[2001:db8::1]", "/").await, to("https://[2001:db8::1]:8443/"));
    assert_eq!(asked("//evil.example", "/").await.0, 400);
    assert_eq!(asked("example.org", "/healthz").await.0, 200);
    assert_eq!(asked("hello.example.org", "/healthz").await.0, 308);
    assert_eq!(asked("127.0.0.1", "/v1/status").await.0, 401);
}

#[tokio::test]
async fn a_handshake_has_its_time_and_counts_among_what_its_client_may_have() {
    let site = Site::start(|c| {
        c.head_limit = Duration::from_millis(300);
        c.clients.exempt = vec!["127.0.0.1/32".parse().unwrap()];
        c.clients.connections = 2;
    })
    .await;
    let mut silent = site.dial("127.0.0.2").await;
    let mut slow = site.dial("127.0.0.2").await;
    slow.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    // A third one is closed before a handshake.
    assert!(site.shake_hands("hello.example.org", &["h2"]).await.is_err());
    assert_eq!(site.refused("client_connections").await, 1.0);
    for stream in [&mut silent, &mut slow] {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(LIMIT, stream.read_to_end(&mut rest)).await;
        drop(read.expect("it is still open"));
        assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    }
    until("there is room again", async || {
        site.shake_hands("hello.example.org", &["h2"]).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn handshakes_of_a_client_are_bounded_by_its_rate() {
    let site = Site::start(|c| {
        c.clients.exempt = vec!["127.0.0.1/32".parse().unwrap()];
        c.clients.per_second = 2;
    })
    .await;
    let mut made = 0;
    for _ in 0..20 {
        made += u32::from(site.shake_hands("hello.example.org", &["h2"]).await.is_ok());
    }
    assert!((4..20).contains(&made), "{made}");
    assert!(site.refused("client_rate").await > 0.0);
}

#[tokio::test]
async fn a_head_that_does_not_end_closes_its_connection_over_tls_too() {
    let site = Site::start(|c| c.head_limit = Duration::from_millis(300)).await;
    let whole = frame(1, 5, 1, &head("/healthz"));
    let begun = frame(1, 0, 1, &head("/healthz"));
    for sent in [&whole[..whole.len() - 1], &begun, &PREFACE[..3]] {
        assert!(ends(&mut site.h2(sent).await).await);
    }
    let mut stream = site.shake_hands("hello.example.org", &["http/1.1"]).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    assert!(ends(&mut stream).await);
    // The third is an error of the protocol.
    assert_eq!(site.refused("slow_head").await, 3.0);
    // One that rests between heads is not late.
    let mut rests = site.h2(&whole).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    rests.write_all(&frame(6, 0, 0, b"are you?")).await.unwrap();
    let mut seen = Vec::new();
    let answered = async {
        while !seen.windows(8).any(|w| w == b"are you?") {
            seen.push(rests.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(LIMIT, answered).await.expect("it was closed");
}

#[tokio::test]
async fn frames_that_bring_nothing_close_their_connection() {
    let site = Site::start(|_| {}).await;
    let ping = frame(6, 0, 0, b"01234567");
    let reset = |n: u32| {
        [
            frame(1, 5, 2 * n + 1, &head("/function/none")),
            frame(3, 0, 2 * n + 1, &[0, 0, 0, 8]),
        ]
        .concat()
    };
    let floods: [Vec<u8>; 2] = [ping.repeat(2_000), (0..2_000).flat_map(reset).collect()];
    for flood in floods {
        let mut stream = site.h2(&[]).await;
        // It may be closed in the middle.
        drop(stream.write_all(&flood).await);
        drop(stream.flush().await);
        assert!(ends(&mut stream).await);
    }
    assert!(site.refused("idle_frames").await >= 1.0);
    // As many streams as are cancelled now and then do no harm.
    let mut stream = site.h2(&(0..10).flat_map(reset).collect::<Vec<u8>>()).await;
    stream.write_all(&frame(6, 0, 0, b"are you?")).await.unwrap();
    let mut seen = Vec::new();
    let answered = async {
        while !seen.windows(8).any(|w| w == b"are you?") {
            seen.push(stream.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(LIMIT, answered).await.expect("it was closed");
}

#[tokio::test]
async fn streams_of_a_connection_count_as_requests_of_their_client() {
    let site = Site::start(|c| {
        c.clients.exempt = vec!["127.0.0.1/32".parse().unwrap()];
        c.clients.in_flight = 3;
    })
    .await;
    site.platform.deploy("hello", "concurrency = 64\n").await;
    let stream = site.shake_hands("hello.example.org", &["h2"]).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let asked = |path: &str| {
        let request = Request::get(format!("https://hello.example.org{path}"))
            .body(Body::empty())
            .unwrap();
        let mut sender = sender.clone();
        async move { sender.send_request(request).await.unwrap() }
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(asked("/stall").await);
    }
    assert_eq!(asked("/").await.status(), 429);
    drop(held.pop());
    until("one may come again", async || asked("/").await.status() == 200).await;
}

#[tokio::test]
async fn an_answer_that_does_not_end_in_time_ends_its_stream_alone() {
    let site = Site::start(|_| {}).await;
    site.platform
        .deploy("hello", "timeout = \"1s\"\nconcurrency = 64\n")
        .await;
    let stream = site.shake_hands("hello.example.org", &["h2"]).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let get = |path: &str| {
        Request::get(format!("https://hello.example.org{path}"))
            .body(Body::empty())
            .unwrap()
    };
    let stalled = sender.send_request(get("/stall")).await.unwrap();
    let ended = tokio::time::timeout(LIMIT, stalled.into_body().collect()).await;
    assert!(ended.expect("it goes on").is_err(), "it must not look whole");
    assert_eq!(sender.send_request(get("/healthz")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn who_does_not_take_a_streams_answer_is_cut_off() {
    let rate = MinRate {
        bytes_per_s: 1 << 20,
        grace: Duration::from_millis(300),
    };
    let site = Site::start(|c| {
        c.max_in_flight = 1;
        c.min_rate = rate;
    })
    .await;
    site.platform.deploy("hello", "timeout = \"300s\"\n").await;
    let stream = site.shake_hands("hello.example.org", &["h2"]).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("https://hello.example.org/flood")
        .body(Body::empty())
        .unwrap();
    // The connection is read on, and no window is opened for more of this answer.
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    until("it is cut off", async || site.refused("slow_reader").await == 1.0).await;
    drop(tokio::time::timeout(LIMIT, connection).await.expect("it is still open"));
    until("its place is free", async || {
        let request = Request::get("https://hello.example.org/").body(Body::empty()).unwrap();
        site.ask("h2", "hello.example.org", request).await.status == 200
    })
    .await;
}
