//! The patterns of memory of CRIU's own compression benchmark.

use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

const PAGE: usize = 4096;
/// Where to look for binaries.
const BINARIES: [&str; 4] = ["/usr/bin", "/usr/lib", "/usr/local", "/root/.rustup"];

/// The content of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// Zeros.
    Zero,
    /// Page by page: two of zeros, one that repeats 16 bytes, one of noise.
    Mixed,
    /// Noise.
    Random,
    /// Lines of JSON, no two alike.
    Text,
    /// Programs and libraries of this machine, one after the other.
    Elf,
}

impl Pattern {
    pub(super) const ALL: [Self; 5] = [Self::Zero, Self::Mixed, Self::Random, Self::Text, Self::Elf];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Mixed => "mixed",
            Self::Random => "random",
            Self::Text => "text",
            Self::Elf => "elf",
        }
    }

    /// Writes `bytes` bytes of the pattern.
    pub(super) fn write(self, file: &File, bytes: u64) -> Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
        let pages = bytes / PAGE as u64;
        match self {
            Self::Zero => file.set_len(bytes)?,
            Self::Mixed => {
                for page in 0..pages {
                    match page % 4 {
                        0 | 1 => out.write_all(&[0; PAGE])?,
                        2 => out.write_all(&page.to_le_bytes().repeat(2).repeat(PAGE / 16))?,
                        _ => out.write_all(&noise.page())?,
                    }
                }
            }
            Self::Random => {
                for _ in 0..pages {
                    out.write_all(&noise.page())?;
                }
            }
            Self::Text => text(&mut out, bytes, &mut noise)?,
            Self::Elf => elf(&mut out, bytes)?,
        }
        out.flush()?;
        Ok(())
    }
}

/// xorshift: LZ4 finds nothing to compress in it.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn page(&mut self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        for word in page.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        page
    }
}

fn text(out: &mut impl std::io::Write, bytes: u64, noise: &mut Noise) -> Result<()> {
    const NAMES: [&str; 5] = ["Ada", "Grace", "Alan", "Edsger", "Barbara"];
    const TAGS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
    let mut left = usize::try_from(bytes)?;
    let mut id = 0;
    while left > 0 {
        let random = noise.next();
        let pick = |from: &[&'static str], shift: u32| from[(random >> shift) as usize % from.len()];
        let line = format!(
            "{{\"id\": {id}, \"user\": \"user{}\", \"name\": \"{}\", \"tags\": [\"{}\", \"{}\"], \"score\": 0.{}, \
             \"active\": {}}}\n",
            random % 1_000_000,
            pick(&NAMES, 8),
            pick(&TAGS, 16),
            pick(&TAGS, 24),
            random >> 32,
            random & 1 == 0
        );
        let part = line.len().min(left);
        out.write_all(&line.as_bytes()[..part])?;
        left -= part;
        id += 1;
    }
    Ok(())
}

fn elf(out: &mut impl std::io::Write, bytes: u64) -> Result<()> {
    let mut left = bytes;
    let mut folders: Vec<PathBuf> = BINARIES.iter().rev().map(PathBuf::from).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            let Ok(meta) = fs::symlink_metadata(&path) else {
                continue;
            };
            if meta.is_dir() {
                folders.push(path);
            } else if meta.is_file() && is_elf(&path) {
                let file = File::open(&path)?;
                left -= std::io::copy(&mut file.take(left), out).with_context(|| path.display().to_string())?;
                if left == 0 {
                    return Ok(());
                }
            }
        }
    }
    bail!("this machine has not enough programs and libraries: {left} bytes are missing; say fewer --mib")
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok() && &magic == b"\x7fELF"
}
