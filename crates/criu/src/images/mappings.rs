//! `mm-PID.img` again, for display and for conversions: every mapping with its backing.

use super::ImageError;
use super::mm::{MAP_GROWSDOWN, MAP_HUGETLB, MmImage, STATUS_FILE_PRIVATE, STATUS_HEAP};

const MAP_SHARED: u32 = 0x1;
const STATUS_STACK: u32 = 1 << 1;
const STATUS_VSYSCALL: u32 = 1 << 2;
const STATUS_VDSO: u32 = 1 << 3;
const STATUS_VVAR: u32 = 1 << 12;
const STATUS_FILE_SHARED: u32 = 1 << 7;
const STATUS_ANON_SHARED: u32 = 1 << 8;
const STATUS_SYSVIPC: u32 = 1 << 10;
/// The mapping belongs to a plugin, such as one for GPUs.
const STATUS_PLUGIN: u32 = 1 << 27;

/// What backs a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// The heap that `brk` moves.
    Heap,
    /// A stack.
    Stack,
    /// Private memory.
    Anonymous,
    /// Memory shared with other processes.
    Shared,
    /// A file, by its id in `files.img`. Changes in memory stay private.
    FilePrivate(u64),
    /// A file, by its id in `files.img`.
    FileShared(u64),
    /// The kernel: vdso, vvar, vsyscall.
    Kernel,
}

/// A mapping of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
    /// Offset in what it maps, in bytes.
    pub offset: u64,
    /// Permitted access: 1 read, 2 write, 4 execute.
    pub access: u32,
    /// What backs it.
    pub backing: Backing,
    flags: u32,
    status: u32,
    shmid: u64,
}

impl Mapping {
    /// Whether CRIU 4.3 requires its pages to be uncompressed: huge pages and plugin memory.
    pub fn is_kept_raw(&self) -> bool {
        self.flags & MAP_HUGETLB != 0 || self.status & STATUS_PLUGIN != 0
    }

    /// The shared object that its pages are dumped with, if they are not dumped with its process.
    pub fn shared_object(&self) -> Option<u64> {
        let shared = STATUS_FILE_SHARED | STATUS_ANON_SHARED | STATUS_SYSVIPC;
        (self.flags & MAP_SHARED != 0 || self.status & shared != 0).then_some(self.shmid)
    }
}

/// The mappings in an mm image, by address. Ranges of guard pages inside them do not count.
pub fn parse_mappings(image: &[u8]) -> Result<Vec<Mapping>, ImageError> {
    let mm = MmImage::parse(image)?;
    let mut mappings = Vec::new();
    for (_, vma) in mm.entries() {
        let (flags, status) = (vma.flags, vma.status);
        if vma.start >= vma.end {
            return Err(ImageError::Mapping { address: vma.start });
        }
        let shmid = vma.shmid.unwrap_or(0);
        mappings.push(Mapping {
            start: vma.start,
            end: vma.end,
            offset: vma.pgoff.unwrap_or(0),
            access: vma.prot.unwrap_or(0),
            backing: backing(flags, status, shmid),
            flags,
            status,
            shmid,
        });
    }
    mappings.sort_by_key(|m| m.start);
    Ok(mappings)
}

fn backing(flags: u32, status: u32, shmid: u64) -> Backing {
    if status & (STATUS_VSYSCALL | STATUS_VDSO | STATUS_VVAR) != 0 {
        Backing::Kernel
    } else if status & STATUS_HEAP != 0 {
        Backing::Heap
    } else if status & STATUS_FILE_PRIVATE != 0 {
        Backing::FilePrivate(shmid)
    } else if status & STATUS_FILE_SHARED != 0 {
        Backing::FileShared(shmid)
    } else if status & (STATUS_ANON_SHARED | STATUS_SYSVIPC) != 0 {
        Backing::Shared
    } else if status & STATUS_STACK != 0 || flags & MAP_GROWSDOWN != 0 {
        Backing::Stack
    } else {
        Backing::Anonymous
    }
}
