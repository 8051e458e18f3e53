//! A whole platform with real sandboxes, real CRIU, the S3 protocol and HTTP, started for a test or a measurement, and
//! used as its users and its operator do. It blocks; what may fail in a measurement returns an error, and the rest
//! panics.
//!
//! - [`platform`]: `fn up --foreground` in its own directories.
//! - [`cluster`]: a platform with one process for each role, on several hosts, which [`hub`] makes, or on this one.
//! - [`client`]: either platform as its users see it; [`call`]: requests and responses; [`load`]: many of them.
//! - [`folder`]: functions to deploy; [`binaries`]: the programs.
//! - [`child`]: processes that end with the thread that started them; [`processes`]: processor time.
//! - [`leftovers`]: what must not remain.
//! - [`s3`]: an object store that can be made to hang, die, lie or answer late.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

pub mod binaries;
pub mod call;
pub mod child;
pub mod client;
pub mod cluster;
pub mod folder;
pub mod hub;
mod imported;
pub mod leftovers;
pub mod load;
pub mod platform;
pub mod processes;
pub mod s3;
mod s3_server;
pub mod set_on_drop;
pub mod wait;

use std::sync::{LazyLock, mpsc};

pub use call::{Call, Reply};
pub use client::Client;
pub use cluster::Cluster;
pub use folder::Folder;
pub use platform::{Options, Platform};
pub use set_on_drop::SetOnDrop;
pub use wait::until;

/// Runs the harness's own futures. It outlives every test, so that connections may be kept between tests.
pub static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

/// Runs a future on [`RUNTIME`] and blocks for its outcome, also on a thread that runs futures of its own.
///
/// # Panics
/// If the future does.
#[track_caller]
pub fn block_on<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = mpsc::sync_channel(1);
    RUNTIME.spawn(async move {
        let outcome = tokio::spawn(future).await;
        // Whoever waits is still there: it blocks.
        let _received = sender.send(outcome);
    });
    // With the message of its panic: that of another thread is not shown with the test's output.
    receiver.recv().unwrap().unwrap_or_else(|error| panic!("{error}"))
}
