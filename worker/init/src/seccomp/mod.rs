//! The system call filter of a function: a list of permitted calls, with arguments where they matter (`profile`). It is
//! no wider than the default profile of the common container engines without capabilities. It is narrower where a
//! snapshot could not hold the result of a call.
//!
//! The program is a balanced tree over the numbers of calls (`tree`). At each restore the kernel runs it once for every
//! call that exists, to learn which are always permitted. There, a plain list of the permitted calls took 0.8 ms.

mod choice;
mod profile;
mod tree;

use seccompiler::{BpfProgram, apply_filter, sock_filter};

pub use choice::{FilterChoice, UnknownFilter};

/// The compiled filter.
pub struct Filter(BpfProgram);

impl Filter {
    /// Compiles the profile. The result is always the same.
    #[must_use]
    pub fn compile() -> Self {
        Self(tree::compile(&profile::table()))
    }

    /// Puts this thread under the filter permanently. `no_new_privs` must be set.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn apply(&self) -> Result<(), seccompiler::Error> {
        apply_filter(&self.0)
    }
}

/// BLAKE3 of the filters of earlier versions, as [`program`] encodes them, which snapshots may still have. One was
/// built from the list of rejected calls, until November 2026. The other permitted `io_setup` and programs for sockets.
pub const EARLIER: [&str; 2] = [
    "5155094d354131b4e489d9e794d3a91f46f10d4b95c2db91f04cf214e3478f1d",
    "e37c87f78128a25cc6d29e7389ce142371b90da687d15afdcdf06245b22cdffc",
];

/// The filter as the kernel keeps it and as CRIU stores it in its seccomp image. It is an array of
/// `struct sock_filter`, eight bytes each (code 2, jump if true 1, jump if false 1, constant 4), little-endian. Filters
/// in a snapshot can be compared with it.
#[must_use]
pub fn program() -> Vec<u8> {
    bytes(&Filter::compile())
}

fn bytes(filter: &Filter) -> Vec<u8> {
    let bytes = |word: &sock_filter| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&word.code.to_le_bytes());
        bytes[2..4].copy_from_slice(&[word.jt, word.jf]);
        bytes[4..].copy_from_slice(&word.k.to_le_bytes());
        bytes
    };
    filter.0.iter().flat_map(bytes).collect()
}

#[cfg(test)]
mod machine;
#[cfg(test)]
mod tests;
