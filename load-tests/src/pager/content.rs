//! The memory with which the measured processes are restored, and how the pager reads it.
#![expect(
    unsafe_code,
    reason = "pages of the template are shared between threads by a bit each"
)]

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use memmap2::{MmapOptions, MmapRaw};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rekindle_pager::{PAGE, PageLookup, PageRef, PageSource, Pin, SourceError};
use rekindle_snapshotter::Digest;
use rekindle_snapshotter::codec::{self, Encoded, Encoding};

use super::kinds::Backing;

/// First page of the memory, and the process that it belongs to.
pub(crate) const FIRST: PageRef = PageRef {
    pid: 501,
    page: 0x2000_0000_0000 / PAGE,
};
/// Pages that are compressed together.
const REGION: u64 = 16;

/// The first word of page `index`.
pub(crate) fn first_word(index: u64) -> u64 {
    (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A page: one word in four is unique, the rest resemble their neighbours.
pub(crate) fn page(index: u64) -> Vec<u8> {
    let word = |at: u64| match at % 4 {
        0 => first_word(index).wrapping_add(at.wrapping_mul(0xD134_2543_DE82_EF95)),
        _ => index,
    };
    (0..PAGE / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

fn small() -> Result<File> {
    // SAFETY: a new descriptor, owned by nobody else.
    let fd = unsafe { libc::memfd_create(c"template".as_ptr(), libc::MFD_CLOEXEC) };
    anyhow::ensure!(fd >= 0, "no memory file: {}", std::io::Error::last_os_error());
    // SAFETY: as above.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// A file that the kernel backs with huge pages if it can. Nothing of its file system remains but the file.
fn huge() -> Result<File> {
    let dir = tempfile::tempdir().context("no directory for a tmpfs")?;
    mount(
        Some("tmpfs"),
        dir.path(),
        Some("tmpfs"),
        MsFlags::empty(),
        Some("huge=always"),
    )
    .context("no tmpfs with huge=always")?;
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.path().join("template"));
    umount2(dir.path(), MntFlags::MNT_DETACH).context("the tmpfs cannot be unmounted")?;
    file.context("no file on a tmpfs")
}

struct Stored {
    encoding: Encoding,
    offset: u64,
    length: usize,
    digest: Digest,
}

/// The content, and its location.
pub(crate) struct Content {
    backing: Backing,
    pages: u64,
    file: File,
    memory: MmapRaw,
    ready: Vec<AtomicBool>,
    disk: File,
    regions: Vec<Stored>,
}

impl Content {
    /// Content of `pages` pages, a multiple of a region's.
    pub(crate) fn new(backing: Backing, pages: u64) -> Result<Self> {
        let file = if backing == Backing::Huge { huge()? } else { small()? };
        file.set_len(1 << 40).context("the template cannot be sized")?;
        let mut disk = tempfile::tempfile().context("no file for the regions")?;
        let mut regions = Vec::new();
        if backing == Backing::Cache {
            let mut offset = 0;
            for first in (0..pages).step_by(REGION as usize) {
                let plain: Vec<u8> = (first..first + REGION).flat_map(page).collect();
                let (encoding, stored) = match codec::encode(&plain, codec::Acceleration::default()) {
                    Encoded::Lz4(block) => (Encoding::Lz4, block),
                    Encoded::Raw | Encoded::Zero => (Encoding::Raw, plain.clone()),
                };
                disk.write_all(&stored).context("a region cannot be written")?;
                regions.push(Stored {
                    encoding,
                    offset,
                    length: stored.len(),
                    digest: Digest::of(&plain),
                });
                offset += stored.len() as u64;
            }
        } else {
            for index in 0..pages {
                file.write_all_at(&page(index), index * PAGE)
                    .context("the template cannot be filled")?;
            }
        }
        let memory = MmapOptions::new().len((pages * PAGE) as usize).map_raw(&file)?;
        Ok(Self {
            backing,
            pages,
            file,
            memory,
            ready: (0..pages / REGION)
                .map(|_| AtomicBool::new(backing != Backing::Cache))
                .collect(),
            disk,
            regions,
        })
    }

    /// The path by which another process opens the template.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl PageSource for Content {
    fn held<'a>(&'a self, page: PageRef, _: &'a Pin) -> PageLookup<'a> {
        let Some(index) = page.page.checked_sub(FIRST.page).filter(|i| *i < self.pages) else {
            return PageLookup::Zero;
        };
        if !self.ready[(index / REGION) as usize].load(Ordering::Acquire) {
            return PageLookup::Absent;
        }
        let left = (REGION - index % REGION) as usize;
        // SAFETY: inside the mapping, and written before its mark was set.
        let bytes = unsafe {
            let start = self.memory.as_ptr().add((index * PAGE) as usize);
            std::slice::from_raw_parts(start, left * PAGE as usize)
        };
        match self.backing {
            Backing::Copy => PageLookup::Bytes(bytes),
            _ => PageLookup::Mapped(bytes),
        }
    }

    fn fetch(&self, page: PageRef) -> Result<(), SourceError> {
        let region = ((page.page - FIRST.page) / REGION) as usize;
        let stored = &self.regions[region];
        let mut bytes = vec![0; stored.length];
        let mut plain = vec![0; (REGION * PAGE) as usize];
        let lost = |message: String| SourceError { message };
        self.disk
            .read_exact_at(&mut bytes, stored.offset)
            .map_err(|e| lost(e.to_string()))?;
        codec::decode(stored.encoding, &bytes, stored.digest, &mut plain).map_err(|e| lost(e.to_string()))?;
        // SAFETY: inside the mapping; nobody reads it before its mark is set. The process has one thread, so one page
        // is fetched at a time.
        unsafe {
            let to = self.memory.as_mut_ptr().add(region * (REGION * PAGE) as usize);
            std::ptr::copy_nonoverlapping(plain.as_ptr(), to, plain.len());
        }
        self.ready[region].store(true, Ordering::Release);
        Ok(())
    }
}
