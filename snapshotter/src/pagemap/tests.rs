//! Page maps against a naive model, and bytes that are no page maps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn payload(pages: u16) -> impl Strategy<Value = Option<Payload>> {
    let plain = u32::from(pages) * 4096;
    let lengths = prop_oneof![
        Just((Encoding::Raw, plain)),
        (1..plain * 7 / 8).prop_map(|len| (Encoding::Lz4, len)),
    ];
    let stored =
        (lengths, 0..5_u8, 0..1_000_000_u32, any::<[u8; 32]>()).prop_map(|((encoding, len), chunk, offset, hash)| {
            Payload {
                hash: Digest(hash),
                encoding,
                chunk: ChunkRef {
                    id: Digest([chunk; 32]),
                    len: 6 << 20,
                },
                offset,
                len,
            }
        });
    prop_oneof![1 => Just(None), 3 => stored.prop_map(Some)]
}

/// One region in each of some windows of the region size.
fn page_map() -> impl Strategy<Value = PageMap> {
    prop::sample::select(vec![1_u16, 16, 64, 1024]).prop_flat_map(|size| {
        let region = (0..size, 1..=size).prop_flat_map(move |(skip, pages)| {
            let pages = pages.min(size - skip);
            payload(pages).prop_map(move |payload| (skip, pages, payload))
        });
        let windows = proptest::collection::btree_map(0..6400 / u64::from(size), region, 0..60);
        windows.prop_map(move |windows: BTreeMap<_, _>| {
            let regions = windows.into_iter().map(|(window, (skip, pages, payload))| Region {
                first: PageIndex(window * u64::from(size) + u64::from(skip)),
                pages,
                payload,
            });
            PageMap::new(RegionSize::from_pages(size).unwrap(), regions.collect()).unwrap()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn bytes_give_back_the_page_map(map in page_map()) {
        let bytes = map.encode();
        prop_assert_eq!(PageMap::parse(&bytes).unwrap(), map);
    }

    #[test]
    fn lookup_agrees_with_a_table_of_every_page(map in page_map()) {
        let mut table = BTreeMap::new();
        for region in map.regions() {
            for page in region.first.0..region.end().0 {
                table.insert(page, *region);
            }
        }
        prop_assert_eq!(map.page_count(), table.len() as u64);
        for page in 0..6500 {
            prop_assert_eq!(map.lookup(PageIndex(page)), table.get(&page));
        }
    }

    #[test]
    fn any_bytes_parse_or_fail_without_a_panic(
        map in page_map(), at: prop::sample::Index, to: u8, cut: Option<prop::sample::Index>,
    ) {
        let mut bytes = map.encode();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(parsed) = PageMap::parse(&bytes) {
            prop_assert!(PageMap::new(parsed.region_size(), parsed.regions().to_vec()).is_ok());
        }
    }
}

const SIZE: RegionSize = RegionSize::DEFAULT;

fn zero(first: u64, pages: u16) -> Region {
    Region {
        first: PageIndex(first),
        pages,
        payload: None,
    }
}

fn raw(first: u64, pages: u16) -> Region {
    let chunk = ChunkRef {
        id: Digest([1; 32]),
        len: CHUNK_BYTES_MAX,
    };
    Region {
        payload: Some(Payload {
            hash: Digest([0; 32]),
            encoding: Encoding::Raw,
            chunk,
            offset: 0,
            len: u32::from(pages) * 4096,
        }),
        ..zero(first, pages)
    }
}

#[test]
fn regions_that_overlap_or_cross_a_boundary_or_are_empty_are_refused() {
    for regions in [
        vec![zero(0, 0)],
        vec![zero(0, 1025)],
        vec![raw(0, 17)],
        vec![raw(15, 2)],
        vec![zero(0, 4), zero(3, 1)],
        vec![zero(32, 1), zero(16, 1)],
        vec![zero(u64::MAX, 1)],
    ] {
        assert!(PageMap::new(SIZE, regions.clone()).is_err(), "{regions:?}");
    }
    assert!(PageMap::new(SIZE, vec![zero(15, 1024), raw(1040, 16)]).is_ok());
    assert!(PageMap::new(RegionSize::MAX, vec![raw(15, 2), raw(1024, 1024)]).is_ok());
    assert!(PageMap::new(RegionSize::PAGE, vec![raw(15, 2)]).is_err());
}

#[test]
fn a_payload_outside_its_chunk_is_refused() {
    let stored = |offset, len, encoding| Region {
        first: PageIndex(0),
        pages: 1,
        payload: Some(Payload {
            hash: Digest([0; 32]),
            encoding,
            chunk: ChunkRef {
                id: Digest([1; 32]),
                len: 5000,
            },
            offset,
            len,
        }),
    };
    assert!(PageMap::new(SIZE, vec![stored(904, 4096, Encoding::Raw)]).is_ok());
    let mut huge = stored(904, 4096, Encoding::Raw);
    huge.payload.as_mut().unwrap().chunk.len = CHUNK_BYTES_MAX + 1;
    assert!(matches!(PageMap::new(SIZE, vec![huge]), Err(PageMapError::Payload(_))));
    for bad in [
        stored(905, 4096, Encoding::Raw),
        stored(u32::MAX, 4096, Encoding::Raw),
        stored(0, 4095, Encoding::Raw),
        stored(0, 0, Encoding::Lz4),
        stored(0, 3584, Encoding::Lz4),
    ] {
        assert!(
            matches!(PageMap::new(SIZE, vec![bad]), Err(PageMapError::Payload(_))),
            "{bad:?}"
        );
    }
}

#[test]
fn another_version_or_region_size_is_named() {
    let bytes = PageMap::new(SIZE, vec![raw(16, 16)]).unwrap().encode();
    let with = |version: u8, region_pages: u16| {
        let mut bytes = bytes.clone();
        bytes[4] = version;
        bytes[6..8].copy_from_slice(&region_pages.to_le_bytes());
        PageMap::parse(&bytes)
    };
    assert_eq!(with(2, 16), PageMap::parse(&bytes));
    for (version, region_pages) in [(1, 16), (3, 16), (0, 16), (2, 0), (2, 24), (2, 2048)] {
        let version_error = ParseError::Version {
            version: version.into(),
            region_pages,
        };
        assert_eq!(with(version, region_pages), Err(version_error));
    }
}
