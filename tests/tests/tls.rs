//! A cluster with an authority of its own: hosts join with tokens, roles know each other by certificate, and who is
//! none of them gets nowhere. `hosts.rs` has more of its life.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rekindle_e2e::cluster::{Place, Role, Size};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, binaries, hub, until};

const SOON: Duration = Duration::from_secs(60);

/// A GET with the certificate of one place of the cluster, to the address of another, by the name of a role as
/// everywhere in the cluster.
fn curl(cluster: &Cluster, from: Place, to: Place, role: &str, path: &str) -> Command {
    let identity = cluster.directory(from, "data").join("identity");
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--max-time", "20", "--connect-to"])
        .arg(format!("::{}", cluster.address(to)))
        .arg("--cacert")
        .arg(identity.join("authority.crt"))
        .arg("--cert")
        .arg(identity.join("member.crt"))
        .arg("--key")
        .arg(identity.join("member.key"))
        .arg(format!("https://{role}.rekindle{path}"));
    command
}

/// What an address answers to GET over TLS, with the certificate of this role and the cluster's token: status and body.
fn get(cluster: &Cluster, as_role: Role, to: Role, path: &str) -> (u16, String) {
    let token = fs::read_to_string(cluster.directory(Role::Scheduler, "data").join("cluster.token")).unwrap();
    let role = format!("{to:?}").to_lowercase();
    let output = curl(cluster, as_role.into(), to.into(), &role, path)
        .args(["-w", "\n%{http_code}"])
        .args(["-H", &format!("x-rekindle-token: {}", token.trim())])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

/// What it answers to a plain request.
fn plainly(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Why a worker with this token does not start, in a directory of its own.
fn refused_worker(cluster: &Cluster, data: &Path, token: &str) -> String {
    let output = Command::new(binaries::directory().join("fn"))
        .args([
            "worker",
            "--listen",
            "127.0.0.1:0",
            "--s3-endpoint",
            "http://127.0.0.1:1",
            "--join",
            token,
        ])
        .args(["--scheduler", &format!("https://{}", cluster.address(Role::Scheduler))])
        .env("FN_DATA", data.join("data"))
        .env("FN_CACHE", data.join("cache"))
        .env("FN_RUN", data.join("run"))
        .env("FN_CLUSTER_TOKEN_FILE", data.join("data/cluster.token"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn roles_know_each_other_by_certificate_and_nobody_else_gets_in() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        guarded: true,
        // Renewed every twenty seconds.
        args: vec![
            (Role::Scheduler, "--certificate-life".into()),
            (Role::Scheduler, "30s".into()),
        ],
        ..Size::default()
    };
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    let certificate = |cluster: &Cluster, role| {
        fs::read_to_string(cluster.directory(role, "data").join("identity/member.crt")).unwrap()
    };
    let joined = [Role::Worker, Role::Gateway].map(|role| certificate(&cluster, role));
    let code = "def handler(event, context):\n    return 7\n";
    cluster.deploy(&Folder::python("seven", "", code));
    assert_eq!(cluster.fresh("restored", "seven", "/").ok().text(), "7");

    // By role: users' routes are the gateway's to pass on, an instance's the gateway's to call, reports the worker's
    // own.
    for path in [
        "/v1/functions",
        "/v1/status",
        "/internal/recalls?gateway=g-x",
        "/v1/workers",
    ] {
        let (status, body) = get(&cluster, Role::Worker, Role::Scheduler, path);
        assert!(
            status == 401 && body.contains("may not call"),
            "{path}: {status} {body}"
        );
        assert_ne!(get(&cluster, Role::Gateway, Role::Scheduler, path).0, 401, "{path}");
    }
    for (role, path) in [
        (Role::Worker, "/invoke/i-abc/"),
        (Role::Scheduler, "/invoke/i-abc/"),
        (Role::Gateway, "/logs/seven"),
    ] {
        let (status, body) = get(&cluster, role, Role::Worker, path);
        assert!(
            status == 401 && body.contains("may not call"),
            "{role:?} {path}: {status} {body}"
        );
    }
    assert_eq!(get(&cluster, Role::Scheduler, Role::Worker, "/logs/seven").0, 200);
    for role in [Role::Scheduler, Role::Worker] {
        let answer = plainly(&cluster.address(role));
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("speaks TLS"),
            "{answer}"
        );
    }

    // With a token that is of no use no host joins, and is told why.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    for args in [vec!["cluster", "init"], vec!["cluster", "token"]] {
        let made = Command::new(binaries::directory().join("fn"));
        let mut made = made;
        let output = made.args(&args).env("FN_DATA", other.path()).output().unwrap();
        assert!(output.status.success());
        if args[1] == "token" {
            let foreign = String::from_utf8(output.stdout).unwrap();
            let said = refused_worker(&cluster, elsewhere.path(), foreign.trim());
            assert!(said.contains("of another cluster"), "{said}");
        }
    }
    let gateways = cluster.on_scheduler(&["cluster", "token", "--role", "gateway"]);
    let said = refused_worker(&cluster, elsewhere.path(), &gateways);
    assert!(said.contains("is for a gateway"), "{said}");
    let brief = cluster.on_scheduler(&["cluster", "token", "--life", "0s"]);
    let said = refused_worker(&cluster, elsewhere.path(), &brief);
    assert!(said.contains("expired"), "{said}");
    assert!(!elsewhere.path().join("data/identity").exists());

    // Certificates are renewed while everything goes on; a restart goes by the renewed one and needs no token.
    until("renewed certificates", SOON, || {
        let now = [Role::Worker, Role::Gateway].map(|role| certificate(&cluster, role));
        (now[0] != joined[0] && now[1] != joined[1]).then_some(())
    });
    assert_eq!(cluster.get("seven", "/").ok().text(), "7");
    for role in [Role::Gateway, Role::Scheduler, Role::Worker] {
        cluster.kill9(role);
        cluster.restart(role);
    }
    assert_eq!(cluster.fresh("restored", "seven", "/").ok().text(), "7");
}

/// How long after the word everything has to be so.
const SECONDS: Duration = Duration::from_secs(10);

/// Whether one of the cluster's hosts, with its certificate, is answered by another, whose role this is.
fn is_let_in(cluster: &Cluster, from: Place, to: Place, role: &str) -> bool {
    let output = curl(cluster, from, to, role, "/healthz").output().unwrap();
    output.status.success()
}

#[test]
fn a_worker_that_is_revoked_is_out_of_the_cluster_within_seconds() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        guarded: true,
        workers: 2,
        ..Size::default()
    };
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    let code = "def handler(event, context):\n    return 7\n";
    cluster.deploy(&Folder::python("seven", "", code));
    let first = cluster.fresh("restored", "seven", "/").ok();
    let worker = cluster
        .instances()
        .into_iter()
        .find(|i| i.id.as_str() == first.instance());
    let worker = worker.unwrap().worker;
    let number = u8::from(cluster.worker(0).id != worker);
    let (gone, other) = (Role::Worker.nth(number), Role::Worker.nth(1 - number));
    let scheduler = Place::from(Role::Scheduler);
    assert!(is_let_in(&cluster, gone, other, "worker") && is_let_in(&cluster, gone, scheduler, "scheduler"));

    let nobody = cluster.cli(&["cluster", "revoke", "no-such"]);
    assert!(!nobody.status.success());
    let revoked = cluster.cli(&["cluster", "revoke", worker.as_str()]);
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    let listed = cluster.cli(&["cluster", "revoked", "--json"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(worker.as_str()));
    // What ran there is gone, and what is asked for next runs on the other one.
    assert!(cluster.instances().iter().all(|i| i.worker != worker));
    until("the gateway asks elsewhere", SECONDS, || {
        let answer = cluster.request("GET", "/function/seven").try_send().ok()?;
        (answer.status == 200).then_some(())
    });
    assert!(cluster.instances_of("seven").iter().all(|i| i.worker != worker));
    // It gets in nowhere, and whoever has been spoken to it has hung up.
    for (to, role) in [(scheduler, "scheduler"), (other, "worker")] {
        until("it is let in no more", SECONDS, || {
            (!is_let_in(&cluster, gone, to, role)).then_some(())
        });
    }
    assert!(is_let_in(&cluster, other, scheduler, "scheduler"));
    until("the gateway has hung up", SECONDS, || {
        let pid = cluster.pid(Role::Gateway);
        let connections = Command::new("nsenter")
            .args([
                "-t",
                &pid.to_string(),
                "-n",
                "ss",
                "-Htn",
                "state",
                "established",
                "dst",
            ])
            .arg(cluster.address(gone))
            .output()
            .unwrap();
        (connections.status.success() && connections.stdout.is_empty()).then_some(())
    });
    // Its name joins no more, whatever token it has.
    let anew = tempfile::tempdir().unwrap();
    fs::create_dir_all(anew.path().join("data/worker")).unwrap();
    fs::write(anew.path().join("data/worker/id"), worker.as_str()).unwrap();
    let token = cluster.on_scheduler(&["cluster", "token"]);
    let said = refused_worker(&cluster, anew.path(), &token);
    assert!(said.contains("is revoked"), "{said}");
    // So it is after a restart of the scheduler.
    cluster.kill9(gone);
    cluster.kill9(Role::Scheduler);
    cluster.launch(Role::Scheduler);
    cluster.until_ready();
    assert!(!is_let_in(&cluster, gone, scheduler, "scheduler"));
    assert!(is_let_in(&cluster, other, scheduler, "scheduler"));
    assert_eq!(cluster.get("seven", "/").ok().text(), "7");
}
