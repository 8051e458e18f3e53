//! Files of functions on this host: unpacked layers, and what root filesystems say of themselves.

pub(crate) mod image;
mod runtimes;
mod unpacked;

pub(crate) use runtimes::runtime_alias;
pub use unpacked::{LayerUse, Layers, LayersUse};
