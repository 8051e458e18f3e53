//! Random number generators in the memory of a checkpointed process, and what has each copy of it draw other numbers.
//! Pure.
//!
//! Every copy has its generators where the original had them, so one search at the checkpoint serves all restores. A
//! generator is taken for one only where its state proves it: a block of output that its key makes, a pointer that
//! leads back, a row of constants. Each then gets a few writes: fresh random bytes in place of its state, or a constant
//! that has it ask the kernel before its next number. A restore applies them before the first instruction of the
//! program.
//!
//! ```text
//! memory ──find──> generators, each with its writes ──(notes of the snapshot)──> every restore: write
//! ```
//!
//! A generator that a program made itself is left alone: nobody else knows whether its seed was meant.

mod chacha;
mod copies;
mod cpython;
mod drawn_ahead;
mod go;
mod jsc;
mod memory;
mod openssl;
mod recognise;
mod rust_rand;
mod sqlite;
mod v8;
mod v8_seeds;
mod xorshift;

use serde::{Deserialize, Serialize};

pub use copies::MAGIC;
pub use memory::Memory;
pub use recognise::{Unreached, unreached};

/// Whose generator it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// OpenSSL's: the primary one, or one of a thread.
    Openssl,
    /// A thread's in Rust's `rand`.
    Rand,
    /// Go's runtime: `math/rand`, `math/rand/v2`, hash seeds of new maps.
    Go,
    /// `Math.random` of one context of V8, or of one global object of JavaScriptCore.
    MathRandom,
    /// The functions of Python's module `random`.
    PythonRandom,
    /// The functions of `numpy.random`.
    NumpyRandom,
    /// SQLite's `random()` and names of temporary files.
    Sqlite,
    /// Random bytes that a library of JavaScript drew ahead.
    DrawnAhead,
    /// A counter of copies that a program or runtime looks at ([`MAGIC`]).
    Copies,
}

impl Kind {
    /// Its name, for programs.
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
            Self::Copies => "counter of copies",
        }
    }
}

/// What a write puts into memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bytes {
    /// So many bytes of the kernel's generator, others in each copy.
    Random(u16),
    /// These.
    Constant(Vec<u8>),
}

/// One write into a copy's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Where it begins, an address of the process.
    pub address: u64,
    /// What is written.
    pub bytes: Bytes,
}

impl Write {
    /// Bytes that it writes.
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

/// A generator, and what has it draw other numbers in each copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generator {
    /// Whose it is.
    pub kind: Kind,
    /// What a restore writes.
    pub writes: Vec<Write>,
}

/// Generators of a process that are found at most, and candidates for them: a function may fill its memory with what
/// looks like them.
pub const FOUND_MAX: usize = 1 << 14;

/// Finds the generators of a process in its memory, [`FOUND_MAX`] of them; `pid` is the id that it has itself. Blocks:
/// reads all of it, of a Python program four times.
pub fn find(memory: &Memory<'_>, pid: u32) -> Vec<Generator> {
    let mut found = Vec::new();
    let (mut names, mut drawn) = (Vec::new(), Vec::new());
    let (mut jsc, mut v8) = (jsc::Search::default(), v8_seeds::Search::default());
    memory.each_word(|address, word, rest| {
        if found.len().max(drawn.len()).max(names.len()) >= FOUND_MAX {
            return;
        }
        found.extend(openssl::at(memory, address, word));
        found.extend(rust_rand::at(memory, address, word));
        found.extend(sqlite::at(memory, address, word));
        found.extend(go::at(memory, address, word));
        found.extend(v8::at(memory, address, word, rest));
        found.extend(v8.at(memory, address, word, rest));
        found.extend(jsc.at(address, word, rest));
        found.extend(copies::at(memory, address, word));
        drawn.extend(drawn_ahead::at(memory, address, word));
        names.extend(cpython::name_at(memory, address, word));
    });
    found.extend(cpython::named(memory, &names, pid));
    found.extend(drawn_ahead::filled(memory, &drawn));
    found.truncate(FOUND_MAX);
    found
}

#[cfg(test)]
mod tests;
