//! Page maps against a naive model, and bytes that are not page maps.

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

/// A possible base of a region with these pages.
fn base(region: Region) -> impl Strategy<Value = Option<Base>> {
    let pages = (1..=64_u16, 0..64_u64);
    let base = pages.prop_flat_map(move |(pages, before)| {
        let first = region.first.0.saturating_sub(before.min(u64::from(pages) - 1));
        payload(pages).prop_map(move |payload| {
            Some(Base {
                first: PageIndex(first),
                pages,
                payload: payload?,
            })
        })
    });
    prop_oneof![3 => Just(None), 1 => base]
}

/// The same page map, with some regions stored as differences.
fn with_bases() -> impl Strategy<Value = PageMap> {
    page_map().prop_flat_map(|map| {
        let bases: Vec<_> = map.regions().iter().map(|region| base(*region)).collect();
        bases.prop_map(move |bases| {
            let regions = std::iter::zip(map.regions(), bases).map(|(region, base)| Region {
                base: base.filter(|_| region.payload.is_some_and(|p| p.encoding == Encoding::Lz4)),
                ..*region
            });
            PageMap::new(map.region_size(), regions.collect()).unwrap()
        })
    })
}

/// One region in each of several windows of the region size.
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
                base: None,
            });
            PageMap::new(RegionSize::from_pages(size).unwrap(), regions.collect()).unwrap()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn bytes_give_back_the_page_map(map in with_bases()) {
        let bytes = map.encode();
        let version = if map.regions().iter().any(|r| r.base.is_some()) { 3 } else { 2 };
        prop_assert_eq!(bytes[4], version, "the lowest that has what is needed");
        prop_assert_eq!(PageMap::parse(&bytes).unwrap(), map);
    }

    #[test]
    fn a_difference_is_undone_by_its_base(
        region in (0..64_u64, 1..64_u16), base in (0..64_u64, 1..64_u16), seed: u64,
    ) {
        let region = Region { payload: None, ..zero(region.0, region.1) };
        let of = Base { first: PageIndex(base.0), pages: base.1, payload: raw(0, 1).payload.unwrap() };
        let bytes = |pages: u16, seed: u64| {
            let words = (0..u64::from(pages) * 512).map(|n| (n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        let (plain, own) = (bytes(region.pages, seed), bytes(of.pages, !seed));
        let mut difference = plain.clone();
        of.exclusive_or(&region, &mut difference, &own);
        for (page, pair) in (region.first.0..).zip(difference.chunks(4096).zip(plain.chunks(4096))) {
            let theirs = page.checked_sub(of.first.0).and_then(|at| own.chunks(4096).nth(at as usize));
            let expected: Vec<u8> = match theirs {
                Some(theirs) => pair.1.iter().zip(theirs).map(|(a, b)| a ^ b).collect(),
                None => pair.1.to_vec(),
            };
            prop_assert!(pair.0 == expected, "page {}", page);
        }
        of.exclusive_or(&region, &mut difference, &own);
        prop_assert!(difference == plain);
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
        map in with_bases(), at: prop::sample::Index, to: u8, cut: Option<prop::sample::Index>,
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
        base: None,
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
        base: None,
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
    for (version, region_pages) in [(1, 16), (4, 16), (0, 16), (2, 0), (2, 24), (2, 2048)] {
        let version_error = ParseError::Version {
            version: version.into(),
            region_pages,
        };
        assert_eq!(with(version, region_pages), Err(version_error));
    }
}

#[test]
fn a_base_that_cannot_be_is_refused() {
    let lz4 = |first, pages| {
        let mut region = raw(first, pages);
        let payload = region.payload.as_mut().unwrap();
        (payload.encoding, payload.len) = (Encoding::Lz4, 100);
        region
    };
    let base = |first, pages| Base {
        first: PageIndex(first),
        pages,
        payload: raw(0, pages).payload.unwrap(),
    };
    let on = |region: Region, base| {
        PageMap::new(
            SIZE,
            vec![Region {
                base: Some(base),
                ..region
            }],
        )
    };
    for good in [base(16, 16), base(31, 1), base(10, 7), base(0, 1024)] {
        assert!(on(lz4(16, 16), good).is_ok(), "{good:?}");
    }
    let mut cut = base(16, 16);
    cut.payload.len -= 1;
    for bad in [
        base(0, 16),
        base(32, 1),
        base(16, 0),
        base(0, 1025),
        base(u64::MAX, 1),
        cut,
    ] {
        let refused = on(lz4(16, 16), bad);
        assert!(matches!(refused, Err(PageMapError::Base(_))), "{bad:?}");
    }
    assert!(on(zero(16, 16), base(16, 16)).is_err(), "nothing is stored of zeros");
    assert!(
        on(raw(16, 16), base(16, 16)).is_err(),
        "a difference that LZ4 does not shrink is none"
    );
}

#[test]
fn bases_and_differences_must_be_as_many() {
    let mut difference = raw(16, 16);
    let payload = difference.payload.as_mut().unwrap();
    (payload.encoding, payload.len) = (Encoding::Lz4, 100);
    difference.base = Some(Base {
        first: PageIndex(16),
        pages: 16,
        payload: raw(16, 16).payload.unwrap(),
    });
    let bytes = PageMap::new(SIZE, vec![difference]).unwrap().encode();
    assert_eq!(PageMap::parse(&bytes).unwrap().regions(), [difference]);
    let kind = 20 + 36 + 10;
    assert_eq!(bytes[kind], 3);
    let mut plain = bytes.clone();
    plain[kind] = 2;
    let error = ParseError::Bases { found: 1, expected: 0 };
    assert_eq!(PageMap::parse(&plain), Err(error), "a base too many");
    let mut without = bytes[..bytes.len() - 56].to_vec();
    without[16..20].fill(0);
    let error = ParseError::Bases { found: 0, expected: 1 };
    assert_eq!(PageMap::parse(&without), Err(error), "one too few");
    let mut nested = bytes;
    nested[kind + 56] = 3;
    assert_eq!(
        PageMap::parse(&nested),
        Err(ParseError::Entry(0)),
        "a difference to a difference"
    );
}
