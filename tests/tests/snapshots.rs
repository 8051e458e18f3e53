//! `fn snapshot` as an operator uses it: on a platform as it runs, without any setting but its run directory.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rekindle_e2e::{Folder, shared};
use serde_json::Value;

/// Runs `fn snapshot …` on the shared platform's store.
#[track_caller]
fn snapshot(args: &[&str]) -> String {
    let run = shared().directory("run");
    let mut all = vec!["snapshot"];
    all.extend(args);
    if !matches!(args[0], "compress" | "decompress") {
        all.extend(["--run", run.to_str().unwrap()]);
    }
    let output = shared().cli(&all);
    let [out, err] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b).into_owned());
    assert!(output.status.success(), "{all:?}: {err}");
    out
}

#[track_caller]
fn refused(args: &[&str]) -> String {
    let run = shared().directory("run");
    let all: Vec<&str> = ["snapshot"]
        .iter()
        .chain(args)
        .copied()
        .chain(["--run", run.to_str().unwrap()])
        .collect();
    let output = shared().cli(&all);
    assert!(!output.status.success(), "{all:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn images(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap());
    names
        .filter(|n| n.ends_with(".img"))
        .map(|n| (n.clone(), fs::read(dir.join(n)).unwrap()))
        .collect()
}

#[test]
fn a_snapshot_is_listed_looked_into_exported_compressed_imported_and_deleted() {
    let version = shared().deploy(&Folder::sample("hello-python", |t| {
        t.replace("name = \"hello\"", "name = \"looked\"")
    }));
    let id = version.snapshot.unwrap().id.to_string();
    assert_eq!(shared().fresh("restored", "looked", "/").ok().start(), "restored");
    let listed: Value = serde_json::from_str(&snapshot(&["list", "--json"])).unwrap();
    let ours = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["id"] == id.as_str())
        .unwrap();
    assert_eq!(ours["origin"]["function"], "looked");

    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name).to_str().unwrap().to_owned();
    let told = snapshot(&["inspect", &id, "--svg", &path("map.svg")]);
    assert!(told.contains("looked v1") || told.contains("looked 1"), "{told}");
    assert!(told.contains("[heap]") && told.contains("libc"), "{told}");
    let picture = fs::read_to_string(path("map.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("[heap]"));
    let seen: Value = serde_json::from_str(&snapshot(&["inspect", &id, "--json"])).unwrap();
    let mappings = seen["processes"][0]["mappings"].as_array().unwrap();
    let sum = |field: &str| mappings.iter().map(|m| m[field].as_u64().unwrap()).sum::<u64>();
    let lazy = sum("zero_bytes") + sum("raw_bytes") + sum("compressed_bytes");
    let memory = seen["summary"]["memory_bytes"].as_u64().unwrap();
    assert!(
        lazy > memory / 2 && lazy + sum("eager_bytes") <= memory,
        "{lazy} of {memory}"
    );

    snapshot(&["export", &id, &path("exported")]);
    let exported = images(&work.path().join("exported"));
    assert!(refused(&["export", &id, &path("exported")]).contains("is there already"));
    let of_dir: Value = serde_json::from_str(&snapshot(&["inspect", &path("exported"), "--json"])).unwrap();
    assert_eq!(of_dir["compressed"], false);
    snapshot(&["compress", &path("exported"), "--block", "64K", "--in-place"]);
    assert!(images(&work.path().join("exported")) != exported);

    let answer = snapshot(&[
        "import",
        &path("exported"),
        "--name",
        "nightly",
        "--scratch",
        &path("scratch"),
    ]);
    let imported = answer.split_whitespace().next().unwrap().to_owned();
    assert!(answer.contains("is nightly"), "{answer}");
    let seen: Value = serde_json::from_str(&snapshot(&["inspect", &imported, "--json"])).unwrap();
    assert_eq!(seen["shared_with"][0]["id"], id.as_str());
    assert_eq!(seen["shared_with"][0]["bytes"], seen["summary"]["stored_bytes"]);
    snapshot(&["export", &imported, &path("back")]);
    assert!(images(&work.path().join("back")) == exported, "the files differ");

    snapshot(&["decompress", &path("exported"), "--in-place"]);
    assert!(images(&work.path().join("exported")) == exported, "the files differ");
    assert!(refused(&["delete", &id]).contains("is the snapshot of looked"));
    snapshot(&["delete", &imported]);
    assert!(refused(&["inspect", &imported]).contains("does not exist"));
    assert_eq!(
        shared().fresh("restored", "looked", "/").ok().start(),
        "restored",
        "its own is as it was"
    );
}
