//! Files that had lost their names, and those whose names others have now.

use super::*;

#[test]
fn files_that_lost_their_names_have_them_until_all_is_open() {
    let mut images = good();
    give_ghost(&mut images, |ghost| assert_eq!(ghost.size, 4));
    // It never had one: made with `O_TMPFILE`.
    images.files.get_mut(&6).unwrap().reg.as_mut().unwrap().flags |= 0o20_200_000;
    open(&mut images, 6);
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let codes: Vec<_> = program.ops().map(|op| Code::of(op.code).unwrap()).collect();
    for code in [Code::Create, Code::Unlink] {
        let op = program.ops().find(|op| op.code == code as u32).unwrap();
        assert_eq!(program.part(op.args[0], op.args[1]).unwrap(), b"/tmp/ghost\0");
    }
    let opens = program.ops().filter(|op| op.code == Code::Open as u32);
    let flags = opens
        .filter(|op| program.part(op.args[0], op.args[1]) == Ok(b"/tmp/ghost\0"))
        .map(|op| op.a);
    assert_eq!(flags.collect::<Vec<_>>(), [0o100_002]);
    let at = |code| codes.iter().position(|found| *found == code).unwrap();
    let order = [
        Code::Files,
        Code::Create,
        Code::Write,
        Code::Keep,
        Code::Unlink,
        Code::Wait,
    ];
    assert!(order.map(at).is_sorted(), "{codes:?}");
    // Another name that CRIU gave it goes, too.
    images.remaps[0].remap_type = Some(0);
    images.remaps[0].remap_id = images.remaps[0].orig_id;
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let links = program.ops().filter(|op| Code::of(op.code) == Some(Code::Link)).count();
    assert_eq!(links, 1);
}

/// Names by what makes and opens them, without the NUL, in order.
fn named(images: &Verified, taken: &[&str], code: Code) -> Vec<String> {
    let taken = taken.iter().map(|name| name.as_bytes().to_vec()).collect();
    let program = compiled_with(images, &[], &taken).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let ops = program.ops().filter(|op| op.code == code as u32);
    let name = |op: Op| {
        let [.., at, length] = op.args[..if code == Code::Link { 4 } else { 2 }] else {
            unreachable!()
        };
        let name = program.part(at, length).unwrap();
        String::from_utf8(name[..name.len() - 1].to_vec()).unwrap()
    };
    ops.map(name).collect()
}

#[test]
fn a_file_whose_name_another_has_now_gets_a_name_that_none_has() {
    const FREE: &str = "/tmp/.rekindle-lost-0";
    let mut images = good();
    give_ghost(&mut images, |_| ());
    open(&mut images, 6);
    let ghosts = |images: &Verified, taken: &[&str]| {
        let is_ghost = |name: &String| name.starts_with("/tmp/ghost") || name.contains("lost");
        [Code::Create, Code::Open, Code::Unlink].map(|code| {
            let mut names = named(images, taken, code);
            names.retain(is_ghost);
            names
        })
    };
    assert_eq!(ghosts(&images, &["/tmp/other"]), [["/tmp/ghost"]; 3]);
    assert_eq!(ghosts(&images, &["/tmp/ghost"]), [[FREE]; 3]);
    let next = "/tmp/.rekindle-lost-1";
    assert_eq!(ghosts(&images, &["/tmp/ghost", FREE]), [[next]; 3]);
    // The other is open, too, or there is another that has lost the name.
    let mut both = images.clone();
    both.files.insert(99, images.files[&6].clone());
    assert_eq!(ghosts(&both, &[])[0], [FREE]);
    let mut twice = both.clone();
    let first = twice.remaps[0].clone();
    twice.ghosts.insert(98, twice.ghosts[&first.remap_id].clone());
    twice.remaps.push(Remap {
        orig_id: 99,
        remap_id: 98,
        ..first
    });
    assert_eq!(ghosts(&twice, &[])[0], ["/tmp/ghost", FREE]);
    // One of another name, that CRIU has given.
    images.files.insert(97, images.files[&6].clone());
    images.files.get_mut(&97).unwrap().reg.as_mut().unwrap().name = b"/tmp/link_remap.1".to_vec();
    (images.remaps[0].remap_type, images.remaps[0].remap_id) = (Some(Remap::LINKED), 97);
    assert_eq!(named(&images, &[], Code::Link), ["/tmp/ghost"]);
    assert_eq!(named(&images, &["/tmp/ghost"], Code::Link), [FREE]);
}
