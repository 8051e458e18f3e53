//! Secrets: what instances see of them, and that nothing else has them. Every file of the platform, every answer and
//! every span is searched for their values.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use memchr::memmem;
use nix::unistd::{Whence, lseek};
use rekindle_e2e::cluster::Size;
use rekindle_e2e::collector::Collector;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, Options, Platform, binaries, host, hub, until};
use rekindle_wire::api::InstanceInfo;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);
/// Parts of the values that are searched for: what compresses memory keeps as it is.
const OLD: &str = "q7Zp1xVd8LrT";
const NEW: &str = "Hk3mWc9uYs5B";
/// Is in the function's environment, and so in its snapshot: the search finds what there is.
const PLAIN: &str = "nX4vGe6oJa2R";

/// Answers with values backwards, so that they are in no answer.
const CODE: &str = "import os, rekindle\n\
    AT_IMPORT = os.environ.get('DB_URL')\n\
    HOOKED = None\n\
    warmed = None\n\
    @rekindle.after_restore\ndef connect():\n    global HOOKED\n    HOOKED = os.environ.get('DB_URL')\n\
    def file(name):\n    try:\n        return open('/run/secrets/' + name).read()\n\
    \x20   except FileNotFoundError:\n        return None\n\
    def back(text):\n    return text and text[::-1]\n\
    def handler(event, context):\n    global warmed\n\
    \x20   if event.get('rawPath') == '/warm':\n\
    \x20       warmed = [file('DB_URL'), os.environ.get('DB_URL'), os.listdir('/run/secrets')]\n\
    \x20   return {'import': back(AT_IMPORT), 'hook': back(HOOKED), 'env': back(os.environ.get('DB_URL')),\n\
    \x20       'file': back(file('DB_URL')),\n\
    \x20       'blob': len(open('/run/secrets/BLOB', 'rb').read()) if file('DB_URL') else None,\n\
    \x20       'binary': 'BLOB' in os.environ, 'warmed': warmed, 'write': os.access('/run/secrets', os.W_OK),\n\
    \x20       'plain': os.environ['PLAIN']}\n";

fn function(name: &str) -> Folder {
    let settings = format!(
        "secrets = [\"DB_URL\", \"BLOB\"]\nmax_instances = 24\nidle = \"60s\"\n\
         [[warmup]]\npath = \"/warm\"\n[env]\nPLAIN = \"{PLAIN}\""
    );
    Folder::python(name, &settings, CODE)
}

fn value(part: &str) -> String {
    format!("postgres://app:{part}@db/app")
}

fn backwards(part: &str) -> String {
    value(part).chars().rev().collect()
}

/// Sets a secret from a file.
fn set(client: &Client, verb: &str, name: &str, value: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), value).unwrap();
    run(client, &["secret", verb, name, "--file", file.path().to_str().unwrap()]);
}

fn run(client: &Client, args: &[&str]) -> String {
    let output = client.cli(args);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {told}\n{}", client.log_tail(30));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(client: &Client, args: &[&str]) -> String {
    let output = client.cli(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has(bytes: &[u8], part: &str) -> bool {
    memmem::find(bytes, part.as_bytes()).is_some()
}

/// The files below a directory that have this text.
fn files_with(directory: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with(&path, part));
        } else if kind.is_file() && runs(&path).iter().any(|run| has(run, part)) {
            found.push(path);
        }
    }
    found
}

/// What a file has, without its holes. None if it is gone.
fn runs(path: &Path) -> Vec<Vec<u8>> {
    let Ok(file) = fs::File::open(path) else {
        return Vec::new();
    };
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Ok(start) = lseek(&file, at, Whence::SeekData) {
        at = lseek(&file, start, Whence::SeekHole).unwrap();
        let mut run = vec![0; usize::try_from(at - start).unwrap()];
        let read = file.read_at(&mut run, u64::try_from(start).unwrap()).unwrap();
        run.truncate(read);
        runs.push(run);
    }
    runs
}

/// What a copy that has this value answers.
fn sees(answer: &Value, part: &str, start: &str) {
    let told = json!(backwards(part));
    assert_eq!((&answer["env"], &answer["file"]), (&told, &told), "{answer}");
    assert_eq!(
        (&answer["blob"], &answer["binary"]),
        (&json!(4), &json!(false)),
        "{answer}"
    );
    assert_eq!(answer["write"], false, "{answer}");
    let nothing = Value::Null;
    match start {
        // What it was before the snapshot had no secrets, and knew that.
        "restored" => {
            assert_eq!((&answer["import"], &answer["hook"]), (&nothing, &told), "{answer}");
            assert_eq!(answer["warmed"], json!([null, null, []]), "{answer}");
        }
        _ => assert_eq!(answer["import"], told, "{answer}"),
    }
}

#[test]
fn instances_see_secrets_and_nothing_else_does() {
    hub::enter();
    let collector = Collector::start();
    let mut platform = Platform::start_with(Options {
        env: vec![
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT".into(), collector.endpoint()),
            ("OTEL_BSP_SCHEDULE_DELAY".into(), "200".into()),
        ],
        log: Some("debug"),
        ..Options::default()
    });
    let folder = function("keeper");
    let told = refused(&platform, &["deploy", folder.path().to_str().unwrap()]);
    assert!(told.contains("fn secret set DB_URL"), "{told}");
    set(&platform, "set", "DB_URL", value(OLD).as_bytes());
    set(&platform, "set", "BLOB", &[0, 255, 10, 13]);
    assert!(refused(&platform, &["secret", "rotate", "OTHER", "--file", "/etc/hostname"]).contains("OTHER"));
    platform.deploy(&folder);

    for start in ["restored", "booted"] {
        sees(&platform.fresh(start, "keeper", "/").ok().json(), OLD, start);
    }
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| sees(&platform.fresh("restored", "keeper", "/").ok().json(), OLD, "restored"));
        }
    });

    // What was written while the scheduler ran is there after a kill of all roles.
    let backup = tempfile::tempdir().unwrap();
    let archive = backup.path().join("backup.tar");
    let backed_up = Command::new(binaries::directory().join("fn"))
        .args(["backup", archive.to_str().unwrap()])
        .env("FN_DATA", platform.directory("data"))
        .env("FN_RUN", platform.directory("run"))
        .output()
        .unwrap();
    assert!(backed_up.status.success(), "{backed_up:?}");
    platform.kill9();
    platform.restart();
    let restored = platform.fresh("restored", "keeper", "/").ok();
    println!(
        "phases of a restore with two secrets: {}",
        restored.header("server-timing")
    );
    sees(&restored.json(), OLD, "restored");

    // A running instance gets the new value; a parked or busy one is not another.
    set(&platform, "rotate", "DB_URL", value(NEW).as_bytes());
    until("the new value is there", LIMIT, || {
        let answer = platform.get("keeper", "/").ok();
        assert_eq!(
            answer.start(),
            "warm",
            "{}, after {}: {}",
            answer.instance(),
            restored.instance(),
            platform.log_tail(150)
        );
        (answer.json()["env"] == json!(backwards(NEW))).then_some(())
    });
    sees(&platform.fresh("restored", "keeper", "/").ok().json(), NEW, "restored");
    let booted = platform.fresh("booted", "keeper", "/").ok();

    // Both are in the memory of instances. Nothing that is kept has them.
    let memory_of = |instance: &str, part: &str| {
        let memory = host::processes(&platform, instance).into_values().flat_map(|pid| {
            let mappings = host::anonymous(pid).into_iter();
            mappings.map(move |m| host::read(pid, m.start, m.end - m.start))
        });
        memory.collect::<Vec<_>>().iter().any(|bytes| has(bytes, part))
    };
    assert!(memory_of(booted.instance(), NEW), "the search finds nothing");
    let store = platform.directory("data").join("s3");
    assert!(!files_with(&store, PLAIN).is_empty(), "the search finds nothing");
    let described = run(&platform, &["describe", "keeper"]);
    assert!(
        described.contains("BLOB (version 1)") && described.contains("DB_URL (version 2)"),
        "{described}"
    );
    let mut answers = described + &run(&platform, &["secret", "list"]) + &run(&platform, &["logs", "keeper"]);
    for path in [
        "secrets",
        "functions",
        "functions/keeper",
        "functions/keeper/versions/1",
        "instances",
        "status",
        "metrics",
    ] {
        answers += &platform.admin("GET", &format!("/v1/{path}")).send().ok().text();
    }
    until("spans are there", LIMIT, || {
        (!collector.text().is_empty()).then_some(())
    });
    for part in [OLD, NEW] {
        assert_eq!(files_with(platform.root(), part), Vec::<PathBuf>::new());
        assert!(!has(&fs::read(&archive).unwrap(), part), "the backup has it");
        assert!(!has(answers.as_bytes(), part), "{answers}");
        assert!(!has(collector.text().as_bytes(), part), "a span has it");
    }

    let told = refused(&platform, &["secret", "rm", "DB_URL"]);
    assert!(told.contains("keeper") && told.contains("--force"), "{told}");
    // Those of before may have been idle for too long.
    platform.fresh("restored", "keeper", "/").ok();
    run(&platform, &["secret", "rm", "DB_URL", "--force"]);
    until("its file is gone", LIMIT, || {
        platform.get("keeper", "/").ok().json()["file"].is_null().then_some(())
    });
    let none = platform
        .fresh("restored", "keeper", "/")
        .error(502, "secret_unavailable");
    assert!(none.message().contains("fn secret set DB_URL"), "{}", none.message());
    set(&platform, "set", "DB_URL", value(OLD).as_bytes());
    sees(&platform.fresh("restored", "keeper", "/").ok().json(), OLD, "restored");
}

#[test]
fn a_program_that_needs_secrets_at_its_start_is_booted_with_them_and_has_no_snapshot() {
    hub::enter();
    let platform = Platform::start();
    set(&platform, "set", "DB_URL", value(OLD).as_bytes());
    let code = "import http.server, os\nVALUE = os.environ['DB_URL'][::-1]\n\
        assert not VALUE.endswith('gnorw'), VALUE\n\
        class Handler(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        self.send_response(200)\n\
        \x20       self.send_header('content-length', str(len(VALUE)))\n        self.end_headers()\n\
        \x20       self.wfile.write(VALUE.encode())\n\
        http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()\n";
    let folder = Folder::server("starter", "secrets = [{ name = \"DB_URL\", at = \"boot\" }]", code);
    let version = platform.deploy(&folder);
    assert!(version.snapshot.is_none(), "{version:?}");
    assert_eq!(
        platform.get("starter", "/").ok().text(),
        backwards(OLD),
        "the deploy's instance serves"
    );
    assert_eq!(platform.fresh("booted", "starter", "/").ok().text(), backwards(OLD));

    // What it writes when it cannot start has the value. Only who may read its log hears of that.
    let wrong = "wrong: nobody is told";
    let written: String = wrong.chars().rev().collect();
    set(&platform, "rotate", "DB_URL", wrong.as_bytes());
    let running: Vec<InstanceInfo> = platform.cli_json(&["instances", "--json"]).unwrap();
    for instance in running {
        let path = format!("/v1/instances/{}", instance.id);
        assert_eq!(platform.admin("DELETE", &path).send().status, 204);
    }
    let told = platform.get("starter", "/").error(502, "boot_failed");
    assert!(!told.message().contains(&written), "{}", told.message());
    assert!(told.message().contains("fn logs starter"), "{}", told.message());
    let told = platform
        .admin("GET", "/function/starter/")
        .send()
        .error(502, "boot_failed");
    assert!(told.message().contains(&written), "{}", told.message());
}

#[test]
fn secrets_move_with_their_instance_over_encrypted_connections() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    set(&cluster, "set", "DB_URL", value(OLD).as_bytes());
    set(&cluster, "set", "BLOB", &[0, 255, 10, 13]);
    cluster.deploy(&function("mover"));
    let answer = cluster.fresh("restored", "mover", "/").ok();
    let path = format!("/v1/instances/{}/migrate", answer.instance());
    // The scheduler hears of its state a little later.
    until("it moves", LIMIT, || {
        let request = cluster.admin("POST", &path).header("content-type", "application/json");
        (request.body("{}").send().status == 200).then_some(())
    });
    sees(&cluster.get("mover", "/").ok().json(), OLD, "restored");
    set(&cluster, "rotate", "DB_URL", value(NEW).as_bytes());
    until("the new value is there", LIMIT, || {
        let answer = cluster.get("mover", "/").ok().json();
        (answer["env"] == json!(backwards(NEW))).then_some(())
    });
    for part in [OLD, NEW] {
        assert_eq!(files_with(cluster.root(), part), Vec::<PathBuf>::new());
    }
}
