//! The storage as a whole: what a restart finds, what damage does.

use bytes::Bytes;

use super::*;

fn seal(storage: &Storage, key: &str, body: &[u8]) -> SealedObject {
    let meta = Meta {
        key: key.to_owned(),
        ..Meta::default()
    };
    let rest = [Bytes::copy_from_slice(body)];
    BodyWriter::new(storage.temps.clone(), ChecksumVerifier::default())
        .seal(&rest, None, None, meta)
        .unwrap()
}

fn put(storage: &Storage, key: &str, body: &[u8], condition: Condition) -> Result<(), ChangeError> {
    storage
        .bucket("bucket")
        .unwrap()
        .put(seal(storage, key, body), &condition)
}

fn read(object: ObjectFile, range: std::ops::Range<u64>) -> Result<Vec<u8>, ReadError> {
    let (mut reader, mut body) = (object.read(range), Vec::new());
    while let Some(bytes) = reader.next_batch()? {
        assert!(bytes.len() <= BATCH_LEN);
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}

fn get(storage: &Storage, key: &str) -> Result<Vec<u8>, ReadError> {
    let object = storage.bucket("bucket").unwrap().get(key)?;
    let whole = 0..object.body_len();
    read(object, whole)
}

fn open(root: &Path) -> Storage {
    Storage::open(root, &["bucket".to_owned()]).unwrap()
}

fn object_path(root: &Path, key: &str) -> PathBuf {
    root.join("buckets/bucket/objects").join(names::file_name(key))
}

#[test]
fn a_second_server_of_the_same_root_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let first = open(root.path());
    assert!(matches!(Storage::open(root.path(), &[]), Err(StartError::InUse(_))));
    drop(first);
    open(root.path());
}

#[test]
fn a_directory_of_something_else_is_refused_and_left_alone() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("tmp")).unwrap();
    std::fs::write(root.path().join("tmp/precious"), "x").unwrap();
    assert!(matches!(
        Storage::open(root.path(), &[]),
        Err(StartError::Layout { .. })
    ));
    assert!(root.path().join("tmp/precious").exists());
}

#[test]
fn a_restart_finds_every_object_and_no_leftovers() {
    let root = tempfile::tempdir().unwrap();
    let long = "long/".repeat(200);
    let keys = ["a", "a/b", "..", "/", "ü/~%", long.as_str()];
    let storage = open(root.path());
    for key in keys {
        put(&storage, key, key.as_bytes(), Condition::None).unwrap();
    }
    let mut unfinished = BodyWriter::new(storage.temps.clone(), ChecksumVerifier::default());
    unfinished.write(b"half").unwrap();
    // As after a kill: nothing of it is dropped.
    std::mem::forget(unfinished);
    drop(storage);
    assert_eq!(std::fs::read_dir(root.path().join("tmp")).unwrap().count(), 1);

    let storage = open(root.path());
    assert_eq!(std::fs::read_dir(root.path().join("tmp")).unwrap().count(), 0);
    let query = Query {
        limit: 100,
        ..Query::default()
    };
    let listed = storage.bucket("bucket").unwrap().list(&query).entries;
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let expected: Vec<Entry> = sorted.iter().map(|key| Entry::Key(key.as_bytes().to_vec())).collect();
    assert_eq!(listed, expected);
    for key in keys {
        assert_eq!(get(&storage, key).unwrap(), key.as_bytes());
    }
}

#[test]
fn conditions_hold_or_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    assert!(matches!(
        put(&storage, "k", b"0", Condition::Present),
        Err(ChangeError::Read(ReadError::Absent))
    ));
    put(&storage, "k", b"1", Condition::Absent).unwrap();
    assert!(matches!(
        put(&storage, "k", b"2", Condition::Absent),
        Err(ChangeError::ConditionFailed)
    ));
    assert!(matches!(
        put(&storage, "k", b"2", Condition::Etag("no".into())),
        Err(ChangeError::ConditionFailed)
    ));
    assert_eq!(get(&storage, "k").unwrap(), b"1");
    let etag = storage.bucket("bucket").unwrap().get("k").unwrap().meta.etag;
    put(&storage, "k", b"3", Condition::Etag(etag)).unwrap();
    assert_eq!(get(&storage, "k").unwrap(), b"3");
    assert_eq!(std::fs::read_dir(root.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn every_range_is_the_slice_it_names() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    let block = format::BLOCK_LEN;
    let body: Vec<u8> = (0..11 * block + 17).map(|at| (at % 251) as u8).collect();
    put(&storage, "k", &body, Condition::None).unwrap();
    let edges = [
        0,
        1,
        block - 1,
        block,
        block + 1,
        BATCH_LEN - 1,
        BATCH_LEN,
        BATCH_LEN + 1,
        body.len() - 1,
        body.len(),
    ];
    for start in edges {
        for end in edges.into_iter().filter(|end| *end >= start) {
            let object = storage.bucket("bucket").unwrap().get("k").unwrap();
            let found = read(object, start as u64..end as u64).unwrap();
            assert!(found == body[start..end], "{start}..{end}");
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_and_never_other_bytes() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    let body = vec![7; 2 * format::BLOCK_LEN + 100];
    put(&storage, "k", &body, Condition::None).unwrap();
    let path = object_path(root.path(), "k");
    let whole = std::fs::read(&path).unwrap();
    // All of the footer, and every 997th byte of the body.
    let places = (0..body.len()).step_by(997).chain(body.len()..whole.len());
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        assert!(
            matches!(get(&storage, "k"), Err(ReadError::Damaged { .. })),
            "byte {at}"
        );
    }
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(get(&storage, "k").unwrap(), body);
}

#[test]
fn a_ranged_read_notices_damage_in_its_own_blocks() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    let body = vec![7; 3 * format::BLOCK_LEN];
    put(&storage, "k", &body, Condition::None).unwrap();
    let path = object_path(root.path(), "k");
    let mut damaged = std::fs::read(&path).unwrap();
    damaged[format::BLOCK_LEN + 5] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let object = || storage.bucket("bucket").unwrap().get("k").unwrap();
    assert_eq!(read(object(), 0..10).unwrap(), &body[..10]);
    let second = format::BLOCK_LEN as u64;
    assert!(matches!(
        read(object(), second + 90..second + 100),
        Err(ReadError::Damaged { .. })
    ));
}

#[test]
fn a_truncated_object_is_an_error_at_every_length() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    put(&storage, "k", b"some body", Condition::None).unwrap();
    let path = object_path(root.path(), "k");
    let whole = std::fs::read(&path).unwrap();
    for len in 0..whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(
            matches!(get(&storage, "k"), Err(ReadError::Damaged { .. })),
            "{len} bytes"
        );
    }
}

#[test]
fn an_object_under_the_name_of_another_is_damage() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    put(&storage, "one", b"1", Condition::None).unwrap();
    put(&storage, "two", b"2", Condition::None).unwrap();
    std::fs::copy(object_path(root.path(), "one"), object_path(root.path(), "two")).unwrap();
    assert!(matches!(get(&storage, "two"), Err(ReadError::Damaged { .. })));
}

#[test]
fn a_damaged_object_can_be_replaced_and_deleted() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    for key in ["replaced", "deleted"] {
        put(&storage, key, b"x", Condition::None).unwrap();
        std::fs::write(object_path(root.path(), key), b"junk").unwrap();
    }
    put(&storage, "replaced", b"y", Condition::None).unwrap();
    assert_eq!(get(&storage, "replaced").unwrap(), b"y");
    storage
        .bucket("bucket")
        .unwrap()
        .delete("deleted", &Condition::None)
        .unwrap();
    assert!(matches!(get(&storage, "deleted"), Err(ReadError::Absent)));
}

#[test]
fn one_of_many_creators_wins() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path());
    for round in 0..20 {
        let key = format!("k{round}");
        let wins: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8u8)
                .map(|number| {
                    let (storage, key) = (&storage, &key);
                    scope.spawn(move || put(storage, key, &[number], Condition::Absent).is_ok())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winner = wins.iter().position(|won| *won).unwrap();
        assert_eq!(wins.iter().filter(|won| **won).count(), 1);
        assert_eq!(get(&storage, &key).unwrap(), [winner as u8]);
    }
}
