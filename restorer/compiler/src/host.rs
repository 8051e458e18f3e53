//! What programs depend on of the host they are compiled on: the kernel's own pages, and the processor's state.

use std::io;

/// Why a host is not known.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel's own pages cannot be found.
    #[error("read the kernel's own pages in {0}")]
    Read(&'static str, #[source] io::Error),
    /// They are not listed.
    #[error("/proc/self/maps lists no vdso")]
    NoVdso,
    /// There are no programs for this processor.
    #[error("restore programs are for x86-64 only")]
    Processor,
}

/// A host.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Distance of the vdso from the first of the kernel's own pages, in bytes.
    pub(crate) vdso_offset: u64,
    /// Bytes of all of the kernel's own pages, which follow each other.
    pub(crate) own_bytes: u64,
    pub(crate) vdso: Vec<u8>,
    /// The features of the processor's state that it has enabled, of those in images.
    pub(crate) features: u64,
    /// Offset and bytes of each feature's component in the extended state, by number.
    pub(crate) components: [(usize, usize); COMPONENTS],
}

/// Components in images: SSE, AVX, bounds, masks, upper halves, high registers, keys.
pub(crate) const COMPONENTS: usize = 10;
/// The features of these components. Bit 8 is not among them.
#[cfg(target_arch = "x86_64")]
const FEATURES: u64 = 0x2ff;

impl Host {
    /// Looks at this host.
    ///
    /// # Errors
    /// If the kernel's own pages cannot be read, or the processor is another one.
    #[cfg(target_arch = "x86_64")]
    pub fn current() -> Result<Self, HostError> {
        use std::arch::x86_64::__cpuid_count;
        const STATE: u32 = 0xd;
        let (vdso_offset, own_bytes, vdso) = kernel_pages()?;
        let features = enabled() & FEATURES;
        let mut components = [(0, 0); COMPONENTS];
        for (number, component) in (0..).zip(&mut components).skip(2) {
            if features & 1 << number != 0 {
                let leaf = __cpuid_count(STATE, number);
                *component = (leaf.ebx as usize, leaf.eax as usize);
            }
        }
        Ok(Self {
            vdso_offset,
            own_bytes,
            vdso,
            features,
            components,
        })
    }

    /// Looks at this host.
    ///
    /// # Errors
    /// Always: the processor is another one.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn current() -> Result<Self, HostError> {
        Err(HostError::Processor)
    }
}

/// The features that the kernel has enabled. The processor may have more.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "reads a control register")]
fn enabled() -> u64 {
    /// The x87 and SSE, which every kernel saves.
    const ALWAYS: u64 = 3;
    if std::arch::is_x86_feature_detected!("xsave") {
        // SAFETY: processor and kernel have XSAVE, as just checked.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    } else {
        ALWAYS
    }
}

/// In this process: the distance of the vdso from the first of the kernel's own pages, the length of all, and the vdso.
#[cfg(target_arch = "x86_64")]
fn kernel_pages() -> Result<(u64, u64, Vec<u8>), HostError> {
    use std::os::unix::fs::FileExt as _;
    const MAPS: &str = "/proc/self/maps";
    const MEMORY: &str = "/proc/self/mem";
    let maps = std::fs::read_to_string(MAPS).map_err(|e| HostError::Read(MAPS, e))?;
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    let own = |line: &&str| line.ends_with("[vdso]") || line.contains("[vvar");
    let all: Vec<_> = maps.lines().filter(own).filter_map(range).collect();
    let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(range);
    let (start, end) = (all.iter().map(|r| r.0).min(), all.iter().map(|r| r.1).max());
    let ((from, to), start, end) = vdso
        .zip(start)
        .zip(end)
        .map(|((vdso, start), end)| (vdso, start, end))
        .ok_or(HostError::NoVdso)?;
    let mut bytes = vec![0; (to - from) as usize];
    std::fs::File::open(MEMORY)
        .and_then(|memory| memory.read_exact_at(&mut bytes, from))
        .map_err(|e| HostError::Read(MEMORY, e))?;
    Ok((from - start, end - start, bytes))
}
