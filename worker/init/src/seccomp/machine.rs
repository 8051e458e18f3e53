//! An interpreter for the filter's program, like the kernel's: forward jumps, and the few instructions that the
//! compiler emits.

use seccompiler::sock_filter;

use super::tree::{AND, IF_AT_LEAST, IF_EQUAL, JUMP, LOAD, RETURN};

/// `struct seccomp_data` of a call.
pub(super) fn data(number: u32, architecture: u32, arguments: [u64; 6]) -> [u8; 64] {
    let mut data = [0; 64];
    data[..4].copy_from_slice(&number.to_le_bytes());
    data[4..8].copy_from_slice(&architecture.to_le_bytes());
    for (place, argument) in data[16..].chunks_exact_mut(8).zip(arguments) {
        place.copy_from_slice(&argument.to_le_bytes());
    }
    data
}

/// The word at `offset`, as loaded by the program.
pub(super) fn word(data: &[u8; 64], offset: u32) -> u32 {
    let offset = offset as usize;
    u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap())
}

/// The program's result, and the number of instructions executed.
pub(super) fn run(program: &[sock_filter], data: &[u8; 64]) -> (u32, usize) {
    let (mut at, mut accumulator, mut steps) = (0, 0, 0);
    loop {
        let next = &program[at];
        (at, steps) = (at + 1, steps + 1);
        let taken = |holds: bool| usize::from(if holds { next.jt } else { next.jf });
        match next.code {
            LOAD => accumulator = word(data, next.k),
            AND => accumulator &= next.k,
            JUMP => at += next.k as usize,
            IF_EQUAL => at += taken(accumulator == next.k),
            IF_AT_LEAST => at += taken(accumulator >= next.k),
            RETURN => return (next.k, steps),
            other => panic!("instruction {other:#x}"),
        }
    }
}
