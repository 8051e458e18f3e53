use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use rekindle_envelope::WrappedKey;

use super::*;

/// A service that wraps with the names of its keys.
struct Fake {
    key: Mutex<&'static str>,
    cluster: &'static str,
    away: AtomicBool,
    asked: Mutex<Vec<&'static str>>,
}

impl Fake {
    fn named(key: &'static str, cluster: &'static str) -> Self {
        Self {
            key: Mutex::new(key),
            cluster,
            away: AtomicBool::default(),
            asked: Mutex::default(),
        }
    }

    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.asked.lock())
    }

    fn wrapped(&self, key: &MasterKey) -> WrappedKey {
        let by = *self.key.lock();
        let bytes = by.bytes().cycle().zip(key.bytes()).map(|(a, b)| a ^ b);
        WrappedKey {
            by: by.to_owned(),
            cluster: self.cluster.to_owned(),
            bytes: bytes.collect(),
        }
    }
}

#[async_trait]
impl KeyService for Fake {
    fn cluster(&self) -> &str {
        self.cluster
    }

    async fn key(&self) -> Result<String, KeyServiceError> {
        match self.away.load(Ordering::Relaxed) {
            true => Err("it is away".into()),
            false => Ok((*self.key.lock()).to_owned()),
        }
    }

    async fn generate(&self) -> Result<(MasterKey, WrappedKey), KeyServiceError> {
        self.asked.lock().push("generate");
        let key = MasterKey::from_bytes(&rekindle_envelope::random_key()?).unwrap();
        let wrapped = self.wrapped(&key);
        Ok((key, wrapped))
    }

    async fn wrap(&self, key: &MasterKey) -> Result<WrappedKey, KeyServiceError> {
        self.asked.lock().push("wrap");
        Ok(self.wrapped(key))
    }

    async fn unwrap(&self, wrapped: &WrappedKey) -> Result<MasterKey, KeyServiceError> {
        self.asked.lock().push("unwrap");
        let bytes: Vec<u8> = wrapped
            .by
            .bytes()
            .cycle()
            .zip(&wrapped.bytes)
            .map(|(a, b)| a ^ b)
            .collect();
        MasterKey::from_bytes(&bytes).ok_or_else(|| "it is none".into())
    }
}

fn place() -> (tempfile::TempDir, Database) {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("scheduler.db").into();
    (dir, database)
}

fn of(text: char) -> MasterKey {
    text.to_string().repeat(64).parse().unwrap()
}

#[tokio::test]
async fn the_service_makes_a_key_once_and_unwraps_it_at_each_start() {
    let (dir, database) = place();
    let service = Fake::named("a", "blue");
    let made = unwrapped_master_key(&database, &service, None).await.unwrap();
    // It is unwrapped before anything is sealed with it.
    assert_eq!(service.asked(), ["generate", "unwrap"]);
    let again = unwrapped_master_key(&database, &service, Some(&of('f'))).await.unwrap();
    assert_eq!((service.asked(), again.id()), (vec!["unwrap"], made.id()));
    let file = std::fs::read(dir.path().join("scheduler.db")).unwrap();
    assert!(!file.windows(8).any(|part| part == &made.bytes()[..8]));

    service.away.store(true, Ordering::Relaxed);
    let refused = unwrapped_master_key(&database, &service, None).await.unwrap_err();
    assert!(matches!(refused, MasterKeyError::Service(_)), "{refused}");
}

#[tokio::test]
async fn schedulers_that_start_at_once_have_one_key() {
    let (_dir, database) = place();
    // Only databases that schedulers share are made by one of several at once.
    Store::open(&database).await.unwrap().close().await;
    let services: Vec<Fake> = (0..4).map(|_| Fake::named("a", "blue")).collect();
    let starts = services
        .iter()
        .map(|service| unwrapped_master_key(&database, service, None));
    let keys = futures::future::try_join_all(starts).await.unwrap();
    assert!(keys.iter().all(|key| key.id() == keys[0].id()));
}

#[tokio::test]
async fn a_file_s_key_is_wrapped_and_stays_the_same_and_no_other_file_is_taken() {
    let (_dir, database) = place();
    let (service, own) = (Fake::named("a", "blue"), of('a'));
    let store = Store::open(&database).await.unwrap();
    store.master_key(&own.id().to_string()).await.unwrap();
    store.close().await;
    let refused = unwrapped_master_key(&database, &service, None).await.unwrap_err();
    assert!(matches!(refused, MasterKeyError::NoFile { .. }), "{refused}");
    let refused = unwrapped_master_key(&database, &service, Some(&of('b')))
        .await
        .unwrap_err();
    assert!(matches!(refused, MasterKeyError::OtherFile { .. }), "{refused}");
    let taken = unwrapped_master_key(&database, &service, Some(&own)).await.unwrap();
    let without = unwrapped_master_key(&database, &service, None).await.unwrap();
    assert_eq!((taken.id(), without.id()), (own.id(), own.id()));
}

#[tokio::test]
async fn another_key_of_the_service_wraps_the_same_master_key_anew() {
    let (_dir, database) = place();
    let service = Fake::named("a", "blue");
    let made = unwrapped_master_key(&database, &service, None).await.unwrap();
    service.asked();
    *service.key.lock() = "b";
    let moved = unwrapped_master_key(&database, &service, None).await.unwrap();
    assert_eq!(
        (service.asked(), moved.id()),
        (vec!["unwrap", "wrap", "unwrap"], made.id())
    );
    let store = Store::open(&database).await.unwrap();
    let known = store.known_master_key().await.unwrap().unwrap();
    assert_eq!(known.wrapped.unwrap().by, "b");
}

#[tokio::test]
async fn a_key_of_another_cluster_and_one_that_was_exchanged_are_refused() {
    let (_dir, database) = place();
    unwrapped_master_key(&database, &Fake::named("a", "blue"), None)
        .await
        .unwrap();
    let green = Fake::named("a", "green");
    let refused = unwrapped_master_key(&database, &green, None).await.unwrap_err();
    assert!(refused.to_string().contains("--master-key-cluster blue"), "{refused}");
    let service = Fake::named("a", "blue");
    let store = Store::open(&database).await.unwrap();
    let known = store.known_master_key().await.unwrap().unwrap();
    store
        .set_wrapped_key(&known.id, &service.wrapped(&of('c')))
        .await
        .unwrap();
    let refused = unwrapped_master_key(&database, &service, None).await.unwrap_err();
    assert!(matches!(refused, MasterKeyError::Other { .. }), "{refused}");
}
