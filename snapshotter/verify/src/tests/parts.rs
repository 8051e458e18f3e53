//! Good images, in parts that a test can change: a process with a second thread, a live child and a dead child.

use std::collections::BTreeMap;

use prost::Message;

use crate::frames::{image, magic};
use crate::messages::*;
use crate::{Expected, RESOURCES};

pub(super) use crate::fuzz::{FILTER, UID};

pub(super) struct ImageParts {
    pub(super) inventory: Inventory,
    pub(super) tree: Vec<TreeEntry>,
    pub(super) cores: BTreeMap<u32, Core>,
    pub(super) ids: BTreeMap<u32, ObjectIds>,
    pub(super) time: TimeOffsets,
    pub(super) seccomp: Seccomp,
    pub(super) files: Vec<FileEntry>,
    pub(super) memory_files: Vec<MemFdInode>,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) fs: Fs,
    pub(super) mm: Mm,
    pub(super) pagemap: Vec<PagemapRun>,
    pub(super) ghost: GhostFile,
    pub(super) ghost_data: Vec<u8>,
    pub(super) remaps: Vec<Remap>,
    pub(super) locks: Vec<FileLock>,
    pub(super) pipe_data: PipeData,
    pub(super) packet: QueuedPacket,
}

/// Where the images of a migrating instance are checked.
#[derive(Debug, Clone, Copy)]
pub(super) enum MigrationSide {
    /// At the host where CRIU dumped them.
    Dumped,
    /// At the host where they arrive.
    Packed,
}

pub(super) fn credentials() -> Credentials {
    Credentials {
        uid: UID,
        gid: UID,
        euid: UID,
        egid: UID,
        suid: UID,
        sgid: UID,
        fsuid: UID,
        fsgid: UID,
        cap_inh: vec![0; 2],
        cap_prm: vec![0; 2],
        cap_eff: vec![0; 2],
        cap_bnd: vec![0; 2],
        cap_amb: vec![0; 2],
        no_new_privs: Some(1),
        ..Credentials::default()
    }
}

fn core(is_first: bool) -> Core {
    let registers = Registers {
        ip: 0x40_0000,
        cs: 0x33,
        flags: 0x246,
        sp: 0x7fff_0000_0000,
        ss: 0x2b,
        mode: Some(1),
        ..Registers::default()
    };
    let task = TaskCore {
        task_state: 1,
        comm: b"python3".to_vec(),
        timers: Some(TaskTimers::default()),
        rlimits: Some(TaskLimits {
            rlimits: vec![ResourceLimit { cur: 0, max: 0 }; RESOURCES],
        }),
        loginuid: Some(u32::MAX),
        oom_score_adj: Some(0),
        sigactions: vec![SignalAction::default(); 62],
        ..TaskCore::default()
    };
    Core {
        mtype: 1,
        thread_info: Some(ThreadInfo {
            gpregs: registers,
            fpregs: FloatRegisters {
                st_space: vec![0; 32],
                xmm_space: vec![0; 64],
                xsave: Some(ExtendedState {
                    cet: Some(ShadowStack::default()),
                    ..ExtendedState::default()
                }),
                ..FloatRegisters::default()
            },
            ..ThreadInfo::default()
        }),
        tc: is_first.then_some(task),
        thread_core: Some(ThreadCore {
            sched_nice: Some(0),
            sched_policy: Some(0),
            sas: Some(SignalStack::default()),
            creds: Some(credentials()),
            seccomp_mode: is_first.then_some(2),
            seccomp_filter: is_first.then_some(0),
            comm: Some(b"python3".to_vec()),
            rseq_entry: Some(Rseq::default()),
            cg_set: Some(1),
            ..ThreadCore::default()
        }),
    }
}

pub(super) fn regular(id: u32, name: &str, flags: u32, mode: u32) -> FileEntry {
    let reg = RegularFile {
        id,
        flags,
        name: name.as_bytes().to_vec(),
        mode: Some(mode),
        ..RegularFile::default()
    };
    FileEntry {
        kind: 1,
        id,
        reg: Some(reg),
        ..FileEntry::default()
    }
}

fn files() -> Vec<FileEntry> {
    let of = |kind, id| FileEntry {
        kind,
        id,
        ..FileEntry::default()
    };
    let pipe = |id, pipe_id, flags| Pipe {
        id,
        pipe_id,
        flags,
        ..Pipe::default()
    };
    let unix = |id, ino, peer, name: &[u8]| {
        Some(Box::new(UnixSocket {
            id,
            ino,
            kind: 1,
            state: if peer == 0 { 10 } else { 1 },
            flags: 2,
            peer,
            name: name.to_vec(),
            file_perms: (!name.is_empty()).then_some(FilePermissions {
                mode: 0o140_755,
                uid: UID,
                gid: UID,
            }),
            ns_id: Some(2),
            ..UnixSocket::default()
        }))
    };
    vec![
        regular(1, "/usr/bin/python3", 0, 0o100_755),
        regular(2, "/", 0, 0o40_755),
        regular(3, "/app", 0, 0o40_755),
        regular(4, "/dev/null", 0o100_000, 0o20_666),
        regular(5, "/tmp/f", 0o100_002, 0o100_644),
        regular(6, "/tmp/ghost", 0o100_002, 0o100_600),
        FileEntry {
            pipe: Some(pipe(7, 55, 1)),
            ..of(2, 7)
        },
        FileEntry {
            pipe: Some(pipe(8, 56, 0)),
            ..of(2, 8)
        },
        FileEntry {
            usk: unix(9, 90, 0, b"/tmp/socket\0"),
            ..of(5, 9)
        },
        FileEntry {
            usk: unix(10, 100, 110, b""),
            ..of(5, 10)
        },
        FileEntry {
            usk: unix(11, 110, 100, b""),
            ..of(5, 11)
        },
        FileEntry {
            isk: Some(Box::new(InetSocket {
                id: 12,
                ino: 120,
                family: 2,
                kind: 1,
                proto: 6,
                state: 10,
                src_port: 8080,
                flags: 2,
                src_addr: vec![0],
                dst_addr: vec![0],
                ip_opts: Some(IpOptions {
                    ttl: Some(64),
                    ..IpOptions::default()
                }),
                ns_id: Some(2),
                tcp_opts: Some(TcpOptions::default()),
                ..InetSocket::default()
            })),
            ..of(4, 12)
        },
        FileEntry {
            epfd: Some(EventPoll {
                id: 13,
                flags: 2,
                tfd: vec![EventPollTarget {
                    id: 13,
                    tfd: 3,
                    ..EventPollTarget::default()
                }],
                ..EventPoll::default()
            }),
            ..of(7, 13)
        },
        FileEntry {
            efd: Some(EventFd {
                id: 14,
                flags: 2,
                ..EventFd::default()
            }),
            ..of(6, 14)
        },
        FileEntry {
            sgfd: Some(SignalFd {
                id: 15,
                flags: 2,
                ..SignalFd::default()
            }),
            ..of(9, 15)
        },
        FileEntry {
            tfd: Some(TimerFd {
                id: 16,
                flags: 2,
                clockid: 1,
                ..TimerFd::default()
            }),
            ..of(17, 16)
        },
        FileEntry {
            ify: Some(Inotify {
                id: 17,
                wd: vec![Watch {
                    mask: 0x100,
                    f_handle: FileHandle {
                        path: Some(b"/tmp".to_vec()),
                        ..FileHandle::default()
                    },
                    ..Watch::default()
                }],
                ..Inotify::default()
            }),
            ..of(8, 17)
        },
        FileEntry {
            memfd: Some(MemFd {
                id: 18,
                flags: 2,
                inode_id: 1,
                ..MemFd::default()
            }),
            ..of(18, 18)
        },
        FileEntry {
            pidfd: Some(PidFd {
                id: 19,
                nspid: 504,
                ..PidFd::default()
            }),
            ..of(20, 19)
        },
        FileEntry {
            nlsk: Some(Box::new(NetlinkSocket {
                id: 20,
                state: 7,
                flags: 2,
                ns_id: Some(2),
                ..NetlinkSocket::default()
            })),
            ..of(13, 20)
        },
    ]
}

fn mm() -> Mm {
    let vma = |start, end, prot, flags, status| Vma {
        start,
        end,
        prot,
        flags,
        status,
        fd: -1,
        ..Vma::default()
    };
    let program = Vma {
        shmid: 1,
        fdflags: Some(0),
        ..vma(0x40_0000, 0x41_0000, 5, 2, 0x41)
    };
    let memory_file = Vma {
        shmid: 18,
        fdflags: Some(2),
        ..vma(0x43_0000, 0x43_1000, 3, 1, 0x4081)
    };
    let place = 0x42_0000;
    Mm {
        mm_start_code: place,
        mm_end_code: place,
        mm_start_data: place,
        mm_end_data: place,
        mm_start_stack: place,
        mm_start_brk: place,
        mm_brk: place,
        mm_arg_start: place,
        mm_arg_end: place,
        mm_env_start: place,
        mm_env_end: place,
        exe_file_id: 1,
        vmas: vec![
            program,
            vma(0x42_0000, 0x42_1000, 3, 0x22, 0x201),
            memory_file,
            vma(0x7ffe_0000_0000, 0x7ffe_0000_2000, 5, 0x22, 0x209),
            vma(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000, 4, 0x22, 0x204),
        ],
        dumpable: Some(1),
        ..Mm::default()
    }
}

impl ImageParts {
    pub(super) fn expected() -> Expected {
        crate::fuzz::expected()
    }

    pub(super) fn good() -> Self {
        let ids = ObjectIds {
            vm_id: 1,
            files_id: 1,
            fs_id: 1,
            sighand_id: 1,
            pid_ns_id: Some(1),
            net_ns_id: Some(2),
            ipc_ns_id: Some(3),
            uts_ns_id: Some(4),
            mnt_ns_id: Some(6),
            user_ns_id: Some(7),
            cgroup_ns_id: Some(8),
            time_ns_id: Some(5),
        };
        let own = ObjectIds {
            vm_id: 2,
            files_id: 2,
            ..ids.clone()
        };
        let entry = |pid, ppid, threads| TreeEntry {
            pid,
            ppid,
            pgid: 501,
            sid: 501,
            threads,
        };
        let dead = Core {
            mtype: 1,
            tc: Some(TaskCore {
                task_state: 2,
                exit_code: 256,
                comm: b"sh".to_vec(),
                ..TaskCore::default()
            }),
            ..Core::default()
        };
        let descriptors = files().into_iter().filter(|f| f.id > 3).map(|f| Descriptor {
            id: f.id,
            flags: 0,
            kind: f.kind,
            fd: f.id - 4,
        });
        Self {
            inventory: Inventory {
                img_version: 2,
                fdinfo_per_id: Some(true),
                root_ids: Some(ids),
                ns_per_id: Some(true),
                root_cg_set: Some(1),
                lsmtype: Some(0),
                tcp_close: Some(true),
                network_lock_method: Some(2),
                plugins_entry: Some(NoPlugins {}),
                dump_criu_run_id: Some(b"9b3b-63".to_vec()),
                ..Inventory::default()
            },
            tree: vec![
                entry(501, 0, vec![501, 502]),
                entry(503, 501, vec![0xdead_beef]),
                entry(504, 501, vec![504]),
            ],
            cores: BTreeMap::from([(501, core(true)), (502, core(false)), (503, dead), (504, core(true))]),
            ids: BTreeMap::from([(501, own.clone()), (504, own)]),
            time: TimeOffsets::default(),
            seccomp: Seccomp {
                seccomp_filters: vec![SeccompFilter {
                    filter: FILTER.to_vec(),
                    prev: None,
                    flags: Some(1),
                }],
            },
            files: files(),
            memory_files: vec![MemFdInode {
                name: b"memory".to_vec(),
                uid: UID,
                gid: UID,
                shmid: 7,
                inode_id: 1,
                mode: Some(0o100_777),
                ..MemFdInode::default()
            }],
            descriptors: descriptors.collect(),
            fs: Fs {
                cwd_id: 3,
                root_id: 2,
                umask: Some(0o22),
            },
            mm: mm(),
            pagemap: vec![PagemapRun {
                vaddr: 0x42_0000,
                flags: Some(6),
                nr_pages: Some(1),
                ..PagemapRun::default()
            }],
            ghost: GhostFile {
                uid: UID,
                gid: UID,
                mode: 0o100_600,
                ..GhostFile::default()
            },
            ghost_data: b"gone".to_vec(),
            remaps: vec![Remap {
                orig_id: 6,
                remap_id: 1,
                remap_type: Some(1),
            }],
            locks: vec![FileLock {
                flag: 2,
                kind: 1,
                pid: 501,
                fd: 1,
                start: 0,
                len: 0,
            }],
            pipe_data: PipeData {
                pipe_id: 56,
                bytes: 4,
                size: Some(65_536),
            },
            packet: QueuedPacket {
                id_for: 10,
                length: 1,
                scm: vec![ControlData {
                    kind: 1,
                    rights: vec![8],
                }],
            },
        }
    }

    pub(super) fn images(&self) -> BTreeMap<String, Vec<u8>> {
        fn many<M: Message>(kind: u32, messages: &[M]) -> Vec<u8> {
            image(kind, &messages.iter().map(Message::encode_to_vec).collect::<Vec<_>>())
        }
        fn one<M: Message>(kind: u32, message: &M, data: &[u8]) -> Vec<u8> {
            [image(kind, &[message.encode_to_vec()]), data.to_vec()].concat()
        }
        let mut images = BTreeMap::from([
            ("inventory.img".to_owned(), one(magic::INVENTORY, &self.inventory, b"")),
            ("pstree.img".to_owned(), many(magic::PSTREE, &self.tree)),
            ("timens-0.img".to_owned(), one(magic::TIME, &self.time, b"")),
            ("seccomp.img".to_owned(), one(magic::SECCOMP, &self.seccomp, b"")),
            ("files.img".to_owned(), many(magic::FILES, &self.files)),
            ("memfd.img".to_owned(), many(magic::MEMFD, &self.memory_files)),
            ("fdinfo-2.img".to_owned(), many(magic::DESCRIPTORS, &self.descriptors)),
            (
                "ghost-file-1.img".to_owned(),
                one(magic::GHOST, &self.ghost, &self.ghost_data),
            ),
            ("remap-fpath.img".to_owned(), many(magic::REMAPS, &self.remaps)),
            ("filelocks.img".to_owned(), many(magic::LOCKS, &self.locks)),
            (
                "pipes-data.img".to_owned(),
                one(magic::PIPES_DATA, &self.pipe_data, b"data"),
            ),
            (
                "sk-queues.img".to_owned(),
                one(magic::SOCKET_QUEUES, &self.packet, b"x"),
            ),
            ("pages-1.img".to_owned(), Vec::new()),
        ]);
        let runs = self.pagemap.iter().map(Message::encode_to_vec);
        let head = PagemapHead { pages_id: 1 }.encode_to_vec();
        let pagemap = image(magic::PAGEMAP, &std::iter::once(head).chain(runs).collect::<Vec<_>>());
        images.insert("pagemap-shmem-7.img".to_owned(), pagemap.clone());
        for (tid, core) in &self.cores {
            images.insert(format!("core-{tid}.img"), one(magic::CORE, core, b""));
        }
        for (pid, ids) in &self.ids {
            images.insert(format!("ids-{pid}.img"), one(magic::IDS, ids, b""));
            images.insert(format!("fs-{pid}.img"), one(magic::FS, &self.fs, b""));
            images.insert(format!("mm-{pid}.img"), one(magic::MM, &self.mm, b""));
            images.insert(format!("pagemap-{pid}.img"), pagemap.clone());
        }
        images
    }

    /// The same images for a migrating instance: each process's pages are in a separate image, or in none. Shared
    /// memory is as usual.
    pub(super) fn travelling(&self, travels: MigrationSide) -> BTreeMap<String, Vec<u8>> {
        let mut images = self.images();
        let pagemap = |pages_id, runs: &[PagemapRun]| {
            let runs = runs.iter().map(Message::encode_to_vec);
            let messages: Vec<_> = std::iter::once(PagemapHead { pages_id }.encode_to_vec())
                .chain(runs)
                .collect();
            image(magic::PAGEMAP, &messages)
        };
        images.insert("pagemap-shmem-7.img".to_owned(), pagemap(1, &self.pagemap[..1]));
        for pid in self.ids.keys() {
            images.insert(format!("pagemap-{pid}.img"), pagemap(*pid, &self.pagemap));
            let pages = match travels {
                MigrationSide::Dumped => format!("pages-{pid}.img"),
                MigrationSide::Packed => format!("eager-{pid}"),
            };
            images.insert(pages, Vec::new());
        }
        images
    }

    /// The first process.
    pub(super) fn task(&mut self) -> &mut TaskCore {
        self.cores.get_mut(&501).unwrap().tc.as_mut().unwrap()
    }

    /// Its second thread.
    pub(super) fn thread(&mut self) -> &mut ThreadCore {
        self.cores.get_mut(&502).unwrap().thread_core.as_mut().unwrap()
    }

    pub(super) fn creds(&mut self) -> &mut Credentials {
        self.thread().creds.as_mut().unwrap()
    }

    pub(super) fn registers(&mut self) -> &mut ThreadInfo {
        self.cores.get_mut(&502).unwrap().thread_info.as_mut().unwrap()
    }

    pub(super) fn file(&mut self, id: u32) -> &mut FileEntry {
        self.files.iter_mut().find(|file| file.id == id).unwrap()
    }

    pub(super) fn reg(&mut self, id: u32) -> &mut RegularFile {
        self.file(id).reg.as_mut().unwrap()
    }

    pub(super) fn unix(&mut self) -> &mut UnixSocket {
        self.file(9).usk.as_mut().unwrap()
    }

    pub(super) fn inet(&mut self) -> &mut InetSocket {
        self.file(12).isk.as_mut().unwrap()
    }
}

pub(super) fn none() -> ResourceLimit {
    ResourceLimit { cur: 0, max: 0 }
}
