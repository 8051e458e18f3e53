//! Image directories in every form. The pages come from the real CRIU. Chains of parents are those images split in two
//! or three, because most kernels that run these tests lack the soft-dirty tracking that `criu pre-dump` needs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rekindle_criu::images::testing::{Run, framed, mm_image, pagemap_image, varint};
use rekindle_criu::images::{Inventory, PE_LAZY, PE_PARENT, PE_PRESENT, StoredPagemap, StoredRun};

use super::directory::{Directory, image_names};
use super::flatten::flatten;
use super::*;
use crate::codec::PAGE_BYTES;
use crate::region_index::RegionIndex;
use crate::testing::{TestStore, criu_dump, noise};

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let named = entries.filter(|e| e.file_type().unwrap().is_file());
    named
        .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
        .collect()
}

/// Its images only.
fn images(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = image_names(dir).unwrap().into_iter();
    names.map(|n| (n.clone(), fs::read(dir.join(n)).unwrap())).collect()
}

/// Each page of each pagemap, read naively page by page, and whether it may be lazy.
fn memory(dir: &Path) -> BTreeMap<(String, u64), (bool, Vec<u8>)> {
    let directory = Directory::read(dir).unwrap();
    let mut found = BTreeMap::new();
    for pair in &directory.pairs {
        let mut file = directory.open(pair).unwrap();
        for (at, run) in pair.map.runs.iter().enumerate() {
            for page in 0..run.pages {
                let mut bytes = vec![0; PAGE_BYTES];
                file.read(at, page, &mut bytes).unwrap();
                let address = run.address + page * PAGE_BYTES as u64;
                found.insert((pair.pagemap.clone(), address), (run.flags & PE_LAZY != 0, bytes));
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (name, bytes) in files(from) {
        fs::write(to.join(name), bytes).unwrap();
    }
}

/// An inventory as CRIU 4.2 writes it.
fn inventory() -> Vec<u8> {
    let framed = framed(0x5831_3116, &[[varint(1, 2), varint(2, 1)].concat()]);
    framed[4..].to_vec()
}

/// A directory with one process (pid 7) that has these runs, with the contents `pages`.
fn directory(dir: &Path, runs: &[Run], pages: &[u8]) {
    fs::create_dir_all(dir).unwrap();
    let vmas: Vec<_> = runs
        .iter()
        .map(|r| (r.first * 4096, (r.first + r.pages) * 4096, 0x201))
        .collect();
    fs::write(dir.join("inventory.img"), inventory()).unwrap();
    fs::write(dir.join("pstree.img"), framed(0x5027_3030, &[varint(1, 7)])).unwrap();
    fs::write(dir.join("mm-7.img"), mm_image(&vmas)).unwrap();
    fs::write(dir.join("pagemap-7.img"), pagemap_image(runs)).unwrap();
    fs::write(dir.join("pages-1.img"), pages).unwrap();
}

/// Splits a plain directory into a chain: a page goes to the level that `level` returns, where 0 is the newest. Every
/// newer level marks the pages of the older ones as in its parent.
fn split(dir: &Path, out: &Path, levels: usize, level: impl Fn(u64) -> usize) -> PathBuf {
    for n in (0..levels).rev() {
        let to = out.join(format!("{n}"));
        copy(dir, &to);
        if n + 1 < levels {
            std::os::unix::fs::symlink(format!("../{}", n + 1), to.join("parent")).unwrap();
        }
        let source = Directory::read(dir).unwrap();
        for pair in &source.pairs {
            let mut file = source.open(pair).unwrap();
            let mut runs: Vec<StoredRun> = Vec::new();
            let mut pages = Vec::new();
            for (at, run) in pair.map.runs.iter().enumerate() {
                for page in 0..run.pages {
                    let address = run.address + page * PAGE_BYTES as u64;
                    let of = level(address / PAGE_BYTES as u64).min(levels - 1);
                    if of < n {
                        continue;
                    }
                    let mut bytes = vec![0; PAGE_BYTES];
                    file.read(at, page, &mut bytes).unwrap();
                    let flags = if of == n { run.flags } else { PE_PARENT };
                    if of == n {
                        pages.extend_from_slice(&bytes);
                    }
                    // Runs as CRIU makes them: they extend while the flags stay the same.
                    match runs.last_mut().filter(|r| r.end() == address && r.flags == flags) {
                        Some(last) => *last = last.present_as(last.address, last.pages + 1, flags).unwrap(),
                        None => runs.push(run.present_as(address, 1, flags).unwrap()),
                    }
                }
            }
            fs::write(to.join(&pair.pages), pages).unwrap();
            fs::write(to.join(&pair.pagemap), pair.map.with_runs(runs).encode()).unwrap();
        }
    }
    out.join("0")
}

const EVERY: [Compression; 4] = [
    Compression {
        block_bytes: 4096,
        acceleration: 1,
    },
    Compression {
        block_bytes: 64 << 10,
        acceleration: 1,
    },
    Compression {
        block_bytes: 256 << 10,
        acceleration: 32,
    },
    Compression {
        block_bytes: 4 << 20,
        acceleration: 65_537,
    },
];

#[test]
fn a_real_dump_compresses_and_comes_back_byte_for_byte() {
    let work = tempfile::tempdir().unwrap();
    let dump = work.path().join("dump");
    fs::create_dir(&dump).unwrap();
    let Some(()) = criu_dump(&dump) else { return };
    let (plain, original) = (files(&dump), memory(&dump));
    for how in EVERY {
        let done = compress(&dump, &how, false).unwrap().unwrap();
        let (before, after) = done
            .iter()
            .fold((0, 0), |(b, a), c| (b + c.before_bytes, a + c.after_bytes));
        println!("{how:?}: {before} -> {after}");
        assert!(after * 2 < before, "{how:?}: {before} -> {after}");
        assert!(memory(&dump) == original, "{how:?}: the pages differ");
        assert!(compress(&dump, &how, false).unwrap().is_none(), "twice");
        decompress(&dump, false).unwrap().unwrap();
        assert!(files(&dump) == plain, "{how:?}: the files differ");
        assert!(decompress(&dump, false).unwrap().is_none(), "twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_dump_imported_and_exported_is_the_same_files() {
    let server = TestStore::start().await;
    let dump = server.scratch("dump");
    let Some(()) = criu_dump(&dump) else { return };
    let (index, scratch) = (RegionIndex::new(), server.scratch("scratch"));
    let bring = async |from: &Path, to: &str| {
        let published = import(&server.store, &index, from, "dump", &scratch).await.unwrap();
        let to = server.scratch(to).join("images");
        export(&server.store, &published.id, &to).await.unwrap();
        assert_eq!(fs::read_dir(&scratch).map_or(0, Iterator::count), 0, "scratch stays");
        (published, to)
    };
    let (first, plain) = bring(&dump, "plain").await;
    assert!(images(&plain) == images(&dump), "the files differ");
    assert_eq!(files(&plain).len(), images(&plain).len(), "images and nothing else");
    assert!(matches!(
        export(&server.store, &first.id, &plain).await,
        Err(ExportError::Exists(_))
    ));

    for (n, how) in EVERY.iter().enumerate() {
        let packed = server.scratch(&format!("packed-{n}"));
        copy(&dump, &packed);
        compress(&packed, how, true).unwrap();
        let (second, unpacked) = bring(&packed, &format!("unpacked-{n}")).await;
        assert!(images(&unpacked) == images(&dump), "{how:?}: the files differ");
        let totals = &second.manifest.totals;
        assert_eq!(totals.shared_bytes, totals.stored_bytes, "nothing is stored twice");
    }

    for (levels, how) in [(2, None), (3, None), (3, Some(EVERY[1]))] {
        let out = server.scratch(&format!("chain-{levels}-{}", how.is_some()));
        let newest = split(&dump, &out, levels, |page| (page / 7 % 5) as usize);
        if let Some(how) = how {
            // Like a compressed dump after plain pre-dumps.
            compress(&newest, &how, false).unwrap();
        }
        let (_, flat) = bring(&newest, &format!("flat-{levels}-{}", how.is_some())).await;
        assert!(memory(&flat) == memory(&dump), "{levels} levels: the pages differ");
        let mut others = (images(&flat), images(&dump));
        for all in [&mut others.0, &mut others.1] {
            all.retain(|name, _| !name.starts_with("pagemap-") && !name.starts_with("pages-"));
        }
        assert!(others.0 == others.1, "{levels} levels: other files differ");
    }
}

#[test]
fn backups_are_what_was_there() {
    let work = tempfile::tempdir().unwrap();
    let runs = [Run {
        first: 16,
        pages: 3,
        lazy: true,
    }];
    directory(work.path(), &runs, &[vec![7; 8192], noise(4096, 1)].concat());
    let before = files(work.path());
    compress(work.path(), &EVERY[0], true).unwrap().unwrap();
    let after = files(work.path());
    for name in ["inventory.img", "pagemap-7.img", "pages-1.img"] {
        assert_eq!(after[&format!("{name}.bak")], before[name]);
        assert_ne!(after[name], before[name]);
    }
    let error = decompress(work.path(), true).unwrap_err();
    assert!(error.to_string().contains("say --in-place"), "{error}");
    assert_eq!(files(work.path()), after);
}

#[test]
fn what_is_wrong_is_told_with_the_file() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path();
    let error = decompress(dir, false).unwrap_err().to_string();
    assert!(error.contains("inventory.img is missing"), "{error}");
    let runs = [Run {
        first: 16,
        pages: 3,
        lazy: true,
    }];
    directory(dir, &runs, &vec![7; 3 * 4096]);
    for block_bytes in [0, 4097, 8 << 20] {
        let how = Compression {
            block_bytes,
            acceleration: 1,
        };
        assert!(matches!(
            compress(dir, &how, false),
            Err(InterchangeError::BlockSize(_))
        ));
    }
    fs::write(dir.join("pages-1.img"), [7; 4096]).unwrap();
    let error = compress(dir, &EVERY[0], false).unwrap_err().to_string();
    assert!(error.contains("pages-1.img has 4096 bytes"), "{error}");
    directory(dir, &runs, &vec![7; 3 * 4096]);
    compress(dir, &EVERY[1], false).unwrap();
    let mut packed = fs::read(dir.join("pages-1.img")).unwrap();
    packed.fill(0xff);
    fs::write(dir.join("pages-1.img"), packed).unwrap();
    let before = files(dir);
    let error = decompress(dir, false).unwrap_err().to_string();
    assert!(error.contains("is no lz4 block of 12288 bytes"), "{error}");
    assert_eq!(files(dir), before, "nothing was changed");
}

#[test]
fn a_broken_chain_is_told_and_a_circle_ends() {
    let work = tempfile::tempdir().unwrap();
    let plain = work.path().join("plain");
    directory(
        &plain,
        &[Run {
            first: 16,
            pages: 8,
            lazy: true,
        }],
        &noise(8 * 4096, 3),
    );
    let newest = split(&plain, &work.path().join("chain"), 2, |page| (page % 2) as usize);
    let attempt = |n: usize| {
        let out = work.path().join(format!("out-{n}"));
        fs::create_dir(&out).unwrap();
        flatten(&newest, &out).map(|()| memory(&out)).map_err(|e| e.to_string())
    };
    assert!(attempt(0).unwrap() == memory(&plain));
    fs::remove_file(newest.join("parent")).unwrap();
    let error = attempt(1).unwrap_err();
    assert!(error.contains("put the link back"), "{error}");
    std::os::unix::fs::symlink(".", newest.join("parent")).unwrap();
    let error = attempt(2).unwrap_err();
    assert!(error.contains("is its own"), "{error}");
    fs::remove_file(newest.join("parent")).unwrap();
    let other = work.path().join("other");
    directory(
        &other,
        &[Run {
            first: 99,
            pages: 1,
            lazy: true,
        }],
        &noise(4096, 4),
    );
    std::os::unix::fs::symlink("../../other", newest.join("parent")).unwrap();
    let error = attempt(3).unwrap_err();
    assert!(error.contains("is not in its parent"), "{error}");
}

/// Runs of pages with gaps, and each page's contents.
fn process() -> impl Strategy<Value = (Vec<Run>, Vec<u8>)> {
    proptest::collection::vec((0..3_u64, 1..20_u64, any::<bool>(), any::<u8>()), 1..6).prop_map(|parts| {
        let (mut first, mut runs, mut pages) = (16, Vec::new(), Vec::new());
        for (gap, count, lazy, seed) in parts {
            first += gap;
            runs.push(Run {
                first,
                pages: count,
                lazy,
            });
            for page in 0..count {
                let content = match (page + u64::from(seed)) % 3 {
                    0 => vec![0; PAGE_BYTES],
                    1 => noise(PAGE_BYTES, first + page),
                    _ => [noise(600, page), vec![seed; PAGE_BYTES - 600]].concat(),
                };
                pages.extend_from_slice(&content);
            }
            first += count;
        }
        (runs, pages)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_pages_in_any_blocks_come_back(
        (runs, pages) in process(), per_block in 1..40_u64, levels in 1..4_usize, key: u64,
    ) {
        let work = tempfile::tempdir().unwrap();
        let plain = work.path().join("plain");
        directory(&plain, &runs, &pages);
        let (before, original) = (files(&plain), memory(&plain));
        let how = Compression { block_bytes: per_block * 4096, acceleration: 1 };
        compress(&plain, &how, false).unwrap().unwrap();
        prop_assert!(Inventory::parse(&fs::read(plain.join("inventory.img")).unwrap()).unwrap().compressed);
        prop_assert!(memory(&plain) == original);
        decompress(&plain, false).unwrap().unwrap();
        prop_assert!(files(&plain) == before);

        let newest = split(&plain, &work.path().join("chain"), levels, |page| {
            (page.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(key) >> 61) as usize
        });
        let uncompressed = files(&newest);
        if key % 2 == 0 {
            compress(&newest, &how, false).unwrap().unwrap();
        }
        let flat = work.path().join("flat");
        fs::create_dir(&flat).unwrap();
        flatten(&newest, &flat).unwrap();
        prop_assert!(memory(&flat) == original);
        prop_assert!(Directory::read(&flat).unwrap().is_plain().unwrap());
        if levels == 1 {
            prop_assert!(files(&flat) == uncompressed);
        }
    }

    #[test]
    fn a_changed_pagemap_never_panics((runs, pages) in process(), at: prop::sample::Index, to: u8, packed: bool) {
        let work = tempfile::tempdir().unwrap();
        directory(work.path(), &runs, &pages);
        if packed {
            compress(work.path(), &EVERY[1], false).unwrap();
        }
        let path = work.path().join("pagemap-7.img");
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        fs::write(&path, bytes).unwrap();
        drop(decompress(work.path(), false));
        drop(compress(work.path(), &EVERY[0], false));
    }
}

/// Images made by CRIU 4.3's own `crit compress`: see the README beside them.
#[test]
fn what_crit_compressed_is_read_and_ours_has_its_form() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/criu-4.3");
    let work = tempfile::tempdir().unwrap();
    let (ours, theirs) = (work.path().join("ours"), work.path().join("theirs"));
    copy(&golden.join("crit-compressed"), &theirs);
    decompress(&theirs, false).unwrap().unwrap();
    let expected = fs::read_to_string(golden.join("plain.blake3")).unwrap();
    let digests: String = images(&theirs)
        .iter()
        .map(|(name, bytes)| format!("{} {name}\n", blake3::hash(bytes)))
        .collect();
    assert_eq!(digests, expected);

    // Page by page, our output has the same form as crit's. The blocks themselves depend on LZ4's version.
    copy(&theirs, &ours);
    compress(&ours, &EVERY[0], false).unwrap().unwrap();
    let (ours, crit) = (images(&ours), images(&golden.join("crit-compressed")));
    for (name, bytes) in &crit {
        if !name.starts_with("pagemap-") {
            assert!(name.starts_with("pages-") || bytes == &ours[name], "{name} differs");
            continue;
        }
        let [theirs, ours] = [bytes, &ours[name]].map(|b| StoredPagemap::parse(b).unwrap());
        assert_eq!(theirs.runs.len(), ours.runs.len());
        for (their, our) in theirs.runs.iter().zip(&ours.runs) {
            let form = |run: &StoredRun| {
                let blocks = run.blocks.as_ref();
                let kinds = blocks.map(|b| b.sizes.iter().map(|s| (*s > 0, *s == 4096)).collect::<Vec<_>>());
                (
                    run.address,
                    run.pages,
                    run.flags,
                    blocks.map(|b| b.pages_per_block),
                    kinds,
                )
            };
            assert_eq!(form(their), form(our));
        }
        assert!(
            theirs
                .runs
                .iter()
                .any(|r| r.blocks.is_some() && r.flags & PE_PRESENT != 0)
        );
    }
}
