//! The memory of an instance that has left, read from its processes, which stand still, or from what CRIU has dumped of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rekindle_pager::PAGE;
use rekindle_snapshotter::images::WrittenRun;
use rustix::fs::OFlags;

use super::numbered::{Numbered, Traveller};
use crate::host::sandbox::InnerProc;

/// Its pages.
pub(super) struct Left {
    pub(super) numbered: Numbered,
    /// In the order of the travellers.
    memories: Vec<Memory>,
}

/// Where a process's pages are.
struct Memory {
    process: File,
    /// `pages-N.img`, if CRIU wrote any of its pages there.
    dumped: Option<File>,
}

impl Left {
    /// `proc` is that of the processes' sandbox, `dir` has their images.
    ///
    /// # Errors
    /// When a process is gone.
    pub(super) fn open(numbered: Numbered, proc: &InnerProc, dir: &Path) -> io::Result<Self> {
        let open = |traveller: &Traveller| {
            let has_dumped = traveller.memory.written.iter().any(|run| run.at.is_some());
            let dumped = has_dumped.then(|| File::open(dir.join(format!("pages-{}.img", traveller.memory.pages_id))));
            Ok(Memory {
                process: proc.open(&format!("{}/mem", traveller.pid), OFlags::RDONLY)?,
                dumped: dumped.transpose()?,
            })
        };
        let memories = numbered.travellers.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { numbered, memories })
    }

    /// The eager pages of each process, by process id.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn eager(&self) -> io::Result<Vec<(i32, Vec<u8>)>> {
        let of = |(traveller, memory): (&Traveller, &Memory)| {
            let mut bytes = Vec::new();
            for run in traveller.memory.eager() {
                let start = bytes.len();
                bytes.resize(start + (run.pages * PAGE) as usize, 0);
                memory.read(*run, 0, &mut bytes[start..])?;
            }
            Ok((traveller.pid, bytes))
        };
        std::iter::zip(&self.numbered.travellers, &self.memories)
            .map(of)
            .collect()
    }

    /// Reads pages from `number` on into `buffer`, at most as many as fit and as follow each other. Answers how many; 0 behind the last.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn read(&self, number: u64, buffer: &mut [u8]) -> io::Result<u64> {
        let Some((traveller, run, first)) = self.numbered.find(number) else {
            return Ok(0);
        };
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let index = self.numbered.travellers.iter().position(|t| t.pid == traveller.pid);
        let memory = index.and_then(|index| self.memories.get(index)).ok_or_else(gone)?;
        let pages = (run.pages - first).min(buffer.len() as u64 / PAGE);
        memory.read(run, first, &mut buffer[..(pages * PAGE) as usize])?;
        Ok(pages)
    }
}

impl Memory {
    /// Reads of a run from its page `first` on.
    fn read(&self, run: WrittenRun, first: u64, buffer: &mut [u8]) -> io::Result<()> {
        match (run.at, &self.dumped) {
            (Some(at), Some(dumped)) => dumped.read_exact_at(buffer, (at + first) * PAGE),
            _ => self.process.read_exact_at(buffer, (run.first.0 + first) * PAGE),
        }
    }
}
