//! What the gateway and the worker share as relays of HTTP: an exchange outlasts a client that goes away, an answer ends by its
//! deadline whether its reader reads or not, and headers of one connection stay on it. [`Lines`] sends requests on, and [`Doors`] passes
//! them to a role of the same process.
//!
//! Both hold something for each request in flight (a slot, a place in an instance), and it must be held for exactly as long as the
//! function may be busy with it: [`Answer`] says when that is over and how.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod answer;
mod door;
mod headers;
mod lasting;
mod lines;
mod reply;
mod waking;
pub mod world;

pub use answer::{Answer, End, Held};
pub use door::{Door, Doors, Opened};
pub use headers::strip_hop_by_hop;
pub use lasting::Lasting;
pub use lines::{HeadLimits, Lines, SendError};
pub use reply::Reply;
