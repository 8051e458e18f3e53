//! Migration of a running instance to another host.
//!
//! ```text
//!            source                                      target
//!  prepare   ask the target, start CRIU ───────────────> sandbox, CRIU, the same snapshot's template
//!  leave     wait until no request is in flight
//!            CRIU: describe the processes, not their memory
//!            bundle: images, address maps, eager pages ─> check and edit the images, CRIU restores, pager registers
//!            <──────────────────────────────── written pages are pulled meanwhile
//!            ──── go ──────────────────────────────────> they run; the rest is pushed in, or pulled by a fault
//!  done      kill the stopped processes <─────────────── every page is there
//! ```
//!
//! Until `go` the source can continue as if nothing had happened; the copy runs only on that order.
//! [`rekindle_criu::images::parent_images`] explains why CRIU dumps no memory. Unwritten pages of a template's
//! private mapping are on the target already.
//!
//! - [`source`], [`target`]: the two sides; `written`: the pages that the instance had written, as far as they are at
//!   the target.
//! - `bundle`, `header`, `page_numbering`: what is transferred, and how both sides number its pages; `peer`: the calls.
//! - `checks`: what the target accepts of it.

mod bundle;
mod checks;
mod header;
mod page_numbering;
mod peer;
pub mod source;
pub mod target;
mod written;

pub use peer::Peers;
pub use source::MigrationSources;
pub use target::{MigrationTargets, TargetHost};

/// Marks the page number of a written page, which has to be transferred, in a snapshot. The number is the page's number
/// in the process's address space with this bit set: no address has it.
const WRITTEN: u64 = 1 << 52;
