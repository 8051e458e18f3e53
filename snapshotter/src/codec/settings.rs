//! The operator's settings of the codec: the region size, and how hard LZ4 looks for repetitions.

use std::fmt;
use std::str::FromStr;

use rekindle_wire::function_config::ByteSize;

use super::PAGE_BYTES;

/// Maximum pages of a region: 4 MiB, a whole chunk.
const PAGES_MAX: u16 = 1024;
const ACCELERATION_MAX: u8 = 32;

/// Why a setting was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not a valid region size.
    #[error("\"{0}\" is not a region size: write a power of two from 4K (each page by itself) to 4M, for example 64K")]
    Region(String),
    /// Not a valid acceleration.
    #[error("\"{0}\" is not an acceleration: write a whole number from 1 (smallest) to {ACCELERATION_MAX} (fastest)")]
    Acceleration(String),
}

/// The maximum size of a region, and the alignment that regions must not cross. A power of two from 4 KiB to 4 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionSize {
    pages: u16,
}

impl RegionSize {
    /// Each page on its own.
    pub const PAGE: Self = Self { pages: 1 };
    /// 64 KiB.
    pub const DEFAULT: Self = Self { pages: 16 };
    /// 4 MiB.
    pub const MAX: Self = Self { pages: PAGES_MAX };

    /// The size in pages. `None` if no region has it.
    pub fn from_pages(pages: u16) -> Option<Self> {
        (pages.is_power_of_two() && pages <= PAGES_MAX).then_some(Self { pages })
    }

    /// The size in bytes. `None` if no region has it.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        let page = PAGE_BYTES as u64;
        if !bytes.is_multiple_of(page) {
            return None;
        }
        Self::from_pages(u16::try_from(bytes / page).ok()?)
    }

    /// In pages.
    pub const fn pages(self) -> u16 {
        self.pages
    }

    /// In bytes.
    pub const fn bytes(self) -> usize {
        self.pages as usize * PAGE_BYTES
    }
}

impl Default for RegionSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for RegionSize {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size = text.parse::<ByteSize>().ok();
        size.and_then(|size| Self::from_bytes(size.0))
            .ok_or_else(|| SettingError::Region(text.to_owned()))
    }
}

impl fmt::Display for RegionSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteSize(self.bytes() as u64).fmt(f)
    }
}

/// LZ4's acceleration, 1 to 32: the higher, the sooner it stops looking for a repetition. Decoding is not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acceleration(u8);

impl Acceleration {
    /// `None` unless it is from 1 to 32.
    pub fn new(acceleration: u8) -> Option<Self> {
        (1..=ACCELERATION_MAX)
            .contains(&acceleration)
            .then_some(Self(acceleration))
    }

    /// From 1 to 32.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Acceleration {
    fn default() -> Self {
        Self(1)
    }
}

impl FromStr for Acceleration {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().ok();
        number
            .and_then(Self::new)
            .ok_or_else(|| SettingError::Acceleration(text.to_owned()))
    }
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How memory is cut and compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Codec {
    /// Maximum size of a region.
    pub region: RegionSize,
    /// How hard LZ4 looks for repetitions.
    pub acceleration: Acceleration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_accelerations_are_read_and_others_refused_with_the_rule() {
        for (text, pages) in [("4K", 1), ("64K", 16), ("256KiB", 64), ("1M", 256), ("4MiB", 1024)] {
            let size: RegionSize = text.parse().unwrap();
            assert_eq!(size.pages(), pages);
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for text in ["", "2K", "5K", "96K", "8M", "64", "1G", "-4K", "page"] {
            let error = text.parse::<RegionSize>().unwrap_err().to_string();
            assert!(error.contains("power of two from 4K"), "{error}");
        }
        for text in ["1", "4", "32"] {
            assert_eq!(text.parse::<Acceleration>().unwrap().to_string(), text);
        }
        for text in ["0", "33", "-1", "fast", "256", ""] {
            let error = text.parse::<Acceleration>().unwrap_err().to_string();
            assert!(error.contains("from 1"), "{error}");
        }
    }
}
