//! For every rule, an image that breaks it.

mod mutate;
mod parts;
mod red_files;
mod red_processes;
mod red_travelling;

use std::collections::BTreeMap;

use parts::ImageParts;
use proptest::prelude::*;

use crate::{Expected, Images, Verified, VerifyError, verify_images, verify_in_memory};

pub(super) fn check(images: &BTreeMap<String, Vec<u8>>, expected: &Expected) -> Result<Verified, VerifyError> {
    let borrowed: Images<'_> = images.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    verify_images(&borrowed, expected)
}

pub(crate) fn good_images() -> BTreeMap<String, Vec<u8>> {
    ImageParts::good().images()
}

/// Breaks one thing and returns where it was detected.
fn broken(change: impl FnOnce(&mut ImageParts)) -> String {
    let mut parts = ImageParts::good();
    change(&mut parts);
    match check(&parts.images(), &ImageParts::expected()) {
        Ok(_) => "accepted".to_owned(),
        Err(VerifyError::Field { image, field, .. }) => format!("{image} {field}"),
        Err(VerifyError::OfKernel { image, path, .. }) => format!("{image} {path}"),
        Err(VerifyError::RelativeSocket { image, name }) => format!("{image} relative {name}"),
        Err(VerifyError::SpecialBits { image, mode }) => format!("{image} mode {mode:o}"),
        Err(other) => other.to_string(),
    }
}

/// Where a change is detected, and the change.
type Case = (&'static str, fn(&mut ImageParts));

/// Asserts where each change is detected.
fn assert_refused<const N: usize>(cases: [Case; N]) {
    for (expected, change) in cases {
        assert_eq!(broken(change), expected);
    }
}

#[test]
fn images_in_memory_have_no_other_files_beside_them() {
    let check = |images: &BTreeMap<String, Vec<u8>>| {
        let mut expected = ImageParts::expected();
        expected.other_files = vec!["archive.tar".to_owned()];
        let images = images.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        verify_in_memory(images, &expected).map(drop)
    };
    let mut images = good_images();
    check(&images).unwrap();
    for name in ["archive.tar", "netns-9.img"] {
        images.insert(name.to_owned(), Vec::new());
        assert!(matches!(check(&images), Err(VerifyError::Kind(refused)) if refused == name));
        images.remove(name);
    }
}

#[test]
fn good_images_pass() {
    let verified = check(&ImageParts::good().images(), &ImageParts::expected()).unwrap();
    let paths: Vec<_> = verified
        .opened_paths()
        .map(|o| String::from_utf8_lossy(&o.path).into_owned())
        .collect();
    assert_eq!(
        paths,
        [
            "/",
            "/app",
            "/dev/null",
            "/tmp",
            "/tmp/f",
            "/tmp/ghost",
            "/tmp/ghost",
            "/tmp/socket",
            "/usr/bin/python3",
            "/usr/bin/python3"
        ]
    );
    assert_eq!(verified.processes.len(), 3);
}

#[test]
fn fields_and_bytes_that_are_not_known_are_refused() {
    let images = ImageParts::good().images();
    for (name, bytes) in &images {
        if bytes.is_empty() {
            continue;
        }
        let head = if name == "inventory.img" { 4 } else { 8 };
        let length = u32::from_le_bytes(*bytes[head..].first_chunk().unwrap());
        let end = head + 4 + length as usize;
        // Field 100, a number.
        let unknown = [0xa0, 0x06, 1];
        let grown = (length + 3).to_le_bytes();
        let changed = [&bytes[..head], &grown, &bytes[head + 4..end], &unknown, &bytes[end..]].concat();
        let mut all = images.clone();
        all.insert(name.clone(), changed);
        let error = check(&all, &ImageParts::expected()).unwrap_err();
        assert!(matches!(error, VerifyError::NotCanonical { .. }), "{name}: {error}");
        // The data of an unlinked file extends to the end of its image.
        if name != "ghost-file-1.img" {
            all.insert(name.clone(), bytes[..bytes.len() - 1].to_vec());
            assert!(check(&all, &ImageParts::expected()).is_err(), "{name}");
        }
        all.insert(name.clone(), bytes[1..].to_vec());
        let error = check(&all, &ImageParts::expected()).unwrap_err();
        assert!(matches!(error, VerifyError::Magic(_)), "{name}: {error}");
    }
}

#[test]
fn images_that_are_needed_must_be_there_and_others_must_not() {
    let images = ImageParts::good().images();
    for name in images.keys() {
        let optional = [
            "filelocks.img",
            "pipes-data.img",
            "sk-queues.img",
            "pagemap-shmem-7.img",
        ];
        let mut fewer = images.clone();
        fewer.remove(name);
        let passes = check(&fewer, &ImageParts::expected()).is_ok();
        assert_eq!(passes, optional.contains(&name.as_str()), "{name}");
    }
    for (stranger, like) in [
        ("core-900.img", "core-501.img"),
        ("ids-503.img", "ids-501.img"),
        ("mm-503.img", "mm-501.img"),
        ("pagemap-502.img", "pagemap-501.img"),
        ("fdinfo-9.img", "fdinfo-2.img"),
        ("ghost-file-9.img", "ghost-file-1.img"),
        ("timens-9.img", "timens-0.img"),
        ("pagemap-shmem-9.img", "pagemap-shmem-7.img"),
        ("mountpoints-12.img", "files.img"),
    ] {
        let mut more = images.clone();
        more.insert(stranger.to_owned(), images[like].clone());
        let error = check(&more, &ImageParts::expected()).unwrap_err();
        assert!(matches!(error, VerifyError::Kind(_)), "{stranger}: {error}");
    }
}

proptest! {
    #[test]
    fn any_damage_is_taken_or_refused_without_a_panic(
        image: prop::sample::Index, at: prop::sample::Index, value: u8, cut: bool, again: prop::sample::Index,
    ) {
        let mut images = ImageParts::good().images();
        let names: Vec<_> = images.keys().cloned().collect();
        let bytes = images.get_mut(image.get(&names)).unwrap();
        if !bytes.is_empty() {
            let first = at.index(bytes.len());
            bytes[first] = value;
            if cut {
                bytes.truncate(again.index(bytes.len()));
            }
        }
        drop(check(&images, &ImageParts::expected()));
    }
}

#[test]
fn no_changed_number_or_string_gives_a_right() {
    let (images, expected) = (ImageParts::good().images(), ImageParts::expected());
    let (mut refused, mut taken) = (0, 0);
    for (name, bytes) in &images {
        let has_data = ["pipes-data.img", "sk-queues.img", "ghost-file-1.img"].contains(&name.as_str());
        if bytes.is_empty() || has_data {
            continue;
        }
        for mutation in mutate::all(name, bytes) {
            let what = format!("{name} {} {:?}", mutation.entry, mutation.field);
            let mut changed = images.clone();
            changed.insert(name.clone(), mutation.image);
            let Ok(verified) = check(&changed, &expected) else {
                refused += 1;
                continue;
            };
            taken += 1;
            for core in verified
                .processes
                .iter()
                .flat_map(|p| &p.threads)
                .filter_map(|t| t.core.thread_core.as_ref())
            {
                let creds = core.creds.as_ref().unwrap();
                assert_eq!(*creds, parts::credentials(), "{what}");
            }
            assert!(
                verified.filters.iter().all(|filter| filter.filter == parts::FILTER),
                "{what}"
            );
        }
    }
    assert!(refused > taken, "{refused} refused, {taken} taken");
}
