//! What this host is to sandboxes: control groups, networks, namespaces, and how busy and how short of memory it is.

pub(crate) mod breakpoints;
pub mod cgroup;
pub mod confined;
pub mod load;
pub mod network;
pub mod pressure;
pub(crate) mod probe;
pub mod sandbox;
