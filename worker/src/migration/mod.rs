//! Moving a running instance to another host.
//!
//! ```text
//!            source (departure)                          target (arrival)
//!  prepare   ask the target, start CRIU ───────────────> sandbox, CRIU, the same snapshot's template
//!  leave     no request in it any more
//!            CRIU: describe the processes, not their memory
//!            bundle: images, address maps, eager pages ─> check them, edit the images, CRIU restores, the pager registers
//!            <──────────────────────────────── written pages are pulled meanwhile
//!            ──── go ──────────────────────────────────> they run; the rest is pushed in, or pulled by a fault
//!  done      kill what stood still <──────────────────── every page is there
//! ```
//!
//! Until `go` the source can go on as if nothing had been; the copy runs only when told so. Why CRIU dumps no memory is said in
//! [`rekindle_snapshotter::images::parent_images`]. What a private mapping of a template has not written is on the target already.
//!
//! - [`departure`], `left`: the source; [`arrival`], `written`: the target.
//! - `bundle`, `numbered`: what goes over, and how both count its pages; `peer`: the calls.
//! - `checks`: what of it the target believes.
//! - `tracking`: what CRIU is told of the kernel.

mod bundle;
mod checks;
mod page_numbering;
mod peer;
pub mod source;
pub mod target;
mod tracking;
mod written;

pub use source::MigrationSources;
pub use target::MigrationTargets;
pub use tracking::{Tracking, with_tracking};
pub use written::WrittenPages;

/// The page number in a snapshot of a page that was written, and so travels, is its number in the process's address space with
/// this bit set: no address has it.
const WRITTEN: u64 = 1 << 52;
