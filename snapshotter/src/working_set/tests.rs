//! Encoding of working sets, and their comparison with a snapshot.

use std::sync::Arc;

use proptest::prelude::*;

use super::encoding::{decode, encode};
use super::*;
use crate::codec::{Encoding, RegionSize};
use crate::digest::Digest;
use crate::pagemap::{ChunkRef, PageMap, Payload};
use crate::snapshot::Process;
use crate::testing::noise;

const RECORDING: Recording = Recording { number: 4, restores: 2 };
/// First page of the snapshot's memory.
const FIRST: u64 = 4096;

/// A snapshot's memory: two processes with the same contents.
#[derive(Debug, Clone)]
struct Memory {
    plain: Vec<u8>,
    processes: [Process; 2],
}

impl Memory {
    /// Regions with these numbers of pages, each after a gap. A region consists of zeros only, or has a zero page among
    /// others.
    fn of(cuts: &[(usize, usize, bool)], seed: u64) -> Self {
        let mut plain = Vec::new();
        let mut regions = Vec::new();
        for (number, (gap, pages, is_zero)) in cuts.iter().enumerate() {
            plain.resize(plain.len() + gap * PAGE_BYTES, 0);
            let first = PageIndex(FIRST + (plain.len() / PAGE_BYTES) as u64);
            let mut bytes = vec![0; pages * PAGE_BYTES];
            if !is_zero {
                bytes = noise(pages * PAGE_BYTES, seed.wrapping_add(number as u64));
                if *pages > 2 {
                    bytes[PAGE_BYTES..2 * PAGE_BYTES].fill(0);
                }
            }
            let len = u32::try_from(bytes.len()).unwrap();
            let hash = Digest::of(&bytes);
            let payload = Payload {
                hash,
                encoding: Encoding::Raw,
                chunk: ChunkRef { id: hash, len },
                offset: 0,
                len,
            };
            regions.push(Region {
                first,
                pages: u16::try_from(*pages).unwrap(),
                payload: (!is_zero).then_some(payload),
                base: None,
            });
            plain.extend_from_slice(&bytes);
        }
        let page_map = Arc::new(PageMap::new(RegionSize::MAX, regions).unwrap());
        let process = |pid| Process {
            pid,
            page_map: Arc::clone(&page_map),
        };
        Self {
            plain,
            processes: [process(7), process(9)],
        }
    }

    fn bytes(&self, page: PageIndex) -> &[u8] {
        let at = usize::try_from(page.0 - FIRST).unwrap() * PAGE_BYTES;
        self.plain.get(at..at + PAGE_BYTES).unwrap_or(&ZERO_PAGE)
    }

    fn page(&self, pid: u32, number: u64) -> WorkingSetPage {
        let page = PageIndex(FIRST + number);
        let bytes = self.bytes(page);
        WorkingSetPage {
            pid,
            page,
            content: (!codec::is_zero(bytes)).then(|| Bytes::copy_from_slice(bytes)),
            written: number.is_multiple_of(3),
        }
    }

    fn siblings(&self, pages: &[WorkingSetPage]) -> Vec<Node> {
        let mut trees = Trees::new();
        for page in pages {
            let region = self.processes[0].page_map.lookup(page.page);
            let Some(region) = region.filter(|region| region.payload.is_some()) else {
                continue;
            };
            let at = usize::try_from(region.first.0 - FIRST).unwrap() * PAGE_BYTES;
            let tree = trees.entry((page.pid, region.first));
            let tree = tree.or_insert_with(|| Tree::of(&self.plain[at..at + region.plain_len()]));
            tree.known.insert(number_of(region, page.page));
        }
        siblings(&trees)
    }
}

fn id() -> SnapshotId {
    "s-0123".parse().unwrap()
}

fn pack(pages: &[WorkingSetPage]) -> WorkingSetPack {
    WorkingSetPack {
        recording: RECORDING,
        pages: pages.to_vec(),
    }
}

/// A snapshot's memory, and some of its pages in any order.
fn memory_and_pages() -> impl Strategy<Value = (Memory, Vec<WorkingSetPage>)> {
    let cut = (0..3_usize, 1..20_usize, prop::bool::weighted(0.2));
    let cuts = (proptest::collection::vec(cut, 1..6), any::<u64>());
    cuts.prop_flat_map(|(cuts, seed)| {
        let memory = Memory::of(&cuts, seed);
        let count = (memory.plain.len() / PAGE_BYTES) as u64 + 2;
        let all: Vec<_> = [7, 9].iter().flat_map(|pid| (0..count).map(|n| (*pid, n))).collect();
        let some = proptest::sample::subsequence(all, 0..=40.min(2 * count as usize)).prop_shuffle();
        some.prop_map(move |some| {
            let pages = some.iter().map(|(pid, number)| memory.page(*pid, *number)).collect();
            (memory.clone(), pages)
        })
    })
}

/// Reads a set back whose writer has made all its digests right.
fn read_back(memory: &Memory, pages: &[WorkingSetPage], siblings: &[Node]) -> Result<WorkingSetPack, PackError> {
    let set = decode(&id(), &encode(&id(), &pack(pages), siblings)).unwrap();
    set.check(&memory.processes)
}

#[test]
fn pages_that_are_not_the_snapshots_are_refused_under_a_right_digest() {
    let memory = Memory::of(&[(0, 16, false), (2, 3, true), (0, 1, false)], 1);
    let honest = [memory.page(7, 5), memory.page(7, 1), memory.page(9, 21)];
    let siblings = memory.siblings(&honest);
    let read = |pages: &[WorkingSetPage], siblings: &[Node]| read_back(&memory, pages, siblings);
    assert_eq!(read(&honest, &siblings).unwrap(), pack(&honest));

    let forged = |at: usize, content: Option<Vec<u8>>| {
        let mut pages = honest.clone();
        pages[at].content = content.map(Bytes::from);
        read(&pages, &siblings)
    };
    let mut one_bit = honest[0].bytes().to_vec();
    one_bit[4095] ^= 1;
    for (at, content) in [
        (0, Some(one_bit)),
        (0, None),
        (0, Some(memory.page(7, 6).bytes().to_vec())),
        (1, Some(vec![1; PAGE_BYTES])),
        (2, Some(vec![1; PAGE_BYTES])),
    ] {
        let refused = forged(at, content);
        assert!(matches!(refused, Err(PackError::Forged { .. })), "{refused:?}");
    }
    for number in [16, 18, 1000] {
        let mut page = memory.page(7, number);
        page.content = Some(Bytes::from(vec![1; PAGE_BYTES]));
        let refused = read(&[page], &[]);
        assert!(matches!(refused, Err(PackError::NotZero { pid: 7, .. })), "{refused:?}");
    }
    let mut foreign = honest.clone();
    foreign[2].pid = 8;
    assert!(matches!(read(&foreign, &siblings), Err(PackError::Process(8))));
    let twice = [honest[1].clone(), honest[1].clone()];
    let refused = read(&twice, &memory.siblings(&twice));
    assert!(matches!(refused, Err(PackError::Malformed)), "{refused:?}");
    let more = [&siblings[..], &[[0; 32]]].concat();
    assert!(matches!(read(&honest, &more), Err(PackError::Malformed)));
    let fewer = &siblings[..siblings.len() - 1];
    assert!(matches!(read(&honest, fewer), Err(PackError::Forged { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_give_back_the_pages_in_their_order((memory, pages) in memory_and_pages()) {
        let siblings = memory.siblings(&pages);
        prop_assert_eq!(read_back(&memory, &pages, &siblings).unwrap(), pack(&pages));
        let packed = encode(&id(), &pack(&pages), &siblings);
        prop_assert!(matches!(decode(&SnapshotId::generate(), &packed), Err(PackError::OtherSnapshot)));
    }

    #[test]
    fn no_flipped_bit_changes_a_page_and_every_cut_is_an_error(
        (memory, pages) in memory_and_pages(), at: prop::sample::Index, bit in 0..8_u32, cut: prop::sample::Index,
    ) {
        let mut packed = encode(&id(), &pack(&pages), &memory.siblings(&pages));
        prop_assert!(decode(&id(), &packed[..cut.index(packed.len())]).is_err());
        let at = at.index(packed.len());
        packed[at] ^= 1 << bit;
        // An LZ4 block may encode the same bytes in two ways.
        if let Ok(Ok(checked)) = decode(&id(), &packed).map(|set| set.check(&memory.processes)) {
            prop_assert_eq!(checked, pack(&pages));
        }
    }

    #[test]
    fn whatever_is_in_a_body_with_a_right_digest_only_the_snapshots_pages_are_taken(
        (memory, pages) in memory_and_pages(), at: prop::sample::Index, to: u8,
    ) {
        let mut packed = encode(&id(), &pack(&pages), &memory.siblings(&pages));
        let at = 80 + at.index(packed.len() - 80);
        packed[at] = to;
        if let Err(PackError::Digest { found, .. }) = decode(&id(), &packed) {
            packed[16..48].copy_from_slice(&found.0);
        }
        if let Ok(Ok(checked)) = decode(&id(), &packed).map(|set| set.check(&memory.processes)) {
            prop_assert_eq!(checked.pages.len(), pages.len());
            for page in &checked.pages {
                let own = if page.page.0 < FIRST { &ZERO_PAGE } else { memory.bytes(page.page) };
                prop_assert_eq!(page.bytes(), own);
            }
        }
    }
}

#[tokio::test]
async fn an_object_larger_than_any_working_set_is_not_taken_into_memory() {
    let root = tempfile::tempdir().unwrap();
    let store = rekindle_store::Directory::open(root.path()).unwrap();
    let key = keys::working_set(&id());
    store.put(&key, Bytes::from_static(b"RKWS")).await.unwrap();
    // It needs no room on the disk.
    let objects = std::fs::read_dir(root.path().join("objects")).unwrap();
    let object = objects.map(|entry| entry.unwrap().path()).next().unwrap();
    let file = std::fs::File::options().write(true).open(object).unwrap();
    file.set_len(encoding::BYTES_MAX + 1).unwrap();
    let refused = load_working_set(&store, &id()).await.unwrap_err();
    let is_too_large = |error: &WorkingSetError| match error {
        WorkingSetError::Pack { cause, .. } => matches!(cause, PackError::TooLarge(_)),
        _ => false,
    };
    assert!(is_too_large(&refused), "{refused:?}");
}
