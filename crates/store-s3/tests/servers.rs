//! The store against the embedded server and independent ones, with and without encryption, and against servers that do
//! not respond.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use contract::keeps_the_contract;
use memchr::memmem;
use rekindle_s3_servers::{Kind, Server, TestStore, Wire, config, impatient, noise, other_server};
use rekindle_store::StoreError;
use rekindle_store_s3::{Encryption, connect};

#[path = "../../store/tests/contract/mod.rs"]
mod contract;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_keeps_the_contract() {
    let server = TestStore::start().await;
    keeps_the_contract(&server.store, &server.scratch("files")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn independent_servers_keep_the_contract() {
    for server in [Kind::Versitygw, Kind::Minio].into_iter().filter_map(other_server) {
        let store = connect(config(server.address())).await;
        keeps_the_contract(&store, server.scratch()).await;
    }
}

/// Every server reports a missing bucket and a wrong secret as such, not as a missing object.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_and_a_wrong_secret_are_told_by_every_server() {
    let embedded = TestStore::start().await;
    let others: Vec<Server> = [Kind::Versitygw, Kind::Minio]
        .into_iter()
        .filter_map(other_server)
        .collect();
    let all = others.iter().map(Server::address).chain([embedded.address]);
    for address in all {
        let mut nowhere = config(address);
        nowhere.bucket = "nobody-has-made-this".to_owned();
        let mut wrong = config(address);
        wrong.credentials = Some(("test-key".to_owned(), "guess".to_owned()));
        connect(config(address)).await.ensure_place().await.unwrap();
        for config in [nowhere, wrong] {
            let store = connect(config).await;
            let body = Bytes::from_static(b"1");
            let all = tokio::join!(
                store.check(),
                store.put("x", body.clone()),
                store.get("x"),
                store.put_if_absent("y", body)
            );
            for error in [all.0.err(), all.1.err(), all.2.err(), all.3.err()] {
                let error = error.unwrap_or_else(|| panic!("{address}: {store:?} was taken"));
                assert!(
                    !error.is_not_found() && error.to_string().contains(store.place()),
                    "{address}: {error}"
                );
            }
        }
    }
}

/// A server that encrypts fulfils the contract, reports the encryption, and has no plain text on its disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_encrypts_keeps_the_contract_and_no_plain_text() {
    let with_key = || Encryption::Kms(Some(Kind::ENCRYPTION_KEY.to_owned()));
    for encryption in [
        Encryption::AsBucket,
        Encryption::Aes256,
        with_key(),
        Encryption::Kms(None),
    ] {
        let Some(server) = other_server(Kind::Minio) else {
            return;
        };
        let mut config = config(server.address());
        config.encryption = encryption.clone();
        let store = connect(config).await;
        keeps_the_contract(&store, server.scratch()).await;

        let plain = vec![b"what nobody else shall read".repeat(50), noise(20 << 20, 3)];
        store.put("secret", plain[0].clone().into()).await.unwrap();
        let file = server.scratch().join("secret");
        std::fs::write(&file, &plain[1]).unwrap();
        store.put_file("large", &file).await.unwrap();
        let kept = server.kept();
        for plain in &plain {
            let part = holds(&kept, &plain[..32]);
            assert_eq!(part, encryption == Encryption::AsBucket, "{encryption:?}");
        }
    }
}

/// A key that the server does not have is an error before anything is stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_server_does_not_have_is_an_error() {
    let Some(server) = other_server(Kind::Minio) else {
        return;
    };
    let plain = connect(config(server.address())).await;
    plain.ensure_place().await.unwrap();
    let mut config = config(server.address());
    config.encryption = Encryption::Kms(Some("no-such-key".to_owned()));
    let store = connect(config).await;
    let error = store.put("x", Bytes::from_static(b"1")).await.unwrap_err();
    assert!(error.to_string().contains('x'), "{error}");
    assert!(plain.get("x").await.unwrap_err().is_not_found());
}

fn holds(all: &[u8], part: &[u8]) -> bool {
    memmem::find(all, part).is_some()
}

/// A server that does not encrypt is detected: it refuses, or does not confirm the encryption.
#[tokio::test(flavor = "multi_thread")]
async fn encryption_that_a_server_does_not_do_is_an_error() {
    let embedded = TestStore::start().await;
    let independent = other_server(Kind::Versitygw);
    let addresses = [Some(embedded.address), independent.as_ref().map(Server::address)];
    for address in addresses.into_iter().flatten() {
        let plain = connect(config(address)).await;
        plain.ensure_place().await.unwrap();
        let mut config = config(address);
        config.encryption = Encryption::Aes256;
        let store = connect(config).await;
        assert!(store.put("x", Bytes::from_static(b"1")).await.is_err(), "{address}");
        let file = embedded.dir.path().join("large");
        std::fs::File::create(&file).unwrap().set_len(17 << 20).unwrap();
        assert!(store.put_file("y", &file).await.is_err(), "{address}");
        assert!(plain.get("y").await.unwrap_err().is_not_found(), "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_with_different_prefixes_do_not_see_each_other() {
    let server = TestStore::start().await;
    let mut other = config(server.address);
    other.prefix = "/other/team/".to_owned();
    let other = connect(other).await;
    server.store.put("x", Bytes::from_static(b"1")).await.unwrap();
    assert!(other.get("x").await.unwrap_err().is_not_found());
    other.put("y", Bytes::from_static(b"2")).await.unwrap();
    assert_eq!(other.list("").await.unwrap()[0].key, "y");
    assert_eq!(server.keys("").await, ["x"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_an_error_that_names_bucket_and_key() {
    let server = TestStore::start().await;
    let mut wrong = config(server.address);
    wrong.credentials = Some(("test-key".to_owned(), "guess".to_owned()));
    let error = connect(wrong).await.get("x").await.unwrap_err();
    assert!(!error.is_not_found());
    assert!(error.to_string().contains("team/x in bucket rekindle-test"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_connections_and_never_answers_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = connect(impatient(silent.local_addr().unwrap())).await;
    let started = Instant::now();
    let body = Bytes::from(noise(1000, 1));
    let all = tokio::join!(
        store.get("x"),
        store.head("x"),
        store.put("x", body),
        store.list("x"),
        store.delete("x")
    );
    assert!(all.0.is_err() && all.1.is_err() && all.2.is_err() && all.3.is_err() && all.4.is_err());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_half_way_is_given_up_and_leaves_no_file() {
    let server = TestStore::start().await;
    server.store.put("x", Bytes::from(noise(4 << 20, 1))).await.unwrap();
    let wire = Wire::stalling(server.address, 1 << 20).await;
    let mut slow = impatient(wire.address);
    slow.timeouts.slowest_bytes_per_s = 64 << 20;
    let store = connect(slow).await;
    let started = Instant::now();
    let error = store.get("x").await.unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    let path = server.scratch("files").join("x");
    assert!(store.get_to_file("x", &path).await.is_err());
    assert!(!path.exists());
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_keeps_its_connections() {
    let server = TestStore::start().await;
    let wire = Wire::to(server.address, u64::MAX).await;
    let store = connect(config(wire.address)).await;
    store.put("x", Bytes::from_static(b"x")).await.unwrap();
    for _ in 0..20 {
        store.get("x").await.unwrap();
    }
    // hyper returns a connection to its pool in a separate task, so a call right after another may open one more. On a
    // busy machine that happens more than once.
    assert!(
        wire.connections() <= 7,
        "{} connections for 21 calls",
        wire.connections()
    );
}
