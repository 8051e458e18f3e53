//! `rekindle-bench idle-process`: a process with private memory, all of it written, of which it uses a quarter at a
//! time. It uses the first quarter, and after half of the time the second. It reports how long its touches of evicted
//! pages took.
#![expect(unsafe_code, reason = "works on its memory by its addresses")]

use std::io::{BufRead as _, stdin};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use memmap2::MmapMut;
use nix::sys::resource::{UsageWho, getrusage};
use rekindle_pager::PAGE;
use serde::{Deserialize, Serialize};

use crate::pager::content::page;
use crate::pager::kinds::Workload;
use crate::pager::process::counts;
use crate::pager::workload::Memory;

/// Parts of the memory, each with content of its own.
const PARTS: u64 = 4;

/// `rekindle-bench idle-process`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ProcessArgs {
    /// The workload.
    #[arg(long, value_enum)]
    workload: Workload,
    /// Number of pages.
    #[arg(long)]
    pages: u64,
    /// How long it runs.
    #[arg(long)]
    millis: u64,
}

/// What the process saw.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Units of work done.
    pub(crate) units: u64,
    /// Working time in seconds, without the idle ones.
    pub(crate) seconds: f64,
    /// Touches that brought an evicted page: pairs of nanoseconds and counts.
    pub(crate) brought: Vec<(u64, u64)>,
    /// Faults that brought a page.
    pub(crate) faults: u64,
    /// Processor time in the kernel, seconds.
    pub(crate) kernel: f64,
}

/// Runs the process.
pub(crate) fn run(args: &ProcessArgs) -> Result<()> {
    let mut word = String::new();
    // By then its parent has put it into its control group: memory is charged where it is first touched.
    stdin().lock().read_line(&mut word).context("no word to begin")?;
    let part = args.pages / PARTS;
    let mut memory = MmapMut::map_anon((PARTS * part * PAGE) as usize).context("no memory")?;
    for (index, to) in memory.chunks_exact_mut(PAGE as usize).enumerate() {
        to.copy_from_slice(&page(index as u64 % part));
    }
    println!("ready");
    stdin().lock().read_line(&mut word).context("no word to go")?;
    let (kernel, faults) = used()?;
    let (begun, mut seen) = (Instant::now(), Seen::default());
    for phase in 0..2 {
        let base = memory.as_mut_ptr() as u64 + phase * part * PAGE;
        // SAFETY: `part` pages from there on lie inside the mapping, which lives until the end, and are used only
        // through this.
        let mut quarter = unsafe { Memory::watched(base, part)? };
        let deadline = begun + Duration::from_millis(args.millis) * (phase as u32 + 1) / 2;
        let ran = quarter.run(args.workload, deadline)?;
        seen.units += ran.units;
        seen.seconds += ran.seconds;
        seen.brought.extend(counts(&quarter.brought));
    }
    let after = used()?;
    (seen.kernel, seen.faults) = (after.0 - kernel, after.1 - faults);
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

/// Processor time in the kernel, and faults that brought a page.
fn used() -> Result<(f64, u64)> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let system = usage.system_time();
    let seconds = system.tv_sec() as f64 + system.tv_usec() as f64 / 1e6;
    Ok((seconds, usage.major_page_faults().cast_unsigned()))
}
