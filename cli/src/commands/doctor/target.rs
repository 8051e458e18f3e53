//! The process that `fn doctor` checkpoints: a listening TCP socket, and memory filled with numbers. It sends their sum
//! to whoever connects. After a restore the sum must be the same.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::args::DoctorTargetArgs;

const PAGE: usize = 4096;

/// Fills memory, listens, and serves until it is killed.
pub(crate) fn run(args: &DoctorTargetArgs) -> Result<ExitCode> {
    // CRIU does not checkpoint a process whose session leader stays outside.
    nix::unistd::setsid().context("no session of its own")?;
    let bytes = args.mib << 20;
    // Aligned to a page: pages of zeros must be whole pages.
    let mut memory = vec![0; bytes + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let memory = &mut memory[start..start + bytes];
    fill(memory);
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on loopback")?;
    let port = listener.local_addr().context("the port is not known")?.port();
    announce(&args.ready, port)?;
    for stream in listener.incoming() {
        let mut stream = stream.context("accept failed")?;
        // A client may go away.
        let _gone = writeln!(stream, "{:016x}", sum(memory));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the port completely or not at all, and closes the file before the checkpoint.
fn announce(ready: &std::path::Path, port: u16) -> Result<()> {
    let partial = ready.with_extension("new");
    let mut file = File::create(&partial).with_context(|| format!("{}: cannot be made", partial.display()))?;
    write!(file, "{port}").with_context(|| format!("{}: cannot be written", partial.display()))?;
    drop(file);
    fs::rename(&partial, ready).with_context(|| format!("{}: cannot be written", ready.display()))
}

/// Whether page `index` has content.
const fn is_filled(index: u64) -> bool {
    !index.is_multiple_of(8)
}

/// Number of pages with content in such memory.
pub(super) fn filled_pages(bytes: u64) -> u64 {
    (0..bytes / PAGE as u64).filter(|i| is_filled(*i)).map(|_| 1).sum()
}

/// Fills zeroed memory with bytes (xorshift64). Every eighth page stays zero, and no two others are alike.
fn fill(memory: &mut [u8]) {
    let mut x = 0x9E37_79B9_7F4A_7C15_u64;
    for (_, page) in (0..).zip(memory.chunks_exact_mut(PAGE)).filter(|(i, _)| is_filled(*i)) {
        for word in page.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
    }
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
        let mut memory = vec![0; 1 << 16];
        fill(&mut memory);
        let before = sum(&memory);
        memory[40_000] ^= 1;
        assert_ne!(before, sum(&memory));
    }

    #[test]
    fn as_many_pages_hold_something_as_are_said_to() {
        let mut memory = vec![0; 20 * PAGE];
        fill(&mut memory);
        let pages = memory.chunks_exact(PAGE).filter(|p| p.iter().any(|b| *b != 0));
        assert_eq!(pages.count() as u64, filled_pages(memory.len() as u64));
    }
}
