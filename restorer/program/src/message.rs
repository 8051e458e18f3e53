//! The messages between a hollow process and the worker: one packet each on a socket, with descriptors attached.
//!
//! ```text
//! hollow process                        worker
//!   │── Hollow, with its userfaultfd ──────>│   while nothing of a function is known
//!   │<── Order, with program, pages, … ─────│
//!   │── Mapped, of a single process ───────>│   registers and fills the memory
//!   │<── one byte: files are there ─────────│   at any time after the order
//!   │── Begun, of the first process ───────>│
//!   │<── one byte: the restore begins ──────│   at any time after the other
//!   │── Hollow, of each child ─────────────>│
//!   │── Mapped, of each of several ────────>│
//!   │── Ready, of each process ────────────>│
//!   │<── one byte for each process: go on ──│
//! ```

/// What a hollow process is sent first. Attached: the program, the pages' file, the function's outputs
/// ([`OUTPUTS`]), then the templates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HollowOrder {
    /// Size of the program in bytes.
    pub bytes: u64,
    /// Address of the residue.
    pub residue: u64,
}

/// Number of outputs of a function.
pub const OUTPUTS: usize = 2;

impl HollowOrder {
    /// Size in bytes.
    pub const BYTES: usize = 16;

    /// Reads it.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [bytes, residue] = *bytes.as_chunks::<8>().0 else {
            return Self::default();
        };
        Self {
            bytes: u64::from_le_bytes(bytes),
            residue: u64::from_le_bytes(residue),
        }
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.residue.to_le_bytes());
        bytes
    }
}

/// What a hollow process says, as numbers: kind, process, operation, error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HollowReport {
    /// The process with this id has made its userfaultfd, which is attached. 0 for the first, which does not know its
    /// id yet.
    Hollow(u32),
    /// It has all mappings that the pager registers.
    Mapped,
    /// The first process has everything that may be made ahead.
    Begun,
    /// It has everything, and waits to be told to go on.
    Ready,
    /// An operation failed, counted from 1, or 0 if a child could not make its userfaultfd; with the kernel's error
    /// number.
    Failed(u32, i32),
}

impl HollowReport {
    /// Size in bytes.
    pub const BYTES: usize = 12;

    /// Reads it.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [kind, value, error] = *bytes.as_chunks::<4>().0 else {
            return None;
        };
        let value = u32::from_le_bytes(value);
        match u32::from_le_bytes(kind) {
            0 => Some(Self::Hollow(value)),
            1 => Some(Self::Mapped),
            2 => Some(Self::Ready),
            3 => Some(Self::Failed(value, i32::from_le_bytes(error))),
            4 => Some(Self::Begun),
            _ => None,
        }
    }

    /// Writes it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, value, error) = match self {
            Self::Hollow(process) => (0_u32, process, 0),
            Self::Mapped => (1, 0, 0),
            Self::Ready => (2, 0, 0),
            Self::Failed(operation, error) => (3, operation, error),
            Self::Begun => (4, 0, 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&value.to_le_bytes());
        bytes[8..].copy_from_slice(&error.to_le_bytes());
        bytes
    }
}
