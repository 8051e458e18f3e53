//! `rekindle-bench pager-process`: a process with memory as a restore leaves it. It does CRIU's part (maps the memory,
//! sends its userfaultfd), waits for the word to go, runs its workload, and reports what it saw.
#![expect(
    unsafe_code,
    reason = "maps memory at a fixed address and works on it by its addresses"
)]

use std::fs::File;
use std::io::{BufRead as _, IoSlice, Write as _, stdin};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use rekindle_pager::PAGE;
use rekindle_pager::handshake::FINISHED;
use rekindle_pager::userfault::{Register, Userfault};

use super::content::FIRST;
use super::kinds::{Backing, Workload};
use super::workload::Memory;

/// `rekindle-bench pager-process`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ProcessArgs {
    #[arg(long, value_enum)]
    pub(crate) workload: Workload,
    /// How its memory is provided.
    #[arg(long, value_enum)]
    pub(crate) backing: Backing,
    /// Number of pages.
    #[arg(long)]
    pub(crate) pages: u64,
    /// How long it runs.
    #[arg(long)]
    pub(crate) millis: u64,
    /// Where the pager listens.
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// The file that holds the memory.
    #[arg(long)]
    pub(crate) file: PathBuf,
}

/// Runs the process.
pub(crate) fn run(args: &ProcessArgs) -> Result<()> {
    let length = (args.pages * PAGE) as usize;
    let address = (FIRST.page * PAGE) as *mut libc::c_void;
    let file = File::open(&args.file).with_context(|| format!("{}: cannot be opened", args.file.display()))?;
    let (kind, fd) = match args.backing.is_mapped() {
        true => (0, file.as_raw_fd()),
        false => (libc::MAP_ANONYMOUS, -1),
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | kind;
    // SAFETY: a new mapping where nothing is.
    let mapped = unsafe { libc::mmap(address, length, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    ensure!(mapped == address, "no memory: {}", std::io::Error::last_os_error());
    let criu = match args.backing.is_served() {
        true => Some(hand_over(args, length)?),
        false => None,
    };
    println!("ready");
    let mut word = String::new();
    stdin().lock().read_line(&mut word).context("no word to go")?;
    if let Some(mut criu) = criu {
        criu.write_all(&FINISHED.to_ne_bytes())?;
    }
    // SAFETY: just mapped, and nobody else's.
    let mut memory = unsafe { Memory::new(FIRST.page * PAGE, args.pages, args.backing != Backing::Anonymous)? };
    let mut seen = memory.run(args.workload, Instant::now() + Duration::from_millis(args.millis))?;
    seen.first_touches = counts(&memory.first_touches);
    seen.waited = counts(&memory.waited);
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

/// Pairs of values and counts.
pub(crate) fn counts(histogram: &hdrhistogram::Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    recorded.map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
}

/// Does what CRIU does for a lazy process.
fn hand_over(args: &ProcessArgs, length: usize) -> Result<UnixStream> {
    let userfault = Userfault::create().context("no userfaultfd: this needs root")?;
    userfault.agree_on_events()?;
    if !args.backing.is_mapped() {
        userfault.register(FIRST.page, length as u64 / PAGE, Register::Missing)?;
    }
    let mut criu = UnixStream::connect(&args.socket)?;
    criu.write_all(&FIRST.pid.to_ne_bytes())?;
    let fds = [userfault.as_fd().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<UnixAddr>(
        criu.as_raw_fd(),
        &[IoSlice::new(b"x")],
        &rights,
        MsgFlags::empty(),
        None,
    )?;
    Ok(criu)
}
