//! Concurrent publishes, deletions and collections, cut off at any request, in thousands of random orders, on a model
//! store.
//!
//! After every request, each manifest in the store has all its chunks, and each live version has its snapshot and
//! layer. At the end, when all is quiet and the notes of the dead have expired, nothing unneeded is left. Each known
//! way to break the protocol must be seen to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_store::StoreError;
use rekindle_wire::internal::LayerRef;
use rekindle_wire::{FunctionId, VersionNumber};

use super::model::{Dice, Model, ModelState, ProtocolFault};
use super::*;
use crate::bundle::BundleBuilder;
use crate::codec::Encoding;
use crate::digest::Digest;
use crate::manifest::{Manifest, Origin, ProcessEntry, Totals};
use crate::pagemap::{Base, ChunkRef, PageIndex, PageMap, Payload, Region};

/// Number of distinct contents: few, so that snapshots share them and deleted ones return.
const CONTENTS: u64 = 5;

/// The scheduler's knowledge of a version.
#[derive(Debug, Clone, PartialEq)]
enum Version {
    UnderWay,
    Live { snapshot: SnapshotId, layer: Digest },
    Failed,
}

#[derive(Debug)]
struct HistoryFailure {
    /// Whether something needed is gone. Otherwise something unneeded is left.
    lost: bool,
    what: String,
}

impl HistoryFailure {
    fn lost(what: String) -> Self {
        Self { lost: true, what }
    }

    fn left(what: String) -> Self {
        Self { lost: false, what }
    }
}

type Versions = Arc<Mutex<BTreeMap<u32, Version>>>;
/// For each manifest ever put, the objects that it refers to and consists of.
type Truth = Arc<Mutex<BTreeMap<SnapshotId, BTreeSet<String>>>>;

fn function() -> FunctionId {
    "f".parse().unwrap()
}

fn content(n: u64) -> Bytes {
    Bytes::from(format!("content {n} ").repeat(20))
}

/// The scheduler's answer, as a separate request.
struct SchedulerRule {
    model: Model,
    versions: Versions,
    /// What was known when the collection began, for [`ProtocolFault::RuleFirst`].
    before: BTreeMap<u32, Version>,
}

impl Rule for SchedulerRule {
    fn wanted<'a>(
        &'a self,
        found: &'a [FoundSnapshot],
    ) -> BoxFuture<'a, Result<RequiredObjects, Box<dyn Error + Send + Sync>>> {
        Box::pin(async move {
            self.model.turn().await;
            let versions = match self.model.world.lock().broken {
                Some(ProtocolFault::RuleFirst) => self.before.clone(),
                _ => self.versions.lock().clone(),
            };
            let mut wanted = RequiredObjects::default();
            for (number, version) in &versions {
                match version {
                    Version::UnderWay => {
                        let owner = Owner::deploy(&function(), VersionNumber(*number));
                        wanted.deploys.insert(owner.as_str().to_owned());
                        let of = found
                            .iter()
                            .filter(|f| f.of == Some(SnapshotOwner::Version(function(), VersionNumber(*number))));
                        wanted.snapshots.extend(of.map(|f| f.id.clone()));
                    }
                    Version::Live { snapshot, layer } => {
                        wanted.snapshots.insert(snapshot.clone());
                        wanted.layers.insert(*layer);
                    }
                    Version::Failed => {}
                }
            }
            Ok(wanted)
        })
    }
}

fn encoded(id: &SnapshotId, version: u32, layer: Digest, chunks: &[ChunkRef]) -> (Bytes, Bytes) {
    let payload = |chunk: ChunkRef| Payload {
        hash: chunk.id,
        encoding: Encoding::Lz4,
        chunk,
        offset: 0,
        len: 10,
    };
    // Every second chunk is needed only as the base of a difference.
    let regions = chunks.chunks(2).zip(0..).map(|(chunks, n)| Region {
        first: PageIndex(n * 16),
        pages: 1,
        payload: Some(payload(chunks[0])),
        base: chunks.get(1).map(|base| Base {
            first: PageIndex(n * 16),
            pages: 1,
            payload: payload(*base),
        }),
    });
    let map = PageMap::new(crate::codec::RegionSize::DEFAULT, regions.collect()).unwrap();
    let mut bundle = BundleBuilder::default();
    let page_map = bundle.add(&map.encode()).unwrap();
    let pagemap = bundle.add(b"pagemap").unwrap();
    let bundle = Bytes::from(bundle.finish());
    let layer = LayerRef {
        digest: layer.to_string(),
        tar_bytes: 1,
    };
    let manifest = Manifest {
        id: id.clone(),
        origin: Origin::Function {
            function: function(),
            version: VersionNumber(version),
            rootfs: layer.clone(),
            layer,
        },
        base: None,
        sealed_by: None,
        created_unix_s: 0,
        arch: "x86_64".to_owned(),
        kernel: "6".to_owned(),
        criu: "4".to_owned(),
        page_bytes: 4096,
        region_bytes: 65536,
        frozen_us: 0,
        bundle_bytes: bundle.len() as u64,
        processes: vec![ProcessEntry {
            pid: 7,
            page_map,
            pagemap,
        }],
        images: Vec::new(),
        extra: Vec::new(),
        totals: Totals::default(),
        working_set_key: keys::working_set(id),
    };
    (bundle, manifest.encode().unwrap().into())
}

/// One deploy: a layer, then a snapshot, as the worker and `capture::publish` make them, then the scheduler's record of
/// it.
struct Deploy {
    model: Model,
    versions: Versions,
    truth: Truth,
    number: u32,
    dice: Dice,
}

impl Deploy {
    fn broken(&self, how: ProtocolFault) -> bool {
        self.model.world.lock().broken == Some(how)
    }

    async fn run(mut self) -> Result<(), PublicationError> {
        let owner = Owner::deploy(&function(), VersionNumber(self.number));
        let deploy = Publication::new(self.model.clone(), owner.clone());
        let result = self.prepare(&deploy).await;
        let outcome = match &result {
            Ok((snapshot, layer)) => Version::Live {
                snapshot: snapshot.clone(),
                layer: *layer,
            },
            Err(_) => Version::Failed,
        };
        {
            let mut versions = self.versions.lock();
            // The deploy may have been abandoned, or the function deleted.
            match versions.get_mut(&self.number) {
                Some(version) if *version == Version::UnderWay => *version = outcome,
                _ => return Ok(()),
            }
        }
        forget(&self.model, &owner).await?;
        result.map(drop)
    }

    async fn prepare(&mut self, deploy: &Publication<Model>) -> Result<(SnapshotId, Digest), PublicationError> {
        let mut tar = content(self.dice.roll(CONTENTS)).to_vec();
        while !deploy.protect_one(keys::layer(&Digest::of(&tar))).await? {
            tar.push(0);
        }
        let layer = Digest::of(&tar);
        match self.model.get(&keys::layer(&layer)).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => self.model.put(&keys::layer(&layer), tar.into()).await?,
            Err(error) => return Err(error.into()),
        }
        let id = SnapshotId::generate();
        let publication = Publication::new(self.model.clone(), Owner::snapshot(&id));
        let mut settled = true;
        let published = self.publish(&publication, &id, layer, &mut settled).await;
        if settled && !self.broken(ProtocolFault::NotesTakenBack) {
            publication.finish().await;
        }
        published.map(|()| (id, layer))
    }

    async fn publish(
        &mut self,
        publication: &Publication<Model>,
        id: &SnapshotId,
        layer: Digest,
        settled: &mut bool,
    ) -> Result<(), PublicationError> {
        let wanted: BTreeSet<u64> = (0..=self.dice.roll(3)).map(|_| self.dice.roll(CONTENTS)).collect();
        let mut chunks = Vec::new();
        let mut new = Vec::new();
        // What an index remembers: it is protected first and looked up after.
        let names: Vec<String> = wanted.iter().map(|n| keys::chunk(&Digest::of(&content(*n)))).collect();
        let mut there = BTreeSet::new();
        if self.broken(ProtocolFault::LookedBefore) {
            for name in &names {
                there.extend(self.is_there(name).await?.then(|| name.clone()));
            }
        }
        let usable = publication.protect(&names).await?;
        for (n, name) in wanted.iter().zip(&names) {
            let present = match self.broken(ProtocolFault::LookedBefore) {
                true => there.contains(name),
                false => usable.contains(name) && self.is_there(name).await?,
            };
            if usable.contains(name) && present {
                chunks.push(reference(&content(*n)));
            } else {
                new.push(*n);
            }
        }
        let uploads = new.into_iter().map(async |n| {
            let mut bytes = content(n).to_vec();
            while !publication.protect_one(keys::chunk(&Digest::of(&bytes))).await? {
                bytes.push(0);
            }
            let chunk = reference(&bytes);
            self.model.put(&keys::chunk(&chunk.id), bytes.into()).await?;
            Ok::<_, PublicationError>(chunk)
        });
        chunks.extend(futures::future::try_join_all(uploads).await?);
        let (bundle, manifest) = encoded(id, self.number, layer, &chunks);
        self.truth
            .lock()
            .insert(id.clone(), chunks.iter().map(|c| keys::chunk(&c.id)).collect());
        self.model.put(&keys::bundle(id), bundle).await?;
        publication.confirm().await?;
        if self.broken(ProtocolFault::NotesTakenBack) {
            publication.clone().finish().await;
        }
        *settled = false;
        let put = self.model.put(&keys::manifest(id), manifest).await;
        *settled = put.is_ok();
        if let Err(error) = put {
            for key in [keys::manifest(id), keys::bundle(id)] {
                self.model.delete_once(&key).await?;
            }
            return Err(error.into());
        }
        Ok(())
    }

    async fn is_there(&self, name: &str) -> Result<bool, StoreError> {
        match self.model.get(name).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn reference(bytes: &[u8]) -> ChunkRef {
    ChunkRef {
        id: Digest::of(bytes),
        len: u32::try_from(bytes.len()).unwrap(),
    }
}

/// Deletes a deleted function's snapshot, as the scheduler does at once.
async fn delete(model: Model, id: SnapshotId) -> Result<(), StoreError> {
    model.delete_once(&keys::manifest(&id)).await?;
    for object in model.list(&keys::snapshot_prefix(&id)).await? {
        model.delete_once(&object.key).await?;
    }
    Ok(())
}

struct Actor {
    number: usize,
    version: Option<u32>,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

struct History {
    world: Arc<Mutex<ModelState>>,
    versions: Versions,
    truth: Truth,
    dice: Dice,
    actors: Vec<Actor>,
    begun: usize,
    deploys: u32,
    removed: u64,
}

impl History {
    fn new(seed: u64, broken: Option<ProtocolFault>) -> Self {
        Self {
            world: Arc::new(Mutex::new(ModelState::new(seed, broken))),
            versions: Arc::default(),
            truth: Arc::default(),
            dice: Dice(seed ^ 0x5EED),
            actors: Vec::new(),
            begun: 0,
            deploys: 0,
            removed: 0,
        }
    }

    fn model(&mut self, collects: bool) -> Model {
        self.begun += 1;
        Model {
            world: self.world.clone(),
            actor: self.begun,
            collects,
        }
    }

    fn start(&mut self, version: Option<u32>, work: impl Future<Output = ()> + Send + 'static) {
        self.actors.push(Actor {
            number: self.begun,
            version,
            work: Box::pin(work),
        });
    }

    fn deploy(&mut self) {
        self.deploys += 1;
        let number = self.deploys;
        self.versions.lock().insert(number, Version::UnderWay);
        let deploy = Deploy {
            model: self.model(false),
            versions: self.versions.clone(),
            truth: self.truth.clone(),
            number,
            dice: Dice(self.dice.roll(u64::MAX)),
        };
        self.start(Some(number), async move { drop(deploy.run().await) });
    }

    fn collect(&mut self) -> Arc<Mutex<Option<Collected>>> {
        let model = self.model(true);
        let rule = SchedulerRule {
            model: model.clone(),
            versions: self.versions.clone(),
            before: self.versions.lock().clone(),
        };
        let done: Arc<Mutex<Option<Collected>>> = Arc::default();
        let told = done.clone();
        self.start(None, async move {
            let collected = collect(&model, &mut NeedsCache::default(), &rule, false).await;
            *told.lock() = collected.ok();
        });
        done
    }

    fn forget_a_version(&mut self) {
        let numbers: Vec<u32> = {
            let versions = self.versions.lock();
            let final_ones = versions.iter().filter(|(_, v)| **v != Version::UnderWay);
            final_ones.map(|(n, _)| *n).collect()
        };
        if numbers.is_empty() {
            return;
        }
        let number = *self.dice.pick(&numbers);
        let version = self.versions.lock().remove(&number);
        // At once, or at some later collection.
        if let Some(Version::Live { snapshot, .. }) = version
            && self.dice.once_in(2)
        {
            let model = self.model(false);
            self.start(None, async move { drop(delete(model, snapshot).await) });
        }
    }

    /// An actor dies between two requests, or while one is in flight.
    fn crash(&mut self) {
        if self.actors.is_empty() {
            return;
        }
        let at = usize::try_from(self.dice.roll(self.actors.len() as u64)).unwrap();
        let dead = self.actors.swap_remove(at);
        if let Some(number) = dead.version {
            // The scheduler has noticed. It may have removed the remaining notes, or died before that.
            let mut versions = self.versions.lock();
            if let Some(version) = versions.get_mut(&number).filter(|v| **v == Version::UnderWay) {
                *version = Version::Failed;
            }
        }
    }

    /// Lets one request of a random actor take effect. Returns whether there was one.
    fn step(&mut self) -> bool {
        if self.actors.is_empty() {
            return false;
        }
        let at = usize::try_from(self.dice.roll(self.actors.len() as u64)).unwrap();
        self.world.lock().turn = Some(self.actors[at].number);
        while self.world.lock().turn.is_some() {
            let mut context = Context::from_waker(Waker::noop());
            if self.actors[at].work.as_mut().poll(&mut context).is_ready() {
                drop(self.actors.swap_remove(at));
                break;
            }
        }
        self.world.lock().turn = None;
        true
    }

    /// Invariants that hold at every moment.
    fn check(&self) -> Result<(), HistoryFailure> {
        let world = self.world.lock();
        for (id, chunks) in self.truth.lock().iter() {
            if !world.objects.contains_key(&keys::manifest(id)) {
                continue;
            }
            if let Some(gone) = chunks.iter().find(|c| !world.objects.contains_key(*c)) {
                return Err(HistoryFailure::lost(format!(
                    "the manifest of {id} is there, its {gone} is not"
                )));
            }
        }
        for (number, version) in self.versions.lock().iter() {
            if let Version::Live { snapshot, layer } = version {
                for key in [keys::manifest(snapshot), keys::bundle(snapshot), keys::layer(layer)] {
                    if !world.objects.contains_key(&key) {
                        return Err(HistoryFailure::lost(format!(
                            "version {number} is live, its {key} is gone"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// When all is quiet, exactly what is needed is left.
    fn check_end(&self) -> Result<(), HistoryFailure> {
        let mut needed = BTreeSet::new();
        for version in self.versions.lock().values() {
            if let Version::Live { snapshot, layer } = version {
                needed.extend([keys::manifest(snapshot), keys::bundle(snapshot), keys::layer(layer)]);
                needed.extend(self.truth.lock()[snapshot].iter().cloned());
            }
        }
        let there: BTreeSet<String> = self.world.lock().objects.keys().cloned().collect();
        let over: Vec<_> = there.difference(&needed).collect();
        if over.is_empty() {
            Ok(())
        } else {
            Err(HistoryFailure::left(format!("nobody needs {over:?}")))
        }
    }

    fn run(&mut self) -> Result<(), HistoryFailure> {
        let events = 20 + self.dice.roll(60);
        for _ in 0..events {
            match self.dice.roll(12) {
                0..4 => self.deploy(),
                4..7 => drop(self.collect()),
                7..9 => self.forget_a_version(),
                9 => self.crash(),
                10 => self.world.lock().arrival(),
                _ => {}
            }
            for _ in 0..self.dice.roll(40) {
                if !self.step() {
                    break;
                }
                self.check()?;
            }
        }
        while self.step() {
            self.check()?;
            if self.dice.once_in(50) {
                self.world.lock().arrival();
                self.check()?;
            }
            if self.dice.once_in(200) {
                self.crash();
            }
        }
        self.world.lock().faults = false;
        self.world.lock().drain();
        self.check()?;
        // The first one after a day removes what the dead left behind. The second removes what those remains protected.
        let life = i64::try_from(LIFE.as_millis()).unwrap();
        self.world.lock().now_ms += life + 1;
        for _ in 0..3 {
            let done = self.collect();
            while self.step() {
                self.check()?;
            }
            let collected = done
                .lock()
                .take()
                .ok_or_else(|| HistoryFailure::left("a collection failed without a fault".to_owned()))?;
            self.removed += collected.total().objects;
        }
        self.check_end()
    }
}

fn seeds() -> u64 {
    std::env::var("REKINDLE_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1_500)
}

#[test]
fn no_manifest_ever_lacks_a_chunk_and_nothing_unneeded_stays() {
    let (mut requests, mut removed) = (0, 0);
    for seed in 0..seeds() {
        let mut history = History::new(seed, None);
        history.run().unwrap_or_else(|e| panic!("seed {seed}: {}", e.what));
        requests += history.world.lock().requests;
        removed += history.removed;
    }
    println!(
        "{} histories, {requests} requests, {removed} objects removed in the end",
        seeds()
    );
    assert!(
        removed > seeds() / 2,
        "the histories leave next to nothing to collect: {removed}"
    );
}

#[test]
fn every_known_way_to_break_the_protocol_is_seen_to_break_it() {
    for broken in [
        ProtocolFault::NobodyLooks,
        ProtocolFault::NotesUnread,
        ProtocolFault::ManifestsFirst,
        ProtocolFault::NotesTakenBack,
        ProtocolFault::LookedBefore,
        ProtocolFault::RuleFirst,
    ] {
        let lost = |seed| match History::new(seed, Some(broken)).run() {
            Err(wrong) if wrong.lost => Some((seed, wrong.what)),
            _ => None,
        };
        let seen = (0..20_000).find_map(lost);
        let (seed, what) = seen.unwrap_or_else(|| panic!("{broken:?} breaks nothing"));
        println!("{broken:?}: seed {seed}: {what}");
    }
}
