//! What gateway and worker share as HTTP relays. An exchange outlives a client that goes away. A response ends by its
//! deadline, whether its reader reads or not. Hop-by-hop headers are not forwarded. [`ConnectionPool`] sends requests
//! over HTTP/1.1, [`Http2Connections`] over HTTP/2, and [`InProcessRoles`] passes them to a role in the same process.
//!
//! Both hold something for each request in flight (a slot, a place in an instance). It must be held for exactly as long
//! as the function may be busy with the request: [`TrackedBody`] tells when and how that ends.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod answer;
mod connection_pool;
mod detach_on_drop;
mod frame_budget;
mod frames;
mod grpc;
mod headers;
mod http2;
mod in_process;
mod reset;
mod tunnel;
mod waking;
mod watched;
pub mod world;

pub use answer::{ResponseEnd, ResponseGuard, TooLate, TrackedBody};
pub use connection_pool::{ConnectionPool, HeadLimits, KeepAlive, Reply, SendError};
pub use detach_on_drop::DetachOnDrop;
pub use frames::{FrameEvent, FrameHead, FrameKind, FramePosition, FrameReader, PREFACE};
pub use grpc::{call_timeout, is_grpc, shorten_call_timeout};
pub use headers::{strip_hop_by_hop_but_upgrade, strip_named};
pub use http2::{Http2Connections, StreamLimits, takes_trailers};
pub use in_process::{InProcessRegistration, InProcessRoles, InProcessService};
pub use reset::Reset;
pub use tunnel::Tunnel;
pub use watched::{WatchedStream, Watcher};
