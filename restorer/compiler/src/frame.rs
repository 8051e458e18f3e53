//! A thread's frame: what the kernel reads in `rt_sigreturn`, as it would have written it for a signal handler.

use rekindle_restore_program::frame::STATE;
use rekindle_verify::messages::{ExtendedState, ThreadCore, ThreadInfo};

use crate::host::Host;

/// Extended state, segments, and strict segments.
const FLAGS: u64 = 1 | 2 | 4;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
/// Bytes of the state that every processor has, and of the header after it.
const LEGACY: usize = 512;
const HEADER: usize = 64;
/// x87 and SSE, which every processor has.
const ALWAYS: u64 = 3;
/// `SS_DISABLE`.
const NO_STACK: u64 = 2;
/// Offsets in `ucontext`.
const STACK: usize = 16;
const GENERAL: usize = 40;
const SEGMENTS: usize = GENERAL + 18 * 8;
const MASK: usize = GENERAL + 256;
/// Offset in the legacy state of what software may use: how the extended state is laid out.
const SOFTWARE: usize = 464;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn words(of: &[u32]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(of: &[u64]) -> Vec<u8> {
    of.iter().flat_map(|long| long.to_le_bytes()).collect()
}

/// Builds the frame of a thread whose blocked signals are `mask`, or returns what it cannot have.
pub(crate) fn build(info: &ThreadInfo, core: &ThreadCore, mask: u64, host: &Host) -> Result<Vec<u8>, &'static str> {
    let (r, f) = (&info.gpregs, &info.fpregs);
    let extended = (2..host.components.len()).filter(|n| host.features & 1 << n != 0);
    let ends = extended.map(|n| host.components[n].0 + host.components[n].1);
    let state_bytes = ends.fold(LEGACY + HEADER, usize::max);
    let mut frame = vec![0; (STATE + state_bytes + 4).next_multiple_of(64)];
    put(&mut frame, 0, &FLAGS.to_le_bytes());
    let stack = core.sas.as_ref();
    let stack = stack.map_or([0, NO_STACK, 0], |s| [s.ss_sp, s.ss_flags.into(), s.ss_size]);
    put(&mut frame, STACK, &longs(&stack));
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.di, r.si, r.bp, r.bx, r.dx, r.ax, r.cx, r.sp, r.ip,
        r.flags,
    ];
    put(&mut frame, GENERAL, &longs(&general));
    let segments = [r.cs as u16, r.gs as u16, r.fs as u16, r.ss as u16];
    put(&mut frame, SEGMENTS, segments.map(u16::to_le_bytes).as_flattened());
    put(&mut frame, MASK, &mask.to_le_bytes());

    let state = &mut frame[STATE..];
    for (at, value) in [f.cwd, f.swd, f.twd, f.fop].iter().enumerate() {
        put(state, at * 2, &(*value as u16).to_le_bytes());
    }
    put(state, 8, &longs(&[f.rip, f.rdp]));
    put(state, 24, &words(&[f.mxcsr, f.mxcsr_mask]));
    put(state, 32, &words(&f.st_space));
    put(state, 160, &words(&f.xmm_space));
    let present = f.xsave.as_ref().map_or(ALWAYS, |x| x.xstate_bv);
    if present & !(host.features | ALWAYS) != 0 {
        return Err("state that this processor does not have");
    }
    let software = [
        MAGIC_1,
        (state_bytes + 4) as u32,
        host.features as u32,
        (host.features >> 32) as u32,
        state_bytes as u32,
    ];
    put(state, SOFTWARE, &words(&software));
    put(state, state_bytes, &MAGIC_2.to_le_bytes());
    put(state, LEGACY, &present.to_le_bytes());
    for (number, bytes) in f.xsave.as_ref().map(components).into_iter().flatten() {
        let (at, room) = host.components[number];
        if present & 1 << number != 0 && bytes.len() <= room {
            put(state, at, &bytes);
        } else if present & 1 << number != 0 {
            return Err("state that this processor lays out in another way");
        }
    }
    Ok(frame)
}

/// The components of the processor's extended state in an image.
fn components(state: &ExtendedState) -> [(usize, Vec<u8>); 7] {
    [
        (2, words(&state.ymmh_space)),
        (3, longs(&state.bndreg_state)),
        (4, longs(&state.bndcsr_state)),
        (5, longs(&state.opmask_reg)),
        (6, longs(&state.zmm_upper)),
        (7, longs(&state.hi16_zmm)),
        (9, words(&state.pkru)),
    ]
}
