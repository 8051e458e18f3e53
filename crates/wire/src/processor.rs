//! The instruction sets of a processor by which programs select their code. A process keeps the selected code in every
//! copy, so a copy needs a processor with at least the same sets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Instruction sets of x86-64 by the kernel's names, as in `/proc/cpuinfo`. The index of a name is its bit in snapshots
/// and reports: new ones are appended, and none is removed. Sets that functions cannot use are left out: AMX,
/// protection keys.
const NAMES: [&str; 69] = [
    "pni",
    "ssse3",
    "sse4_1",
    "sse4_2",
    "sse4a",
    "popcnt",
    "movbe",
    "cx16",
    "lahf_lm",
    "abm",
    "3dnowprefetch",
    "aes",
    "pclmulqdq",
    "rdrand",
    "rdseed",
    "adx",
    "bmi1",
    "bmi2",
    "f16c",
    "fma",
    "fma4",
    "xop",
    "tbm",
    "avx",
    "avx2",
    "avx_vnni",
    "avx_ifma",
    "avx_vnni_int8",
    "avx_ne_convert",
    "avx512f",
    "avx512dq",
    "avx512cd",
    "avx512bw",
    "avx512vl",
    "avx512ifma",
    "avx512vbmi",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_bitalg",
    "avx512_vpopcntdq",
    "avx512_vp2intersect",
    "avx512_bf16",
    "avx512_fp16",
    "gfni",
    "vaes",
    "vpclmulqdq",
    "sha_ni",
    "sha512",
    "sm3",
    "sm4",
    "xsave",
    "xsaveopt",
    "xsavec",
    "xgetbv1",
    "fsgsbase",
    "rdtscp",
    "rdpid",
    "clflushopt",
    "clwb",
    "clzero",
    "cldemote",
    "movdiri",
    "movdir64b",
    "serialize",
    "rtm",
    "waitpkg",
    "cmpccxadd",
    "avx_vnni_int16",
    "mwaitx",
];

/// A set of instruction sets. Empty if it is not known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct InstructionSets(u128);

impl InstructionSets {
    /// The instruction sets of the first processor in `cpuinfo`, the contents of `/proc/cpuinfo`.
    #[must_use]
    pub fn of_cpuinfo(cpuinfo: &str) -> Self {
        let flags = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("flags")?.split_once(':'));
        let names = flags.map_or("", |(_, names)| names).split_whitespace();
        names
            .filter_map(|name| NAMES.iter().position(|known| *known == name))
            .fold(Self(0), |all, bit| Self(all.0 | 1 << bit))
    }

    /// Whether none are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// The sets in `needed` that are missing here. Empty if nothing is known of this processor.
    #[must_use]
    pub fn lacks(self, needed: Self) -> Self {
        if self.is_empty() {
            Self(0)
        } else {
            Self(needed.0 & !self.0)
        }
    }
}

impl fmt::Display for InstructionSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = (0..u128::BITS).filter(|bit| self.0 >> bit & 1 == 1);
        let names = bits.map(|bit| {
            NAMES
                .get(bit as usize)
                .map_or_else(|| format!("set {bit}"), |name| (*name).to_owned())
        });
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for InstructionSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstructionSets({self})")
    }
}

/// The text is not a set of instruction sets.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no set of instruction sets: at most 32 hexadecimal digits")]
pub struct UnknownSetsError(String);

impl FromStr for InstructionSets {
    type Err = UnknownSetsError;

    fn from_str(text: &str) -> Result<Self, UnknownSetsError> {
        let digits = u128::from_str_radix(text, 16);
        digits.map(Self).map_err(|_| UnknownSetsError(text.to_owned()))
    }
}

impl TryFrom<String> for InstructionSets {
    type Error = UnknownSetsError;

    fn try_from(text: String) -> Result<Self, UnknownSetsError> {
        text.parse()
    }
}

impl From<InstructionSets> for String {
    fn from(sets: InstructionSets) -> Self {
        format!("{:x}", sets.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flags: &str) -> InstructionSets {
        InstructionSets::of_cpuinfo(&format!(
            "processor\t: 0\nflags\t\t: fpu {flags} nx\n\nprocessor\t: 1\n"
        ))
    }

    #[test]
    fn a_host_lacks_what_the_snapshot_s_had_and_it_has_not() {
        let (old, new) = (of("avx avx2"), of("avx avx2 avx512f gfni"));
        assert!(new.lacks(old).is_empty() && old.lacks(old).is_empty());
        assert_eq!(old.lacks(new).to_string(), "avx512f, gfni");
        // Nothing counts as missing on a worker that does not report its sets.
        assert!(InstructionSets::default().lacks(new).is_empty());
        assert!(old.lacks(InstructionSets::default()).is_empty());
    }

    #[test]
    fn sets_travel_as_hexadecimal_digits_those_that_this_build_does_not_know_too() {
        let all = InstructionSets(u128::MAX);
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(text, format!("\"{}\"", "f".repeat(32)));
        assert_eq!(serde_json::from_str::<InstructionSets>(&text).unwrap(), all);
        assert!(all.to_string().ends_with("set 127"));
        for wrong in ["\"\"", "\"xyz\"", "\"1ffffffffffffffffffffffffffffffff\"", "7"] {
            assert!(serde_json::from_str::<InstructionSets>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_name_is_there_once() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
    }
}
