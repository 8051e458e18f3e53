//! Files of functions on this host: unpacked layers, and what root filesystems say of themselves.

pub(crate) mod image;
mod lazy;
mod runtimes;
mod unpacked;

pub(crate) use lazy::{is_possible, sweep};
pub(crate) use runtimes::runtime_alias;
pub use unpacked::{LayerUse, Layers, LayersUse};
