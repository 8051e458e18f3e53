//! Files that a function does not have, or not in this way.

use super::{ImageParts, assert_refused, parts};
use crate::frames::{image, magic};
use crate::messages::*;

#[test]
fn files_of_other_kinds_places_or_modes_are_refused() {
    assert_refused([
        ("files.img type", |p| p.file(5).kind = 2),
        ("files.img type", |p| {
            p.file(5).pipe = Some(Pipe {
                id: 5,
                ..Pipe::default()
            })
        }),
        ("files.img type", |p| p.file(14).efd = None),
        ("files.img id", |p| p.reg(5).id = 4),
        ("files.img id", |p| {
            p.files.push(parts::regular(5, "/tmp/g", 0, 0o100_644))
        }),
        ("files.img \"/proc/1/mem\"", |p| p.reg(5).name = b"/proc/1/mem".to_vec()),
        ("files.img \"/sys/x\"", |p| p.reg(5).name = b"/sys/x".to_vec()),
        ("files.img reg.name", |p| p.reg(5).name = b"/run/criu.kdat".to_vec()),
        ("files.img reg.name", |p| p.reg(5).name = b"/tmp/../etc/shadow".to_vec()),
        ("files.img reg.name", |p| p.reg(4).name = b"/dev/mem".to_vec()),
        ("files.img reg.name", |p| p.reg(5).name = b"/pipe:[55]".to_vec()),
        ("files.img reg.flags", |p| p.reg(5).flags = 0o101),
        ("files.img reg.flags", |p| p.reg(1).flags = 2),
        ("files.img reg.mnt_id", |p| p.reg(5).mnt_id = Some(3)),
        ("files.img reg.ext", |p| p.reg(5).ext = Some(true)),
        ("files.img reg.size", |p| p.reg(5).size = Some(u64::MAX)),
        ("files.img reg.build_id", |p| p.reg(5).build_id = vec![0; 65]),
        ("files.img reg.mode", |p| p.reg(5).mode = None),
        ("files.img reg.mode", |p| p.reg(5).mode = Some(0o60_666)),
        ("files.img reg.mode", |p| p.reg(5).mode = Some(0o20_666)),
        ("files.img reg.mode", |p| p.reg(4).mode = Some(0o100_666)),
        ("files.img reg.mode", |p| p.reg(5).mode = Some(0o120_777)),
        ("files.img fown.signum", |p| p.reg(5).fown.signum = 65),
        ("files.img fown", |p| p.reg(5).fown.uid = 1),
        ("files.img fown.uid", |p| p.reg(5).fown.pid = 501),
        ("files.img fown.pid", |p| {
            p.reg(5).fown = Owner {
                uid: parts::UID,
                euid: parts::UID,
                pid: 1,
                pid_type: 1,
                ..Owner::default()
            };
        }),
        ("files.img pipe.flags", |p| p.file(7).pipe.as_mut().unwrap().flags = 0),
        ("files.img flags", |p| p.file(14).efd.as_mut().unwrap().flags = 0o102),
        ("files.img tfd.clockid", |p| {
            p.file(16).tfd.as_mut().unwrap().clockid = 9
        }),
        ("files.img tfd.settime_flags", |p| {
            p.file(16).tfd.as_mut().unwrap().settime_flags = 4
        }),
        ("files.img tfd", |p| {
            p.file(16).tfd.as_mut().unwrap().vnsec = 1_000_000_000
        }),
        ("files.img pidfd.nspid", |p| {
            p.file(19).pidfd.as_mut().unwrap().nspid = 1
        }),
        ("files.img pidfd.flags", |p| {
            p.file(19).pidfd.as_mut().unwrap().flags = 2
        }),
        ("files.img memfd.inode_id", |p| {
            p.file(18).memfd.as_mut().unwrap().inode_id = 2
        }),
        ("files.img epfd.tfd.tfd", |p| {
            p.file(13).epfd.as_mut().unwrap().tfd[0].tfd = 1000
        }),
    ]);
}

/// Thread 502 is not a process: its pidfd would be rejected, so the good image refers to a process.
#[test]
fn a_pidfd_is_of_a_process_living_dead_or_gone() {
    for pid in [501, 503, -1] {
        let mut parts = ImageParts::good();
        parts.file(19).pidfd.as_mut().unwrap().nspid = pid;
        super::check(&parts.images(), &ImageParts::expected()).unwrap();
    }
}

#[test]
fn watches_without_a_path_or_of_the_kernel_s_files_are_refused() {
    fn watch(p: &mut ImageParts) -> &mut Watch {
        &mut p.file(17).ify.as_mut().unwrap().wd[0]
    }
    assert_refused([
        ("files.img ify.wd.f_handle.path", |p| watch(p).f_handle.path = None),
        ("files.img ify.wd.f_handle.path", |p| {
            watch(p).f_handle.path = Some(b"/proc".to_vec())
        }),
        ("files.img ify.wd.f_handle.handle", |p| {
            watch(p).f_handle.handle = vec![0; 17]
        }),
        ("files.img ify.wd.f_handle.mnt_id", |p| {
            watch(p).f_handle.mnt_id = Some(1)
        }),
        ("files.img ify.wd.mask", |p| watch(p).mask = 1 << 31),
        ("files.img ify.wd.ignored_mask", |p| watch(p).ignored_mask = 1),
    ]);
}

/// Good images in which process 501 alone has a file of `/proc` in the place of one of `/tmp`.
fn with_proc_file(name: &str, change: impl FnOnce(&mut ImageParts)) -> Result<(), String> {
    let mut parts = ImageParts::good();
    let file = parts.reg(5);
    (file.name, file.flags, file.mode) = (name.as_bytes().to_vec(), 0o100_000, Some(0o100_444));
    parts.ids.get_mut(&504).unwrap().files_id = 3;
    change(&mut parts);
    let mut images = parts.images();
    let others = parts.descriptors.iter().filter(|descriptor| descriptor.id != 5);
    let others: Vec<_> = others.map(prost::Message::encode_to_vec).collect();
    images.insert("fdinfo-3.img".to_owned(), image(magic::DESCRIPTORS, &others));
    let checked = super::check(&images, &ImageParts::expected());
    checked.map(drop).map_err(|refused| refused.explanation())
}

#[test]
fn a_process_has_files_of_proc_about_itself_open_to_read_and_no_others() {
    assert_eq!(with_proc_file("/proc/501/statm", |_| ()), Ok(()));
    let refused = |name: &str, change: fn(&mut ImageParts)| with_proc_file(name, change).unwrap_err();
    for name in [
        "/proc/504/statm",
        "/proc/503/statm",
        "/proc/501/mem",
        "/proc/501/maps",
        "/proc/stat",
    ] {
        let told = refused(name, |_| ());
        assert!(told.starts_with(&format!("{name:?} open")), "{told}");
    }
    let told = refused("/proc/501/comm", |p| p.reg(5).flags = 0o100_002);
    assert!(told.contains("reg.flags"), "{told}");
    // It goes to another process with a message, or is another's by a shared table.
    for change in [
        |p: &mut ImageParts| p.packet.scm[0].rights = vec![5],
        |p: &mut ImageParts| p.ids.get_mut(&504).unwrap().files_id = 2,
    ] {
        let told = refused("/proc/501/statm", change);
        assert!(told.starts_with("\"/proc/501/statm\" open"), "{told}");
    }
}

#[test]
fn the_root_may_be_watched_and_what_may_not_is_told_by_its_path() {
    let watching = |path: &[u8]| {
        let mut parts = ImageParts::good();
        parts.file(17).ify.as_mut().unwrap().wd[0].f_handle.path = Some(path.to_vec());
        super::check(&parts.images(), &ImageParts::expected())
    };
    watching(b"/.").unwrap();
    let refused = watching(b"/run/x").unwrap_err();
    assert_eq!(refused.watched_path(), Some("\"/run/x\""));
    assert!(
        refused.explanation().starts_with("a watch (inotify) on \"/run/x\""),
        "{}",
        refused.explanation()
    );
}

#[test]
fn sockets_beyond_a_function_s_are_refused() {
    assert_refused([
        ("files.img usk.ino", |p| p.unix().ino = 0),
        ("files.img usk.type", |p| p.unix().kind = 3),
        ("files.img usk.state", |p| p.unix().state = 2),
        ("files.img usk.flags", |p| p.unix().flags = 0o102),
        ("files.img usk.uflags", |p| p.unix().uflags = 1),
        ("files.img usk.peer", |p| p.unix().peer = 5),
        ("files.img usk.backlog", |p| p.unix().backlog = 1 << 20),
        ("files.img usk.shutdown", |p| p.unix().shutdown = Some(4)),
        ("files.img usk.name", |p| {
            p.unix().name = b"/run/criu/service\0".to_vec()
        }),
        ("files.img usk.name", |p| p.unix().name = b"relative\0".to_vec()),
        (r#"files.img relative "near""#, |p| {
            (p.unix().name_dir, p.unix().name) = (Some(b"/".to_vec()), b"near\0".to_vec());
        }),
        (r#"files.img relative "../run/far""#, |p| {
            (p.unix().name_dir, p.unix().name) = (Some(b"/tmp".to_vec()), b"../run/far\0".to_vec());
        }),
        (r#"files.img relative "long""#, |p| {
            let directory = [b"/tmp/".as_slice(), &[b'd'; 100]].concat();
            (p.unix().name_dir, p.unix().name) = (Some(directory), b"long\0".to_vec());
        }),
        ("files.img usk.name_dir", |p| p.unix().name_dir = Some(b"/tmp".to_vec())),
        ("files.img usk.name_dir", |p| {
            (p.unix().name_dir, p.unix().name) = (Some(b"/tmp".to_vec()), b"\0abstract".to_vec());
        }),
        ("files.img usk.mnt_id", |p| p.unix().mnt_id = Some(1)),
        ("files.img ns_id", |p| p.unix().ns_id = Some(99)),
        ("files.img usk.file_perms.mode", |p| {
            p.unix().file_perms.as_mut().unwrap().mode = 0o144_777
        }),
        ("files.img usk.file_perms.uid", |p| {
            p.unix().file_perms.as_mut().unwrap().uid = 0
        }),
        ("files.img opts.so_mark", |p| p.unix().opts.so_mark = Some(1)),
        ("files.img opts.so_priority", |p| p.unix().opts.so_priority = Some(7)),
        ("files.img opts.so_sndbuf", |p| p.unix().opts.so_sndbuf = 1 << 30),
        ("files.img opts.so_rcvbuf", |p| p.unix().opts.so_rcvbuf = 1 << 30),
        ("files.img opts.so_passsec", |p| p.unix().opts.so_passsec = Some(true)),
        ("files.img opts.so_bound_dev", |p| {
            p.unix().opts.so_bound_dev = Some(b"eth0".to_vec())
        }),
        ("files.img opts.so_filter", |p| p.unix().opts.so_filter = vec![0; 4097]),
        ("files.img opts.tcp_keepcnt", |p| p.unix().opts.tcp_keepcnt = Some(1)),
        ("files.img isk.family", |p| p.inet().family = 17),
        ("files.img isk.proto", |p| p.inet().kind = 3),
        ("files.img isk.proto", |p| p.inet().proto = 1),
        ("files.img isk.state", |p| p.inet().state = 13),
        ("files.img isk.src_port", |p| p.inet().src_port = 65_536),
        ("files.img isk.dst_port", |p| p.inet().dst_port = 65_536),
        ("files.img isk.src_addr", |p| p.inet().src_addr.push(0)),
        ("files.img isk.dst_addr", |p| p.inet().dst_addr.clear()),
        ("files.img isk.v6only", |p| p.inet().v6only = Some(true)),
        ("files.img isk.ip_opts.tos", |p| {
            p.inet().ip_opts.as_mut().unwrap().tos = Some(256)
        }),
        ("files.img ns_id", |p| p.inet().ns_id = Some(99)),
        ("files.img nlsk.protocol", |p| {
            p.file(20).nlsk.as_mut().unwrap().protocol = 9
        }),
        ("files.img nlsk.protocol", |p| {
            let socket = p.file(20).nlsk.as_mut().unwrap();
            (socket.protocol, socket.groups) = (16, vec![1]);
        }),
    ]);
}

#[test]
fn descriptors_directories_and_locks_that_are_none_are_refused() {
    assert_refused([
        ("fdinfo-2.img id", |p| p.descriptors[0].id = 99),
        ("fdinfo-2.img type", |p| p.descriptors[0].kind = 2),
        ("fdinfo-2.img flags", |p| p.descriptors[0].flags = 2),
        ("fdinfo-2.img fd", |p| p.descriptors[0].fd = 1024),
        ("fdinfo-2.img fd", |p| p.descriptors[0].fd = 1),
        ("fs-501.img root_id", |p| p.fs.root_id = 3),
        ("fs-501.img root_id", |p| p.fs.root_id = 5),
        ("fs-501.img cwd_id", |p| p.fs.cwd_id = 1),
        ("fs-501.img umask", |p| p.fs.umask = Some(0o1000)),
        ("filelocks.img flag", |p| p.locks[0].flag = 1024),
        ("filelocks.img type", |p| p.locks[0].kind = 2),
        ("filelocks.img pid", |p| p.locks[0].pid = 1),
        ("filelocks.img fd", |p| p.locks[0].fd = 500),
        ("filelocks.img start", |p| p.locks[0].start = -1),
    ]);
}

#[test]
fn files_without_a_name_are_a_function_s_own_and_where_it_writes() {
    assert_refused([
        ("ghost-file-1.img uid", |p| p.ghost.uid = 0),
        ("ghost-file-1.img gid", |p| p.ghost.gid = 0),
        ("ghost-file-1.img mode 4755", |p| p.ghost.mode = 0o104_755),
        ("ghost-file-1.img mode 1777", |p| p.ghost.mode = 0o41_777),
        ("ghost-file-1.img mode 4777", |p| p.ghost.mode = 0o124_777),
        ("ghost-file-1.img mode", |p| p.ghost.mode = 0o20_666),
        ("ghost-file-1.img mode", |p| p.ghost.mode = 0o120_777),
        ("ghost-file-1.img rdev", |p| p.ghost.rdev = Some(1)),
        ("ghost-file-1.img size", |p| p.ghost.size = Some(1 << 40)),
        ("ghost-file-1.img mtim", |p| p.ghost.atim = Some(TimeVal::default())),
        ("ghost-file-1.img data", |p| p.ghost.mode = 0o40_755),
        ("ghost-file-1.img size", |p| p.ghost.chunks = Some(true)),
        ("remap-fpath.img orig_id", |p| p.remaps[0].orig_id = 1),
        ("remap-fpath.img orig_id", |p| p.remaps.push(p.remaps[0].clone())),
        ("remap-fpath.img remap_id", |p| p.remaps[0].remap_id = 2),
        ("remap-fpath.img remap_type", |p| p.remaps[0].remap_type = Some(2)),
        ("remap-fpath.img remap_type", |p| p.remaps[0].remap_type = None),
        ("remap-fpath.img remap_id", |p| {
            p.remaps.push(Remap {
                orig_id: 5,
                remap_id: 6,
                remap_type: Some(0),
            })
        }),
        ("memfd.img uid", |p| p.memory_files[0].uid = 0),
        ("memfd.img gid", |p| p.memory_files[0].gid = 0),
        ("memfd.img mode", |p| p.memory_files[0].mode = Some(0o104_777)),
        ("memfd.img seals", |p| p.memory_files[0].seals = 1 << 6),
        ("memfd.img hugetlb_flag", |p| p.memory_files[0].hugetlb_flag = Some(1)),
        ("memfd.img size", |p| p.memory_files[0].size = u64::MAX),
        ("memfd.img name", |p| p.memory_files[0].name = vec![b'x'; 250]),
        ("memfd.img inode_id", |p| p.memory_files.push(p.memory_files[0].clone())),
    ]);
}

#[test]
fn queues_are_of_what_there_is_and_carry_files_alone() {
    assert_refused([
        ("pipes-data.img pipe_id", |p| p.pipe_data.pipe_id = 99),
        ("pipes-data.img size", |p| p.pipe_data.size = Some(1 << 30)),
        ("pipes-data.img bytes", |p| p.pipe_data.size = Some(1)),
        ("sk-queues.img id_for", |p| p.packet.id_for = 5),
        ("sk-queues.img scm.type", |p| p.packet.scm[0].kind = 2),
        ("sk-queues.img scm.rights", |p| p.packet.scm[0].rights = vec![99]),
        ("sk-queues.img scm.rights", |p| p.packet.scm[0].rights = vec![8; 254]),
        ("sk-queues.img scm", |p| p.packet.scm.push(p.packet.scm[0].clone())),
    ]);
}
