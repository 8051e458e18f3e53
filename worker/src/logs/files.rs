//! A function's log files: `current.ndjson`, and when that is full `1.ndjson`, `2.ndjson`, … with older lines.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rekindle_wire::api::LogLine;

const CURRENT: &str = "current.ndjson";
/// Bytes read at once when lines are searched from the end.
const READ_BACK_BYTES: usize = 64 * 1024;

/// The writing side.
#[derive(Debug)]
pub(super) struct LogFiles {
    directory: PathBuf,
    file_bytes: u64,
    files: usize,
    current: Option<(File, u64)>,
}

impl LogFiles {
    pub(super) fn new(directory: PathBuf, file_bytes: u64, files: usize) -> Self {
        Self {
            directory,
            file_bytes,
            files: files.max(1),
            current: None,
        }
    }

    fn file(&self, age: usize) -> PathBuf {
        if age == 0 {
            self.directory.join(CURRENT)
        } else {
            self.directory.join(format!("{age}.ndjson"))
        }
    }

    /// Appends `lines`, in one write as long as they fit into the current file.
    pub(super) fn append<'a>(&mut self, lines: impl Iterator<Item = &'a LogLine>) -> io::Result<()> {
        let mut batch = Vec::new();
        for line in lines {
            let before = batch.len();
            serde_json::to_writer(&mut batch, line)?;
            batch.push(b'\n');
            let (_, size) = self.open()?;
            if *size > 0 && *size + batch.len() as u64 > self.file_bytes {
                let line = batch.split_off(before);
                self.write(&batch)?;
                self.rotate()?;
                batch = line;
            }
        }
        self.write(&batch)
    }

    fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let (file, size) = self.open()?;
        *size += batch.len() as u64;
        let written = file.write_all(batch);
        if written.is_err() {
            // The contents of the file are unknown now, so it is examined again.
            self.current = None;
        }
        written
    }

    fn open(&mut self) -> io::Result<&mut (File, u64)> {
        if self.current.is_none() {
            fs::create_dir_all(&self.directory)?;
            let mut file = File::options()
                .create(true)
                .append(true)
                .read(true)
                .open(self.file(0))?;
            let mut size = file.metadata()?.len();
            let mut last = [b'\n'];
            if size > 0 {
                file.read_exact_at(&mut last, size - 1)?;
            }
            if last != [b'\n'] {
                // A worker died while it wrote: its half line must not swallow the next one.
                file.write_all(b"\n")?;
                size += 1;
            }
            self.current = Some((file, size));
        }
        self.current
            .as_mut()
            .ok_or_else(|| io::Error::other("log file is not open"))
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.current = None;
        if self.files == 1 {
            return fs::remove_file(self.file(0));
        }
        for age in (1..self.files).rev() {
            match fs::rename(self.file(age - 1), self.file(age)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the present contents of the files, to be read later. Rotation does not disturb it.
    pub(super) fn snapshot(&self) -> io::Result<FilesSnapshot> {
        let mut files = Vec::new();
        for age in 0..self.files {
            match File::open(self.file(age)) {
                Ok(file) => {
                    let size = file.metadata()?.len();
                    files.push((file, size));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(FilesSnapshot { files })
    }

    pub(super) fn delete(&mut self) -> io::Result<()> {
        self.current = None;
        match fs::remove_dir_all(&self.directory) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Open files, newest first, each with the size it had.
#[derive(Debug)]
pub(super) struct FilesSnapshot {
    files: Vec<(File, u64)>,
}

impl FilesSnapshot {
    /// Returns the newest `count` lines, oldest first. Malformed lines are left out.
    pub(super) fn tail(&self, count: usize) -> io::Result<Vec<LogLine>> {
        let mut newest_first = Vec::new();
        for (file, size) in &self.files {
            read_back(file, *size, |bytes| {
                newest_first.extend(serde_json::from_slice::<LogLine>(bytes).ok());
                newest_first.len() < count
            })?;
            if newest_first.len() >= count {
                break;
            }
        }
        newest_first.truncate(count);
        newest_first.reverse();
        Ok(newest_first)
    }
}

/// Passes the lines of `file[..size]` to `take`, last line first, until that returns false.
fn read_back(file: &File, size: u64, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let mut start = size;
    // Bytes from `start` on that belong to a line whose beginning is not read yet.
    let mut partial: Vec<u8> = Vec::new();
    while start > 0 {
        let length = start.min(READ_BACK_BYTES as u64) as usize;
        start -= length as u64;
        let mut block = vec![0; length];
        file.read_exact_at(&mut block, start)?;
        block.append(&mut partial);
        let mut end = block.len();
        while let Some(newline) = block[..end].iter().rposition(|b| *b == b'\n') {
            if newline + 1 < end && !take(&block[newline + 1..end]) {
                return Ok(());
            }
            end = newline;
        }
        block.truncate(end);
        partial = block;
    }
    if !partial.is_empty() {
        take(&partial);
    }
    Ok(())
}
