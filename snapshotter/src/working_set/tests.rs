//! Working sets as bytes.

use proptest::prelude::*;

use super::encoding::{decode, encode};
use super::*;
use crate::digest::Digest;
use crate::pagemap::PAGE_INDEX_END;

fn pages() -> impl Strategy<Value = Vec<WorkingSetPage>> {
    let content = prop_oneof![
        Just(None),
        any::<u8>().prop_map(|byte| Some(Bytes::from(vec![byte; PAGE_BYTES]))),
        any::<u64>().prop_map(|seed| {
            let mut bytes = vec![0; PAGE_BYTES];
            blake3::Hasher::new()
                .update(&seed.to_le_bytes())
                .finalize_xof()
                .fill(&mut bytes);
            Some(Bytes::from(bytes))
        }),
    ];
    let page = (any::<u32>(), 0..PAGE_INDEX_END, content, any::<bool>());
    let page = page.prop_map(|(pid, page, content, written)| WorkingSetPage {
        pid,
        page: PageIndex(page),
        content,
        written,
    });
    proptest::collection::vec(page, 0..60)
}

const RECORDING: Recording = Recording { number: 4, restores: 2 };

#[test]
fn sets_of_all_versions_are_read_and_older_ones_are_whole() {
    let listed = |packed: &[u8]| {
        let pack = decode(&"s-0123".parse().unwrap(), packed).unwrap();
        let pages = pack.pages.iter().map(|p| (p.page.0, p.content.is_some(), p.written));
        (pack.recording, pages.collect::<Vec<_>>())
    };
    let pages = |written: bool| vec![(16, true, written), (17, false, false), (20, true, written)];
    let whole = Recording {
        number: 0,
        restores: RESTORES,
    };
    let first = listed(include_bytes!("../../../fuzz/seeds/working_set/version-1"));
    assert_eq!(first, (whole, pages(false)), "none says that it was written");
    let second = listed(include_bytes!("../../../fuzz/seeds/working_set/version-2"));
    assert_eq!(second, (whole, pages(true)));
    let third = listed(include_bytes!("../../../fuzz/seeds/working_set/small"));
    assert_eq!(third, (RECORDING, pages(true)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_give_back_the_pages_in_their_order(pages in pages()) {
        let id = SnapshotId::generate();
        let packed = encode(&id, RECORDING, &pages);
        let pack = WorkingSetPack { recording: RECORDING, pages };
        prop_assert_eq!(decode(&id, &packed).unwrap(), pack);
        prop_assert!(matches!(decode(&SnapshotId::generate(), &packed), Err(PackError::OtherSnapshot)));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_an_error(
        pages in pages(), at: prop::sample::Index, bit in 0..8_u32, cut: prop::sample::Index,
    ) {
        let id = SnapshotId::generate();
        let mut packed = encode(&id, RECORDING, &pages);
        prop_assert!(decode(&id, &packed[..cut.index(packed.len())]).is_err());
        let at = at.index(packed.len());
        packed[at] ^= 1 << bit;
        prop_assert!(decode(&id, &packed).is_err());
    }

    #[test]
    fn a_body_with_a_right_digest_is_still_checked(
        pages in pages(), at: prop::sample::Index, to: u8,
    ) {
        let id = SnapshotId::generate();
        let mut packed = encode(&id, RECORDING, &pages);
        let at = 80 + at.index((packed.len() - 80).max(1));
        if at < packed.len() {
            packed[at] = to;
        }
        let digest = Digest::of(&packed[48..]);
        packed[16..48].copy_from_slice(&digest.0);
        // Whatever it gives, it must not panic, and must give as many pages as the header says.
        if let Ok(decoded) = decode(&id, &packed) {
            prop_assert_eq!(decoded.pages.len(), pages.len());
        }
    }
}
