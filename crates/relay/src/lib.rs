//! What the gateway and the worker share as relays of HTTP: an exchange outlasts a client that goes away, an answer ends by its
//! deadline whether its reader reads or not, and headers of one connection stay on it. [`ConnectionPool`] sends requests on, and [`InProcessRoles`] passes
//! them to a role of the same process.
//!
//! Both hold something for each request in flight (a slot, a place in an instance), and it must be held for exactly as long as the
//! function may be busy with it: [`TrackedBody`] says when that is over and how.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod answer;
mod connection_pool;
mod detach_on_drop;
mod headers;
mod in_process;
mod reply;
mod waking;
pub mod world;

pub use answer::{End, Held, TrackedBody};
pub use connection_pool::{ConnectionPool, HeadLimits, SendError};
pub use detach_on_drop::DetachOnDrop;
pub use headers::strip_hop_by_hop;
pub use in_process::{InProcessRegistration, InProcessRoles, InProcessService};
pub use reply::Reply;
