//! The small init of a sandbox: pid 1 of its pid namespace.
//!
//! The worker starts this program once, with a control socket, and it forks for each sandbox ([`zygote`]). One process
//! stays outside as root on the host and makes the sandbox ([`outside`], [`namespaces`]). The other is init inside the
//! sandbox, which is nobody on the host. The worker sends requests to each, see [`protocol`].
//!
//! Init lays out the files ([`rootfs`]) of a machine of the requested size (`machine`), and starts the function with
//! its privileges removed ([`spawn`], [`seccomp`]). It starts CRIU inside the same namespaces ([`criu`]), with a way
//! for a pager to reach the memory that CRIU will restore ([`ancestor`]). A process that adopts orphans does so from
//! its `birth` on. Beside it waits a process that restores without CRIU (`hollow`). It rejects a checkpoint that would
//! miss a process ([`strays`]) or an IPC object ([`ipc`]). It saves and loads the private files of a snapshot
//! ([`files`]), writes [`secrets`], and reaps dead processes ([`reactor`]). When the control socket closes, init exits,
//! and the whole sandbox with it: a killed worker leaves no sandbox behind. A CRIU that dumps comes from outside
//! ([`dumper`]).

pub mod ancestor;
mod birth;
pub mod causes;
pub mod clocks;
pub mod criu;
pub mod descriptors;
pub mod devices;
pub mod dumper;
pub mod files;
mod hollow;
mod in_place;
pub mod ipc;
pub mod locks;
mod machine;
mod mounts;
pub mod namespaces;
pub mod outside;
pub mod protocol;
pub mod reactor;
pub mod rootfs;
pub mod seccomp;
pub mod secrets;
pub mod spawn;
pub mod strays;
pub mod zygote;
