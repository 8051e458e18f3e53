//! The hollow process, as the bytes of a program. Its source is in `src/program`.

/// The program. Empty on processors that it does not know.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hollow"));
