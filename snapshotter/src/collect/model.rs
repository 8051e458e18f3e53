//! A model of the store: a map whose requests take effect one at a time, when a scheduler says so. Every interleaving
//! of the actors' requests is possible. A request may be lost, fail, or take effect long after its sender died.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_store::{ObjectInfo, StoreError};

use super::objects::Objects;
use crate::keys;

/// Pseudo-random numbers, determined by the seed (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.roll(times) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.roll(from.len() as u64)).unwrap()]
    }
}

/// Deviations of the model from our protocol, each of which makes it unsafe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtocolFault {
    /// Publishers do not check what is condemned.
    NobodyLooks,
    /// Collections do not read notes.
    NotesUnread,
    /// Collections read manifests before notes.
    ManifestsFirst,
    /// Publishers remove their notes before they put the manifest.
    NotesTakenBack,
    /// Publishers check whether a chunk exists before they protect it.
    LookedBefore,
    /// The caller's rule is evaluated before the manifests are read.
    RuleFirst,
}

#[derive(Debug, Clone)]
enum Write {
    Put(String, Bytes),
    Delete(String),
}

pub(super) struct ModelState {
    pub(super) objects: BTreeMap<String, (Bytes, i64)>,
    pub(super) now_ms: i64,
    pub(super) dice: Dice,
    pub(super) broken: Option<ProtocolFault>,
    /// Whether requests may fail.
    pub(super) faults: bool,
    /// The actor whose next request may take effect.
    pub(super) turn: Option<usize>,
    /// Requests of actors that died or gave up. They take effect at any later time, or never.
    limbo: Vec<Write>,
    /// Listings for [`ProtocolFault::ManifestsFirst`], by actor.
    stale: BTreeMap<usize, Vec<ObjectInfo>>,
    pub(super) requests: u64,
}

impl ModelState {
    pub(super) fn new(seed: u64, broken: Option<ProtocolFault>) -> Self {
        Self {
            objects: BTreeMap::new(),
            now_ms: 1_000_000_000,
            dice: Dice(seed),
            broken,
            faults: true,
            turn: None,
            limbo: Vec::new(),
            stale: BTreeMap::new(),
            requests: 0,
        }
    }

    fn obey(&mut self, write: Write) {
        match write {
            Write::Put(key, bytes) => drop(self.objects.insert(key, (bytes, self.now_ms))),
            Write::Delete(key) => drop(self.objects.remove(&key)),
        }
    }

    /// Lets a delayed request take effect.
    pub(super) fn arrival(&mut self) {
        if self.limbo.is_empty() {
            return;
        }
        let at = usize::try_from(self.dice.roll(self.limbo.len() as u64)).unwrap();
        let write = self.limbo.swap_remove(at);
        if !self.dice.once_in(4) {
            self.obey(write);
        }
    }

    /// Lets every delayed request take effect or get lost.
    pub(super) fn drain(&mut self) {
        while !self.limbo.is_empty() {
            self.arrival();
        }
    }

    fn listing(&self, prefix: &str) -> Vec<ObjectInfo> {
        let below = self
            .objects
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix));
        below
            .map(|(key, (bytes, modified))| ObjectInfo {
                key: key.clone(),
                len: bytes.len() as u64,
                modified_unix_ms: Some(*modified),
            })
            .collect()
    }
}

/// The store as one actor sees it.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) world: Arc<Mutex<ModelState>>,
    pub(super) actor: usize,
    pub(super) collects: bool,
}

/// A write that was sent. If it is dropped before taking effect, it may still take effect later.
struct SentWrite<'a> {
    model: &'a Model,
    write: Option<Write>,
}

impl Drop for SentWrite<'_> {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            self.model.world.lock().limbo.push(write);
        }
    }
}

impl Model {
    /// Waits for this actor's turn and takes it.
    pub(super) async fn turn(&self) {
        std::future::poll_fn(|context| {
            let mut world = self.world.lock();
            // Of several concurrent requests, any may be first.
            if world.turn == Some(self.actor) && world.dice.once_in(2) {
                world.turn = None;
                world.requests += 1;
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn failure(&self, key: &str) -> StoreError {
        StoreError::Timeout {
            operation: "reach",
            key: key.to_owned(),
            place: "model".to_owned(),
            after: Duration::ZERO,
        }
    }

    async fn read<T>(&self, key: &str, look: impl FnOnce(&mut ModelState) -> Option<T>) -> Result<T, StoreError> {
        self.turn().await;
        let mut world = self.world.lock();
        if world.faults && world.dice.once_in(150) {
            return Err(self.failure(key));
        }
        look(&mut world).ok_or_else(|| StoreError::NotFound {
            key: key.to_owned(),
            place: "model".to_owned(),
        })
    }

    async fn write(&self, key: &str, write: Write) -> Result<(), StoreError> {
        let mut sent = SentWrite {
            model: self,
            write: Some(write),
        };
        self.turn().await;
        let mut world = self.world.lock();
        if world.faults && world.dice.once_in(100) {
            // No response: the request took effect, is delayed, or was lost.
            match world.dice.roll(3) {
                0 => {
                    let write = sent.write.take();
                    write.into_iter().for_each(|w| world.obey(w));
                }
                1 => drop(sent.write.take()),
                _ => {}
            }
            drop(world);
            return Err(self.failure(key));
        }
        let write = sent.write.take();
        write.into_iter().for_each(|w| world.obey(w));
        Ok(())
    }
}

impl Objects for Model {
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.read(prefix, |world| {
            let broken = world.broken;
            if self.collects && prefix == keys::PUBLISHING {
                let manifests = world.listing(keys::SNAPSHOTS);
                world.stale.insert(self.actor, manifests);
                if broken == Some(ProtocolFault::NotesUnread) {
                    return Some(Vec::new());
                }
            }
            if self.collects && prefix == keys::SNAPSHOTS && broken == Some(ProtocolFault::ManifestsFirst) {
                return world.stale.get(&self.actor).cloned();
            }
            if !self.collects && prefix == keys::CONDEMNED && broken == Some(ProtocolFault::NobodyLooks) {
                return Some(Vec::new());
            }
            Some(world.listing(prefix))
        })
        .await
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.read(key, |world| world.objects.get(key).map(|(bytes, _)| bytes.clone()))
            .await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        self.read(key, |world| world.objects.get(key).map(|(bytes, _)| bytes.slice(range)))
            .await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        self.write(key, Write::Put(key.to_owned(), bytes)).await
    }

    async fn delete_once(&self, key: &str) -> Result<(), StoreError> {
        self.write(key, Write::Delete(key.to_owned())).await
    }
}
