//! The master key in a key service: a whole platform with AWS KMS as moto serves it. Every file of the platform is
//! searched for the master key.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memchr::memmem;
use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::kms::Kms;
use rekindle_e2e::postgres::Postgres;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, Options, Platform, binaries, hub, until};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const VALUE: &str = "kP4wTz8sQe2N-of-the-database";
/// What docs/how-to/use-secrets.md promises for a start without an answer of KMS, and what a busy machine adds.
const GIVEN_UP: Duration = Duration::from_secs(20 + 20);

/// Answers with its secret backwards.
fn function() -> Folder {
    let code = "def handler(event, context):\n    return open('/run/secrets/DB_URL').read()[::-1]\n";
    Folder::python("keeper", "secrets = [\"DB_URL\"]", code)
}

fn set(client: &Client, value: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), value).unwrap();
    let output = client.cli(&["secret", "set", "DB_URL", "--file", file.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn sees(platform: &Platform, value: &str) {
    let told = platform.fresh("restored", "keeper", "/").ok().text();
    let backwards: String = value.chars().rev().collect();
    assert!(told.contains(&backwards), "{told}");
}

fn options(kms: &Kms, key: &str) -> Options {
    let mut options = Options {
        log: Some("debug"),
        ..Options::default()
    };
    options.env = kms.environment();
    options.env.push(("FN_MASTER_KEY_KMS".to_owned(), key.to_owned()));
    options
        .env
        .push(("FN_MASTER_KEY_CLUSTER".to_owned(), "blue".to_owned()));
    options
}

/// What the database has of its master key: the id, what wrapped it, for whom, and the result in base64.
fn stored(platform: &Platform) -> Value {
    let code = "import base64, json, sqlite3, sys\n\
        row = sqlite3.connect(sys.argv[1]).execute('SELECT id, wrapped_by, wrapped_for, wrapped FROM master_key')\n\
        *row, wrapped = row.fetchone()\n\
        print(json.dumps(row + [wrapped and base64.b64encode(wrapped).decode()]))\n";
    let database = platform.directory("data").join("scheduler.db");
    let output = Command::new("python3")
        .args(["-c", code])
        .arg(database)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The files below a directory that have any of these.
fn files_with(directory: &Path, parts: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        // Root filesystems are the tests' own, and large.
        if kind.is_dir() && !path.ends_with("cache") {
            found.extend(files_with(&path, parts));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            let has = |part: &Vec<u8>| memmem::find(&bytes, part).is_some();
            found.extend(parts.iter().any(has).then_some(path));
        }
    }
    found
}

/// A key in the forms in which it may have been written.
fn forms(base64: &str) -> Vec<Vec<u8>> {
    let code = "import base64, sys\nprint(base64.b64decode(sys.argv[1]).hex())";
    let output = Command::new("python3").args(["-c", code, base64]).output().unwrap();
    let hex = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let bytes = (0..hex.len() / 2).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap());
    vec![bytes.collect(), base64.as_bytes().to_vec(), hex.into_bytes()]
}

/// The error of a start that must fail.
#[track_caller]
fn refused(platform: &mut Platform) -> String {
    let error = format!("{:#}", platform.try_restart().unwrap_err());
    // It has ended by itself.
    platform.kill9();
    error
}

#[test]
fn a_platform_s_secrets_outlive_it_and_its_master_key_is_nowhere_in_clear() {
    hub::enter();
    let Some(kms) = Kms::start() else {
        return;
    };
    let key = kms.make_key();
    let mut platform = Platform::start_with(options(&kms, &key));
    set(&platform, VALUE);
    platform.deploy(&function());
    sees(&platform, VALUE);
    platform.kill9();
    platform.restart();
    sees(&platform, VALUE);

    // What KMS unwraps, for this cluster and no other, is in no file.
    let row = stored(&platform);
    assert_eq!((&row[1], &row[2]), (&json!(key), &json!("blue")));
    let context = json!({"rekindle:cluster": "blue"});
    let unwrapped = kms.call(
        "Decrypt",
        &json!({"CiphertextBlob": row[3], "EncryptionContext": context}),
    );
    let root = platform.root().to_owned();
    let wrapped = forms(row[3].as_str().unwrap());
    assert!(!files_with(&root, &wrapped).is_empty(), "the search finds nothing");
    let master = forms(unwrapped["Plaintext"].as_str().unwrap());
    assert_eq!(master[0].len(), 32);
    assert_eq!(files_with(&root, &master), Vec::<PathBuf>::new());
    assert_eq!(files_with(&root, &[VALUE.as_bytes().to_vec()]), Vec::<PathBuf>::new());
    assert!(!platform.directory("data").join("master.key").exists());

    // What runs needs no KMS, and what starts says what is wrong.
    kms.disable(&key);
    set(&platform, "another");
    sees(&platform, "another");
    platform.stop();
    let told = refused(&mut platform);
    assert!(
        told.contains("is disabled") && told.contains("aws kms enable-key"),
        "{told}"
    );
    kms.enable(&key);
    platform.restart();
    sees(&platform, "another");
    platform.stop();

    // Without KMS, nothing new is begun with a key of its own.
    let without = Command::new("timeout")
        .args([
            "60",
            binaries::directory().join("fn").to_str().unwrap(),
            "scheduler",
            "--listen",
            "127.0.0.1:0",
        ])
        .args(["--token-file", root.join("data/cluster.token").to_str().unwrap()])
        .args(["--s3-endpoint", &format!("file://{}", root.join("store").display())])
        .envs([("FN_DATA", root.join("data")), ("FN_RUN", root.join("run"))])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&without.stderr);
    assert!(told.contains(&format!("--master-key-kms {key}")), "{told}");
    assert_eq!(without.status.code(), Some(1), "{told}");

    // The cluster's name belongs to the key.
    platform.set_env("FN_MASTER_KEY_CLUSTER", "green");
    let told = refused(&mut platform);
    assert!(told.contains("--master-key-cluster blue"), "{told}");
    platform.set_env("FN_MASTER_KEY_CLUSTER", "blue");

    // Another key of KMS takes over, which an alias names; the first is not needed any more.
    let second = kms.make_key();
    kms.call(
        "CreateAlias",
        &json!({"AliasName": "alias/blue", "TargetKeyId": second}),
    );
    platform.set_env("FN_MASTER_KEY_KMS", "alias/blue");
    platform.restart();
    assert_eq!(stored(&platform)[1], json!(second));
    kms.delete(&key);
    platform.stop();
    platform.restart();
    sees(&platform, "another");
    assert_eq!(files_with(&root, &master), Vec::<PathBuf>::new());
}

#[test]
fn schedulers_share_the_wrapped_key_and_one_that_stood_by_leads_without_kms() {
    hub::enter();
    let Some(database) = Postgres::start_at(hub::ADDRESS) else {
        return;
    };
    let Some(kms) = Kms::start_at(hub::ADDRESS) else {
        return;
    };
    let store = ObjectStore::start_at(hub::ADDRESS);
    let key = kms.make_key();
    let mut size = Size::two_schedulers(&database.database());
    for scheduler in [0, 1].map(|n| Role::Scheduler.nth(n)) {
        size.env.push((scheduler, "FN_MASTER_KEY_KMS".to_owned(), key.clone()));
        let own = kms.environment().into_iter().filter(|(name, _)| name.ends_with("_KMS"));
        size.env.extend(own.map(|(name, value)| (scheduler, name, value)));
    }
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    set(&cluster, VALUE);
    cluster.deploy(&function());
    // The one that stands by has its key when it answers.
    until("both answer", LIMIT, || {
        (0..2).map(|n| cluster.readiness(n)).collect::<Option<Vec<_>>>()
    });
    kms.disable(&key);
    let first = until("one leads", LIMIT, || cluster.leader());
    cluster.kill9(Role::Scheduler.nth(first));
    until("the other leads", LIMIT, || cluster.leader().filter(|n| *n != first));
    let backwards: String = VALUE.chars().rev().collect();
    until("an instance gets its secret", LIMIT, || {
        let answer = cluster.fresh("restored", "keeper", "/");
        (answer.status == 200 && answer.text().contains(&backwards)).then_some(())
    });
    kms.enable(&key);
    cluster.restart(Role::Scheduler.nth(first));
    for scheduler in [0, 1].map(|n| Role::Scheduler.nth(n)) {
        assert!(!cluster.directory(scheduler, "data").join("master.key").exists());
    }
}

#[test]
fn a_start_without_a_right_a_key_or_an_answer_fails_and_says_so() {
    hub::enter();
    let Some(kms) = Kms::start() else {
        return;
    };
    let key = kms.make_key();
    let mut platform = Platform::start_with(options(&kms, &key));
    platform.stop();
    platform.set_env("FN_MASTER_KEY_KMS", "alias/nobodys");
    let told = refused(&mut platform);
    assert!(
        told.contains("there is no KMS key alias/nobodys in us-east-1"),
        "{told}"
    );
    platform.set_env("FN_MASTER_KEY_KMS", &key);

    let [id, secret] = kms.ask_for_rights();
    platform.set_env("AWS_ACCESS_KEY_ID", &id);
    platform.set_env("AWS_SECRET_ACCESS_KEY", &secret);
    let told = refused(&mut platform);
    let fix = "allow this machine's role kms:DescribeKey on it";
    assert!(told.contains(fix) && told.contains("rekindle:cluster=blue"), "{told}");

    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    platform.set_env("AWS_ENDPOINT_URL_KMS", &url);
    let started = Instant::now();
    let told = refused(&mut platform);
    assert!(started.elapsed() < GIVEN_UP, "{:?}", started.elapsed());
    assert!(
        told.contains("KMS does not answer DescribeKey in us-east-1 within 20s"),
        "{told}"
    );
}

#[test]
fn a_key_that_was_in_a_file_moves_into_kms_and_stays_the_same() {
    hub::enter();
    let Some(kms) = Kms::start() else {
        return;
    };
    let mut platform = Platform::start_with(Options {
        env: kms.environment(),
        ..Options::default()
    });
    set(&platform, VALUE);
    platform.deploy(&function());
    let id = stored(&platform)[0].clone();
    platform.stop();
    let file = platform.directory("data").join("master.key");
    let kept = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    platform.set_env("FN_MASTER_KEY_KMS", &kms.make_key());
    let told = refused(&mut platform);
    assert!(told.contains("name its file with --master-key"), "{told}");
    fs::write(&file, kept).unwrap();
    platform.restart();
    sees(&platform, VALUE);
    assert!(
        platform.log_tail(400).contains("remove the file"),
        "{}",
        platform.log_tail(60)
    );
    platform.stop();
    fs::remove_file(&file).unwrap();
    platform.restart();
    sees(&platform, VALUE);
    assert_eq!(stored(&platform)[0], id);
}
