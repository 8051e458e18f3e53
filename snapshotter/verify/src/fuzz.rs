//! The verifier as a function of bytes. Used by the fuzz target in `fuzz/`, and by this crate's tests, which run it on
//! the target's seeds. It must return whatever its input is.
//!
//! An input is a directory. Each file consists of the length of its name (one byte), its name, its length (four bytes,
//! little-endian), and its bytes.

use std::collections::BTreeMap;

use crate::{Expected, Images, Limit, RESOURCES, Verified, verify_images};

/// Maximum number of files in an input.
const FILES_MAX: usize = 256;
/// One instruction that allows everything.
pub(crate) const FILTER: [u8; 8] = [6, 0, 0, 0, 0, 0, 0xff, 0x7f];
pub(crate) const UID: u32 = 100_001;

/// Requirements on the images of an input.
pub(crate) fn expected() -> Expected {
    let mut limits = [Limit::AtMost(1 << 20); RESOURCES];
    limits[4] = Limit::Exactly(0);
    limits[7] = Limit::AtMost(1024);
    Expected {
        uid: UID,
        gid: UID,
        groups: Vec::new(),
        filters: vec![*blake3::hash(&FILTER).as_bytes()],
        limits,
        oom_score_adj_min: 0,
        pids: 300..=4_194_303,
        writes_root: false,
        output_pipes: vec![55],
        other_files: Vec::new(),
        travelling: None,
    }
}

/// Verifies the images of an input. Returns whether they were accepted. If so, they permit no more than is expected.
///
/// # Panics
/// If they permit more.
#[must_use]
pub fn verify(bytes: &[u8]) -> bool {
    let Some(verified) = verified(bytes) else { return false };
    assert!(verified.filters.iter().all(|filter| filter.filter == FILTER));
    let threads = verified.processes.iter().flat_map(|process| &process.threads);
    for creds in threads.filter_map(|thread| thread.core.thread_core.as_ref()?.creds.as_ref()) {
        let ids = [
            creds.uid,
            creds.euid,
            creds.suid,
            creds.fsuid,
            creds.gid,
            creds.egid,
            creds.sgid,
            creds.fsgid,
        ];
        assert_eq!(ids, [UID; 8]);
        let sets = [
            &creds.cap_inh,
            &creds.cap_prm,
            &creds.cap_eff,
            &creds.cap_bnd,
            &creds.cap_amb,
        ];
        assert!(sets.into_iter().flatten().all(|capabilities| *capabilities == 0));
        assert_eq!((creds.no_new_privs, creds.groups.len()), (Some(1), 0));
    }
    true
}

/// The images of an input, if they are accepted.
#[must_use]
pub fn verified(bytes: &[u8]) -> Option<Verified> {
    verify_images(&files(bytes)?, &expected()).ok()
}

fn files(mut bytes: &[u8]) -> Option<Images<'_>> {
    let mut files = BTreeMap::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (data, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        files.insert(std::str::from_utf8(name).ok()?, data);
        if files.len() > FILES_MAX {
            return None;
        }
        bytes = rest;
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use proptest::prelude::*;

    use super::*;
    use crate::tests::good_images;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/verify")
    }

    fn packed(images: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
        let one = |(name, data): (&String, &Vec<u8>)| {
            let length = u32::try_from(data.len()).unwrap().to_le_bytes();
            [&[u8::try_from(name.len()).unwrap()][..], name.as_bytes(), &length, data].concat()
        };
        images.iter().flat_map(one).collect()
    }

    /// Regenerates the seeds after a change of the good images:
    /// `cargo test -p rekindle-verify --lib -- --ignored seeds`.
    #[test]
    #[ignore = "writes the seeds"]
    fn seeds() {
        fs::create_dir_all(folder()).unwrap();
        fs::write(folder().join("good"), packed(&good_images())).unwrap();
    }

    fn seed() -> Vec<u8> {
        packed(&good_images())
    }

    #[test]
    fn the_seed_is_taken() {
        assert!(verify(&seed()));
        assert!(!verify(&[]));
    }

    proptest! {
        #[test]
        fn a_damaged_seed_does_no_harm(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = seed();
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let _taken = verify(&bytes);
            bytes.truncate(cut.index(bytes.len()));
            let _taken = verify(&bytes);
        }
    }
}
