//! The process that `fn doctor` checkpoints: a listening TCP socket, and memory filled with numbers whose sum it tells
//! to whoever connects. After a restore the sum must be the same.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::args::DoctorTargetArgs;

/// Fills memory, listens, and serves until it is killed.
pub(crate) fn run(args: &DoctorTargetArgs) -> Result<ExitCode> {
    // CRIU does not checkpoint a process whose session leader stays outside.
    nix::unistd::setsid().context("no session of its own")?;
    let memory = filled(args.mib << 20);
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on loopback")?;
    let port = listener.local_addr().context("the port is not known")?.port();
    announce(&args.ready, port)?;
    for stream in listener.incoming() {
        let mut stream = stream.context("accept failed")?;
        // A client that goes away is its own business.
        let _gone = writeln!(stream, "{:016x}", sum(&memory));
    }
    Ok(ExitCode::SUCCESS)
}

/// Written whole or not at all, and closed before the checkpoint.
fn announce(ready: &std::path::Path, port: u16) -> Result<()> {
    let partial = ready.with_extension("new");
    let mut file = File::create(&partial).with_context(|| format!("{}: cannot be made", partial.display()))?;
    write!(file, "{port}").with_context(|| format!("{}: cannot be written", partial.display()))?;
    drop(file);
    fs::rename(&partial, ready).with_context(|| format!("{}: cannot be written", ready.display()))
}

/// Bytes of which every eighth page is zero and no two others are alike (xorshift64).
fn filled(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    let mut x = 0x9E37_79B9_7F4A_7C15_u64;
    for (i, page) in memory.chunks_exact_mut(4096).enumerate() {
        if i % 8 == 0 {
            continue;
        }
        for word in page.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
    }
    memory
}

/// FNV-1a over words of eight bytes: order matters, and it reads every page.
fn sum(memory: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for word in memory.chunks_exact(8) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0100_0000_01B3);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_byte_changes_the_sum() {
        let mut memory = filled(1 << 16);
        let before = sum(&memory);
        assert_eq!(before, sum(&filled(1 << 16)));
        memory[40_000] ^= 1;
        assert_ne!(before, sum(&memory));
    }
}
