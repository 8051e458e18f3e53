//! The server of Lambda's runtime interface inside a sandbox, as the bytes of a static program. Its source is in
//! `src/program`.

/// The program. Its arguments are the command of the function.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lambda"));

/// Where it is in the root of a container image, and below `/app` in other functions' files.
pub const PATH: &str = ".rekindle/lambda";
