//! OpenSSL's generators, of 3.x (`PROV_DRBG`) and 1.1.1 (`RAND_DRBG`), wherever libcrypto is: a shared library, a wheel
//! or a program.
//!
//! Each holds the id of the process in which it last drew. If `getpid()` differs, it reseeds itself from its parent,
//! and the first one from the kernel. So only that id is written. Both versions contain the same row of limits:
//!
//! ```text
//! 3.x     fork_id:i32 flags:u16 strength:u32 ──┐
//! 1.1.1   secure:i32 type:i32 fork_id:i32 flags:u16 seed_pool:ptr adin_pool:ptr strength:i32 ──┤
//!         max_request:u64 entropylen:2×u64 noncelen:2×u64 max_perslen:u64 max_adinlen:u64
//!         generate_counter:u32 reseed_interval:u32 reseed_time:i64 reseed_time_interval:i64
//! ```

use crate::{Generator, Kind, Memory, Write};

/// Maximum bytes per request, with which the search starts.
const MAX_REQUEST: u64 = 1 << 16;
/// Maximum length of entropy, nonce, personalisation and additional input.
const LENGTH_MAX: u64 = 0x7fff_ffff;
/// Bits of security.
const STRENGTHS: [u32; 3] = [128, 192, 256];
/// Maximum number of blocks, and of seconds, between two reseeds that OpenSSL lets a program choose.
const INTERVAL_MAX: u32 = 1 << 24;
const SECONDS_MAX: u64 = 1 << 20;
/// The kinds in 1.1.1: AES-128, -192 and -256 in counter mode.
const KINDS: [u32; 3] = [904, 905, 906];
/// No process has this id.
const NO_PROCESS: [u8; 4] = [0; 4];

/// The generator whose limits start at this word.
pub(crate) fn at(memory: &Memory<'_>, limits: u64, word: u64) -> Option<Generator> {
    if word != MAX_REQUEST || !STRENGTHS.contains(&memory.u32(limits - 8)?) {
        return None;
    }
    let lengths = [16, 40, 48].map(|at| memory.u64(limits + at));
    let limited = lengths
        .iter()
        .all(|length| length.is_some_and(|l| l == LENGTH_MAX || l == LENGTH_MAX - 1));
    let interval = memory.u32(limits + 60)?;
    let seconds = memory.u64(limits + 72)?;
    if !limited || interval > INTERVAL_MAX || seconds > SECONDS_MAX {
        return None;
    }
    let [secure, kind] = memory.u32s(limits - 40)?;
    let fork_id = match KINDS.contains(&kind) && secure <= 1 {
        true => limits - 32,
        false => limits - 16,
    };
    // A process id, and flags.
    let [id, flags] = memory.u32s(fork_id)?;
    (id != 0 && id < 1 << 22 && flags < 1 << 16).then(|| Generator {
        kind: Kind::Openssl,
        writes: vec![Write::constant(fork_id, &NO_PROCESS)],
    })
}
