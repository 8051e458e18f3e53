//! Parsers of untrusted bytes, as functions of bytes. Used by the fuzz targets in `fuzz/`, and by `tests/hostile.rs`,
//! which feeds each of them thousands of damaged inputs in every `cargo test`. Each must return whatever its input is,
//! and reports whether it accepted it. A seed must be accepted. Otherwise it is of an older format and useless.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rekindle_criu::images::{self, Inventory, PagemapImage, StoredPagemap, TemplateProcess};
use rekindle_wire::SnapshotId;

use crate::bundle;
use crate::codec::{self, Encoding, PAGE_BYTES, RegionSize};
use crate::digest::Digest;
use crate::interchange;
use crate::layer::Name;
use crate::manifest::{Manifest, Section, SectionEncoding};
use crate::pagemap::{ChunkRef, PageIndex, PageMap, Payload, Region};
use crate::snapshot::Process;
use crate::working_set::{PackError, encoding};

/// The first byte is the selector. The rest is the input.
fn chosen(bytes: &[u8]) -> (u8, &[u8]) {
    bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest))
}

/// Manifests. An accepted one is encoded and accepted again.
pub fn manifest(bytes: &[u8]) -> bool {
    let Ok(manifest) = Manifest::parse(bytes) else {
        return false;
    };
    if let Ok(again) = manifest.encode() {
        assert_eq!(Manifest::parse(&again).ok(), Some(manifest));
    }
    true
}

/// The value of a manifest, wrapped in a frame with the right digest, which no mutation would produce.
pub fn manifest_value(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let digest = Digest::of(bytes);
    let format = crate::manifest::FORMAT;
    let framed = format!("{{\"rekindle_snapshot\":{format},\"blake3\":\"{digest}\",\"manifest\":{text}}}");
    manifest(framed.as_bytes())
}

/// Page maps. An accepted one is encoded and accepted again, and every page is looked up.
pub fn page_map(bytes: &[u8]) -> bool {
    let Ok(map) = PageMap::parse(bytes) else { return false };
    assert_eq!(PageMap::parse(&map.encode()).ok().as_ref(), Some(&map));
    for region in map.regions().iter().take(64) {
        assert_eq!(map.lookup(region.first), Some(region));
        let last = PageIndex(region.end().0 - 1);
        assert_eq!(map.lookup(last), Some(region));
    }
    true
}

/// Payloads of regions.
pub fn region(bytes: &[u8]) -> bool {
    let (kind, stored) = chosen(bytes);
    let encoding = if kind & 1 == 0 { Encoding::Lz4 } else { Encoding::Raw };
    let pages = usize::from(kind >> 1) % usize::from(RegionSize::DEFAULT.pages()) + 1;
    let mut plain = vec![0; pages * PAGE_BYTES];
    drop(codec::decode(encoding, stored, Digest::of(stored), &mut plain));
    codec::decode_unchecked(encoding, stored, &mut plain).is_ok()
}

/// Bundle sections: offset, size and encoding, then the bundle.
pub fn bundle(bytes: &[u8]) -> bool {
    let Some((head, bundle)) = bytes.split_first_chunk::<13>() else {
        return false;
    };
    let word = |at: usize| u64::from(u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let (offset, stored_bytes) = (word(0), word(4));
    let stored = usize::try_from(offset)
        .ok()
        .and_then(|from| bundle.get(from..from.checked_add(usize::try_from(stored_bytes).ok()?)?));
    let section = Section {
        offset,
        stored_bytes,
        // A size of a few MiB, because sizes in a manifest are trusted up to 1 GiB.
        bytes: word(8) % (4 << 20),
        encoding: if head[12] & 1 == 0 {
            SectionEncoding::Lz4
        } else {
            SectionEncoding::Raw
        },
        blake3: Digest::of(stored.unwrap_or_default()),
    };
    bundle::read_section(&section, bundle).is_ok()
}

/// Working sets: as they are, and with the digest corrected. Accepted ones are then compared with a snapshot of
/// different memory.
pub fn working_set(bytes: &[u8]) -> bool {
    let Ok(id) = "s-0123".parse::<SnapshotId>() else {
        return false;
    };
    let process = [seeded_process()];
    let taken = encoding::decode(&id, bytes);
    let mut mended = bytes.to_vec();
    if let Some(mark) = mended.get_mut(48..80) {
        mark.copy_from_slice(&Digest::of(id.as_str().as_bytes()).0);
        if let Err(PackError::Digest { found, .. }) = encoding::decode(&id, &mended) {
            mended[16..48].copy_from_slice(&found.0);
        }
        if let Ok(Ok(pack)) = encoding::decode(&id, &mended).map(|set| set.check(&process)) {
            let memory = seeded_memory();
            for page in &pack.pages {
                let at = (page.page.0 as usize).wrapping_sub(16).checked_mul(PAGE_BYTES);
                let own = at.and_then(|at| memory.get(at..)?.get(..PAGE_BYTES));
                assert_eq!(page.bytes(), own.unwrap_or(&[0; PAGE_BYTES]));
            }
        }
    }
    taken.is_ok_and(|set| set.check(&process).is_ok())
}

/// The snapshot that the working-set seeds belong to: 8 pages of bytes from page 16 on, followed by a page of zeros.
fn seeded_process() -> Process {
    let plain = seeded_memory();
    let hash = Digest::of(&plain);
    let payload = Payload {
        hash,
        encoding: Encoding::Raw,
        chunk: ChunkRef {
            id: hash,
            len: plain.len() as u32,
        },
        offset: 0,
        len: plain.len() as u32,
    };
    let regions = [(16, 8, Some(payload)), (24, 1, None)].map(|(first, pages, payload)| Region {
        first: PageIndex(first),
        pages,
        payload,
        base: None,
    });
    Process {
        pid: 7,
        page_map: Arc::new(PageMap::new(RegionSize::DEFAULT, regions.into()).unwrap_or_default()),
    }
}

/// Memory of the seeds, whose second page is zero.
fn seeded_memory() -> Vec<u8> {
    let page = |number: u8| vec![if number == 1 { 0 } else { number + 1 }; PAGE_BYTES];
    (0..8).flat_map(page).collect()
}

/// CRIU's images, one at a time. Every edited image must parse again.
pub fn images(bytes: &[u8]) -> bool {
    let (kind, image) = chosen(bytes);
    match kind % 5 {
        0 => images::parse_vmas(image).is_ok() & images::parse_mappings(image).is_ok(),
        1 => images::rseq_area(image).is_ok(),
        2 => PagemapImage::parse(image).is_ok_and(|pagemap| {
            assert!(PagemapImage::parse(&pagemap.encode_eager()).is_ok());
            true
        }),
        3 => Inventory::parse(image).is_ok_and(|inventory| {
            if let Ok(packed) = inventory.encode_compressed(65536) {
                assert!(Inventory::parse(&packed).is_ok_and(|i| i.compressed));
            }
            true
        }),
        _ => StoredPagemap::parse(image).is_ok_and(|pagemap| {
            let again = StoredPagemap::parse(&pagemap.encode());
            assert_eq!(again.ok().as_ref(), Some(&pagemap));
            drop(pagemap.layout());
            true
        }),
    }
}

/// The first of two length-prefixed parts, and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))
}

/// The edits of files, mm and pagemap images for a restore from a template: two images with their lengths, then the
/// third.
pub fn template(bytes: &[u8]) -> bool {
    let Some((files, rest)) = split(bytes) else {
        return false;
    };
    let Some((mm, pagemap)) = split(rest) else { return false };
    let page_map = first_pages(mm);
    let holds_any = |pages: Range<PageIndex>| page_map.holds_any(pages.start, pages.end);
    let process = TemplateProcess {
        mm,
        pagemap,
        holds_any: &holds_any,
        path: "/template",
    };
    let edited = images::map_templates(files, &[process], |path| path.starts_with('/'));
    edited.is_ok_and(|edited| edited.processes.iter().any(Option::is_some))
}

/// A page map that holds the first page of each mapping. Otherwise none of the mappings would come from a template.
fn first_pages(mm: &[u8]) -> PageMap {
    let hash = Digest([0; 32]);
    let payload = Payload {
        hash,
        encoding: Encoding::Raw,
        chunk: ChunkRef {
            id: hash,
            len: PAGE_BYTES as u32,
        },
        offset: 0,
        len: PAGE_BYTES as u32,
    };
    let vmas = images::parse_vmas(mm).unwrap_or_default();
    let mut pages: Vec<u64> = vmas.iter().map(|vma| vma.start / PAGE_BYTES as u64).collect();
    pages.dedup();
    let regions = pages.into_iter().map(|page| Region {
        first: PageIndex(page),
        pages: 1,
        payload: Some(payload),
        base: None,
    });
    PageMap::new(RegionSize::DEFAULT, regions.collect()).unwrap_or_default()
}

/// A pagemap with its pages image: decompressed and compressed in `scratch`, which must be empty.
pub fn pages(bytes: &[u8], scratch: &Path) -> bool {
    let Some((pagemap, pages)) = split(bytes) else {
        return false;
    };
    let Ok(map) = StoredPagemap::parse(pagemap) else {
        return false;
    };
    // The size of a run without blocks is in the file. Zero blocks take no space there, so the memory they stand for is
    // limited here.
    if map.runs.iter().map(|r| r.pages).sum::<u64>() > 1024 {
        return false;
    }
    // Truncating or padding the file makes its size right where possible.
    let (_, size) = map.layout();
    let mut pages = pages.to_vec();
    pages.resize(usize::try_from(size).unwrap_or(0).min(8 << 20), 0x5a);
    let inventory = [&0x5831_3116_u32.to_le_bytes()[..], &[6, 0, 0, 0, 8, 3, 16, 1, 120, 1]].concat();
    let wrote = fs::write(scratch.join("inventory.img"), inventory)
        .and_then(|()| fs::write(scratch.join("pagemap-7.img"), pagemap))
        .and_then(|()| fs::write(scratch.join(format!("pages-{}.img", map.pages_id)), pages));
    let taken = wrote.is_ok() && interchange::decompress(scratch, false).is_ok();
    if taken {
        let how = interchange::Compression {
            block_bytes: 8192,
            acceleration: 1,
        };
        drop(interchange::compress(scratch, &how, false));
    }
    for entry in fs::read_dir(scratch).into_iter().flatten().flatten() {
        drop(fs::remove_file(entry.path()));
    }
    taken
}

/// A layer's tar, unpacked under `scratch`, which must be empty.
pub fn layer(tar: &[u8], scratch: &Path) -> bool {
    let dir = scratch.join("layer");
    let Ok(packed) = zstd::encode_all(tar, 1) else {
        return false;
    };
    let name = Name {
        digest: Digest::of(tar).to_string(),
        tar_bytes: tar.len() as u64,
    };
    let taken = fs::create_dir(&dir).is_ok() && rekindle_confined::layer::unpack(&packed[..], &dir, &name).is_ok();
    drop(fs::remove_dir_all(&dir));
    taken
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rekindle_wire::function_config::Runtime;

    use crate::capture::publish;
    use crate::hash_tree;
    use crate::keys;
    use crate::manifest::Origin;
    use crate::pagemap::Base;
    use crate::region_index::RegionIndex;
    use crate::testing::{TestStore, meta, noise, small_dump};
    use crate::working_set::{Recording, WorkingSetPack, WorkingSetPage, encoding};

    use super::*;

    const GOLDEN: &str = "tests/golden/criu-4.3/crit-compressed";

    fn put(target: &str, name: &str, bytes: &[u8]) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), bytes).unwrap();
    }

    fn golden(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN).join(name)).unwrap()
    }

    fn pair(first: &[u8], second: &[u8]) -> Vec<u8> {
        let len = u16::try_from(first.len()).unwrap();
        [&len.to_le_bytes()[..], first, second].concat()
    }

    /// The same page map, with LZ4 payloads turned into differences to its first payload, used as every base.
    fn with_differences(map: &PageMap) -> PageMap {
        let stored = map.regions().iter().find(|r| r.payload.is_some()).unwrap();
        let regions = map.regions().iter().map(|region| {
            let base = Base {
                first: region.first,
                pages: stored.pages,
                payload: stored.payload.unwrap(),
            };
            let is_lz4 = region.payload.is_some_and(|p| p.encoding == Encoding::Lz4);
            Region {
                base: is_lz4.then_some(base),
                ..*region
            }
        });
        PageMap::new(map.region_size(), regions.collect()).unwrap()
    }

    /// Regenerates `fuzz/seeds` after a change of format:
    /// `cargo test -p rekindle-snapshotter --lib -- --ignored seeds`.
    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "writes the seeds"]
    async fn seeds() {
        let server = TestStore::start().await;
        let dump = server.scratch("dump");
        let memory = [vec![0; 3 * 4096], vec![7; 2 * 65536], noise(4096, 1)].concat();
        small_dump(&dump, &memory);
        let store = &server.store;
        let published = publish(store, &RegionIndex::new(), &dump, meta()).await.unwrap();
        let manifest = store.get(&keys::manifest(&published.id)).await.unwrap();
        put("manifest", "small", &manifest);
        put(
            "manifest_value",
            "small",
            &serde_json::to_vec(&published.manifest).unwrap(),
        );
        let mut runtime = published.manifest.clone();
        let Origin::Function { rootfs, .. } = runtime.origin.clone() else {
            unreachable!("it is a function's")
        };
        runtime.base = Some("s-1".parse().unwrap());
        runtime.origin = Origin::Runtime {
            runtime: Runtime::Python,
            function: Some("hello".parse().unwrap()),
            rootfs,
            uid: 100_001,
        };
        put("manifest", "runtime", &runtime.encode().unwrap());
        put("manifest_value", "runtime", &serde_json::to_vec(&runtime).unwrap());
        let bundle = store.get(&keys::bundle(&published.id)).await.unwrap();
        let snapshot = crate::Snapshot::open(store, &published.id).await.unwrap();
        let map = &snapshot.processes[0].page_map;
        put("page_map", "small", &map.encode());
        put("page_map", "differences", &with_differences(map).encode());
        for section in published.manifest.images.iter().map(|i| &i.section).take(3) {
            let words = [section.offset, section.stored_bytes, section.bytes].map(|n| u32::try_from(n).unwrap());
            let head: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let raw = u8::from(section.encoding == SectionEncoding::Raw);
            put(
                "bundle",
                &section.offset.to_string(),
                &[&head[..], &[raw], &bundle[..]].concat(),
            );
        }
        let lz4 = lz4_flex::block::compress(&[b"the same words; ".repeat(512), noise(4096, 2)].concat());
        put("region", "lz4", &[&[4][..], &lz4].concat());
        put("region", "raw", &[&[1][..], &noise(4096, 3)].concat());
        let plain = seeded_memory();
        let nodes = plain.chunks(PAGE_BYTES).enumerate();
        let nodes: Vec<_> = nodes.map(|(number, page)| hash_tree::page_node(number, page)).collect();
        let pages = [20, 17, 24, 16].map(|page: u64| {
            let at = (page as usize - 16) * PAGE_BYTES;
            let content = plain.get(at..at + PAGE_BYTES).filter(|page| !codec::is_zero(page));
            WorkingSetPage {
                pid: 7,
                page: PageIndex(page),
                content: content.map(Bytes::copy_from_slice),
                written: page.is_multiple_of(2),
            }
        });
        let pack = WorkingSetPack {
            recording: Recording { number: 4, restores: 2 },
            pages: pages.into(),
        };
        let siblings = hash_tree::siblings(&nodes, &[0, 1, 4]);
        let id = "s-0123".parse().unwrap();
        put("working_set", "small", &encoding::encode(&id, &pack, &siblings));
        for (kind, name) in [
            (0, "mm-11597.img"),
            (1, "core-11597.img"),
            (2, "pagemap-shmem-17626.img"),
            (3, "inventory.img"),
            (4, "pagemap-11597.img"),
        ] {
            put("images", name, &[&[kind][..], &golden(name)].concat());
        }
        put(
            "images",
            "plain",
            &[&[2][..], &fs::read(dump.join("pagemap-7.img")).unwrap()].concat(),
        );
        let plain = server.scratch("plain");
        for name in ["inventory.img", "pagemap-11597.img", "pages-2.img"] {
            fs::write(plain.join(name), golden(name)).unwrap();
        }
        interchange::decompress(&plain, false).unwrap();
        let pagemap = fs::read(plain.join("pagemap-11597.img")).unwrap();
        let images = pair(&golden("files.img"), &pair(&golden("mm-11597.img"), &pagemap));
        put("template", "small", &images);
        put(
            "pages",
            "golden",
            &pair(&golden("pagemap-11597.img"), &golden("pages-2.img")),
        );
        put(
            "pages",
            "plain",
            &pair(&fs::read(dump.join("pagemap-7.img")).unwrap(), &memory),
        );
        let mut tar = tar::Builder::new(Vec::new());
        for (name, kind, link) in [
            ("a", tar::EntryType::Directory, ""),
            ("a/b", tar::EntryType::Regular, ""),
            ("a/c", tar::EntryType::Symlink, "b"),
            ("d", tar::EntryType::Link, "a/b"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o755);
            header.set_size(if kind.is_file() { 5 } else { 0 });
            if link.is_empty() {
                let content: &[u8] = if kind.is_file() { b"hello" } else { b"" };
                tar.append_data(&mut header, name, content).unwrap();
            } else {
                tar.append_link(&mut header, name, link).unwrap();
            }
        }
        put("layer", "small", &tar.into_inner().unwrap());
        put(
            "handshake",
            "one",
            &[&[4 << 2, 1 << 2 | 1, 4 << 2, 0][..], &[1, 2, 0, 0, 7], b"FTSR"].concat(),
        );
    }
}
