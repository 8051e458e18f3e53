//! The end-to-end tests' harness: a whole platform with real sandboxes, real CRIU, the S3 protocol and HTTP, and ways
//! to examine it from outside. It blocks; tests are plain functions and run in parallel on threads.
//!
//! - [`platform`]: `fn up --foreground` in its own directories; [`mod@shared`]: one for all tests of a binary.
//! - [`cluster`]: a platform with one process for each role, on several hosts, which [`hub`] makes; [`client`]: either
//!   platform as its users see it.
//! - [`folder`]: functions to deploy; [`call`]: requests and responses; [`load`]: many of them.
//! - [`unlike`]: the random numbers of copies, compared.
//! - [`host`]: an instance's processes and memory as the host sees them; [`memory`]: all of it compared.
//! - [`differ`]: everything else that an instance has, compared with its copies; [`eager`]: the same checkpoint
//!   restored by stock CRIU.
//! - [`leftovers`]: what must not remain.
//! - [`s3`]: an object store that can be made to hang, die or lie; [`rekindle_s3_servers`]: stores that are not ours.
//! - [`collector`]: where traces go; [`world`]: a network of the tests' own.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

pub mod adversary;
pub mod binaries;
pub mod call;
pub mod client;
pub mod cluster;
pub mod collector;
pub mod differ;
pub mod eager;
pub mod folder;
pub mod host;
pub mod hub;
pub mod leftovers;
pub mod load;
pub mod memory;
pub mod platform;
pub mod postgres;
pub mod s3;
pub mod shared;
pub mod unlike;
pub mod wait;
pub mod world;

use std::sync::LazyLock;

pub use call::{Call, Reply};
pub use client::Client;
pub use cluster::Cluster;
pub use folder::Folder;
pub use platform::{Options, Platform};
pub use shared::shared;
pub use wait::until;

/// Runs the harness's own futures. It outlives every test, so that connections may be kept between tests.
pub static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

/// Reports why a test cannot run here. A failure if every test is required (`REKINDLE_REQUIRE_ALL=1`).
#[track_caller]
pub fn skip(why: &str) {
    println!("skipped: {why}");
    assert_ne!(std::env::var("REKINDLE_REQUIRE_ALL").as_deref(), Ok("1"), "{why}");
}
