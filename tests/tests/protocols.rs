//! Functions that speak HTTP/2 and gRPC, by real clients and servers of it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rekindle_e2e::cluster::Size;
use rekindle_e2e::grpc::{Caller, LIMIT, said};
use rekindle_e2e::restorer::by_program;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, Options, Platform, block_on, shared, until};
use rekindle_wire::api::InstanceState;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Request};

/// Held by whoever has a cluster on this host: all of a program have the same addresses.
static CLUSTER: Mutex<()> = Mutex::new(());

const FRAMES: &str = include_str!("../functions/frames/server.py");

/// A function whose server does what a call's message says, also what libraries do not let servers do.
fn frames(name: &str, settings: &str) -> Folder {
    let settings = format!("protocol = \"h2c\"\nconcurrency = 8\nidle = \"60s\"\n{settings}");
    Folder::server(name, &settings, FRAMES)
}

/// The sample with a name and settings of its own.
fn greeter(name: &str, settings: &[(&str, &str)]) -> Folder {
    let folder = Folder::sample("grpc-python", |text| text);
    folder.set(name, settings).unwrap();
    folder
}

fn named(name: &str) -> Request<String> {
    Request::new(name.to_owned())
}

/// Makes a call of each kind.
async fn call_each_kind(mut caller: Caller) {
    let greeted = caller.unary("Greet", named("Ada")).await.unwrap();
    // Headers, a message, and trailers.
    assert!(greeted.metadata().contains_key("x-fn-instance"), "{greeted:?}");
    assert_eq!(said(greeted.metadata(), "x-greeted"), "Ada");
    assert_eq!(greeted.into_inner(), "Hello, Ada!");
    let often = caller.often("GreetOften", "Grace").await.unwrap();
    assert_eq!(often.len(), 3);
    assert_eq!(often[2], "Hello, Grace, for the 3. time!");
    let (names, messages) = mpsc::channel(4);
    let all = caller.clone();
    let all = tokio::spawn(async move {
        let mut all = all;
        all.all("GreetAll", ReceiverStream::new(messages)).await
    });
    for name in ["Edsger", "Barbara"] {
        names.send(name.to_owned()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(names);
    assert_eq!(all.await.unwrap().unwrap().into_inner(), "Hello, Edsger and Barbara!");
    // Each message is answered before the next is sent. The server's headers come with its first.
    let (names, messages) = mpsc::channel(4);
    names.send("Tony".to_owned()).await.unwrap();
    let conversation = caller.converse("Converse", ReceiverStream::new(messages));
    let mut answers = conversation.await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap(), "Hello, Tony!");
    for name in ["Frances", "Donald"] {
        names.send(name.to_owned()).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap(), format!("Hello, {name}!"));
    }
    drop(names);
    assert_eq!(answers.message().await.unwrap(), None);
    let refused = caller.unary("Greet", named("")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "nobody to greet: send a name");
}

/// Stops a function's instances. Those of other tests go on.
fn stop(platform: &Platform, function: &str) {
    for instance in platform.instances_of(function) {
        platform.end_instance(instance.id.as_str());
    }
    platform.until_gone(function, LIMIT);
}

#[test]
fn calls_of_each_kind_pass_to_instances_booted_and_restored() {
    let platform = shared();
    by_program(platform.deploy(&greeter("greeter", &[])));
    let key = format!("Bearer {}", platform.key());
    let caller = Caller::to(platform, "greeter");
    for start in ["booted", "restored"] {
        let (mut caller, key) = (caller.clone(), key.clone());
        block_on(async move {
            let mut request = named("Ada");
            request.metadata_mut().insert("authorization", key.parse().unwrap());
            request
                .metadata_mut()
                .insert("x-fn-force-start", start.parse().unwrap());
            let greeted = caller.unary("Greet", request).await.unwrap();
            assert_eq!(said(greeted.metadata(), "x-fn-start"), start);
            assert_eq!(greeted.into_inner(), "Hello, Ada!");
        });
        stop(platform, "greeter");
    }
    block_on(call_each_kind(caller));
    // Clients of HTTP/1.1 reach it, too.
    let answer = platform.request("POST", "/function/greeter/rekindle.sample.Greeter/Greet");
    let answer = answer
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let answer = answer.body(&b"\0\0\0\0\x05\x0a\x03Ada"[..]).send().ok();
    assert!(answer.text().ends_with("Hello, Ada!"), "{}", answer.text());
}

/// The sample's answer to `curl` without a client's own deadline: headers, and trailers.
fn curled(platform: &Client, function: &str, method: &str, headers: &[&str], message: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("message");
    let framed = [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat();
    fs::write(&body, framed).unwrap();
    let url = platform.url();
    let port = url.rsplit(':').next().unwrap();
    let output = Command::new("curl")
        .args([
            "-sS",
            "--http2-prior-knowledge",
            "--max-time",
            "50",
            "-D",
            "-",
            "-o",
            "/dev/null",
        ])
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .args(headers.iter().flat_map(|header| ["-H", header]))
        .arg("--data-binary")
        .arg(format!("@{}", body.display()))
        .args(["--connect-to", &format!("::127.0.0.1:{port}")])
        .arg(format!(
            "http://{function}.localhost:{port}/rekindle.sample.Greeter/{method}"
        ))
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn deadlines_reach_the_function_and_errors_of_the_platform_are_statuses() {
    let platform = shared();
    platform.deploy(&greeter("late", &[]));
    let late = curled(platform, "late", "Wait", &["grpc-timeout: 1500m"], b"\x0a\x01x");
    assert!(late.contains("grpc-status: 4"), "{late}");
    platform.until_logged("late", "waiting for 1.");
    platform.until_logged("late", "the call is over");
    let unknown = curled(platform, "nobody", "Greet", &[], b"");
    assert!(
        unknown.starts_with("HTTP/2 200") && unknown.contains("grpc-status: 12"),
        "{unknown}"
    );
    assert!(unknown.contains("grpc-message: function_not_found: "), "{unknown}");
    // The platform's own limit, where the client has none.
    platform.deploy(&greeter("slow", &[("timeout", "\"1s\"")]));
    let slow = curled(platform, "slow", "Wait", &[], b"\x0a\x01x");
    assert!(
        slow.contains("grpc-status: 4") && slow.contains("grpc-message: function_timeout: "),
        "{slow}"
    );
    // One that does not speak HTTP/2.
    let server = "import http.server, os\nhttp.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), \
                  http.server.BaseHTTPRequestHandler).serve_forever()\n";
    platform.deploy(&Folder::server("old", "protocol = \"h2c\"", server));
    let old = curled(platform, "old", "Greet", &[], b"");
    assert!(
        old.contains("grpc-status: 13") && old.contains("serves HTTP/2 in clear"),
        "{old}"
    );
}

#[test]
fn an_instance_with_an_open_call_is_neither_idle_nor_parked() {
    let platform = shared();
    platform.deploy(&greeter("talker", &[("idle", "\"1s\""), ("park", "\"120s\"")]));
    stop(platform, "talker");
    let caller = Caller::to(platform, "talker");
    let (names, messages) = mpsc::channel(4);
    let talk = |answers: Option<tonic::Streaming<String>>, name: &'static str| {
        let names = names.clone();
        block_on(async move {
            let mut answers = answers.unwrap();
            names.send(name.to_owned()).await.unwrap();
            assert_eq!(answers.message().await.unwrap().unwrap(), format!("Hello, {name}!"));
            Some(answers)
        })
    };
    names.blocking_send("Barbara".to_owned()).unwrap();
    let mut answers = block_on(async move {
        let mut caller = caller;
        let conversation = caller.converse("Converse", ReceiverStream::new(messages)).await;
        let mut answers = conversation.unwrap().into_inner();
        assert_eq!(answers.message().await.unwrap().unwrap(), "Hello, Barbara!");
        Some(answers)
    });
    answers = talk(answers, "Ada");
    // Past the time after which it would be parked.
    std::thread::sleep(Duration::from_secs(5));
    let instances = platform.instances_of("talker");
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0].state, InstanceState::Ready);
    answers = talk(answers, "Grace");
    drop((answers, names));
    until("a parked instance", LIMIT, || {
        let all = platform.instances_of("talker");
        all.iter().all(|i| i.state == InstanceState::Parked).then_some(())
    });
    let mut caller = Caller::to(platform, "talker");
    let greeted = block_on(async move { caller.unary("Greet", named("Ada")).await });
    assert_eq!(said(greeted.unwrap().metadata(), "x-fn-start"), "parked");
}

#[test]
fn calls_come_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = ["localhost".to_owned(), "greeter.localhost".to_owned()];
    let pair = rcgen::generate_simple_self_signed(hosts).unwrap();
    fs::write(dir.path().join("default.crt"), pair.cert.pem()).unwrap();
    fs::write(dir.path().join("default.key"), pair.signing_key.serialize_pem()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut options = Options::default();
    let listen = format!("127.0.0.1:{port}");
    let args = ["--tls-dir", dir.path().to_str().unwrap(), "--tls-listen", &listen];
    options.args.extend(args.map(str::to_owned));
    let platform = Platform::start_with(options);
    platform.deploy(&greeter("greeter", &[]));
    let certificate = pair.cert.der().clone();
    block_on(async move {
        let channel = Endpoint::from_shared(format!("https://greeter.localhost:{port}")).unwrap();
        let channel = channel.connect_with_connector(tower::service_fn(move |_| shaken(port, certificate.clone())));
        call_each_kind(Caller::over(channel.await.unwrap())).await;
    });
}

/// A TLS connection that agreed on HTTP/2.
async fn shaken(
    port: u16,
    certificate: CertificateDer<'static>,
) -> std::io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("greeter.localhost").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    Ok(TokioIo::new(stream))
}

#[test]
fn calls_pass_between_roles_whose_connections_are_guarded() {
    let _alone = CLUSTER.lock();
    let store = ObjectStore::start();
    let size = Size {
        guarded: true,
        // Its build needs the world.
        on_this_host: true,
        ..Size::default()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&greeter("greeter", &[]));
    block_on(call_each_kind(Caller::to(&cluster, "greeter")));
    // What takes trailers goes between roles by HTTP/2. The function learns the host that the client named.
    let code = "def handler(event, context):\n    return event['headers']['host']\n";
    cluster.deploy(&Folder::python("host", "", code));
    for trailers in [false, true] {
        let call = cluster.request("GET", "/").header("host", "host.localhost");
        let call = match trailers {
            true => call.header("te", "trailers"),
            false => call,
        };
        assert_eq!(call.send().ok().json(), "host.localhost", "{trailers}");
    }
}

#[test]
fn a_call_that_its_server_refused_unseen_is_made_again() {
    let platform = shared();
    platform.deploy(&frames("refusing", ""));
    let mut caller = Caller::to(platform, "refusing");
    block_on(async move {
        // By the stream twice, and by the end of its connection.
        for how in ["refuse", "goaway", "refuse"] {
            let answer = caller.unary("Say", named(how)).await.unwrap();
            assert!(answer.into_inner().starts_with("connection "), "{how}");
        }
        // What was passed on before cannot be sent again.
        let (words, messages) = mpsc::channel(4);
        words.send("goaway".to_owned()).await.unwrap();
        let refused = caller.all("Say", ReceiverStream::new(messages)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().starts_with("unavailable: "), "{refused}");
    });
}

#[test]
fn a_call_that_breaks_off_ends_with_a_status() {
    let platform = shared();
    platform.deploy(&frames("breaking", "timeout = \"3s\""));
    let caller = Caller::to(platform, "breaking");
    for (how, code, told) in [
        ("late-error", Code::FailedPrecondition, "not today"),
        ("reset-internal", Code::Unavailable, "invalid_response: "),
        ("reset-cancel", Code::Cancelled, "invalid_response: "),
        ("reset-calm", Code::ResourceExhausted, "invalid_response: "),
        ("hang", Code::DeadlineExceeded, "function_timeout: "),
        ("die", Code::Unavailable, "invalid_response: "),
    ] {
        let mut caller = caller.clone();
        let status = block_on(async move {
            let answers = caller.converse("Say", tokio_stream::once(how.to_owned())).await;
            let mut answers = answers.unwrap().into_inner();
            assert_eq!(answers.message().await.unwrap().unwrap(), "begun", "{how}");
            answers.message().await.unwrap_err()
        });
        assert_eq!(status.code(), code, "{how}: {status}");
        assert!(status.message().starts_with(told), "{how}: {status}");
        if how == "late-error" {
            assert_eq!(said(status.metadata(), "x-reason"), "tired");
        }
    }
    // Calls may still go to the instance that has died.
    until("another instance", LIMIT, || {
        let mut caller = caller.clone();
        block_on(async move { caller.unary("Say", named("hello")).await.ok() })
    });
    // An answer before the call's messages have ended.
    let mut caller = caller;
    block_on(async move {
        let (words, messages) = mpsc::channel(4);
        words.send("early".to_owned()).await.unwrap();
        let early = caller.all("Say", ReceiverStream::new(messages)).await.unwrap_err();
        assert_eq!((early.code(), early.message()), (Code::NotFound, "enough"));
    });
}

#[test]
fn many_quick_calls_share_a_connection() {
    let platform = shared();
    platform.deploy(&frames("quick", ""));
    let caller = Caller::to(platform, "quick");
    block_on(async move {
        let callers: Vec<_> = (0..8).map(|_| caller.clone()).collect();
        let calling = callers.into_iter().map(|mut caller| {
            tokio::spawn(async move {
                for _ in 0..300 {
                    caller.unary("Say", named("hello")).await.unwrap();
                }
            })
        });
        for calls in calling.collect::<Vec<_>>() {
            calls.await.unwrap();
        }
    });
}

#[test]
fn calls_on_one_connection_go_on_while_their_instance_moves() {
    let _alone = CLUSTER.lock();
    let store = ObjectStore::start();
    let size = Size {
        on_this_host: true,
        ..Size::two_workers()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&frames("moving", "max_instances = 1"));
    let workers = [cluster.worker(0).id, cluster.worker(1).id];
    let mut caller = Caller::to(&cluster, "moving");
    let first = block_on({
        let mut caller = caller.clone();
        async move { caller.unary("Say", named("hello")).await.unwrap() }
    });
    let instance = said(first.metadata(), "x-fn-instance");
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let of = instance.clone();
    let calling = rekindle_e2e::RUNTIME.spawn(async move {
        let mut made = 0;
        while !is_over.load(Ordering::Relaxed) {
            let answer = caller.unary("Say", named("hello")).await.unwrap();
            assert_eq!(said(answer.metadata(), "x-fn-instance"), of);
            made += 1;
        }
        made
    });
    for _ in 0..4 {
        let at = cluster.instances_of("moving").remove(0).worker;
        let to = workers.iter().find(|worker| **worker != at).unwrap();
        let order = serde_json::json!({ "to": to }).to_string();
        until("a move between two calls", LIMIT, || {
            let call = cluster.admin("POST", &format!("/v1/instances/{instance}/migrate"));
            let call = call.header("content-type", "application/json");
            let moved = call.body(order.clone()).send();
            (moved.status != 409).then(|| moved.ok())
        });
        assert_eq!(cluster.instances_of("moving")[0].worker, *to);
    }
    over.store(true, Ordering::Relaxed);
    let made: u32 = block_on(async move { calling.await.unwrap() });
    assert!(made > 4, "{made}");
}
