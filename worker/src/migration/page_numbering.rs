//! Numbers the written pages of an instance. Both hosts derive the numbers from the same images, so a number identifies
//! a page.

use std::io;
use std::path::Path;

use rekindle_criu::images::{ImageError, Travelling, WrittenRun, travelling};

use crate::snapshots::{Directory, touched_early};

/// Pages of a block, the unit of requests and transfers.
pub(super) const BLOCK: u64 = 16;

/// Why the images of a dump cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DumpError {
    #[error("read {0}")]
    File(String, #[source] io::Error),
    #[error("{0}")]
    Image(String, #[source] ImageError),
    /// The threads' images cannot be used.
    #[error("read the threads' images")]
    Threads(#[source] crate::snapshots::EditError),
}

pub(super) struct MigratedProcess {
    pub(super) pid: i32,
    pub(super) memory: Travelling,
    /// The runs that a pager serves, by address, each with the number of its first page.
    pub(super) runs: Vec<(WrittenRun, u64)>,
}

/// The numbered pages of an instance. Short runs have the lower numbers and are transferred first: scattered writes are
/// what a program works on, while a long run is a buffer that was filled.
pub(super) struct PageNumbering {
    pub(super) processes: Vec<MigratedProcess>,
    /// Number of pages that have numbers.
    pub(super) pages: u64,
    /// Index of the process and of its run, in the order of the runs' numbers.
    order: Vec<(usize, usize)>,
}

impl PageNumbering {
    /// Reads the images of all processes in `dir`. `templates` are the ids of the files that are templates.
    ///
    /// # Errors
    /// Returns an error when an image is missing or malformed.
    pub(super) fn read(dir: &Path, templates: &[u32]) -> Result<Self, DumpError> {
        let early = touched_early(&Directory(dir)).map_err(DumpError::Threads)?;
        let mut pids = pids(dir)?;
        pids.sort_unstable();
        let mut processes = Vec::with_capacity(pids.len());
        for pid in pids {
            let image = |kind: &str| read(dir, &format!("{kind}-{pid}.img"));
            let memory = travelling(&image("mm")?, &image("pagemap")?, templates, &early)
                .map_err(|cause| DumpError::Image(format!("mm-{pid}.img or pagemap-{pid}.img"), cause))?;
            let runs = memory.written.iter().filter(|run| !run.eager);
            let runs = runs.map(|run| (*run, 0)).collect();
            processes.push(MigratedProcess { pid, memory, runs });
        }
        Ok(Self::count(processes))
    }

    /// Returns the ids of its processes, if a pager can serve the memory of all.
    ///
    /// # Errors
    /// Returns an error when some memory is of a kind that a pager cannot serve.
    pub(super) fn pids(&self) -> io::Result<Vec<i32>> {
        let pid = |process: &MigratedProcess| match process.memory.plain {
            true => Ok(process.pid),
            false => Err(io::Error::other(format!(
                "process {} has memory that is neither anonymous nor of a file",
                process.pid
            ))),
        };
        self.processes.iter().map(pid).collect()
    }

    /// Assigns numbers to the pages of all runs.
    fn count(mut processes: Vec<MigratedProcess>) -> Self {
        let runs =
            |(t, process): (usize, &MigratedProcess)| (0..process.runs.len()).map(move |r| (t, r)).collect::<Vec<_>>();
        let mut order: Vec<(usize, usize)> = processes.iter().enumerate().flat_map(runs).collect();
        order.sort_by_key(|(t, r)| processes[*t].runs[*r].0.pages);
        let mut pages = 0;
        for (t, r) in &order {
            let (run, at) = &mut processes[*t].runs[*r];
            *at = pages;
            pages += run.pages;
        }
        Self {
            processes,
            pages,
            order,
        }
    }

    /// Returns the run that contains the page with this number, and the page's index in the run.
    pub(super) fn find(&self, number: u64) -> Option<(&MigratedProcess, WrittenRun, u64)> {
        let at = |(t, r): &(usize, usize)| self.processes[*t].runs[*r].1;
        let after = self.order.partition_point(|run| at(run) <= number);
        let (t, r) = *self.order.get(after.checked_sub(1)?)?;
        let process = &self.processes[t];
        let (run, at) = process.runs[r];
        (number - at < run.pages).then_some((process, run, number - at))
    }
}

pub(super) fn read(dir: &Path, name: &str) -> Result<Vec<u8>, DumpError> {
    std::fs::read(dir.join(name)).map_err(|e| DumpError::File(name.to_owned(), e))
}

fn pids(dir: &Path) -> Result<Vec<i32>, DumpError> {
    let listing = |e| DumpError::File(dir.display().to_string(), e);
    let mut pids = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(listing)? {
        let name = entry.map_err(listing)?.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.strip_prefix("mm-")?.strip_suffix(".img")?.parse::<i32>().ok());
        pids.extend(pid);
    }
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use rekindle_snapshotter::PageIndex;

    use super::*;

    #[test]
    fn a_number_names_one_page_of_one_process_and_short_runs_come_first() {
        let run = |first, pages| WrittenRun {
            first: PageIndex(first),
            pages,
            eager: false,
            at: None,
        };
        let process = |pid, runs: Vec<(WrittenRun, u64)>| MigratedProcess {
            pid,
            memory: Travelling {
                pages_id: 1,
                written: Vec::new(),
                mapped: Vec::new(),
                lazy: Vec::new(),
                plain: true,
            },
            runs,
        };
        let numbering = PageNumbering::count(vec![
            process(1, vec![(run(10, 3), 0), (run(20, 2), 0)]),
            process(2, Vec::new()),
            process(3, vec![(run(10, 1), 0)]),
        ]);
        assert_eq!(numbering.pages, 6);
        let found = |number| numbering.find(number).map(|(t, r, at)| (t.pid, r.first.0 + at));
        let expected = [(3, 10), (1, 20), (1, 21), (1, 10), (1, 11), (1, 12)];
        for (number, page) in expected.into_iter().enumerate() {
            assert_eq!(found(number as u64), Some(page), "{number}");
        }
        assert_eq!(found(6), None);
    }
}
