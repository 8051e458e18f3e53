//! A thread's registers. CRIU lets the kernel load them from a signal frame. The kernel accepts only what a process
//! could set itself, but these rules do not rely on that.

use super::{USER_END, in_user_space};
use crate::error::{EntryLocation, VerifyError};
use crate::messages::{ExtendedState, FloatRegisters, Registers, ThreadInfo, UserDescriptor};

/// Code and data segments of 64-bit user space.
const USER_CODE: u64 = 0x33;
const USER_DATA: u64 = 0x2b;
const MODE_NATIVE: u32 = 1;
/// Flags that user space may set: the arithmetic ones, TF, DF, NT, RF, AC, ID. Neither IOPL nor VM.
const FLAGS_OF_USER: u64 = 0x0024_4dd5 | 0x0001_0000;
/// Flags that are always set: interrupts are enabled, and bit 1.
const FLAGS_ALWAYS: u64 = 0x202;
/// Numbers of the descriptors for thread-local storage of 32-bit programs.
const TLS_ENTRIES: std::ops::RangeInclusive<u32> = 12..=14;
/// x87 to PKRU, except processor trace.
const XSTATE_FEATURES: u64 = 0x2ff;

pub(super) fn check(at: EntryLocation<'_>, info: &ThreadInfo) -> Result<(), VerifyError> {
    let ThreadInfo {
        clear_tid_addr,
        gpregs,
        fpregs,
        tls,
    } = info;
    at.hold(
        in_user_space(*clear_tid_addr, 4),
        "thread_info.clear_tid_addr",
        clear_tid_addr,
    )?;
    check_general(at, gpregs)?;
    check_float(at, fpregs)?;
    at.hold(tls.len() <= TLS_ENTRIES.count(), "thread_info.tls", tls.len())?;
    for entry in tls {
        let empty = UserDescriptor {
            entry_number: entry.entry_number,
            read_exec_only: true,
            seg_not_present: true,
            ..UserDescriptor::default()
        };
        at.hold(
            TLS_ENTRIES.contains(&entry.entry_number) && *entry == empty,
            "thread_info.tls",
            entry,
        )?;
    }
    Ok(())
}

fn check_general(at: EntryLocation<'_>, registers: &Registers) -> Result<(), VerifyError> {
    let Registers {
        ip,
        cs,
        flags,
        sp,
        ss,
        fs_base,
        gs_base,
        ds,
        es,
        fs,
        gs,
        mode,
        ..
    } = registers;
    at.hold(*mode == Some(MODE_NATIVE), "gpregs.mode", mode)?;
    at.hold(*cs == USER_CODE, "gpregs.cs", cs)?;
    at.hold(*ss == USER_DATA, "gpregs.ss", ss)?;
    for (field, segment) in [
        ("gpregs.ds", ds),
        ("gpregs.es", es),
        ("gpregs.fs", fs),
        ("gpregs.gs", gs),
    ] {
        at.hold(matches!(*segment, 0 | USER_DATA), field, segment)?;
    }
    let allowed = flags & !(FLAGS_OF_USER | FLAGS_ALWAYS) == 0 && flags & FLAGS_ALWAYS == FLAGS_ALWAYS;
    at.hold(allowed, "gpregs.flags", flags)?;
    for (field, address) in [
        ("gpregs.ip", ip),
        ("gpregs.sp", sp),
        ("gpregs.fs_base", fs_base),
        ("gpregs.gs_base", gs_base),
    ] {
        at.hold(*address < USER_END, field, address)?;
    }
    Ok(())
}

/// CRIU copies as many words as the processor has, whatever the image has.
fn check_float(at: EntryLocation<'_>, registers: &FloatRegisters) -> Result<(), VerifyError> {
    at.hold(
        registers.st_space.len() == 32,
        "fpregs.st_space",
        registers.st_space.len(),
    )?;
    at.hold(
        registers.xmm_space.len() == 64,
        "fpregs.xmm_space",
        registers.xmm_space.len(),
    )?;
    at.hold(registers.padding.is_empty(), "fpregs.padding", registers.padding.len())?;
    let Some(ExtendedState {
        xstate_bv,
        ymmh_space,
        bndreg_state,
        bndcsr_state,
        opmask_reg,
        zmm_upper,
        hi16_zmm,
        pkru,
        cet,
    }) = &registers.xsave
    else {
        return Ok(());
    };
    at.hold(xstate_bv & !XSTATE_FEATURES == 0, "fpregs.xsave.xstate_bv", xstate_bv)?;
    for (field, found, whole) in [
        ("fpregs.xsave.ymmh_space", ymmh_space.len(), 64),
        ("fpregs.xsave.bndreg_state", bndreg_state.len(), 8),
        ("fpregs.xsave.bndcsr_state", bndcsr_state.len(), 8),
        ("fpregs.xsave.opmask_reg", opmask_reg.len(), 8),
        ("fpregs.xsave.zmm_upper", zmm_upper.len(), 64),
        ("fpregs.xsave.hi16_zmm", hi16_zmm.len(), 128),
        ("fpregs.xsave.pkru", pkru.len(), 2),
    ] {
        at.hold(found == 0 || found == whole, field, found)?;
    }
    // The filter does not allow shadow stacks.
    let unused = cet.as_ref().is_none_or(|cet| (cet.cet, cet.ssp) == (0, 0));
    at.hold(unused, "fpregs.xsave.cet", cet)?;
    Ok(())
}
