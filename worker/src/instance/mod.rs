//! One running instance of a function version, and its life:
//!
//! ```text
//! Starting ──ready──> Ready <──> Capturing, Parked, Moving
//!    │                  │            │
//!    └──failed, ──┐     ├──idle, asked to stop, crashed, an invocation long overdue
//!       asked     v     v
//!       to stop Stopping ──> gone (removed from the worker)
//! ```
//!
//! Requests that arrive in `Starting` or `Capturing` wait, within their deadline. A request that arrives in `Parked`
//! thaws the instance.

//!
//! - [`Instance`], [`RunningInstance`]: one copy, and what it consists of while it runs; [`Instances`]: all on this
//!   worker.
//! - [`start`]: a start, by [`restore`], by [`boot`] or from a [`runtime_snapshot`]; [`isolate`]: what all of them need
//!   first.
//! - [`checkpoint`]: a snapshot of it. [`hooks`]: the calls around that. [`parking`]: freezing it while nobody uses it.
//! - [`invoke`]: a request in it, as `inward` makes it. `answer_start`: what comes along with an answer's head.
//!   `callers`, `chain`: who calls other functions, and what led to it. `no_answer`: why it has none. `renew`: another
//!   copy for each request, or `reset`: the same, as it was before. [`overdue`]: one that does not end.
//! - `objects`: what it has from the kernel. `end`: its end. [`damage`]: what a failed restore may have found.

mod answer_start;
mod begin;
pub mod boot;
pub mod boot_pauses;
pub(crate) mod by_program;
mod callers;
mod chain;
pub mod checkpoint;
mod client;
mod counted;
pub mod damage;
pub(crate) mod device_numbers;
pub(crate) mod end;
pub mod hooks;
pub(crate) mod image_memory;
pub mod invoke;
mod inward;
pub mod isolate;
mod lifecycle;
mod lost_page;
pub(crate) mod missing;
mod no_answer;
pub(crate) mod objects;
pub mod overdue;
pub mod parking;
mod program;
pub mod randomness;
mod registry;
mod renew;
mod reset;
mod reset_point;
pub mod restore;
mod restored_memory;
pub(crate) mod room_for_images;
mod running;
pub mod runtime_snapshot;
mod secrets;
pub mod start;
mod thaw_order;
mod usage;

pub(crate) use callers::Caller;
pub use callers::Callers;
pub(crate) use client::own_url;
pub use client::{FunctionBody, FunctionClient};
pub use end::Supervisor;
pub use lifecycle::{Instance, InstanceStage, gone};
pub(crate) use lost_page::kill_on_lost_page;
pub use registry::Instances;
pub use reset::Resetter;
pub use running::{MemoryOrigin, RunningInstance};
pub use usage::{Entry, InFlight, Usage};
