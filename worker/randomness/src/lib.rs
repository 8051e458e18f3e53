//! Finds random number generators in the memory of a checkpointed process, and makes each of its copies draw different
//! numbers. Pure.
//!
//! Generators are at the same addresses in every copy, so one search at the checkpoint serves all restores. A generator
//! is recognised only if its state proves it: a block of output made by its key, a pointer that leads back, or a row of
//! constants. Each generator then gets a few writes: fresh random bytes in place of its state, or a constant that makes
//! it ask the kernel before its next number. A restore applies them before the program's first instruction.
//!
//! ```text
//! memory ──find──> generators, each with its writes ──(notes of the snapshot)──> every restore: write
//! ```
//!
//! A generator that a program created itself is left alone: only the program knows whether its seed was intended.

mod chacha;
mod copies;
mod cpython;
mod deno;
mod drawn_ahead;
mod go;
mod java;
mod jsc;
mod memory;
mod openssl;
mod recognise;
mod ruby;
mod rust_rand;
mod sqlite;
mod v8;
mod v8_seeds;
mod xorshift;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use copies::MAGIC;
pub use memory::Memory;
pub use recognise::{UnreachableGenerator, unreached};

/// The owner of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// OpenSSL: the primary generator, or that of a thread.
    Openssl,
    /// A thread in Rust's `rand`.
    Rand,
    /// Go's runtime: `math/rand`, `math/rand/v2`, hash seeds of new maps.
    Go,
    /// `Math.random` of a context of V8, or of a global object of JavaScriptCore.
    MathRandom,
    /// The functions of Python's module `random`.
    PythonRandom,
    /// The functions of `numpy.random`.
    NumpyRandom,
    /// SQLite's `random()` and its names of temporary files.
    Sqlite,
    /// Random bytes or ids that a library or runtime of JavaScript drew ahead.
    DrawnAhead,
    /// The JDK's: `Math.random`, `ThreadLocalRandom`, seeds of new generators, states of SHA1PRNG and Hash_DRBG.
    Java,
    /// Ruby's `rand`.
    Ruby,
    /// A counter of copies that a program or runtime looks at ([`MAGIC`]).
    Copies,
}

impl Kind {
    /// Its identifier, for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Openssl => "openssl",
            Self::Rand => "rand",
            Self::Go => "go",
            Self::MathRandom => "math_random",
            Self::PythonRandom => "python_random",
            Self::NumpyRandom => "numpy_random",
            Self::Sqlite => "sqlite",
            Self::DrawnAhead => "drawn_ahead",
            Self::Java => "java",
            Self::Ruby => "ruby",
            Self::Copies => "copies",
        }
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Openssl => "OpenSSL",
            Self::Rand => "Rust rand",
            Self::Go => "Go runtime",
            Self::MathRandom => "Math.random",
            Self::PythonRandom => "Python random",
            Self::NumpyRandom => "numpy.random",
            Self::Sqlite => "SQLite",
            Self::DrawnAhead => "bytes drawn ahead",
            Self::Java => "JDK",
            Self::Ruby => "Ruby rand",
            Self::Copies => "counter of copies",
        }
    }
}

/// The bytes of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bytes {
    /// This many bytes from the kernel's generator, different in each copy.
    Random(u16),
    /// These bytes.
    Constant(Vec<u8>),
}

/// A write into a copy's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Address in the process of the first byte.
    pub address: u64,
    /// The bytes written.
    pub bytes: Bytes,
}

impl Write {
    /// Number of bytes written.
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Random(length) => usize::from(*length),
            Bytes::Constant(bytes) => bytes.len(),
        }
    }

    fn random(address: u64, length: u16) -> Self {
        let bytes = Bytes::Random(length);
        Self { address, bytes }
    }

    fn constant(address: u64, bytes: &[u8]) -> Self {
        let bytes = Bytes::Constant(bytes.to_vec());
        Self { address, bytes }
    }
}

/// A generator, and the writes that make it draw different numbers in each copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generator {
    /// Its owner.
    pub kind: Kind,
    /// What a restore writes.
    pub writes: Vec<Write>,
}

/// Maximum number of generators found in a process, and of candidates for them: a function may fill its memory with
/// lookalikes.
pub const FOUND_MAX: usize = 1 << 14;

/// Finds the generators of a process in its memory, [`FOUND_MAX`] of them; `pid` is the id that it has itself. Blocks:
/// reads all of it, of a Python or Java program four times.
pub fn find(memory: &Memory<'_>, pid: u32) -> Vec<Generator> {
    let mut found = Vec::new();
    let (mut names, mut drawn) = (Vec::new(), Vec::new());
    let (mut uniquifiers, mut rubies) = (Vec::new(), BTreeSet::new());
    let (mut jsc, mut v8) = (jsc::Search::default(), v8_seeds::Search::default());
    memory.each_word(|address, word, rest| {
        let candidates = [drawn.len(), names.len(), uniquifiers.len(), rubies.len()];
        if candidates.iter().sum::<usize>().max(found.len()) >= FOUND_MAX {
            return;
        }
        let here = [
            openssl::at(memory, address, word),
            rust_rand::at(memory, address, word),
            sqlite::at(memory, address, word),
            go::at(memory, address, word),
            v8::at(memory, address, word, rest),
            v8.at(memory, address, word, rest),
            jsc.at(address, word, rest),
            deno::at(memory, address, word),
            copies::at(memory, address, word),
        ];
        // Nearly always there is none, which costs more to add than to see.
        if here.iter().any(Option::is_some) {
            found.extend(here.into_iter().flatten());
        }
        rubies.extend(ruby::at(memory, address, word));
        uniquifiers.extend(java::is_uniquifier(address, word, rest).then_some(address));
        drawn.extend(drawn_ahead::at(memory, address, word));
        names.extend(cpython::name_at(memory, address, word));
    });
    found.extend(cpython::named(memory, &names, pid));
    found.extend(ruby::of_runtime(memory, &rubies));
    found.extend(java::generators(memory, &uniquifiers));
    found.extend(drawn_ahead::filled(memory, &drawn));
    found.truncate(FOUND_MAX);
    found
}

#[cfg(test)]
mod tests;
