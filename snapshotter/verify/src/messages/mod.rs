//! Complete declarations of the messages in CRIU's images: whatever is not declared here is rejected. Field names are
//! those of CRIU 4.2's `images/*.proto`, the source of all numbers. Strings are bytes, because a path need not be
//! UTF-8.

#![expect(missing_docs, reason = "the fields are CRIU's, and so are their meanings")]

mod core;
mod files;
mod memory;
mod sockets;
mod tree;

pub use self::core::*;
pub use files::*;
pub use memory::*;
pub use sockets::*;
pub use tree::*;

use prost::Message;

/// Who is signalled of events of a file.
#[derive(Clone, PartialEq, Message)]
pub struct Owner {
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    #[prost(uint32, required, tag = "2")]
    pub euid: u32,
    #[prost(uint32, required, tag = "3")]
    pub signum: u32,
    #[prost(uint32, required, tag = "4")]
    pub pid_type: u32,
    #[prost(uint32, required, tag = "5")]
    pub pid: u32,
}
