//! A small cluster in one process: who is admitted, in which role, and who is not.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::Request;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use rekindle_relay::{HeadLimits, Http2Connections, StreamLimits};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const LIFE: Duration = Duration::from_secs(3_600);

fn peer(role: Role, name: &str) -> Peer {
    let name = name.to_owned();
    Peer { role, name }
}

/// A cluster with a role that listens.
struct Cluster {
    authority: Arc<Authority>,
    directory: TempDir,
    address: SocketAddr,
    own: Member,
    issuing: Arc<CertificateIssuer>,
}

impl Cluster {
    async fn start(role: Role) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Arc::new(Authority::init(directory.path()).unwrap());
        let own = directory.path().join("own");
        let again = Authority::open(directory.path()).unwrap().unwrap();
        let issuing = Arc::new(CertificateIssuer::new(again, &directory.path().join("main"), LIFE).unwrap());
        let member = Member::of_authority(&authority, &own, &peer(role, "x"), LIFE).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let listener = Listener::new(tcp, Some(&member)).unwrap();
        let routes = Router::new()
            .route(
                "/",
                get(|ConnectInfo(caller): ConnectInfo<Caller>| async move { caller.described() }),
            )
            .route("/goes-on", get(goes_on))
            .route("/join", post(sign))
            .with_state(issuing.clone());
        tokio::spawn(listener.serve(routes, std::future::pending()));
        Self {
            authority,
            directory,
            address,
            own: member,
            issuing,
        }
    }

    fn member(&self, role: Role, name: &str) -> Member {
        let own = self.directory.path().join(name);
        Member::of_authority(&self.authority, &own, &peer(role, name), LIFE).unwrap()
    }

    fn token(&self, role: Role, uses: u32, life: Duration) -> Token {
        let tokens = self.authority.tokens();
        tokens.make(self.authority.fingerprint(), role, uses, life).unwrap()
    }

    async fn join(&self, token: &Token, role: Role) -> Result<(Member, String), JoinError> {
        let directory = self.directory.path().join("joined");
        join(&self.address.to_string(), token, &peer(role, "w-1"), &directory).await
    }
}

/// A response that starts but does not end.
async fn goes_on() -> axum::body::Body {
    let begun = futures::stream::once(async { Ok::<_, std::io::Error>("begun") });
    axum::body::Body::from_stream(futures::StreamExt::chain(begun, futures::stream::pending()))
}

async fn sign(
    State(issuing): State<Arc<CertificateIssuer>>,
    Json(asked): Json<JoinRequest>,
) -> Result<Json<JoinResponse>, rekindle_wire::ApiError> {
    issuing.join(&asked, "t").map(Json)
}

/// How the other end describes the caller, or why it does not respond.
async fn asked(by: &Member, to: Role, at: SocketAddr) -> Result<String, String> {
    ask(&Transport::new(reqwest::Client::new(), Some(by), to).unwrap(), at).await
}

async fn ask(transport: &Transport, at: SocketAddr) -> Result<String, String> {
    let call = transport.http().get(format!("http://{at}/")).timeout(LIFE);
    let chain = |e: CallError| {
        let mut text = e.to_string();
        let mut cause = std::error::Error::source(&e);
        while let Some(e) = cause {
            text.push_str(&format!(": {e}"));
            cause = e.source();
        }
        text
    };
    Ok(transport.send(call).await.map_err(chain)?.text().await.unwrap())
}

#[tokio::test]
async fn each_end_knows_the_other_by_its_role() {
    let cluster = Cluster::start(Role::Worker).await;
    let gateway = cluster.member(Role::Gateway, "g-1");
    let said = asked(&gateway, Role::Worker, cluster.address).await.unwrap();
    assert_eq!(said, "the gateway g-1");
    // A worker at a scheduler's address is not mistaken for a scheduler.
    let refused = asked(&gateway, Role::Scheduler, cluster.address).await.unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
}

#[tokio::test]
async fn a_client_s_headers_and_the_platform_s_fit_in_a_request() {
    let cluster = Cluster::start(Role::Worker).await;
    let gateway = cluster.member(Role::Gateway, "g-1");
    let transport = Transport::new(reqwest::Client::new(), Some(&gateway), Role::Worker).unwrap();
    for (lines, status) in [(300, 200), (400, 431)] {
        let call = transport.http().get(format!("http://{}/", cluster.address));
        let call = (0..lines).fold(call, |call, n| call.header(format!("x-{n}"), "1"));
        assert_eq!(transport.send(call).await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn a_member_of_another_cluster_is_refused_and_refuses() {
    let (one, other) = (Cluster::start(Role::Worker).await, Cluster::start(Role::Worker).await);
    let stranger = other.member(Role::Gateway, "g-1");
    let refused = asked(&stranger, Role::Worker, one.address).await.unwrap_err();
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    // Its certificate is from the other authority, but it trusts the server. So the server rejects it.
    let own = one.member(Role::Gateway, "g-2");
    let mixed = other.directory.path().join("mixed");
    let key = std::fs::read_to_string(other.directory.path().join("g-1/member.key")).unwrap();
    let certificate = std::fs::read_to_string(other.directory.path().join("g-1/member.crt")).unwrap();
    let mixed = Member::keep(&mixed, &key, &certificate, one.authority.pem()).unwrap();
    assert!(asked(&mixed, Role::Worker, one.address).await.is_err());
    assert!(asked(&own, Role::Worker, one.address).await.is_ok());
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_so() {
    let cluster = Cluster::start(Role::Scheduler).await;
    let mut plain = TcpStream::connect(cluster.address).await.unwrap();
    plain
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    plain.shutdown().await.unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("speaks TLS"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_token_lets_as_many_in_as_it_says_for_its_role_and_time() {
    let cluster = Cluster::start(Role::Scheduler).await;
    let token = cluster.token(Role::Worker, 2, LIFE);
    let refused = cluster.join(&token, Role::Gateway).await.unwrap_err().to_string();
    assert!(refused.contains("for a worker"), "{refused}");
    for _ in 0..2 {
        let (member, secret) = cluster.join(&token, Role::Worker).await.unwrap();
        assert_eq!((member.peer(), secret.as_str()), (&peer(Role::Worker, "w-1"), "t"));
        let said = asked(&member, Role::Scheduler, cluster.address).await.unwrap();
        assert_eq!(said, "the worker w-1");
    }
    let refused = cluster.join(&token, Role::Worker).await.unwrap_err().to_string();
    assert!(refused.contains("used up"), "{refused}");
    let old = cluster.token(Role::Worker, 1, Duration::ZERO);
    let refused = cluster.join(&old, Role::Worker).await.unwrap_err().to_string();
    assert!(refused.contains("expired"), "{refused}");
    // Of another cluster: nothing is asked of its host.
    let other = Cluster::start(Role::Scheduler).await;
    let elsewhere = other.token(Role::Worker, 1, LIFE);
    assert!(matches!(
        cluster.join(&elsewhere, Role::Worker).await,
        Err(JoinError::Call { .. })
    ));
    let (_, _) = other.join(&elsewhere, Role::Worker).await.unwrap();
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_from_then_on_and_an_expired_one_is_refused() {
    let cluster = Cluster::start(Role::Worker).await;
    let gateway = cluster.member(Role::Gateway, "g-1");
    assert!(gateway.renew_in() > LIFE / 2 && gateway.renew_in() < LIFE);
    let (key, request) = Member::request(gateway.directory()).unwrap();
    let gone = cluster
        .authority
        .sign(&request, gateway.peer(), Duration::ZERO)
        .unwrap();
    gateway.replace(&key, &gone).unwrap();
    assert_eq!(gateway.renew_in(), Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(asked(&gateway, Role::Worker, cluster.address).await.is_err());
    gateway.renew_by(&cluster.authority, LIFE).unwrap();
    assert!(asked(&gateway, Role::Worker, cluster.address).await.is_ok());
    let kept = Member::open(gateway.directory()).unwrap().unwrap();
    assert!(asked(&kept, Role::Worker, cluster.address).await.is_ok());
}

#[test]
fn keys_are_root_s_alone_and_an_authority_is_made_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::init(directory.path()).unwrap();
    assert!(matches!(
        Authority::init(directory.path()),
        Err(AuthorityError::Exists(_))
    ));
    let token = authority
        .tokens()
        .make(authority.fingerprint(), Role::Worker, 1, LIFE)
        .unwrap();
    let own = directory.path().join("own");
    Member::of_authority(&authority, &own, &peer(Role::Scheduler, "x"), LIFE).unwrap();
    let mut files = 0;
    for below in [directory.path(), &own, &directory.path().join("tokens")] {
        for entry in std::fs::read_dir(below)
            .unwrap()
            .flatten()
            .filter(|e| e.path().is_file())
        {
            assert_eq!(
                entry.metadata().unwrap().permissions().mode() & 0o777,
                0o600,
                "{entry:?}"
            );
            assert!(
                !holds(&entry.path(), &token.to_string()[4..68]),
                "{entry:?} has the secret"
            );
            files += 1;
        }
    }
    assert_eq!(files, 6);
    assert!("rkj-short-x".parse::<Token>().is_err());
    assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
}

fn holds(file: &Path, secret: &str) -> bool {
    std::fs::read_to_string(file).unwrap().contains(secret)
}

async fn broken() -> &'static str {
    panic!("as it was told to")
}

#[tokio::test]
async fn a_call_goes_through_a_door_with_its_limit_and_a_panic_behind_it_is_an_answer() {
    let router = Router::new()
        .route(
            "/who",
            post(|ConnectInfo(caller): ConnectInfo<Caller>, body: String| async move {
                format!("{} said {body}", caller.described())
            }),
        )
        .route("/late", get(std::future::pending::<&'static str>))
        .route("/broken", get(broken));
    let in_process = rekindle_relay::InProcessRoles::default();
    let transport = Transport::to(Role::Worker, None)
        .unwrap()
        .with_in_process(in_process.clone());
    let _door = in_process.open("127.0.0.1:1", inside(router));
    let http = transport.http();
    let said = transport
        .send(http.post("http://127.0.0.1:1/who").body("hello"))
        .await
        .unwrap();
    assert_eq!(
        said.text().await.unwrap(),
        format!("{} said hello", Caller::Plain.described())
    );
    let limited = http.get("http://127.0.0.1:1/late").timeout(Duration::from_millis(50));
    assert!(matches!(transport.send(limited).await, Err(CallError::TimedOut(_))));
    let broken = transport.send(http.get("http://127.0.0.1:1/broken")).await.unwrap();
    assert_eq!(broken.status(), 500);
    // Without a registration, a connection is made.
    let closed = transport.send(http.get("http://127.0.0.1:2/who")).await;
    assert!(matches!(closed, Err(CallError::Plain(_))));
}

/// A response whose beginning has been read.
async fn begun(transport: &Transport, at: SocketAddr) -> reqwest::Response {
    let call = transport.http().get(format!("http://{at}/goes-on"));
    let mut answer = transport.send(call).await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "begun");
    answer
}

async fn breaks_off(mut answer: reqwest::Response) {
    let next = tokio::time::timeout(Duration::from_secs(20), answer.chunk()).await;
    assert!(next.expect("it goes on").is_err(), "it must not look whole");
}

#[tokio::test]
async fn who_is_revoked_is_not_let_in_and_what_it_has_open_is_closed() {
    let cluster = Cluster::start(Role::Worker).await;
    let (gone, stays) = (
        cluster.member(Role::Gateway, "g-1"),
        cluster.member(Role::Gateway, "g-2"),
    );
    let to_worker = |by| Transport::new(reqwest::Client::new(), Some(by), Role::Worker).unwrap();
    let (of_gone, of_stays) = (to_worker(&gone), to_worker(&stays));
    // A second connection, so that there is a session to resume.
    let open = begun(&of_gone, cluster.address).await;
    assert_eq!(ask(&of_gone, cluster.address).await.unwrap(), "the gateway g-1");
    cluster.own.revoked().add([gone.peer().clone()]);
    breaks_off(open).await;
    assert!(ask(&of_gone, cluster.address).await.is_err());
    assert!(asked(&gone, Role::Worker, cluster.address).await.is_err());
    // A new certificate does not change its identity.
    gone.renew_by(&cluster.authority, LIFE).unwrap();
    assert!(asked(&gone, Role::Worker, cluster.address).await.is_err());
    assert_eq!(ask(&of_stays, cluster.address).await.unwrap(), "the gateway g-2");
}

#[tokio::test]
async fn who_is_revoked_is_not_spoken_to_and_what_is_open_to_it_is_closed() {
    let cluster = Cluster::start(Role::Worker).await;
    let gateway = cluster.member(Role::Gateway, "g-1");
    let transport = Transport::new(reqwest::Client::new(), Some(&gateway), Role::Worker).unwrap();
    let open = begun(&transport, cluster.address).await;
    assert!(ask(&transport, cluster.address).await.is_ok());
    gateway.revoked().add([cluster.own.peer().clone()]);
    breaks_off(open).await;
    assert!(ask(&transport, cluster.address).await.is_err());
    let refused = asked(&gateway, Role::Worker, cluster.address).await.unwrap_err();
    assert!(refused.contains("Revoked"), "{refused}");
}

#[tokio::test]
async fn who_is_revoked_gets_no_certificate_and_costs_no_token() {
    let cluster = Cluster::start(Role::Scheduler).await;
    let token = cluster.token(Role::Worker, 1, LIFE);
    let revoked = peer(Role::Worker, "w-1");
    cluster.issuing.member().revoked().add([revoked.clone()]);
    let refused = cluster.join(&token, Role::Worker).await.unwrap_err().to_string();
    assert!(refused.contains("is revoked"), "{refused}");
    let (_, request) = Member::request(&cluster.directory.path().join("again")).unwrap();
    let refused = cluster
        .issuing
        .renew(&Caller::Member(revoked), &RenewRequest { request }, "t");
    assert!(refused.unwrap_err().message.contains("is revoked"));
    let directory = cluster.directory.path().join("other");
    let other = peer(Role::Worker, "w-2");
    assert!(
        join(&cluster.address.to_string(), &token, &other, &directory)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn bodies_that_nobody_reads_stop_no_other_on_their_connection() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let unread = async |body: Body| {
        let _held = body;
        std::future::pending::<()>().await;
    };
    let routes = Router::new()
        .route("/unread", post(unread))
        .route("/read", post(async |body: Bytes| body.len().to_string()));
    let listener = Listener::new(tcp, None).unwrap();
    tokio::spawn(listener.serve(routes, std::future::pending()));
    let connections = Http2Connections::new(HeadLimits::PLATFORM, StreamLimits::PLATFORM);
    let send = async |path: &str, size: usize| {
        let request = Request::post(format!("http://{address}{path}"));
        let request = request.body(Body::from(vec![b'x'; size])).unwrap();
        let connect = || async { TcpStream::connect(address).await.map(TokioIo::new) };
        connections.send(request, connect).await.unwrap()
    };
    let unread = futures::future::join_all((0..20).map(|_| send("/unread", 1 << 20)));
    let read = async {
        // Until then they have taken what they can of the connection.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let answer = tokio::time::timeout(Duration::from_secs(10), send("/read", 100_000)).await;
        let answer = answer.unwrap().into_body().collect().await.unwrap();
        assert_eq!(answer.to_bytes(), "100000");
    };
    tokio::select! {
        _ = unread => panic!("nobody reads them"),
        () = read => {}
    }
}
