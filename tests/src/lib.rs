//! The end-to-end tests' own part of their harness, beside [`rekindle_testkit`], which starts platforms: ways to
//! examine one from outside. It blocks; tests are plain functions and run in parallel on threads.
//!
//! - [`mod@shared`]: one platform for all tests of a binary.
//! - [`unlike`]: the random numbers of copies, compared.
//! - [`host`]: an instance's processes and memory as the host sees them; [`memory`]: all of it compared.
//! - [`differ`]: everything else that an instance has, compared with its copies.
//! - [`eager`]: the same checkpoint restored by stock CRIU; [`first_instruction`]: copies that have not run yet;
//!   [`restorer`]: who made a copy.
//! - [`kinds`]: functions that have much of what is restored, and what they say then.
//! - [`rekindle_s3_servers`]: stores that are not ours.
//! - [`websocket`]: a function that serves WebSocket, and a client of it; [`grpc`]: a client of gRPC.
//! - [`mod@json_server`]: a program of an image; [`lazy_image`]: a large image.
//! - [`lambda`]: AWS's Lambda clients, and AWS's emulator.
//! - [`queues`]: queues whose messages functions get, and the program that reads them.
//! - [`kms`]: a key service. [`collector`]: where traces go; [`world`]: a network of the tests' own.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

pub mod adversary;
pub mod collector;
pub mod differ;
pub mod eager;
pub mod first_instruction;
pub mod grpc;
pub mod host;
pub mod json_server;
pub mod kinds;
pub mod kms;
pub mod lambda;
pub mod lazy_image;
pub mod memory;
mod moto;
mod owned;
pub mod postgres;
pub mod queues;
pub mod registers;
pub mod restorer;
pub mod shared;
pub mod unlike;
pub mod websocket;
pub mod world;

pub use json_server::json_server;
pub use rekindle_testkit::{
    Call, Client, Cluster, Folder, Options, Platform, RUNTIME, Reply, SetOnDrop, binaries, block_on, client, cluster,
    hub, leftovers, load, platform, s3, until,
};
pub use shared::shared;

/// Reports why a test cannot run here. A failure if every test is required (`REKINDLE_REQUIRE_ALL=1`).
#[track_caller]
pub fn skip(why: &str) {
    println!("skipped: {why}");
    assert_ne!(std::env::var("REKINDLE_REQUIRE_ALL").as_deref(), Ok("1"), "{why}");
}
