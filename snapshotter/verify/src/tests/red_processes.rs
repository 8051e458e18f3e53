//! Processes with more than a function may have: user, privileges, memory.

use super::{ImageParts, assert_refused, parts};
use crate::messages::*;

#[test]
fn an_inventory_that_asks_for_more_is_refused() {
    assert_refused([
        ("inventory.img img_version", |p| p.inventory.img_version = 3),
        ("inventory.img fdinfo_per_id", |p| p.inventory.fdinfo_per_id = None),
        ("inventory.img ns_per_id", |p| p.inventory.ns_per_id = Some(false)),
        ("inventory.img lsmtype", |p| p.inventory.lsmtype = Some(3)),
        ("inventory.img pre_dump_mode", |p| p.inventory.pre_dump_mode = Some(1)),
        ("inventory.img tcp_close", |p| p.inventory.tcp_close = None),
        ("inventory.img network_lock_method", |p| {
            p.inventory.network_lock_method = Some(1)
        }),
        ("inventory.img allow_uprobes", |p| {
            p.inventory.allow_uprobes = Some(true)
        }),
        ("inventory.img dump_criu_run_id", |p| {
            p.inventory.dump_criu_run_id = Some(b"; drop".to_vec())
        }),
        ("inventory.img root_ids", |p| p.inventory.root_ids = None),
        ("inventory.img mnt_ns_id", |p| {
            p.inventory.root_ids.as_mut().unwrap().mnt_ns_id = None
        }),
    ]);
    // A host may have SELinux or AppArmor, as long as no process has a profile.
    for module in 1..=2 {
        let mut parts = ImageParts::good();
        parts.inventory.lsmtype = Some(module);
        super::check(&parts.images(), &ImageParts::expected()).unwrap();
    }
}

#[test]
fn other_namespaces_than_criu_s_are_refused() {
    fn ids(p: &mut ImageParts) -> &mut ObjectIds {
        p.ids.get_mut(&504).unwrap()
    }
    assert_refused([
        ("ids-504.img pid_ns_id", |p| ids(p).pid_ns_id = Some(99)),
        ("ids-504.img net_ns_id", |p| ids(p).net_ns_id = Some(99)),
        ("ids-504.img ipc_ns_id", |p| ids(p).ipc_ns_id = None),
        ("ids-504.img uts_ns_id", |p| ids(p).uts_ns_id = Some(99)),
        ("ids-504.img mnt_ns_id", |p| ids(p).mnt_ns_id = Some(99)),
        ("ids-504.img user_ns_id", |p| ids(p).user_ns_id = Some(99)),
        ("ids-504.img cgroup_ns_id", |p| ids(p).cgroup_ns_id = Some(99)),
        ("ids-504.img time_ns_id", |p| ids(p).time_ns_id = Some(99)),
        ("ids-504.img files_id", |p| ids(p).files_id = 1),
        ("ids-504.img vm_id", |p| ids(p).vm_id = 1),
        ("timens-0.img monotonic", |p| p.time.monotonic.tv_nsec = 1_000_000_000),
        ("timens-0.img boottime", |p| p.time.boottime.tv_sec = u64::MAX),
    ]);
    // All in the same other namespace, as after CRIU's own restore.
    let mut parts = ImageParts::good();
    parts.ids.values_mut().for_each(|ids| ids.time_ns_id = Some(99));
    let mut images = parts.images();
    let clocks = images.remove("timens-0.img").unwrap();
    images.insert("timens-99.img".to_owned(), clocks);
    super::check(&images, &ImageParts::expected()).unwrap();
}

#[test]
fn a_tree_that_is_none_or_reaches_out_of_the_sandbox_is_refused() {
    assert_refused([
        ("pstree.img is missing", |p| p.tree.clear()),
        ("pstree.img pid", |p| p.tree[2].pid = 501),
        ("pstree.img ppid", |p| p.tree[0].ppid = 1),
        ("pstree.img ppid", |p| p.tree[2].ppid = 503),
        ("pstree.img ppid", |p| p.tree[2].ppid = 0),
        ("pstree.img sid", |p| (p.tree[2].pgid, p.tree[2].sid) = (504, 0)),
        ("pstree.img pgid", |p| p.tree[2].pgid = 1),
        ("pstree.img pgid", |p| p.tree[2].pgid = 502),
        ("pstree.img sid", |p| (p.tree[2].pgid, p.tree[2].sid) = (504, 502)),
        ("pstree.img threads", |p| p.tree[0].threads = vec![502]),
        ("pstree.img threads", |p| p.tree[0].threads.push(502)),
        ("pstree.img threads", |p| p.tree[0].threads.push(1)),
        ("pstree.img threads", |p| p.tree[1].threads.push(505)),
    ]);
}

#[test]
fn another_user_or_any_capability_is_refused() {
    assert_refused([
        ("core-502.img uid", |p| p.creds().uid = 0),
        ("core-502.img euid", |p| p.creds().euid = 0),
        ("core-502.img suid", |p| p.creds().suid = 0),
        ("core-502.img fsuid", |p| p.creds().fsuid = 0),
        ("core-502.img gid", |p| p.creds().gid = 0),
        ("core-502.img egid", |p| p.creds().egid = 0),
        ("core-502.img sgid", |p| p.creds().sgid = 0),
        ("core-502.img fsgid", |p| p.creds().fsgid = 0),
        ("core-502.img groups", |p| p.creds().groups.push(0)),
        ("core-502.img cap_inh", |p| p.creds().cap_inh[0] = 1),
        ("core-502.img cap_prm", |p| p.creds().cap_prm[1] = 1),
        ("core-502.img cap_eff", |p| p.creds().cap_eff[0] = 1 << 21),
        ("core-502.img cap_bnd", |p| p.creds().cap_bnd.clear()),
        ("core-502.img cap_amb", |p| p.creds().cap_amb.push(0)),
        ("core-502.img secbits", |p| p.creds().secbits = 1),
        ("core-502.img no_new_privs", |p| p.creds().no_new_privs = None),
        ("core-502.img lsm_profile", |p| p.creds().lsm_profile = Some(Vec::new())),
        ("core-502.img lsm_sockcreate", |p| {
            p.creds().lsm_sockcreate = Some(Vec::new())
        }),
        ("core-502.img apparmor_data", |p| {
            p.creds().apparmor_data = Some(Vec::new())
        }),
        ("core-502.img thread_core.creds", |p| p.thread().creds = None),
    ]);
}

#[test]
fn a_thread_without_a_known_filter_is_refused() {
    fn filter(p: &mut ImageParts) -> &mut SeccompFilter {
        &mut p.seccomp.seccomp_filters[0]
    }
    assert_refused([
        ("seccomp.img filter", |p| filter(p).filter[4] = 1),
        ("seccomp.img prev", |p| filter(p).prev = Some(0)),
        ("seccomp.img flags", |p| filter(p).flags = Some(4)),
        // The second thread has no filter of its own.
        ("core-502.img thread_core.seccomp_mode", |p| filter(p).flags = Some(0)),
        ("core-502.img thread_core.seccomp_mode", |p| {
            p.thread().seccomp_mode = Some(1)
        }),
        ("core-502.img thread_core.seccomp_filter", |p| {
            p.thread().seccomp_mode = Some(2)
        }),
        ("core-501.img thread_core.seccomp_mode", |p| {
            p.cores
                .get_mut(&501)
                .unwrap()
                .thread_core
                .as_mut()
                .unwrap()
                .seccomp_mode = None;
        }),
        ("core-501.img thread_core.seccomp_filter", |p| {
            p.seccomp.seccomp_filters.clear()
        }),
    ]);
}

#[test]
fn limits_priorities_and_states_beyond_a_function_s_are_refused() {
    fn limit(p: &mut ImageParts, number: usize) -> &mut ResourceLimit {
        &mut p.task().rlimits.as_mut().unwrap().rlimits[number]
    }
    assert_refused([
        ("core-501.img tc.rlimits", |p| limit(p, 4).max = 1),
        ("core-501.img tc.rlimits", |p| limit(p, 7).max = 1025),
        ("core-501.img tc.rlimits", |p| limit(p, 0).cur = 1),
        ("core-501.img tc.rlimits", |p| limit(p, 13).max = u64::MAX),
        ("core-501.img tc.rlimits", |p| {
            p.task().rlimits.as_mut().unwrap().rlimits.truncate(15)
        }),
        ("core-501.img tc.oom_score_adj", |p| {
            p.task().oom_score_adj = Some(-1000)
        }),
        ("core-501.img tc.loginuid", |p| p.task().loginuid = Some(0)),
        ("core-501.img tc.personality", |p| p.task().personality = 0x0040_0000),
        ("core-501.img tc.task_state", |p| p.task().task_state = 4),
        ("core-501.img tc.exit_code", |p| p.task().exit_code = 1),
        ("core-501.img comm", |p| p.task().comm = vec![b'x'; 16]),
        ("core-501.img tc.timers", |p| p.task().timers = None),
        ("core-501.img tc.timers.real", |p| {
            p.task().timers.as_mut().unwrap().real.iusec = 1_000_000
        }),
        ("core-501.img tc.timers.posix.clock_id", |p| {
            p.task().timers.as_mut().unwrap().posix.push(PosixTimer {
                clock_id: 8,
                ..PosixTimer::default()
            });
        }),
        ("core-501.img tc.timers.posix.notify_thread_id", |p| {
            let timer = PosixTimer {
                notify_thread_id: Some(1),
                ..PosixTimer::default()
            };
            p.task().timers.as_mut().unwrap().posix.push(timer);
        }),
        ("core-501.img tc.sigactions", |p| p.task().sigactions.truncate(61)),
        ("core-501.img tc.sigactions.compat_sigaction", |p| {
            p.task().sigactions[0].compat_sigaction = Some(true)
        }),
        ("core-501.img tc.stop_signo", |p| p.task().stop_signo = Some(65)),
        ("core-501.img tc.membarrier_registration_mask", |p| {
            p.task().membarrier_registration_mask = Some(1)
        }),
        ("core-501.img tc.signals_s", |p| {
            p.task().signals_s = Some(SignalQueue {
                signals: vec![SignalInfo { siginfo: vec![9; 127] }],
            });
        }),
        ("core-502.img tc", |p| {
            p.cores.get_mut(&502).unwrap().tc = Some(TaskCore::default())
        }),
        ("core-502.img mtype", |p| p.cores.get_mut(&502).unwrap().mtype = 3),
        ("core-502.img thread_core.sched_nice", |p| {
            p.thread().sched_nice = Some(-1)
        }),
        ("core-502.img thread_core.sched_policy", |p| {
            p.thread().sched_policy = Some(1)
        }),
        ("core-502.img thread_core.sched_prio", |p| {
            p.thread().sched_prio = Some(99)
        }),
        ("core-502.img thread_core.pdeath_sig", |p| {
            p.thread().pdeath_sig = Some(65)
        }),
        ("core-502.img thread_core.cg_set", |p| p.thread().cg_set = Some(2)),
        ("core-502.img thread_core.futex_rla", |p| {
            p.thread().futex_rla = u64::MAX
        }),
        ("core-502.img thread_core.sas", |p| {
            p.thread().sas.as_mut().unwrap().ss_sp = 1 << 63
        }),
        ("core-502.img thread_core.sas.ss_flags", |p| {
            p.thread().sas.as_mut().unwrap().ss_flags = 8
        }),
        ("core-502.img thread_core.rseq_entry", |p| {
            p.thread().rseq_entry.as_mut().unwrap().rseq_abi_pointer = 1 << 47
        }),
        ("core-503.img tc", |p| {
            p.cores.get_mut(&503).unwrap().tc.as_mut().unwrap().oom_score_adj = Some(-1000);
        }),
        ("core-503.img thread_core", |p| {
            p.cores.get_mut(&503).unwrap().thread_core = Some(ThreadCore::default())
        }),
    ]);
}

#[test]
fn registers_of_the_kernel_are_refused() {
    assert_refused([
        ("core-502.img gpregs.cs", |p| p.registers().gpregs.cs = 0x10),
        ("core-502.img gpregs.ss", |p| p.registers().gpregs.ss = 0x18),
        ("core-502.img gpregs.ds", |p| p.registers().gpregs.ds = 0x18),
        ("core-502.img gpregs.fs", |p| p.registers().gpregs.fs = 0x7),
        ("core-502.img gpregs.flags", |p| p.registers().gpregs.flags |= 0x3000),
        ("core-502.img gpregs.flags", |p| p.registers().gpregs.flags |= 0x2_0000),
        ("core-502.img gpregs.flags", |p| p.registers().gpregs.flags = 2),
        ("core-502.img gpregs.ip", |p| {
            p.registers().gpregs.ip = 0xffff_ffff_8100_0000
        }),
        ("core-502.img gpregs.sp", |p| p.registers().gpregs.sp = 1 << 47),
        ("core-502.img gpregs.fs_base", |p| {
            p.registers().gpregs.fs_base = 1 << 47
        }),
        ("core-502.img gpregs.gs_base", |p| {
            p.registers().gpregs.gs_base = u64::MAX
        }),
        ("core-502.img gpregs.mode", |p| p.registers().gpregs.mode = Some(2)),
        ("core-502.img thread_info.clear_tid_addr", |p| {
            p.registers().clear_tid_addr = u64::MAX
        }),
        ("core-502.img fpregs.st_space", |p| {
            p.registers().fpregs.st_space.truncate(31)
        }),
        ("core-502.img fpregs.xmm_space", |p| {
            p.registers().fpregs.xmm_space.push(0)
        }),
        ("core-502.img fpregs.padding", |p| p.registers().fpregs.padding.push(0)),
        ("core-502.img fpregs.xsave.ymmh_space", |p| {
            p.registers().fpregs.xsave.as_mut().unwrap().ymmh_space.push(0)
        }),
        ("core-502.img fpregs.xsave.cet", |p| {
            p.registers().fpregs.xsave.as_mut().unwrap().cet = Some(ShadowStack { cet: 1, ssp: 0 })
        }),
        ("core-502.img fpregs.xsave.xstate_bv", |p| {
            p.registers().fpregs.xsave.as_mut().unwrap().xstate_bv = 1 << 11
        }),
        ("core-502.img thread_info.tls", |p| {
            p.registers().tls.push(UserDescriptor {
                entry_number: 12,
                ..UserDescriptor::default()
            })
        }),
    ]);
}

#[test]
fn mappings_that_only_root_makes_or_of_other_files_are_refused() {
    assert_refused([
        ("mm-501.img mm_arg_end", |p| p.mm.mm_arg_end += (8 << 20) + 1),
        ("mm-501.img mm_env_end", |p| p.mm.mm_env_end = 0x7fff_ffff_f000),
        ("mm-501.img vmas.start", |p| p.mm.vmas[1].start += 1),
        ("mm-501.img vmas.start", |p| p.mm.vmas[0].start = 0),
        ("mm-501.img vmas.start", |p| p.mm.vmas[3].end = 1 << 47),
        ("mm-501.img vmas.start", |p| p.mm.vmas.swap(0, 1)),
        ("mm-501.img vmas.start", |p| p.mm.vmas[1].end = 0x44_0000),
        ("mm-501.img vmas.prot", |p| p.mm.vmas[1].prot = 8),
        ("mm-501.img vmas.flags", |p| p.mm.vmas[1].flags |= 0x4_0000),
        ("mm-501.img vmas.flags", |p| p.mm.vmas[1].flags = 0x2),
        ("mm-501.img vmas.flags", |p| p.mm.vmas[0].flags = 0x1),
        ("mm-501.img vmas.madv", |p| p.mm.vmas[1].madv = Some(1 << 63)),
        ("mm-501.img vmas.pgoff", |p| p.mm.vmas[0].pgoff = 1),
        ("mm-501.img vmas.pgoff", |p| {
            p.mm.vmas[0].pgoff = 0u64.wrapping_sub(4096)
        }),
        // System V shared memory, packet sockets, asynchronous I/O rings, plugins, shadow stacks, uprobes.
        ("mm-501.img vmas.status", |p| p.mm.vmas[1].status = 0x401),
        ("mm-501.img vmas.status", |p| p.mm.vmas[1].status = 0x801),
        ("mm-501.img vmas.status", |p| p.mm.vmas[1].status = 0x2001),
        ("mm-501.img vmas.status", |p| p.mm.vmas[1].status |= 1 << 27),
        ("mm-501.img vmas.status", |p| p.mm.vmas[1].status |= 1 << 15),
        ("mm-501.img vmas.status", |p| p.mm.vmas[1].status |= 1 << 17),
        ("mm-501.img vmas.status", |p| p.mm.vmas[1].status = 0x200),
        ("mm-501.img vmas.fd", |p| p.mm.vmas[1].fd = 5),
        ("mm-501.img vmas.shmid", |p| p.mm.vmas[1].shmid = 5),
        ("mm-501.img vmas.shmid", |p| p.mm.vmas[0].shmid = 3),
        ("mm-501.img vmas.shmid", |p| p.mm.vmas[0].shmid = 1 << 32 | 1),
        ("mm-501.img vmas.shmid", |p| p.mm.vmas[2].shmid = 1),
        ("mm-501.img vmas.fdflags", |p| p.mm.vmas[0].fdflags = Some(2)),
        ("mm-501.img vmas.fdflags", |p| p.mm.vmas[0].fdflags = None),
        ("mm-501.img vmas.fdflags", |p| p.mm.vmas[1].fdflags = Some(0)),
        ("mm-501.img vmas.fdflags", |p| p.mm.vmas[2].fdflags = Some(0o100)),
        ("mm-501.img vmas.vsyscall", |p| p.mm.vmas[4].prot = 7),
        ("mm-501.img vmas.guard", |p| {
            let guard = Vma {
                status: 1 << 16,
                prot: 1,
                ..p.mm.vmas[1].clone()
            };
            p.mm.vmas.push(guard);
        }),
        ("mm-501.img exe_file_id", |p| p.mm.exe_file_id = 3),
        ("mm-501.img exe_file_id", |p| p.mm.exe_file_id = 99),
        ("mm-501.img exe_file_id", |p| p.mm.exe_file_id = 5),
        ("mm-501.img mm_start_brk", |p| p.mm.mm_brk = 0),
        ("mm-501.img mm_arg_start", |p| p.mm.mm_arg_end = 1 << 47),
        ("mm-501.img mm_env_start", |p| p.mm.mm_env_start = 0),
        ("mm-501.img mm_saved_auxv", |p| p.mm.mm_saved_auxv = vec![0; 65]),
        ("mm-501.img dumpable", |p| p.mm.dumpable = Some(2)),
        ("pagemap-501.img vaddr", |p| p.pagemap[0].vaddr += 1),
        ("pagemap-501.img vaddr", |p| p.pagemap[0].nr_pages = Some(1 << 52)),
        ("pagemap-501.img vaddr", |p| p.pagemap.push(p.pagemap[0].clone())),
        ("pagemap-501.img flags", |p| p.pagemap[0].flags = Some(1)),
        ("pagemap-501.img in_parent", |p| p.pagemap[0].in_parent = Some(true)),
        ("pagemap-501.img compat_nr_pages", |p| p.pagemap[0].compat_nr_pages = 1),
    ]);
    let mut parts = ImageParts::good();
    parts.mm.vmas[1].flags |= 0x2000;
    let mut expected = ImageParts::expected();
    super::check(&parts.images(), &expected).unwrap();
    expected.limits[8] = crate::Limit::AtMost(4095);
    parts.task().rlimits.as_mut().unwrap().rlimits[8] = parts::none();
    assert!(super::check(&parts.images(), &expected).is_err());
}
