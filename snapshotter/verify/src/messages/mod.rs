//! The messages of CRIU's images, whole: what is not declared here is refused. Fields are called as in CRIU's `images/*.proto` of
//! version 4.2, the source of all numbers. Strings are bytes, as a path need not be UTF-8.

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
