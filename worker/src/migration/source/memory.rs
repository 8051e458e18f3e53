//! The memory of an instance that has left, read from its stopped processes or from what CRIU has dumped of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rekindle_criu::images::WrittenRun;
use rekindle_pager::PAGE;
use rustix::fs::OFlags;

use super::super::page_numbering::{MigratedProcess, PageNumbering};
use crate::criu::open_files::OpenFiles;
use crate::host::sandbox::InnerProc;
use crate::instance::device_numbers::find_in_process;
use crate::snapshots::FileNumbers;

/// Bytes that are searched at once.
const PIECE: u64 = 256 * 1024;

pub(super) struct SourcePages {
    pub(super) numbering: PageNumbering,
    /// In the order of the processes.
    memories: Vec<ProcessPages>,
}

struct ProcessPages {
    process: File,
    /// `pages-N.img`, if CRIU wrote any of its pages there.
    dumped: Option<File>,
}

impl SourcePages {
    /// Opens the memory. `proc` is the proc of the processes' sandbox, and `dir` contains their images.
    ///
    /// # Errors
    /// Returns an error when a process is gone.
    pub(super) fn open(numbering: PageNumbering, proc: &InnerProc, dir: &Path) -> io::Result<Self> {
        let open = |process: &MigratedProcess| {
            let has_dumped = process.memory.written.iter().any(|run| run.at.is_some());
            let dumped = has_dumped.then(|| File::open(dir.join(format!("pages-{}.img", process.memory.pages_id))));
            Ok(ProcessPages {
                process: proc.open(&format!("{}/mem", process.pid), OFlags::RDONLY)?,
                dumped: dumped.transpose()?,
            })
        };
        let memories = numbering.processes.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { numbering, memories })
    }

    /// Returns the eager pages of each process, by process id.
    ///
    /// # Errors
    /// Returns an error when the pages cannot be read.
    pub(super) fn eager(&self) -> io::Result<Vec<(i32, Vec<u8>)>> {
        let of = |(process, memory): (&MigratedProcess, &ProcessPages)| {
            let mut bytes = Vec::new();
            for run in process.memory.eager() {
                let start = bytes.len();
                bytes.resize(start + (run.pages * PAGE) as usize, 0);
                memory.read(*run, 0, &mut bytes[start..])?;
            }
            Ok((process.pid, bytes))
        };
        std::iter::zip(&self.numbering.processes, &self.memories)
            .map(of)
            .collect()
    }

    /// Finds where the processes keep numbers of these files. `noted` are those that were written when they were
    /// restored. Only pages that they have written since are searched. Blocks.
    ///
    /// # Errors
    /// Returns an error when the pages cannot be read.
    pub(super) fn file_numbers(&self, files: &OpenFiles, noted: &FileNumbers) -> io::Result<FileNumbers> {
        let (mut found, began) = (FileNumbers::default(), Instant::now());
        for (process, memory) in std::iter::zip(&self.numbering.processes, &self.memories) {
            let pid = process.pid.cast_unsigned();
            let Some(files) = files.get(&pid) else { continue };
            let read = |look: &mut dyn FnMut(u64, &[u8])| memory.each_piece(&process.memory.written, look);
            find_in_process(pid, files, noted, read, &mut found)?;
        }
        if !files.is_empty() {
            let ms = began.elapsed().as_secs_f64() * 1e3;
            tracing::info!(
                ms,
                numbers = found.count(),
                "searched an instance that leaves for device numbers"
            );
        }
        Ok(found)
    }

    /// Reads consecutive pages from `number` on into `buffer`, as many as fit. Returns their number; 0 after the last
    /// page.
    ///
    /// # Errors
    /// Returns an error when the pages cannot be read.
    pub(super) fn read(&self, number: u64, buffer: &mut [u8]) -> io::Result<u64> {
        let Some((process, run, first)) = self.numbering.find(number) else {
            return Ok(0);
        };
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let index = self.numbering.processes.iter().position(|t| t.pid == process.pid);
        let memory = index.and_then(|index| self.memories.get(index)).ok_or_else(gone)?;
        let pages = (run.pages - first).min(buffer.len() as u64 / PAGE);
        memory.read(run, first, &mut buffer[..(pages * PAGE) as usize])?;
        Ok(pages)
    }
}

impl ProcessPages {
    /// Calls `look` with the address and the bytes of each piece of these runs.
    fn each_piece(&self, runs: &[WrittenRun], look: &mut dyn FnMut(u64, &[u8])) -> io::Result<()> {
        let mut buffer = vec![0; PIECE as usize];
        for run in runs {
            let mut first = 0;
            while first < run.pages {
                let pages = (run.pages - first).min(PIECE / PAGE);
                let bytes = &mut buffer[..(pages * PAGE) as usize];
                self.read(*run, first, bytes)?;
                look((run.first.0 + first) * PAGE, bytes);
                first += pages;
            }
        }
        Ok(())
    }

    /// Reads a run from its page `first` on.
    fn read(&self, run: WrittenRun, first: u64, buffer: &mut [u8]) -> io::Result<()> {
        match (run.at, &self.dumped) {
            (Some(at), Some(dumped)) => dumped.read_exact_at(buffer, (at + first) * PAGE),
            _ => self.process.read_exact_at(buffer, (run.first.0 + first) * PAGE),
        }
    }
}
