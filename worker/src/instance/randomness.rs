//! Gives copies of a snapshot random numbers of their own. The generators are found in the snapshot's images, and every
//! restore writes to them.

use std::fs::{self, File};
use std::io::{self, IoSlice, Read as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;
use rekindle_criu::images::file_names;
use rekindle_randomness::{Bytes, Generator, Memory, Write, find, unreached};
use rekindle_telemetry::record_past;
use rekindle_wire::api::{Randomness, Repeating};

use super::image_memory::{ImageMemory, SearchError, pids};
use crate::host::host_pids::HostPids;
use crate::metrics::Metrics;
pub use crate::snapshots::ProcessGenerators;

/// Number of writes in one system call.
const AT_ONCE: usize = 512;
/// Maximum number of bytes that a restore writes. The host pays for the writes, and the contents of a function's memory
/// could ask for many. Skipped writes harm only that function.
const WRITTEN_MAX: usize = 1 << 20;
/// The kernel's generator.
const DEVICE: &str = "/dev/urandom";

/// Why a copy still has the generators of its original.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The copy lacks a process of the snapshot.
    #[error("process {0} of the snapshot is not among those of the copy")]
    Missing(u32),
    /// The kernel gives no random bytes.
    #[error("read {DEVICE}")]
    Random(#[source] io::Error),
    /// The memory cannot be written.
    #[error("write to the generators of process {pid}")]
    Memory {
        /// The process's id in its pid namespace.
        pid: u32,
        /// The kernel's error.
        #[source]
        source: nix::Error,
    },
    /// Only a part was written.
    #[error("only {written} of {asked} bytes could be written to the generators of process {pid}")]
    Short {
        /// The process's id in its pid namespace.
        pid: u32,
        /// Bytes written.
        written: usize,
        /// Bytes requested.
        asked: usize,
    },
}

/// Finds the generators in the images of a directory that CRIU dumped into. Blocks: reads all memory in them.
///
/// # Errors
/// Returns an error when an image cannot be read.
pub fn search(dir: &Path) -> Result<Vec<ProcessGenerators>, SearchError> {
    let (mut found, mut left) = (Vec::new(), WRITTEN_MAX);
    for pid in pids(dir)? {
        let mut generators = search_one(dir, pid)?;
        generators.retain(|generator| {
            let bytes = generator.writes.iter().map(Write::len).sum();
            let fits = left.checked_sub(bytes);
            left = fits.unwrap_or(left);
            fits.is_some()
        });
        if !generators.is_empty() {
            found.push(ProcessGenerators { pid, generators });
        }
    }
    Ok(found)
}

/// Summarizes the randomness of copies, for the deploy to report.
///
/// # Errors
/// Returns an error when an image cannot be read.
pub fn summary(dir: &Path, found: &[ProcessGenerators]) -> Result<Randomness, SearchError> {
    let path = dir.join("files.img");
    let image = fs::read(&path).map_err(|e| SearchError::File(path.clone(), e))?;
    let names = file_names(&image).map_err(|e| SearchError::Image(path, e))?;
    let mut told = Randomness::default();
    let kinds: Vec<_> = found
        .iter()
        .flat_map(|process| &process.generators)
        .map(|found| found.kind)
        .collect();
    for kind in &kinds {
        *told.reseeded.entry(kind.name().to_owned()).or_default() += 1;
    }
    let unreached = unreached(names.values().map(String::as_str), &kinds).into_iter();
    told.repeating.extend(unreached.map(|unreached| Repeating {
        name: unreached.name.to_owned(),
        advice: unreached.advice.to_owned(),
    }));
    Ok(told)
}

fn search_one(dir: &Path, pid: u32) -> Result<Vec<Generator>, SearchError> {
    let memory = ImageMemory::open(dir, pid)?;
    Ok(find(&Memory::new(memory.runs().collect()), pid))
}

/// Writes to the generators of a copy whose processes have not run their first instruction. Blocks until the pages that
/// it writes to are present. Returns how long that took.
///
/// # Errors
/// See [`WriteError`]; the copy must not run then.
pub fn write(hosts: &HostPids, processes: &[ProcessGenerators], metrics: &Metrics) -> Result<Duration, WriteError> {
    let began = Instant::now();
    if processes.is_empty() {
        return Ok(began.elapsed());
    }
    let mut device = File::open(DEVICE).map_err(WriteError::Random)?;
    let mut generators = 0;
    for process in processes {
        let pid = process.pid;
        let host = Pid::from_raw(*hosts.get(&pid).ok_or(WriteError::Missing(pid))?);
        let writes: Vec<_> = process.generators.iter().flat_map(|found| &found.writes).collect();
        for writes in writes.chunks(AT_ONCE) {
            let mut bytes = Vec::with_capacity(writes.len());
            for write in writes {
                bytes.push(match &write.bytes {
                    Bytes::Constant(constant) => constant.clone(),
                    Bytes::Random(length) => {
                        let mut random = vec![0; usize::from(*length)];
                        device.read_exact(&mut random).map_err(WriteError::Random)?;
                        random
                    }
                });
            }
            let local: Vec<_> = bytes.iter().map(|bytes| IoSlice::new(bytes)).collect();
            let remote = std::iter::zip(writes, &bytes).map(|(write, bytes)| RemoteIoVec {
                base: usize::try_from(write.address).unwrap_or(usize::MAX),
                len: bytes.len(),
            });
            let remote: Vec<_> = remote.collect();
            let written =
                process_vm_writev(host, &local, &remote).map_err(|source| WriteError::Memory { pid, source })?;
            let asked = bytes.iter().map(Vec::len).sum();
            if written != asked {
                return Err(WriteError::Short { pid, written, asked });
            }
        }
        generators += process.generators.len();
    }
    let count = [("rekindle.generators", generators as u64)];
    let took = began.elapsed();
    record_past(&tracing::Span::current(), "generators", began, took, &count);
    metrics.generators.with([]).add(generators as u64);
    Ok(took)
}
