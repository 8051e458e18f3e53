//! The tiny init of a sandbox: pid 1 of its pid namespace.
//!
//! The worker starts this program once, with a control socket, and it forks for each sandbox ([`zygote`]): a process
//! outside, root on the host, that makes the sandbox ([`outside`], [`namespaces`]), and init in it, which is nobody
//! on the host; the worker tells each what to do, see [`protocol`].
//!
//! Init lays out the files ([`rootfs`]) of a machine of the size that was asked for (`machine`), starts the function
//! with its privileges taken away ([`spawn`], [`seccomp`]), starts CRIU inside the same namespaces ([`criu`]) with a
//! way for a pager to reach the memory it will restore ([`ancestor`]), refuses a checkpoint that would miss a process
//! ([`strays`]) or an IPC object ([`ipc`]), saves and loads the private files that belong to a snapshot ([`files`]),
//! and reaps whatever dies ([`reactor`]). When the control socket closes, it exits, and with it the whole sandbox: a
//! worker that is killed leaves no sandbox behind. A CRIU that dumps comes from outside ([`dumper`]).

pub mod ancestor;
pub mod causes;
pub mod clocks;
pub mod criu;
pub mod descriptors;
pub mod devices;
pub mod dumper;
pub mod files;
mod in_place;
pub mod ipc;
pub mod locks;
mod machine;
pub mod namespaces;
pub mod outside;
pub mod protocol;
pub mod reactor;
pub mod rootfs;
pub mod seccomp;
pub mod spawn;
pub mod strays;
pub mod zygote;
