//! For everything that has no operation, images that have it. They begin as the verifier's good images, less what is
//! refused.

mod limits;
mod names;
mod orphans;
mod own_files;
mod sockets;

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use rekindle_restore_program::{CLOSED, Code, Op, PAGE, Program, source};
use rekindle_verify::messages::*;
use rekindle_verify::{PipeContent, UnlinkedFile, Verified};

use crate::PageRun;
use crate::fuzz::{compile_images, compiled, compiled_with, read, reduced};
use crate::print::Printed;

fn seed() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/verify/good");
    std::fs::read(path).unwrap()
}

/// All that the verifier's good images have.
fn everything() -> Verified {
    rekindle_verify::fuzz::verified(&seed()).unwrap()
}

/// Descriptors by what they are.
const OUTPUT: u32 = 3;
const PAIR: u32 = 6;
const INET: u32 = 8;
const EPOLL: u32 = 9;
const EVENT: u32 = 10;

/// Images that are compiled: a process with two threads.
fn good() -> Verified {
    reduced(everything())
}

fn mm(images: &mut Verified) -> &mut Mm {
    images.processes[0].memory.as_mut().unwrap()
}

/// The mapping without a file.
fn mapping(images: &mut Verified) -> &mut Vma {
    &mut mm(images).vmas[1]
}

fn task(images: &mut Verified) -> &mut TaskCore {
    images.processes[0].threads[0].core.tc.as_mut().unwrap()
}

fn posix(images: &mut Verified) -> &mut Vec<PosixTimer> {
    &mut task(images).timers.as_mut().unwrap().posix
}

fn thread(images: &mut Verified) -> &mut ThreadCore {
    images.processes[0].threads[1].core.thread_core.as_mut().unwrap()
}

/// Adds a file that had lost its name.
fn give_ghost(images: &mut Verified, change: impl FnOnce(&mut UnlinkedFile)) {
    let everything = everything();
    (images.remaps, images.ghosts) = (everything.remaps, everything.ghosts);
    images.ghosts.values_mut().next().map(change).unwrap();
}

fn file(images: &mut Verified, descriptor: u32) -> &mut FileEntry {
    let id = images.processes[0].descriptors[&descriptor].id;
    images.files.get_mut(&id).unwrap()
}

fn inet(images: &mut Verified) -> &mut InetSocket {
    file(images, INET).isk.as_mut().unwrap()
}

fn unix(images: &mut Verified) -> &mut UnixSocket {
    file(images, PAIR).usk.as_mut().unwrap()
}

/// Opens a file of the good images as a descriptor.
fn open(images: &mut Verified, id: u32) {
    let descriptor = everything().processes[0]
        .descriptors
        .values()
        .find(|d| d.id == id)
        .unwrap()
        .clone();
    Arc::make_mut(&mut images.processes[0].descriptors).insert(descriptor.fd, descriptor);
}

fn refusal(change: impl FnOnce(&mut Verified)) -> String {
    let mut images = good();
    change(&mut images);
    compiled(&images).map_or_else(|refusal| refusal.to_string(), |_| "compiled".to_owned())
}

fn codes(images: &Verified) -> Vec<Code> {
    let compiled = compiled(images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    program.ops().map(|op| Code::of(op.code).unwrap()).collect()
}

#[test]
fn the_seed_is_compiled() {
    assert!(compile_images(&seed()));
}

#[test]
fn good_images_become_a_program() {
    let compiled = compiled(&good()).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    assert_eq!(
        program.threads().map(|thread| thread.id).collect::<Vec<_>>(),
        [501, 502]
    );
    assert_eq!(program.header().descriptors_end, EVENT + 1);
    let codes = codes(&good());
    let at = |code| codes.iter().position(|c| *c == code).unwrap();
    let order = [
        Code::Clear,
        Code::Map,
        Code::Tell,
        Code::Files,
        Code::Memory,
        Code::Keep,
        Code::Threads,
        Code::Wait,
    ];
    assert!(order.map(at).is_sorted(), "{codes:?}");
    assert_eq!(codes.iter().filter(|c| **c == Code::SocketPair).count(), 1);
    assert_eq!(codes.iter().filter(|c| **c == Code::Output).count(), 1);
    let text = Printed::parse(&compiled.program).unwrap().to_string();
    assert!(
        text.contains("/usr/bin/python3") && text.contains("thread 502 python3"),
        "{text}"
    );
}

#[test]
fn a_template_is_mapped_by_its_number_and_what_was_written_to_it_is_read_before_the_pager_is_told() {
    let mut images = good();
    let vma = mapping(&mut images);
    vma.prot = 1;
    let (start, length) = (vma.start, vma.end - vma.start);
    let template = PageRun {
        first: start / PAGE,
        pages: length / PAGE,
        file: 3,
        at: 7,
    };
    let program = compiled_with(&images, &[template], &BTreeSet::new()).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let ops: Vec<_> = program.ops().collect();
    let at = |wanted: Code| ops.iter().position(|op| op.code == wanted as u32).unwrap();
    let map = ops.iter().position(|op| op.a == source::TEMPLATE + 3).unwrap();
    let Op {
        args: [address, bytes, protection, _, offset],
        ..
    } = ops[map];
    // Readable, and writable until it has been read into.
    assert_eq!((address, bytes, protection, offset), (start, length, 3, 7 * PAGE));
    assert_eq!(ops[at(Code::Protect)].args[..3], [start, length, 1]);
    assert!([map, at(Code::Read), at(Code::Protect), at(Code::Tell)].is_sorted());
}

#[test]
fn what_images_share_and_has_no_operation_is_refused() {
    assert_refused([
        ("the snapshot has locks of none of its processes", |i| {
            i.locks = everything().locks;
            i.locks[0].pid = 1;
        }),
        ("the snapshot has an unlinked file that is not in its images", |i| {
            i.remaps = everything().remaps
        }),
        ("the snapshot has an unlinked file of more than 64 KiB", |i| {
            give_ghost(i, |ghost| ghost.content = None);
        }),
        ("the snapshot has an unlinked directory or named pipe", |i| {
            give_ghost(i, |ghost| ghost.file.mode = 0o010_600);
        }),
        (
            "the snapshot has a memory file that only earlier mappings may write to",
            |i| {
                i.memory_files = everything().memory_files;
                i.memory_files.values_mut().for_each(|file| file.seals = 0x10);
            },
        ),
    ]);
}

#[test]
fn files_without_an_operation_are_refused_by_their_kind() {
    for (id, what) in [
        (18, "a memory file that is not in its images"),
        (19, "a pidfd"),
        (20, "a netlink socket"),
    ] {
        let refusal = refusal(|images| open(images, id));
        assert_eq!(refusal, format!("descriptor {} is {what}", id - 4));
    }
}

#[test]
fn inotifys_watch_what_they_watched() {
    let mut images = good();
    open(&mut images, 17);
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let codes: Vec<_> = program.ops().map(|op| (op.code, op.a)).collect();
    let at = |code: Code| codes.iter().position(|op| *op == (code as u32, 13));
    assert!(at(Code::Inotify).unwrap() < at(Code::WatchFile).unwrap());
    images.files.get_mut(&17).unwrap().ify.as_mut().unwrap().wd[0]
        .f_handle
        .path = None;
    assert!(compiled(&images).is_err());
}

#[test]
fn a_connection_is_made_afterwards_or_closed() {
    let mut images = good();
    let socket = inet(&mut images);
    (socket.state, socket.src_port, socket.dst_port) = (1, 40_000, 8080);
    let compiled = compiled(&images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    let is_done = |code: Code| program.ops().any(|op| (op.code, op.a) == (code as u32, INET));
    assert!(is_done(Code::Socket) && is_done(Code::Shutdown));
    assert!(!is_done(Code::Bind) && !is_done(Code::Listen));
    inet(&mut images).proto = 17;
    assert!(crate::fuzz::compiled(&images).is_err());
}

#[test]
fn a_pipe_may_have_lost_an_end_and_has_no_third() {
    let mut images = good();
    open(&mut images, 8);
    images.pipes.clear();
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let pipe = program.ops().find(|op| op.code == Code::Pipe as u32).unwrap();
    assert_eq!((pipe.a, pipe.args[0]), (4, u64::from(CLOSED)));
    let refusal = refusal(|images| {
        open(images, 8);
        let end = images.files[&8].clone();
        for id in [1_000, 1_001] {
            let mut other = end.clone();
            other.pipe.as_mut().unwrap().id = id;
            images.files.insert(id, other);
        }
    });
    assert_eq!(
        refusal,
        "descriptor 4 is a pipe without just one end to read and one to write"
    );
}

#[test]
fn priorities_and_a_raised_score_come_when_all_threads_are_there() {
    let mut images = good();
    thread(&mut images).sched_nice = Some(5);
    thread(&mut images).sched_policy = Some(3);
    task(&mut images).oom_score_adj = Some(700);
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let ops: Vec<Op> = program.ops().collect();
    let at = |code: Code| ops.iter().rposition(|op| op.code == code as u32).unwrap();
    let priority = ops[at(Code::Priority)];
    assert_eq!((priority.a, priority.args[0], priority.args[1]), (502, 5, 3));
    let written = ops[at(Code::Write)];
    assert_eq!(program.part(written.args[1], written.args[2]), Ok(&b"700"[..]));
    assert!(
        [Code::Threads, Code::Priority, Code::Write, Code::Filter]
            .map(at)
            .is_sorted()
    );
}

/// Makes the event counter a named pipe.
fn give_named_pipe(images: &mut Verified, change: impl FnOnce(&mut RegularFile)) {
    const NAME: u32 = 2_000;
    let like = images.files.values().find_map(|file| file.reg.clone()).unwrap();
    let mut named = RegularFile {
        id: NAME,
        name: b"/tmp/fifo".to_vec(),
        flags: 1,
        mode: Some(0o010_640),
        ..like
    };
    change(&mut named);
    let entry = file(images, EVENT);
    (entry.efd, entry.fifo) = (
        None,
        Some(Fifo {
            id: entry.id,
            pipe_id: 77,
            regf_id: Some(NAME),
        }),
    );
    let name = FileEntry {
        id: NAME,
        reg: Some(named),
        ..FileEntry::default()
    };
    images.files.insert(NAME, name);
    let content = PipeContent {
        room: Some(1 << 17),
        bytes: b"held".to_vec(),
    };
    images.named_pipes.insert(77, content);
}

#[test]
fn a_named_pipe_is_filled_while_it_is_open_for_both() {
    let mut images = good();
    give_named_pipe(&mut images, |_| {});
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let is_it = |op: &Op| program.part(op.args[0], op.args[1]) == Ok(b"/tmp/fifo\0");
    let ops: Vec<Op> = program.ops().collect();
    let at = ops
        .iter()
        .position(|op| op.code == Code::Open as u32 && is_it(op))
        .unwrap();
    let made: Vec<_> = ops[at..at + 7].iter().map(|op| Code::of(op.code).unwrap()).collect();
    let order = [
        Code::Open,
        Code::Keep,
        Code::Room,
        Code::Fill,
        Code::Open,
        Code::Keep,
        Code::CloseRange,
    ];
    assert_eq!(made, order);
    assert_eq!((ops[at].a, ops[at + 4].a, ops[at + 5].a), (0o4_002, 1, EVENT));
    for (change, why) in [
        (0o010_440, "a named pipe that its owner may not read or write"),
        (0o010_200, "a named pipe that its owner may not read or write"),
    ] {
        let refusal = refusal(|images| give_named_pipe(images, |named| named.mode = Some(change)));
        assert_eq!(refusal, format!("descriptor {EVENT} is {why}"));
    }
    let refusal = refusal(|images| give_named_pipe(images, |named| named.flags = 0o20_001));
    assert_eq!(
        refusal,
        format!("descriptor {EVENT} is a named pipe with unusual flags")
    );
}

/// What is said, and the change.
type Case = (&'static str, fn(&mut Verified));

fn assert_refused<const N: usize>(cases: [Case; N]) {
    for (what, change) in cases {
        assert_eq!(refusal(change), what);
    }
}

#[test]
fn droppable_memory_is_made_without_content() {
    let mut images = good();
    let mut droppable = mapping(&mut images).clone();
    (droppable.start, droppable.end, droppable.flags) = (0x50_0000, 0x50_1000, 0x28);
    mm(&mut images).vmas.push(droppable);
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let map = program
        .ops()
        .find(|op| op.code == Code::Map as u32 && op.args[0] == 0x50_0000)
        .unwrap();
    assert_eq!((map.a, map.args[1], map.args[3]), (0, 0x1000, 8));
}

#[test]
fn memory_files_and_shared_memory_are_made_once_filled_and_opened_where_they_were() {
    let mut images = good();
    images.memory_files = everything().memory_files;
    for file in images.memory_files.values_mut() {
        (file.size, file.seals) = (8192, 2);
    }
    open(&mut images, 18);
    let like = mapping(&mut images).clone();
    let shared = |start, status, shmid, pgoff| Vma {
        start,
        end: start + 0x1000,
        status,
        flags: 0x21,
        prot: 3,
        shmid,
        pgoff,
        ..like.clone()
    };
    let of_file = Vma {
        fdflags: Some(2),
        flags: 1,
        ..shared(0x50_0000, 0x4081, 18, 0x1000)
    };
    // Mapped twice, and once.
    let others = [(0x51_0000, 9, 0), (0x52_0000, 9, 0x1000), (0x53_0000, 10, 0)];
    let others = others.map(|(start, shmid, pgoff)| shared(start, 0x101, shmid, pgoff));
    mm(&mut images).vmas.extend([of_file].into_iter().chain(others));
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let all: Vec<_> = program.ops().collect();
    let of = |code: Code| all.iter().filter(move |op| op.code == code as u32);
    let files: Vec<_> = of(Code::MemoryFile).map(|op| (op.a, op.args[2], op.args[3])).collect();
    assert_eq!(files, [(2, 8192, 0o777), (0, 8192, 0o777)]);
    assert_eq!(of(Code::Seal).map(|op| op.a).collect::<Vec<_>>(), [2]);
    let pasted: Vec<_> = of(Code::Paste).map(|op| [op.args[0], op.args[1]]).collect();
    assert_eq!(pasted, [[0, 0], [PAGE, PAGE]]);
    // A mapping, two of the same, a descriptor.
    assert_eq!(of(Code::Again).count(), 3);
    let maps = of(Code::Map).filter(|op| op.args[0] >= 0x50_0000 && op.args[0] < 0x54_0000);
    let maps: Vec<_> = maps.map(|op| [op.args[0], op.a.into(), op.args[4]]).collect();
    let expected = [
        [0x50_0000, 1, 0x1000],
        [0x51_0000, 1, 0],
        [0x52_0000, 1, 0x1000],
        [0x53_0000, 0, 0],
    ];
    assert_eq!(maps, expected);
    let read = of(Code::Read).find(|op| op.args[1] == 2 * PAGE).unwrap();
    let (parts, _) = program.part(read.args[0], 16).unwrap().as_chunks::<8>();
    assert_eq!(u64::from_le_bytes(parts[0]), 0x53_0000);
}

#[test]
fn mappings_without_an_operation_are_refused() {
    assert_refused([
        ("the mapping at 0x10000 is where the restorer itself is", |i| {
            mapping(i).start = 0x1_0000
        }),
        ("the mapping at 0x420000 is locked", |i| mapping(i).flags |= 0x2000),
        (
            "the mapping at 0x420000 is shared or droppable, and has pages of its own",
            |i| mapping(i).flags = 0x28,
        ),
        ("the mapping at 0x420000 is neither private nor shared", |i| {
            mapping(i).flags = 0x2f
        }),
        (
            "the mapping at 0x420000 is shared or droppable, and has pages of its own",
            |i| mapping(i).status = 0x101,
        ),
        ("process 501 has memory that may not be dumped", |i| {
            mm(i).dumpable = Some(0)
        }),
        ("process 501 has no vdso", |i| mm(i).vmas.truncate(2)),
        ("process 501 has a vdso of another kernel", |i| {
            mm(i).vmas[2].end += 0x1000
        }),
        ("process 501 has a vdso whose bytes are not in its images", |i| {
            let vdso = &mut mm(i).vmas[2];
            (vdso.start, vdso.end) = (vdso.start + 0x1000, vdso.end + 0x1000);
        }),
    ]);
}

#[test]
fn sockets_that_would_lose_something_are_refused() {
    assert_refused([
        ("descriptor 8 is a socket in an unusual state", |i| inet(i).state = 1),
        ("descriptor 8 is a listening socket that was shut down", |i| {
            inet(i).shutdown = Some(1)
        }),
        (
            "descriptor 8 is a socket whose buffers may have a size of their own",
            |i| {
                inet(i).opts.so_buf_lock = None;
            },
        ),
        ("descriptor 8 is a socket with a filter", |i| {
            inet(i).opts.so_filter = vec![6]
        }),
        ("descriptor 8 is a socket with unusual options of IP", |i| {
            inet(i).ip_opts.as_mut().unwrap().freebind = Some(true);
        }),
        ("descriptor 8 is a socket with unusual flags", |i| {
            inet(i).fown.signum = 1
        }),
        (
            "descriptor 6 is a unix socket with packets that are not in its images",
            |i| {
                i.queues.clear();
                unix(i).backlog = 1;
            },
        ),
        ("descriptor 6 is a unix socket with files on their way", |i| {
            i.queues = everything().queues
        }),
        ("descriptor 6 is a unix socket with a relative name", |i| {
            unix(i).name = b"name\0".to_vec()
        }),
    ]);
}

#[test]
fn files_that_would_lose_something_are_refused() {
    assert_refused([
        ("descriptor 1 is a file that sends signals", |i| {
            file(i, 1).reg.as_mut().unwrap().fown.signum = 1;
        }),
        (
            "descriptor 1 is neither a regular file, a directory nor a device",
            |i| {
                file(i, 1).reg.as_mut().unwrap().mode = Some(0o140_644);
            },
        ),
        ("descriptor 3 is a pipe with unusual flags", |i| {
            file(i, OUTPUT).pipe.as_mut().unwrap().flags = 0o40_001
        }),
        ("descriptor 9 is an epoll that watches what is not open", |i| {
            file(i, EPOLL).epfd.as_mut().unwrap().tfd[0].tfd = 99;
        }),
        (
            "descriptor 10 is an event counter with unusual flags or a large count",
            |i| {
                file(i, EVENT).efd.as_mut().unwrap().counter = 1 << 32;
            },
        ),
    ]);
}

#[test]
fn what_processes_and_threads_would_lose_is_refused() {
    let signal = || {
        Some(SignalQueue {
            signals: vec![SignalInfo { siginfo: vec![0; 128] }],
        })
    };
    assert_eq!(
        refusal(|images| task(images).signals_s = signal()),
        "process 501 has a pending signal of an unknown kind"
    );
    assert_eq!(
        refusal(|images| thread(images).signals_p = signal()),
        "thread 502 has pending signals"
    );
    assert_refused([
        ("process 501 has been stopped", |i| task(i).task_state = 3),
        ("process 501 has a lowered score for when memory is short", |i| {
            task(i).oom_score_adj = Some(-1)
        }),
        ("process 501 has POSIX timers with high or equal ids", |i| {
            posix(i).push(PosixTimer::default());
            posix(i).push(PosixTimer::default());
        }),
        ("process 501 has a POSIX timer of an unusual kind", |i| {
            posix(i).push(PosixTimer {
                clock_id: 3,
                ..PosixTimer::default()
            });
        }),
        ("process 501 has a POSIX timer for no thread of its own", |i| {
            posix(i).push(PosixTimer {
                it_sigev_notify: 4,
                ..PosixTimer::default()
            });
        }),
        ("process 501 has several filters", |i| i.filters[0].flags = Some(2)),
        ("process 501 has several filters", |i| i.filters[0].prev = Some(0)),
        ("process 501 has a session or group of another process", |i| {
            i.processes[0].tree.sid = 1
        }),
        ("thread 502 has a restartable sequence in progress", |i| {
            thread(i).rseq_entry.as_mut().unwrap().rseq_cs_pointer = Some(1);
        }),
        ("thread 502 has state that this processor does not have", |i| {
            let info = i.processes[0].threads[1].core.thread_info.as_mut().unwrap();
            info.fpregs.xsave.as_mut().unwrap().xstate_bv = 1 << 5;
        }),
        ("the snapshot has processes with different clocks", |i| {
            i.clocks.insert(7, TimeOffsets::default());
        }),
    ]);
}

#[test]
fn processes_that_share_memory_or_have_ended_are_refused() {
    let all = everything().processes;
    let with = |process: usize| refusal(|images| images.processes.push(all[process].clone()));
    let [dead, alive] = [503, 504].map(|pid| all.iter().position(|p| p.tree.pid == pid).unwrap());
    assert_eq!(with(dead), "process 503 has ended and is not yet reaped");
    assert_eq!(
        with(alive),
        "process 504 has memory, descriptors, directories or handlers of another process"
    );
}

#[test]
fn a_child_takes_descriptors_that_its_parent_made() {
    let mut images = good();
    let mut child = images.processes[0].clone();
    (child.tree.pid, child.tree.ppid) = (504, 501);
    child.threads.truncate(1);
    child.threads[0].tid = 504;
    let ids = child.ids.as_mut().unwrap();
    (ids.vm_id, ids.files_id, ids.fs_id, ids.sighand_id) = (90, 90, 90, 90);
    images.processes.push(child);
    let compiled = compiled(&images).unwrap();
    let first = Program::parse(&compiled.program).unwrap();
    let of = |program: Program<'_>, code: Code| program.ops().filter(|op| op.code == code as u32).count();
    let child = first.of(1).unwrap();
    assert_eq!((of(first, Code::Child), of(child, Code::Child)), (1, 0));
    assert_eq!((of(first, Code::SocketPair), of(child, Code::SocketPair)), (1, 0));
    assert_eq!((of(first, Code::Copy), of(child, Code::Copy)), (9, 9));
    assert_eq!((of(first, Code::Watch), of(child, Code::Watch)), (1, 0));
    assert_eq!(compiled.pids, [501, 504]);
    // What the epoll watches has another file's number in the child.
    let watched = file(&mut images, EPOLL).epfd.as_ref().unwrap().tfd[0].tfd;
    let other = images.processes[0].descriptors[&INET].id;
    let descriptors = Arc::make_mut(&mut images.processes[1].descriptors);
    descriptors.get_mut(&watched).unwrap().id = if watched == INET { other + 1 } else { other };
    let refusal = crate::fuzz::compiled(&images).unwrap_err().to_string();
    assert!(refusal.contains("other files by its numbers"), "{refusal}");
}

#[test]
fn guard_pages_and_options_of_sockets_are_compiled() {
    let mut images = good();
    let guard = Vma {
        start: 0x42_0000,
        end: 0x42_1000,
        status: 1 << 16,
        fd: -1,
        ..Vma::default()
    };
    mm(&mut images).vmas.push(guard);
    unix(&mut images).opts.so_passcred = Some(true);
    inet(&mut images).flags = 0o4_002;
    let compiled = compiled(&images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    let find = |code: Code| program.ops().filter(move |op| op.code == code as u32);
    assert!(find(Code::Advise).any(|op| (op.a, op.args[0]) == (102, 0x42_0000)));
    assert!(find(Code::SocketOption).any(|op| (op.a, op.args[..4] == [1, 16, 4, 1]) == (PAIR, true)));
    assert!(find(Code::Socket).any(|op| op.args[1] & 0o4_000 != 0));
}

#[test]
fn timers_and_signals_by_descriptor_are_compiled() {
    let mut images = good();
    open(&mut images, 15);
    open(&mut images, 16);
    let timer = images.files.get_mut(&16).unwrap().tfd.as_mut().unwrap();
    (timer.flags, timer.settime_flags, timer.ticks, timer.vsec) = (0o4_002, 1, 3, 30);
    let compiled = compiled(&images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    let timer = program.ops().find(|op| op.code == Code::TimerFd as u32).unwrap();
    assert_eq!((timer.a, timer.args[0], timer.args[1]), (12, 1, 0o4_000));
    assert_eq!(timer.args[3..], [1, 3]);
    assert_eq!(program.part(timer.args[2] + 16, 8).unwrap(), 30_u64.to_le_bytes());
    assert!(program.ops().any(|op| (op.code, op.a) == (Code::SignalFd as u32, 11)));
    images.files.get_mut(&16).unwrap().tfd.as_mut().unwrap().fown.pid = 1;
    assert!(crate::fuzz::compiled(&images).is_err());
}

#[test]
fn a_timer_that_repeats_and_has_just_expired_goes_on() {
    let mut images = good();
    open(&mut images, 16);
    let timer = images.files.get_mut(&16).unwrap().tfd.as_mut().unwrap();
    (timer.isec, timer.vsec, timer.ticks) = (5, 0, 1);
    task(&mut images).timers.as_mut().unwrap().real.isec = 6;
    let left = |images: &Verified, code: Code, argument: usize| {
        let compiled = compiled(images).unwrap();
        let program = Program::parse(&compiled.program).unwrap();
        let op = program.ops().find(|op| op.code == code as u32).unwrap();
        program.part(op.args[argument] + 16, 8).unwrap().to_vec()
    };
    assert_eq!(left(&images, Code::TimerFd, 2), 5_u64.to_le_bytes());
    assert_eq!(left(&images, Code::IntervalTimer, 0), 6_u64.to_le_bytes());
    // One that was stopped has not expired.
    images.files.get_mut(&16).unwrap().tfd.as_mut().unwrap().ticks = 0;
    assert_eq!(left(&images, Code::TimerFd, 2), [0; 8]);
}

#[test]
fn posix_timers_pending_signals_and_locks_are_compiled() {
    let mut images = good();
    let timer = |it_id| PosixTimer {
        it_id,
        si_signo: 10,
        it_sigev_notify: 4,
        notify_thread_id: Some(502),
        isec: 3,
        ..PosixTimer::default()
    };
    posix(&mut images).extend([timer(5), timer(2)]);
    let mut siginfo = vec![0; 128];
    siginfo[0] = 12;
    let queue = SignalQueue {
        signals: vec![SignalInfo { siginfo }],
    };
    task(&mut images).signals_s = Some(queue.clone());
    let first = images.processes[0].threads[0].core.thread_core.as_mut().unwrap();
    first.signals_p = Some(queue);
    images.locks = [(1, 0), (2, 1), (4, 1)]
        .map(|(flag, kind)| FileLock {
            flag,
            kind,
            pid: 501,
            fd: 1,
            start: 8,
            len: 9,
        })
        .to_vec();
    let compiled = compiled(&images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    let of = |code: Code| program.ops().filter(move |op| op.code == code as u32);
    assert_eq!(of(Code::Timer).map(|op| op.a).collect::<Vec<_>>(), [2, 5]);
    let timer = of(Code::Timer).next().unwrap();
    let event = program.part(timer.args[1], 24).unwrap();
    assert_eq!(
        (event[8], event[12], event[16..18].to_vec()),
        (10, 4, 502_u16.to_le_bytes().to_vec())
    );
    assert_eq!(program.part(timer.args[2] + 16, 8).unwrap(), 3_u64.to_le_bytes());
    let signals: Vec<_> = of(Code::Signal).map(|op| (op.a, op.args[0], op.args[1])).collect();
    assert_eq!(signals, [(12, 501, 0), (12, 501, 501)]);
    let locks: Vec<_> = of(Code::Lock).map(|op| (op.a, op.args)).collect();
    assert_eq!(
        locks,
        [(1, [0, 8, 9, 1, 0]), (1, [1, 8, 9, 2, 0]), (1, [1, 8, 9, 4, 0])]
    );
    images.locks[0].fd = 99;
    let refusal = crate::fuzz::compiled(&images).unwrap_err().to_string();
    assert_eq!(refusal, "descriptor 99 is locked and not open");
}

#[test]
fn the_residue_is_where_no_process_has_a_mapping() {
    let mut compiled = compiled(&good()).unwrap();
    let first = compiled.residue(std::iter::once(7)).unwrap();
    assert!(first.is_multiple_of(4096));
    compiled.mapped.push(first + 4096..first + 8192);
    assert_eq!(compiled.residue(std::iter::once(7)), None);
    assert!(compiled.residue([7, 1 << 40].into_iter()).is_some());
}

proptest! {
    #[test]
    fn damaged_images_and_programs_do_no_harm(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let damaged = |mut bytes: Vec<u8>| {
            for (at, value) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            bytes
        };
        let _compiled = compile_images(&damaged(seed()));
        let _read = read(&damaged(compiled(&good()).unwrap().program));
    }
}

/// Writes the seed of the target that reads programs: `cargo test -p rekindle-restore-compiler -- --ignored seeds`.
#[test]
#[ignore = "writes a seed"]
fn seeds() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/program/good");
    std::fs::write(path, compiled(&good()).unwrap().program).unwrap();
}
