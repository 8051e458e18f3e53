//! The directory, held to the contract of every store, and to what only it does.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod contract;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use contract::keeps_the_contract;
use rekindle_store::{Directory, Outcome};

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_keeps_the_contract() {
    let root = tempfile::tempdir().unwrap();
    let store = Directory::open(&root.path().join("store")).unwrap();
    keeps_the_contract(&store, root.path()).await;
    let left = fs::read_dir(root.path().join("store/tmp")).unwrap().count();
    assert_eq!(left, 0, "files are left in tmp");
}

const CHILD_ROOT: &str = "REKINDLE_STORE_TEST_CHILD_ROOT";
const OBJECT: usize = 4 << 20;

/// The writer of the next test, in a process of its own. Without the variable it is no test.
#[tokio::test(flavor = "multi_thread")]
async fn child_writer() {
    let Some(root) = std::env::var_os(CHILD_ROOT) else {
        return;
    };
    let store = Directory::open(root.as_ref()).unwrap();
    println!("\nwrites");
    for number in 0.. {
        let bytes = Bytes::from(vec![(number % 251) as u8; OBJECT]);
        store.put("replaced", bytes.clone()).await.unwrap();
        store
            .put_if_absent(&format!("{}/{number}", std::process::id()), bytes)
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_is_killed_leaves_whole_objects_only() {
    let root = tempfile::tempdir().unwrap();
    let store = Directory::open(root.path()).unwrap();
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_writer", "--exact", "--nocapture"])
            .env(CHILD_ROOT, root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "writes"));
        // At another moment each time.
        std::thread::sleep(Duration::from_millis(5 + 7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        for object in store.list("").await.unwrap() {
            let bytes = store.get(&object.key).await.unwrap();
            assert!(
                bytes.len() == OBJECT && bytes.iter().all(|b| *b == bytes[0]),
                "{}",
                object.key
            );
        }
    }
    assert!(!store.list("").await.unwrap().is_empty());
}

/// As `fn up` and `fn snapshot` share one.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_share_a_directory_one_creates_an_object_and_both_see_it() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (
        Directory::open(root.path()).unwrap(),
        Directory::open(root.path()).unwrap(),
    );
    for round in 0..50 {
        let key = format!("race/{round}");
        let (a, b) = tokio::join!(
            one.put_if_absent(&key, Bytes::from_static(b"one")),
            two.put_if_absent(&key, Bytes::from_static(b"two"))
        );
        let expected = match (a.unwrap(), b.unwrap()) {
            (Outcome::Created, Outcome::AlreadyPresent) => "one",
            (Outcome::AlreadyPresent, Outcome::Created) => "two",
            both => panic!("{both:?}"),
        };
        assert_eq!(one.get(&key).await.unwrap(), expected);
        assert_eq!(two.get(&key).await.unwrap(), expected);
    }
}

#[test]
fn a_directory_of_something_else_is_refused_and_left_alone() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("letter.txt"), "x").unwrap();
    let error = Directory::open(root.path()).unwrap_err().to_string();
    assert!(error.contains("letter.txt"), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);

    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("FORMAT"), "rekindle-objects 2\n").unwrap();
    let error = Directory::open(root.path()).unwrap_err().to_string();
    assert!(error.contains("rekindle-objects 2"), "{error}");
}

#[tokio::test]
async fn what_a_killed_writer_left_goes_after_a_day_and_is_no_object() {
    let root = tempfile::tempdir().unwrap();
    drop(Directory::open(root.path()).unwrap());
    let (old, new) = (root.path().join("tmp/old"), root.path().join("tmp/new"));
    for path in [&old, &new] {
        fs::write(path, "half").unwrap();
    }
    let two_days_ago = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    fs::File::options()
        .write(true)
        .open(&old)
        .unwrap()
        .set_modified(two_days_ago)
        .unwrap();
    let store = Directory::open(root.path()).unwrap();
    assert!(!old.exists() && new.exists());
    assert!(store.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_full_or_missing_disk_is_an_error_and_not_a_missing_object() {
    let root = tempfile::tempdir().unwrap();
    let store = Directory::open(root.path()).unwrap();
    fs::remove_dir_all(root.path().join("objects")).unwrap();
    let body = Bytes::from_static(b"x");
    for error in [
        store.check().await.unwrap_err(),
        store.put("a", body.clone()).await.unwrap_err(),
        store.put_if_absent("a", body).await.unwrap_err(),
        store.list("").await.unwrap_err(),
    ] {
        assert!(
            !error.is_not_found() && error.to_string().contains("directory"),
            "{error}"
        );
    }
    let error = store.put(&"k".repeat(300), Bytes::new()).await.unwrap_err();
    assert!(error.to_string().contains("directory"), "{error}");
}
