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

#[test]
fn a_set_of_the_first_version_says_of_no_page_that_it_was_written() {
    let packed = include_bytes!("../../../fuzz/seeds/working_set/version-1");
    let pages = decode(&"s-0123".parse().unwrap(), packed).unwrap();
    let listed: Vec<_> = pages
        .iter()
        .map(|p| (p.page.0, p.content.is_some(), p.written))
        .collect();
    assert_eq!(listed, [(16, true, false), (17, false, false), (20, true, false)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_give_back_the_pages_in_their_order(pages in pages()) {
        let id = SnapshotId::generate();
        let packed = encode(&id, &pages);
        prop_assert_eq!(decode(&id, &packed).unwrap(), pages);
        prop_assert!(matches!(decode(&SnapshotId::generate(), &packed), Err(PackError::OtherSnapshot)));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_an_error(
        pages in pages(), at: prop::sample::Index, bit in 0..8_u32, cut: prop::sample::Index,
    ) {
        let id = SnapshotId::generate();
        let mut packed = encode(&id, &pages);
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
        let mut packed = encode(&id, &pages);
        let at = 80 + at.index((packed.len() - 80).max(1));
        if at < packed.len() {
            packed[at] = to;
        }
        let digest = Digest::of(&packed[48..]);
        packed[16..48].copy_from_slice(&digest.0);
        // Whatever it gives, it must not panic, and must give as many pages as the header says.
        if let Ok(decoded) = decode(&id, &packed) {
            prop_assert_eq!(decoded.len(), pages.len());
        }
    }
}
