use proptest::prelude::*;

use super::*;

fn section(offset: u64, bytes: u64) -> Section {
    Section {
        offset,
        stored_bytes: bytes,
        bytes: bytes * 2,
        encoding: SectionEncoding::Lz4,
        blake3: Digest::of(&offset.to_le_bytes()),
    }
}

fn manifest(images: u64, frozen_us: u64) -> Manifest {
    let layer = LayerRef {
        digest: Digest::of(b"layer").to_string(),
        tar_bytes: 12345,
    };
    Manifest {
        id: "s-0123".parse().unwrap(),
        origin: Origin::Function {
            function: "hello".parse().unwrap(),
            version: VersionNumber(3),
            rootfs: layer.clone(),
            layer,
        },
        base: None,
        sealed_by: None,
        created_unix_s: 1_790_000_000,
        arch: "x86_64".to_owned(),
        kernel: "6.18".to_owned(),
        criu: "4.2.1".to_owned(),
        page_bytes: 4096,
        region_bytes: 65536,
        frozen_us,
        bundle_bytes: 10_000,
        processes: vec![ProcessEntry {
            pid: 501,
            page_map: section(0, 100),
            pagemap: section(100, 20),
        }],
        images: (0..images)
            .map(|n| ImageEntry {
                name: format!("core-{n}.img"),
                section: section(n * 100, 100),
            })
            .collect(),
        extra: vec![
            ExtraEntry {
                name: "tmp.tar".to_owned(),
                place: ExtraPlace::Section(section(5, 5)),
            },
            ExtraEntry {
                name: "big.tar".to_owned(),
                place: ExtraPlace::Object {
                    bytes: 1 << 40,
                    blake3: Digest::of(b"big"),
                },
            },
        ],
        totals: Totals::default(),
        working_set_key: "snapshots/s-0123/working-set".to_owned(),
    }
}

proptest! {
    #[test]
    fn bytes_give_back_the_manifest(images in 0..40_u64, frozen_us: u64) {
        let manifest = manifest(images, frozen_us);
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::parse(&bytes).unwrap(), manifest);
    }
}

#[test]
fn every_flipped_bit_is_an_error() {
    let plain = manifest(3, 12_500);
    let mut difference = plain.clone();
    difference.base = Some("s-0456".parse().unwrap());
    let mut sealed = difference.clone();
    sealed.sealed_by = Some("0123456789abcdef".repeat(2).parse().unwrap());
    for manifest in [plain, difference, sealed] {
        no_bit_is_flipped_unnoticed(&manifest.encode().unwrap());
    }
}

fn no_bit_is_flipped_unnoticed(bytes: &[u8]) {
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            assert!(Manifest::parse(&flipped).is_err(), "byte {at} bit {bit}");
        }
    }
    for cut in 0..bytes.len() {
        assert!(Manifest::parse(&bytes[..cut]).is_err());
    }
}

#[test]
fn another_format_is_named_even_with_other_fields() {
    let error = Manifest::parse(br#"{"rekindle_snapshot":6,"new":true}"#).unwrap_err();
    assert!(error.to_string().contains("format 6"), "{error}");
}

#[test]
fn what_only_the_newer_format_has_is_written_in_it_and_else_the_older_one_is() {
    let format = |manifest: &Manifest| {
        let bytes = manifest.encode().unwrap();
        assert_eq!(Manifest::parse(&bytes).unwrap(), *manifest);
        serde_json::from_slice::<FormatOnly>(&bytes).unwrap().rekindle_snapshot
    };
    let plain = manifest(2, 7);
    assert_eq!(format(&plain), 3);
    let mut difference = plain.clone();
    difference.base = Some("s-0456".parse().unwrap());
    assert_eq!(format(&difference), 4);
    let Origin::Function { rootfs, .. } = plain.origin.clone() else {
        unreachable!("it is a function's")
    };
    let mut runtime = plain;
    runtime.origin = Origin::Runtime {
        runtime: Runtime::Python,
        function: None,
        rootfs,
        uid: 100_001,
    };
    assert_eq!(format(&runtime), 4);
    let text = String::from_utf8(runtime.encode().unwrap()).unwrap();
    let older = text.replacen(":4,", ":3,", 1);
    let error = Manifest::parse(older.as_bytes()).unwrap_err();
    assert!(matches!(error, ManifestError::Value(_)), "{error}");
}

#[test]
fn a_region_size_is_a_power_of_two_from_a_page_to_4_mib() {
    let mut sized = manifest(2, 7);
    for (bytes, usable) in [
        (4 << 10, true),
        (1 << 20, true),
        (4 << 20, true),
        (0, false),
        (1, false),
        (4095, false),
        (96 << 10, false),
        (8 << 20, false),
        (u64::MAX, false),
    ] {
        sized.region_bytes = bytes;
        let parsed = Manifest::parse(&sized.encode().unwrap());
        assert_eq!(parsed.is_ok(), usable, "{bytes}");
    }
}

#[test]
fn names_that_leave_the_directory_sections_that_leave_the_bundle_and_too_large_images_are_refused() {
    for name in ["", ".", "..", "../x", "a/b", ".hidden", &"x".repeat(129)] {
        let mut bad = manifest(1, 0);
        bad.images[0].name = name.to_owned();
        assert!(Manifest::parse(&bad.encode().unwrap()).is_err(), "{name}");
    }
    for (offset, bytes) in [(10_000, 1), (u64::MAX, 1)] {
        let mut bad = manifest(1, 0);
        bad.processes[0].page_map.offset = offset;
        bad.processes[0].page_map.stored_bytes = bytes;
        assert!(Manifest::parse(&bad.encode().unwrap()).is_err());
    }
    let mut large = manifest(4, 0);
    for (image, bytes) in large.images.iter_mut().zip([1 << 30, 1 << 29, 1 << 28, 1 << 28]) {
        image.section.bytes = bytes;
    }
    assert!(Manifest::parse(&large.encode().unwrap()).is_ok());
    large.images[0].section.bytes += 1;
    assert!(Manifest::parse(&large.encode().unwrap()).is_err());
    let mut twice = manifest(2, 0);
    twice.images[1].name = twice.images[0].name.clone();
    assert!(Manifest::parse(&twice.encode().unwrap()).is_err());
}
