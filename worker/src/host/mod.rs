//! What this host provides to sandboxes: control groups, networks and namespaces. Also its load and its memory
//! pressure.

pub(crate) mod breakpoints;
pub mod cgroup;
pub mod confined;
pub mod load;
pub mod netlink_memory;
pub mod network;
pub mod pagemap;
pub mod pressure;
pub mod sandbox;
pub mod start_limiter;
