//! The S3 server embedded in `fn up`: the `s3s` crate speaks the protocol and checks signatures, the storage is ours.
//!
//! It exists so that one machine needs no other service and still has the one code path that a cluster has: every role
//! speaks S3 through `aws-sdk-s3`. It supports only path-style addressing (`force_path_style`), no versioning and no
//! ACLs.
//!
//! # Files
//!
//! ```text
//! ROOT/
//!   FORMAT                       "rekindle-s3-local 1": another layout is refused
//!   LOCK                         locked by the one server that owns this root
//!   tmp/N                        files being written; emptied at start
//!   buckets/BUCKET/
//!     objects/NAME               one file per object: body and metadata together
//!     uploads/ID/upload          a multipart upload: an object file with an empty body, for its metadata
//!     uploads/ID/NNNNN           one object file per part
//! ```
//!
//! NAME is the key with every byte except `A-Z a-z 0-9 - _` and non-ASCII escaped as `%XX`. So any key is one flat file
//! name: `a` and `a/b` coexist, and no key can name another directory. If that would be too long, NAME is a piece of
//! it, `~`, and the key's BLAKE3; the key itself is then in the file's metadata.
//!
//! ```text
//! object file   ┌───────────────────┬──────────────────┬──────────────┬──────────────────────────────────┐
//!               │ body              │ block hashes     │ metadata     │ trailer, 56 bytes                │
//!               │ body_len bytes    │ 32 per 64 KiB    │ JSON         │ magic[8] body_len:u64            │
//!               │                   │ of body (BLAKE3) │ meta_len     │ block_len:u32 meta_len:u32       │
//!               │                   │                  │ bytes        │ BLAKE3(metadata, the above)[32]  │
//!               └───────────────────┴──────────────────┴──────────────┴──────────────────────────────────┘
//!               integers little-endian; the file is exactly as long as its trailer says
//! ```
//!
//! Every read, ranged or whole, checks the hash of each block it touches before it sends a byte of it. A whole read
//! also checks the hash of all block hashes, which is in the metadata. A mismatch is an `InternalError` or, once the
//! response has begun, a broken connection: never wrong bytes.
//!
//! # Commit
//!
//! ```text
//!   receive -> tmp/N -> write footer -> fdatasync -> [key locked: condition, rename, fsync directory] -> 200
//!                │                                        │
//!                └─ error, disconnect: unlinked           └─ create-if-absent: renameat2(RENAME_NOREPLACE)
//! ```
//!
//! Data and metadata become visible in one rename. A reader waits while its key is between rename and fsync, so that
//! nobody acts on an object that a power cut could still take back. Directory fsyncs that wait at the same time are
//! merged into one.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod server;
mod service;
mod storage;

use std::path::PathBuf;

pub use server::{ServeError, serve};
pub use storage::StartError;

/// The server's files, and the key that it accepts.
#[derive(Clone)]
pub struct Config {
    /// Directory of all its files; created if absent. One server at a time may own it.
    pub root: PathBuf,
    /// The only access key id that is accepted.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// Buckets created at start if absent.
    pub buckets: Vec<String>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret stays out of logs.
        f.debug_struct("Config")
            .field("root", &self.root)
            .field("access_key", &self.access_key)
            .field("buckets", &self.buckets)
            .finish_non_exhaustive()
    }
}
