//! Images of a migrating instance: what they may have in addition to those of a snapshot, and where.

use std::collections::BTreeMap;

use super::parts::MigrationSide;
use super::{Case, ImageParts, check};
use crate::messages::*;
use crate::{Expected, MigrationImages, PageLocation, VerifyError};

/// By name.
type ImageFiles = BTreeMap<String, Vec<u8>>;

const TEMPLATE: &str = "file[1a:2b]";
/// The id of the template in the images.
const ID: u32 = 30;

fn expected(pages: PageLocation) -> Expected {
    Expected {
        travelling: Some(MigrationImages {
            templates: vec![TEMPLATE.to_owned(), "file[1a:2c]".to_owned()],
            pages,
        }),
        ..ImageParts::expected()
    }
}

/// The good images, with a mapping of a template and pages that are in no image.
fn good() -> ImageParts {
    let mut parts = ImageParts::good();
    let reg = RegularFile {
        id: ID,
        name: TEMPLATE.as_bytes().to_vec(),
        size: Some(1 << 40),
        ext: Some(true),
        mode: Some(0o100_400),
        ..RegularFile::default()
    };
    parts.files.push(FileEntry {
        kind: 1,
        id: ID,
        reg: Some(reg),
        ..FileEntry::default()
    });
    let mapping = Vma {
        start: 0x50_0000,
        end: 0x52_0000,
        pgoff: 0x50_0000,
        shmid: u64::from(ID),
        prot: 7,
        flags: 2,
        status: 0x41,
        fd: -1,
        fdflags: Some(0),
        ..Vma::default()
    };
    parts.mm.vmas.insert(3, mapping);
    parts.pagemap.push(PagemapRun {
        vaddr: 0x50_0000,
        flags: Some(1),
        nr_pages: Some(4),
        ..PagemapRun::default()
    });
    parts
}

fn mapping(parts: &mut ImageParts) -> &mut Vma {
    &mut parts.mm.vmas[3]
}

/// Breaks one thing and returns where it was detected.
fn broken(change: impl FnOnce(&mut ImageParts)) -> String {
    let mut parts = good();
    change(&mut parts);
    let noticed = [
        (PageLocation::Dump, parts.travelling(MigrationSide::Dumped)),
        (PageLocation::Eager, parts.travelling(MigrationSide::Packed)),
    ]
    .map(|(pages, images)| match check(&images, &expected(pages)) {
        Ok(_) => "accepted".to_owned(),
        Err(VerifyError::Field { image, field, .. }) => format!("{image} {field}"),
        Err(other) => other.to_string(),
    });
    assert_eq!(noticed[0], noticed[1]);
    let [noticed, _] = noticed;
    noticed
}

#[test]
fn images_of_an_instance_that_moves_pass_and_tell_no_template_s_path() {
    for (pages, travels) in [
        (PageLocation::Dump, MigrationSide::Dumped),
        (PageLocation::Eager, MigrationSide::Packed),
    ] {
        let verified = check(&good().travelling(travels), &expected(pages)).unwrap();
        assert!(verified.opened_paths().all(|opened| opened.path.starts_with(b"/")));
        assert_eq!(verified.files[&ID].reg.as_ref().unwrap().ext, Some(true));
    }
}

#[test]
fn what_only_travels_is_refused_in_a_snapshot() {
    let mut parts = good();
    let refused = |parts: &ImageParts| {
        check(&parts.travelling(MigrationSide::Dumped), &ImageParts::expected())
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&parts).contains("reg.ext"), "{}", refused(&parts));
    parts.files.retain(|file| file.id != ID);
    parts.mm.vmas.remove(3);
    assert!(refused(&parts).contains("flags is Some(1)"), "{}", refused(&parts));
    parts.pagemap.pop();
    check(&parts.travelling(MigrationSide::Dumped), &ImageParts::expected()).unwrap();
    let eager = check(&parts.travelling(MigrationSide::Packed), &ImageParts::expected()).unwrap_err();
    assert!(
        matches!(eager, VerifyError::Missing(_) | VerifyError::Field { .. }),
        "{eager}"
    );
}

#[test]
fn a_template_is_mapped_privately_and_nothing_else() {
    let cases: [Case; 16] = [
        ("accepted", |_| {}),
        ("files.img reg.ext", |p| p.reg(ID).name = b"file[1a:2d]".to_vec()),
        ("files.img reg.ext", |p| p.reg(ID).name = b"/etc/shadow".to_vec()),
        ("files.img reg.ext", |p| p.reg(ID).ext = Some(false)),
        // CRIU remembers few files, so it may give one file several ids.
        ("accepted", |p| {
            let mut again = p.file(ID).clone();
            (again.id, again.reg.as_mut().unwrap().id) = (31, 31);
            p.files.push(again);
        }),
        ("files.img reg.name", |p| p.reg(ID).ext = None),
        ("files.img reg.flags", |p| p.reg(ID).flags = 2),
        ("files.img reg.mode", |p| p.reg(ID).mode = Some(0o40_755)),
        ("fdinfo-2.img id", |p| {
            p.descriptors.push(Descriptor {
                id: ID,
                flags: 0,
                kind: 1,
                fd: 100,
            });
        }),
        ("fs-501.img cwd_id", |p| p.fs.cwd_id = ID),
        ("fs-501.img root_id", |p| p.fs.root_id = ID),
        ("mm-501.img exe_file_id", |p| p.mm.exe_file_id = ID),
        ("sk-queues.img scm.rights", |p| p.packet.scm[0].rights = vec![ID]),
        ("remap-fpath.img orig_id", |p| p.remaps[0].orig_id = ID),
        ("mm-501.img vmas.status", |p| {
            let mapping = mapping(p);
            (mapping.flags, mapping.status) = (1, 0x81);
        }),
        ("mm-501.img vmas.fdflags", |p| mapping(p).fdflags = Some(2)),
    ];
    for (at, change) in cases {
        assert_eq!(broken(change), at);
    }
    let watched = broken(|p| p.file(17).ify.as_mut().unwrap().wd[0].f_handle.path = Some(TEMPLATE.into()));
    assert_eq!(watched, "files.img ify.wd.f_handle.path");
}

#[test]
fn pages_are_in_an_image_or_in_the_processes_and_those_of_shared_memory_in_an_image() {
    let cases: [Case; 3] = [
        ("pagemap-501.img flags", |p| p.pagemap[1].flags = Some(0)),
        ("pagemap-501.img flags", |p| p.pagemap[1].flags = Some(3)),
        ("pagemap-501.img flags", |p| p.pagemap[1].flags = Some(5)),
    ];
    for (at, change) in cases {
        assert_eq!(broken(change), at);
    }
    let mut images = good().travelling(MigrationSide::Packed);
    images.insert("pagemap-shmem-7.img".to_owned(), images["pagemap-501.img"].clone());
    let shared = check(&images, &expected(PageLocation::Eager)).unwrap_err().to_string();
    assert!(shared.starts_with("pagemap-shmem-7.img: entry 2: flags"), "{shared}");
}

#[test]
fn eager_pages_are_there_for_each_process_and_become_an_image_that_nobody_else_has() {
    let images = good().travelling(MigrationSide::Packed);
    let refused = |change: fn(&mut ImageFiles)| {
        let mut images = images.clone();
        change(&mut images);
        check(&images, &expected(PageLocation::Eager)).unwrap_err().to_string()
    };
    assert_eq!(refused(|all| drop(all.remove("eager-504"))), "eager-504 is missing");
    let stranger = refused(|all| drop(all.insert("eager-900".to_owned(), Vec::new())));
    assert!(stranger.starts_with("eager-900 is an image of a kind"), "{stranger}");
    let there = refused(|all| drop(all.insert("pages-501.img".to_owned(), Vec::new())));
    assert!(there.starts_with("pagemap-501.img: entry 0: pages_id"), "{there}");
    let twice = refused(|all| drop(all.insert("pagemap-504.img".to_owned(), all["pagemap-501.img"].clone())));
    assert!(twice.starts_with("pagemap-504.img: entry 0: pages_id"), "{twice}");
}
