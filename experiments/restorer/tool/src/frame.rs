//! A thread's frame: what the kernel reads in `rt_sigreturn`.

use std::arch::x86_64::__cpuid_count;

use anyhow::{Context as _, Result};
use rekindle_verify::messages::{Core, ExtendedState};
use restore_program::frame::STATE;

/// Extended state, segments, and strict segments.
const FLAGS: u64 = 1 | 2 | 4;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
/// Bytes of the state that every processor has, and of the header after it.
const LEGACY: usize = 512;
const HEADER: usize = 64;
/// SSE, AVX, bounds, masks, upper halves, high registers, keys: what images have.
const FEATURES: u64 = 0x2ff;

/// Where the processor lays out a component of its state.
fn component(number: u32) -> (usize, usize) {
    let leaf = __cpuid_count(0xd, number);
    (leaf.ebx as usize, leaf.eax as usize)
}

/// The features that this processor has enabled.
fn enabled() -> u64 {
    let leaf = __cpuid_count(0xd, 0);
    u64::from(leaf.eax) | u64::from(leaf.edx) << 32
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn words(of: &[u32]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(of: &[u64]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Builds the frame of a thread whose blocked signals are `mask`.
pub fn build(core: &Core, mask: u64) -> Result<Vec<u8>> {
    let info = core.thread_info.as_ref().context("a thread has no registers")?;
    let thread = core.thread_core.as_ref().context("a thread has no core")?;
    let (r, f) = (&info.gpregs, &info.fpregs);
    let features = enabled() & FEATURES;
    let extended = (2..10)
        .filter(|n| features & 1 << n != 0)
        .map(component)
        .map(|(at, bytes)| at + bytes);
    let state_bytes = extended.fold(LEGACY + HEADER, usize::max);
    let mut frame = vec![0; (STATE + state_bytes + 4).next_multiple_of(64)];
    put(&mut frame, 0, &FLAGS.to_le_bytes());
    let stack = thread.sas.as_ref();
    let stack = stack.map_or([0, 2, 0], |s| [s.ss_sp, s.ss_flags.into(), s.ss_size]);
    put(&mut frame, 16, &longs(&stack));
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.di, r.si, r.bp, r.bx, r.dx, r.ax, r.cx, r.sp, r.ip,
        r.flags,
    ];
    put(&mut frame, 40, &longs(&general));
    let segments = [r.cs as u16, r.gs as u16, r.fs as u16, r.ss as u16];
    let segments: Vec<u8> = segments.iter().flat_map(|s| s.to_le_bytes()).collect();
    put(&mut frame, 40 + 18 * 8, &segments);
    put(&mut frame, 40 + 256, &mask.to_le_bytes());

    let state = &mut frame[STATE..];
    for (at, value) in [f.cwd, f.swd, f.twd, f.fop].iter().enumerate() {
        put(state, at * 2, &(*value as u16).to_le_bytes());
    }
    put(state, 8, &longs(&[f.rip, f.rdp]));
    put(state, 24, &words(&[f.mxcsr, f.mxcsr_mask]));
    put(state, 32, &words(&f.st_space));
    put(state, 160, &words(&f.xmm_space));
    let present = f.xsave.as_ref().map_or(3, |x| x.xstate_bv) & features;
    let software = [
        MAGIC_1,
        (state_bytes + 4) as u32,
        features as u32,
        (features >> 32) as u32,
        state_bytes as u32,
    ];
    put(state, 464, &words(&software));
    put(state, state_bytes, &MAGIC_2.to_le_bytes());
    put(state, LEGACY, &present.to_le_bytes());
    if let Some(extended) = &f.xsave {
        for (number, bytes) in components(extended) {
            if present & 1 << number != 0 && !bytes.is_empty() {
                put(state, component(number).0, &bytes);
            }
        }
    }
    Ok(frame)
}

/// The components of the processor's extended state in an image.
fn components(state: &ExtendedState) -> [(u32, Vec<u8>); 7] {
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
