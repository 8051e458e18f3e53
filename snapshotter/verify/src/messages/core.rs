//! `core-TID.img`: a thread, and in the first thread's image also the process. Fields that CRIU fills for other
//! architectures are not declared.

use super::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Core {
    #[prost(uint32, required, tag = "1")]
    pub mtype: u32,
    #[prost(message, optional, tag = "2")]
    pub thread_info: Option<ThreadInfo>,
    #[prost(message, optional, tag = "3")]
    pub tc: Option<TaskCore>,
    #[prost(message, optional, tag = "5")]
    pub thread_core: Option<ThreadCore>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TaskCore {
    #[prost(uint32, required, tag = "1")]
    pub task_state: u32,
    #[prost(uint32, required, tag = "2")]
    pub exit_code: u32,
    #[prost(uint32, required, tag = "3")]
    pub personality: u32,
    #[prost(uint32, required, tag = "4")]
    pub flags: u32,
    #[prost(uint64, required, tag = "5")]
    pub blk_sigset: u64,
    #[prost(bytes = "vec", required, tag = "6")]
    pub comm: Vec<u8>,
    #[prost(message, optional, tag = "7")]
    pub timers: Option<TaskTimers>,
    #[prost(message, optional, tag = "8")]
    pub rlimits: Option<TaskLimits>,
    #[prost(message, optional, tag = "10")]
    pub signals_s: Option<SignalQueue>,
    #[prost(uint32, optional, tag = "13")]
    pub loginuid: Option<u32>,
    #[prost(int32, optional, tag = "14")]
    pub oom_score_adj: Option<i32>,
    #[prost(message, repeated, tag = "15")]
    pub sigactions: Vec<SignalAction>,
    #[prost(bool, optional, tag = "18")]
    pub child_subreaper: Option<bool>,
    #[prost(uint64, optional, tag = "20")]
    pub blk_sigset_extended: Option<u64>,
    #[prost(uint32, optional, tag = "21")]
    pub stop_signo: Option<u32>,
    #[prost(uint32, optional, tag = "22")]
    pub membarrier_registration_mask: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ThreadCore {
    #[prost(uint64, required, tag = "1")]
    pub futex_rla: u64,
    #[prost(uint32, required, tag = "2")]
    pub futex_rla_len: u32,
    #[prost(sint32, optional, tag = "3")]
    pub sched_nice: Option<i32>,
    #[prost(uint32, optional, tag = "4")]
    pub sched_policy: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub sched_prio: Option<u32>,
    #[prost(uint64, optional, tag = "6")]
    pub blk_sigset: Option<u64>,
    #[prost(message, optional, tag = "7")]
    pub sas: Option<SignalStack>,
    #[prost(uint32, optional, tag = "8")]
    pub pdeath_sig: Option<u32>,
    #[prost(message, optional, tag = "9")]
    pub signals_p: Option<SignalQueue>,
    #[prost(message, optional, tag = "10")]
    pub creds: Option<Credentials>,
    #[prost(uint32, optional, tag = "11")]
    pub seccomp_mode: Option<u32>,
    #[prost(uint32, optional, tag = "12")]
    pub seccomp_filter: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "13")]
    pub comm: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "14")]
    pub blk_sigset_extended: Option<u64>,
    #[prost(message, optional, tag = "15")]
    pub rseq_entry: Option<Rseq>,
    #[prost(uint32, optional, tag = "16")]
    pub cg_set: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignalStack {
    #[prost(uint64, required, tag = "1")]
    pub ss_sp: u64,
    #[prost(uint64, required, tag = "2")]
    pub ss_size: u64,
    #[prost(uint32, required, tag = "3")]
    pub ss_flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Credentials {
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    #[prost(uint32, required, tag = "2")]
    pub gid: u32,
    #[prost(uint32, required, tag = "3")]
    pub euid: u32,
    #[prost(uint32, required, tag = "4")]
    pub egid: u32,
    #[prost(uint32, required, tag = "5")]
    pub suid: u32,
    #[prost(uint32, required, tag = "6")]
    pub sgid: u32,
    #[prost(uint32, required, tag = "7")]
    pub fsuid: u32,
    #[prost(uint32, required, tag = "8")]
    pub fsgid: u32,
    #[prost(uint32, repeated, packed = "false", tag = "9")]
    pub cap_inh: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "10")]
    pub cap_prm: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub cap_eff: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "12")]
    pub cap_bnd: Vec<u32>,
    #[prost(uint32, required, tag = "13")]
    pub secbits: u32,
    #[prost(uint32, repeated, packed = "false", tag = "14")]
    pub groups: Vec<u32>,
    #[prost(bytes = "vec", optional, tag = "15")]
    pub lsm_profile: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "16")]
    pub lsm_sockcreate: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "17")]
    pub apparmor_data: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "18")]
    pub no_new_privs: Option<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "19")]
    pub cap_amb: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TaskLimits {
    #[prost(message, repeated, tag = "1")]
    pub rlimits: Vec<ResourceLimit>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResourceLimit {
    #[prost(uint64, required, tag = "1")]
    pub cur: u64,
    #[prost(uint64, required, tag = "2")]
    pub max: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignalQueue {
    #[prost(message, repeated, tag = "1")]
    pub signals: Vec<SignalInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignalInfo {
    #[prost(bytes = "vec", required, tag = "1")]
    pub siginfo: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignalAction {
    #[prost(uint64, required, tag = "1")]
    pub sigaction: u64,
    #[prost(uint64, required, tag = "2")]
    pub flags: u64,
    #[prost(uint64, required, tag = "3")]
    pub restorer: u64,
    #[prost(uint64, required, tag = "4")]
    pub mask: u64,
    #[prost(bool, optional, tag = "5")]
    pub compat_sigaction: Option<bool>,
    #[prost(uint64, optional, tag = "6")]
    pub mask_extended: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Rseq {
    #[prost(uint64, required, tag = "1")]
    pub rseq_abi_pointer: u64,
    #[prost(uint32, required, tag = "2")]
    pub rseq_abi_size: u32,
    #[prost(uint32, required, tag = "3")]
    pub signature: u32,
    #[prost(uint64, optional, tag = "4")]
    pub rseq_cs_pointer: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TaskTimers {
    #[prost(message, required, tag = "1")]
    pub real: IntervalTimer,
    #[prost(message, required, tag = "2")]
    pub virt: IntervalTimer,
    #[prost(message, required, tag = "3")]
    pub prof: IntervalTimer,
    #[prost(message, repeated, tag = "4")]
    pub posix: Vec<PosixTimer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct IntervalTimer {
    #[prost(uint64, required, tag = "1")]
    pub isec: u64,
    #[prost(uint64, required, tag = "2")]
    pub iusec: u64,
    #[prost(uint64, required, tag = "3")]
    pub vsec: u64,
    #[prost(uint64, required, tag = "4")]
    pub vusec: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct PosixTimer {
    #[prost(uint32, required, tag = "1")]
    pub it_id: u32,
    #[prost(uint32, required, tag = "2")]
    pub clock_id: u32,
    #[prost(uint32, required, tag = "3")]
    pub si_signo: u32,
    #[prost(uint32, required, tag = "4")]
    pub it_sigev_notify: u32,
    #[prost(uint64, required, tag = "5")]
    pub sival_ptr: u64,
    #[prost(uint32, required, tag = "6")]
    pub overrun: u32,
    #[prost(uint64, required, tag = "7")]
    pub isec: u64,
    #[prost(uint64, required, tag = "8")]
    pub insec: u64,
    #[prost(uint64, required, tag = "9")]
    pub vsec: u64,
    #[prost(uint64, required, tag = "10")]
    pub vnsec: u64,
    #[prost(int32, optional, tag = "11")]
    pub notify_thread_id: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ThreadInfo {
    #[prost(uint64, required, tag = "1")]
    pub clear_tid_addr: u64,
    #[prost(message, required, tag = "2")]
    pub gpregs: Registers,
    #[prost(message, required, tag = "3")]
    pub fpregs: FloatRegisters,
    #[prost(message, repeated, tag = "4")]
    pub tls: Vec<UserDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Registers {
    #[prost(uint64, required, tag = "1")]
    pub r15: u64,
    #[prost(uint64, required, tag = "2")]
    pub r14: u64,
    #[prost(uint64, required, tag = "3")]
    pub r13: u64,
    #[prost(uint64, required, tag = "4")]
    pub r12: u64,
    #[prost(uint64, required, tag = "5")]
    pub bp: u64,
    #[prost(uint64, required, tag = "6")]
    pub bx: u64,
    #[prost(uint64, required, tag = "7")]
    pub r11: u64,
    #[prost(uint64, required, tag = "8")]
    pub r10: u64,
    #[prost(uint64, required, tag = "9")]
    pub r9: u64,
    #[prost(uint64, required, tag = "10")]
    pub r8: u64,
    #[prost(uint64, required, tag = "11")]
    pub ax: u64,
    #[prost(uint64, required, tag = "12")]
    pub cx: u64,
    #[prost(uint64, required, tag = "13")]
    pub dx: u64,
    #[prost(uint64, required, tag = "14")]
    pub si: u64,
    #[prost(uint64, required, tag = "15")]
    pub di: u64,
    #[prost(uint64, required, tag = "16")]
    pub orig_ax: u64,
    #[prost(uint64, required, tag = "17")]
    pub ip: u64,
    #[prost(uint64, required, tag = "18")]
    pub cs: u64,
    #[prost(uint64, required, tag = "19")]
    pub flags: u64,
    #[prost(uint64, required, tag = "20")]
    pub sp: u64,
    #[prost(uint64, required, tag = "21")]
    pub ss: u64,
    #[prost(uint64, required, tag = "22")]
    pub fs_base: u64,
    #[prost(uint64, required, tag = "23")]
    pub gs_base: u64,
    #[prost(uint64, required, tag = "24")]
    pub ds: u64,
    #[prost(uint64, required, tag = "25")]
    pub es: u64,
    #[prost(uint64, required, tag = "26")]
    pub fs: u64,
    #[prost(uint64, required, tag = "27")]
    pub gs: u64,
    #[prost(uint32, optional, tag = "28")]
    pub mode: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FloatRegisters {
    #[prost(uint32, required, tag = "1")]
    pub cwd: u32,
    #[prost(uint32, required, tag = "2")]
    pub swd: u32,
    #[prost(uint32, required, tag = "3")]
    pub twd: u32,
    #[prost(uint32, required, tag = "4")]
    pub fop: u32,
    #[prost(uint64, required, tag = "5")]
    pub rip: u64,
    #[prost(uint64, required, tag = "6")]
    pub rdp: u64,
    #[prost(uint32, required, tag = "7")]
    pub mxcsr: u32,
    #[prost(uint32, required, tag = "8")]
    pub mxcsr_mask: u32,
    #[prost(uint32, repeated, packed = "false", tag = "9")]
    pub st_space: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "10")]
    pub xmm_space: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub padding: Vec<u32>,
    #[prost(message, optional, tag = "13")]
    pub xsave: Option<ExtendedState>,
}

/// Shadow stacks and MPX are not declared.
#[derive(Clone, PartialEq, Message)]
pub struct ExtendedState {
    #[prost(uint64, required, tag = "1")]
    pub xstate_bv: u64,
    #[prost(uint32, repeated, packed = "false", tag = "2")]
    pub ymmh_space: Vec<u32>,
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub bndreg_state: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "4")]
    pub bndcsr_state: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "5")]
    pub opmask_reg: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "6")]
    pub zmm_upper: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub hi16_zmm: Vec<u64>,
    #[prost(uint32, repeated, packed = "false", tag = "8")]
    pub pkru: Vec<u32>,
    #[prost(message, optional, tag = "9")]
    pub cet: Option<ShadowStack>,
}

/// Written on every processor that has shadow stacks, whether or not they are used.
#[derive(Clone, PartialEq, Message)]
pub struct ShadowStack {
    #[prost(uint64, required, tag = "1")]
    pub cet: u64,
    #[prost(uint64, required, tag = "2")]
    pub ssp: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct UserDescriptor {
    #[prost(uint32, required, tag = "1")]
    pub entry_number: u32,
    #[prost(uint32, required, tag = "2")]
    pub base_addr: u32,
    #[prost(uint32, required, tag = "3")]
    pub limit: u32,
    #[prost(bool, required, tag = "4")]
    pub seg_32bit: bool,
    #[prost(bool, required, tag = "5")]
    pub contents_h: bool,
    #[prost(bool, required, tag = "6")]
    pub contents_l: bool,
    #[prost(bool, required, tag = "7")]
    pub read_exec_only: bool,
    #[prost(bool, required, tag = "8")]
    pub limit_in_pages: bool,
    #[prost(bool, required, tag = "9")]
    pub seg_not_present: bool,
    #[prost(bool, required, tag = "10")]
    pub usable: bool,
}
